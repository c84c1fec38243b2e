"""States of the lease coordinator, made by events."""

from __future__ import annotations

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.state import Settings, State, Steps
from spark_ssp.checkpoint.leases.conditional_writes import Create, Done, Write, to_update
from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.checkpoint.leases.lease_store import Rows, parse_lease
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from tests.support.leases.memory_store import changed
from tests.support.leases.values import ANNE

FAILOVER = 10_000
NOBODY = KclWorkers()


def fresh(**settings: int) -> State:
    """Return Anne's state before her first scan."""
    return lease_coordinator.initial_state(Settings(worker=ANNE, failover_ms=FAILOVER, **settings))


def scan(state: State, *rows: Lease, now: int, kcl_workers: KclWorkers = NOBODY) -> State:
    """Apply a scan that takes no time."""
    begun = lease_coordinator.mark_started(
        state, Steps(writes=(), scan=True, metrics=False, wake_at=now), now
    )
    leases = tuple(sorted(rows, key=lambda row: row.key))
    return lease_coordinator.apply_scan(
        begun, Rows(leases=leases, foreign=(), malformed=()), kcl_workers, now
    )


def steps(state: State, now: int, draw: float = 0.0) -> Steps:
    """Return the due steps."""
    return lease_coordinator.next_steps(state, now, draw)


def writes(state: State, now: int, draw: float = 0.0) -> list[Write]:
    """Return the due writes."""
    return list(steps(state, now, draw).writes)


def kinds(state: State, now: int) -> list[str]:
    """Return the classes of the due writes."""
    return [type(write).__name__ for write in writes(state, now)]


def effect(write: Write) -> Lease:
    """Return the row after a write whose condition holds."""
    old = None if isinstance(write, Create) else encode(write.lease)
    after = parse_lease(changed(to_update(write), old))
    return write.lease if after is None else after


def do(state: State, now: int, *, took: int = 0) -> State:
    """Execute the due writes successfully; their answers arrive `took` later."""
    due = steps(state, now)
    state = lease_coordinator.mark_started(
        state, Steps(writes=due.writes, scan=False, metrics=False, wake_at=now), now
    )
    for write in due.writes:
        state = lease_coordinator.apply_write_results(
            state, [(write, Done(lease=effect(write)), now + took)]
        )
    return state


def holding(*rows: Lease, now: int = 0, **settings: int) -> State:
    """Return a state in which Anne has observed these rows and holds her own, renewed at `now`."""
    state = scan(fresh(**settings), *rows, now=now)
    for row in rows:
        if row.holder == ANNE and row.key in {write.lease.key for write in writes(state, now)}:
            (renewal,) = [write for write in writes(state, now) if write.lease.key == row.key]
            state = lease_coordinator.mark_started(
                state, Steps(writes=(renewal,), scan=False, metrics=False, wake_at=now), now
            )
            state = lease_coordinator.apply_write_results(
                state, [(renewal, Done(lease=effect(renewal)), now)]
            )
    return state
