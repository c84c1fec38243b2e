"""Since when the table could not be used, as a worker tells its reader."""

from __future__ import annotations

from dataclasses import replace

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.state import State
from spark_ssp.common.errors import ServiceUnavailableError
from tests.support.leases.states import FAILOVER, do, fresh, holding, scan, steps
from tests.support.leases.values import ANNE, BERT, lease, processed

MINE = lease(counter=7, owner=ANNE, ssp_owner=ANNE, progress=processed(100))
OTHERS = lease("shardId-000000000009", counter=1, owner=BERT, ssp_owner=BERT)
FREE = lease("shardId-000000000009", counter=2)
DOWN = ServiceUnavailableError("table", found="nothing", expected="an answer", next_step="wait")


def half_failing(state: State, now: int, *, reads: bool, writes: bool) -> State:
    """What is due is done; some of it fails."""
    due = steps(state, now)
    if due.writes and not writes:
        state = do(state, now)
    elif due.writes:
        state = lease_coordinator.mark_started(state, due, now)
        for write in due.writes:
            state = lease_coordinator.apply_write_results(state, [(write, DOWN, now + 10)])
    if due.scan and reads:
        state = lease_coordinator.mark_started(state, replace(due, writes=()), now)
        state = lease_coordinator.apply_scan_failure(state, DOWN, now + 10)
    elif due.scan:
        state = scan(state, *(row.lease for row in state.observed.values()), now=now)
    return state


def outage(state: State, now: int) -> int:
    return lease_coordinator.build_status(state, now).outage_ms


def run(state: State, begin: int, end: int, *, reads: bool = False, writes: bool = False) -> State:
    for now in range(begin, end, 100):
        state = half_failing(state, now, reads=reads, writes=writes)
    return state


def test_an_outage_lasts_from_the_first_failed_call_to_the_first_answers() -> None:
    state = run(holding(MINE), 1, 9_000, reads=True, writes=True)
    assert outage(state, 9_000) == 9_000 - 3_401
    written = run(state, 9_001, 10_500, reads=True)
    assert outage(written, 10_500) == 10_500 - 5_001
    assert outage(run(written, 10_501, 12_000), 12_000) == 0


def test_scans_that_succeed_do_not_end_an_outage_of_writes() -> None:
    state = run(holding(MINE), 1, 60 * FAILOVER, writes=True)
    assert outage(state, 60 * FAILOVER) == 60 * FAILOVER - 3_401
    assert outage(run(state, 60 * FAILOVER, 61 * FAILOVER), 61 * FAILOVER) == 0


def test_writes_that_succeed_do_not_end_an_outage_of_reads() -> None:
    """Else nobody would know that leases of a dead worker are not seen to expire."""
    state = run(holding(MINE, OTHERS), 1, 60 * FAILOVER, reads=True)
    assert outage(state, 60 * FAILOVER) == 60 * FAILOVER - 5_001
    assert lease_coordinator.build_status(state, 60 * FAILOVER).held
    assert outage(run(state, 60 * FAILOVER, 61 * FAILOVER), 61 * FAILOVER) == 0


def test_a_worker_that_cannot_take_a_free_lease_tells_of_an_outage() -> None:
    state = run(scan(fresh(), FREE, now=0), 1, 6 * FAILOVER, writes=True)
    assert outage(state, 6 * FAILOVER) > 5 * FAILOVER


def test_a_write_that_failed_and_that_nobody_wants_any_more_is_no_outage() -> None:
    """Another has taken the lease meanwhile: this worker has nothing to write."""
    state = half_failing(scan(fresh(), FREE, now=0), 1, reads=False, writes=True)
    state = scan(state, OTHERS, now=500)
    assert outage(state, 500) == 499
    for now in range(1_000, 3 * FAILOVER, 1_000):
        state = scan(state, lease(OTHERS.shard, counter=now, owner=BERT, ssp_owner=BERT), now=now)
    assert outage(state, 3 * FAILOVER) == 0
