"""States of a worker's coordination, made by what it sees and does."""

from __future__ import annotations

from checkpoint.coordination import lease_coordinator as coordination
from checkpoint.coordination.lease_coordinator import Settings, State, Steps
from checkpoint.leases.conditional_writes import Create, Done, Write, change_of
from checkpoint.leases.lease import Lease
from checkpoint.leases.lease_serializer import encode
from checkpoint.leases.lease_store import Rows
from checkpoint.leases.memory_store import changed
from checkpoint.leases.row_parsing import lease_of_item
from checkpoint.leases.worker_metrics import CoWorkers
from tests.support.leases.values import ANNE

FAILOVER = 10_000
NOBODY = CoWorkers()


def fresh(**settings: int) -> State:
    """Anne, before her first scan."""
    return coordination.initial(Settings(worker=ANNE, failover_ms=FAILOVER, **settings))


def scan(state: State, *rows: Lease, now: int, co_workers: CoWorkers = NOBODY) -> State:
    """The table was scanned, at once."""
    begun = coordination.started(
        state, Steps(writes=(), scan=True, metrics=False, wake_at=now), now
    )
    leases = tuple(sorted(rows, key=lambda row: row.key))
    return coordination.scanned(
        begun, Rows(leases=leases, foreign=(), malformed=()), co_workers, now
    )


def steps(state: State, now: int, draw: float = 0.0) -> Steps:
    """What is due."""
    return coordination.next_steps(state, now, draw)


def writes(state: State, now: int, draw: float = 0.0) -> list[Write]:
    """The writes that are due."""
    return list(steps(state, now, draw).writes)


def kinds(state: State, now: int) -> list[str]:
    """Their kinds."""
    return [type(write).__name__ for write in writes(state, now)]


def effect(write: Write) -> Lease:
    """The row after the write, on the row that it expects."""
    old = None if isinstance(write, Create) else encode(write.lease)
    after = lease_of_item(changed(change_of(write), old))
    return write.lease if after is None else after


def do(state: State, now: int, *, took: int = 0) -> State:
    """Do the writes that are due, all with success; their answers come `took` later."""
    due = steps(state, now)
    state = coordination.started(
        state, Steps(writes=due.writes, scan=False, metrics=False, wake_at=now), now
    )
    for write in due.writes:
        state = coordination.written(state, write, Done(lease=effect(write)), now + took)
    return state


def holding(*rows: Lease, now: int = 0, **settings: int) -> State:
    """Anne has seen these rows, and holds those that say so, renewed just now."""
    state = scan(fresh(**settings), *rows, now=now)
    for row in rows:
        if row.holder == ANNE and row.key in {write.lease.key for write in writes(state, now)}:
            (renewal,) = [write for write in writes(state, now) if write.lease.key == row.key]
            state = coordination.started(
                state, Steps(writes=(renewal,), scan=False, metrics=False, wake_at=now), now
            )
            state = coordination.written(state, renewal, Done(lease=effect(renewal)), now)
    return state
