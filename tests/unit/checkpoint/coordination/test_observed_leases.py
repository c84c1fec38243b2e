"""What scans and answers say of rows, and which of them counts."""

from __future__ import annotations

from dataclasses import replace

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.observed_leases import count_leases
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.coordination.state import State
from spark_ssp.checkpoint.leases.conditional_writes import (
    Conflict,
    Create,
    Done,
    Renew,
    RequestHandoff,
    Take,
)
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, ShardEnded
from spark_ssp.checkpoint.leases.lease_store import Rows
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from spark_ssp.common.errors import ServiceUnavailableError
from tests.support.leases.states import do, effect, fresh, holding, kinds, scan, steps, writes
from tests.support.leases.values import ANNE, BERT, CARL, SHARD, lease, processed

KEY = LeaseKey(SHARD)
FREE = lease(counter=3, progress=processed(100))
MINE = replace(FREE, owner=ANNE, ssp_owner=ANNE)
DOWN = ServiceUnavailableError("table", found="nothing", expected="an answer", next_step="wait")


def under_way(state: State, now: int) -> State:
    """What is due was sent."""
    return lease_coordinator.mark_started(state, steps(state, now), now)


def rows(*leases: Lease) -> Rows:
    return Rows(leases=leases, foreign=(), malformed=())


def rows_of(state: State) -> dict[LeaseKey, int]:
    return {key: row.counter for key, row in lease_coordinator.build_status(state, 0).rows.items()}


def test_the_first_scan_is_recorded() -> None:
    assert fresh().timestamps.scanned_at is None
    assert scan(fresh(), now=0).timestamps.scanned_at == 0


def test_a_row_that_is_being_written_is_not_written_again() -> None:
    state = under_way(scan(fresh(), FREE, now=0), 0)
    assert kinds(state, 1) == []
    assert kinds(state, 4_000) == []


def test_a_scan_says_nothing_of_a_row_that_was_written_since_it_began() -> None:
    """Its page may have been read before the write."""
    state = scan(fresh(), FREE, now=0)
    (take,) = writes(state, 5_000)
    state = under_way(state, 5_000)  # the scan as well
    state = lease_coordinator.apply_write_results(state, [(take, Done(lease=effect(take)), 5_010)])
    begun = lease_coordinator.apply_scan(state, rows(FREE), KclWorkers(), 5_020)
    assert rows_of(begun) == {KEY: 4}
    assert set(begun.held) == {KEY}


def test_a_scan_says_nothing_of_a_row_that_is_being_written() -> None:
    state = under_way(holding(MINE), 5_000)
    state = lease_coordinator.apply_scan(state, rows(MINE), KclWorkers(), 5_020)
    assert set(state.held) == {KEY}


def test_one_scan_at_a_time() -> None:
    state = under_way(fresh(), 0)
    assert not steps(state, 60_000).scan
    assert steps(lease_coordinator.apply_scan_failure(state, DOWN, 200), 1_000).scan


def test_what_a_kcl_2_worker_takes_during_a_handoff_is_lost() -> None:
    """Its take leaves the attributes of the handoff: to a worker that is started again too, the
    lease is another's."""
    asked = effect(RequestHandoff(lease=effect(Renew(lease=MINE)), to=BERT))
    taken = replace(asked, owner=CARL, counter=asked.counter + 1, switches=asked.switches + 1)
    for state in (scan(holding(MINE), taken, now=100), scan(fresh(), taken, now=0)):
        assert not lease_coordinator.build_status(state, 100).held
        assert kinds(state, 100) == []
        assert count_leases(state, 100) == {ANNE: 0, CARL: 1}
        assert lease_coordinator.is_finished(lease_coordinator.start_shutdown(state))


def test_a_row_that_is_gone_is_forgotten_and_its_lease_lost() -> None:
    state = scan(holding(MINE), now=100)
    assert rows_of(state) == {}
    assert not lease_coordinator.build_status(state, 100).held
    assert kinds(state, 100) == []


def test_a_lease_ended_by_another_is_lost() -> None:
    state = scan(holding(MINE), replace(MINE, counter=9, progress=ShardEnded()), now=100)
    assert not state.held
    assert kinds(state, 100) == []


def test_a_take_in_doubt_that_took_effect_is_adopted() -> None:
    state = scan(fresh(), FREE, now=0)
    (take,) = writes(state, 0)
    state = lease_coordinator.apply_write_results(under_way(state, 0), [(take, DOWN, 10)])
    assert kinds(state, 900) == []
    (again,) = writes(state, 1_010)
    assert isinstance(again, Take)
    state = lease_coordinator.apply_write_results(
        state, [(again, Conflict(found=effect(take)), 1_020)]
    )
    assert kinds(state, 1_020) == ["Renew"]
    assert set(do(state, 1_020).held) == {KEY}


def test_another_under_way_is_no_obstacle_for_the_rest() -> None:
    second = lease("shardId-000000000001")
    state = under_way(scan(fresh(), FREE, second, now=0), 0)
    first, _ = (state.in_flight[key].write for key in sorted(state.in_flight))
    state = lease_coordinator.apply_write_results(state, [(first, Done(lease=effect(first)), 100)])
    assert kinds(state, 3_500) == ["Renew"]


# --- Rows to create ------------------------------------------------------------------------------


def test_rows_are_created_as_the_reader_says() -> None:
    state = lease_coordinator.apply_report(scan(fresh(), now=0), Report(create=(FREE,)), 1)
    assert writes(state, 1) == [Create(lease=FREE)]
    state = do(state, 1)
    assert [kind for kind in kinds(state, 1) if kind == "Create"] == []


def test_a_row_that_is_there_is_let_be() -> None:
    state = lease_coordinator.apply_report(scan(fresh(), MINE, now=0), Report(create=(FREE,)), 1)
    assert kinds(state, 1) == ["Renew"]
    empty = lease_coordinator.apply_report(scan(fresh(), now=0), Report(create=(FREE,)), 1)
    (create,) = writes(empty, 1)
    taken = replace(MINE, owner=BERT, ssp_owner=BERT)
    state = lease_coordinator.apply_write_results(empty, [(create, Conflict(found=taken), 2)])
    assert kinds(state, 2) == []
    assert rows_of(state) == {KEY: 3}


def test_shards_missing_before_a_scan_must_be_reported_again() -> None:
    """It may have been created, read to the end and deleted by others meanwhile."""
    report = Report(create=(FREE,))
    told = lease_coordinator.apply_report(scan(fresh(), now=0), report, 1)
    assert kinds(scan(told, now=5_000), 5_000) == []
    assert kinds(told, 30_000) == []
    assert kinds(scan(lease_coordinator.apply_report(fresh(), report, 0), now=1), 1) == ["Create"]


def test_a_steps_wake_is_always_ahead() -> None:
    for state in (fresh(), scan(fresh(), FREE, now=0), holding(MINE)):
        for now in (0, 3_333, 5_000, 50_000):
            assert steps(state, now).wake_at > now
