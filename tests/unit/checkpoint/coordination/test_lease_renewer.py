"""What is written, and when, for leases that are held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.coordination.state import State
from spark_ssp.checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Conflict,
    Evict,
    Renew,
)
from spark_ssp.checkpoint.leases.lease import LeaseKey, Progress
from spark_ssp.common.errors import AccessError, ServiceUnavailableError
from tests.support.leases.states import do, effect, fresh, holding, kinds, scan, steps, writes
from tests.support.leases.values import ANNE, BERT, SHARD, lease, processed

KEY = LeaseKey(SHARD)
MINE = lease(counter=7, owner=ANNE, ssp_owner=ANNE, progress=processed(100))
ASKED = replace(MINE, owner=BERT, checkpoint_owner=ANNE)
DOWN = ServiceUnavailableError("table", found="nothing", expected="an answer", next_step="wait")


def tell(progress: Progress | None = None, *, reading: bool = True, leave: bool = False) -> Report:
    return Report(
        progress={} if progress is None else {KEY: progress},
        reading=frozenset({KEY} if reading else ()),
        leave=leave,
    )


def test_a_lease_that_is_mine_by_the_table_is_renewed_and_then_held() -> None:
    """Left by the last process, assigned by a leader, or handed over."""
    state = scan(fresh(), replace(MINE, ssp_owner=None), now=0)
    assert not lease_coordinator.build_status(state, 0).held
    assert writes(state, 0) == [Renew(lease=replace(MINE, ssp_owner=None))]
    state = do(state, 0)
    assert lease_coordinator.build_status(state, 0).held == {KEY: replace(MINE, counter=8)}


def test_progress_of_a_lease_that_another_takes_before_it_is_held_again_is_void() -> None:
    state = lease_coordinator.apply_report(scan(fresh(), MINE, now=0), tell(processed(200)), 1)
    assert dict(state.reported.progress) == {KEY: processed(200)}
    taken = scan(state, replace(MINE, counter=8, owner=BERT), now=5_000)
    assert dict(taken.reported.progress) == {}
    kept = do(do(state, 2), 3)
    assert kept.observed[KEY].lease.progress == processed(200)
    told = lease_coordinator.apply_report(taken, tell(processed(300)), 5_001)
    assert dict(told.reported.progress) == {}


def test_a_lease_is_renewed_every_third_of_the_failover_time() -> None:
    state = holding(MINE)
    assert steps(state, 1).wake_at == 3_333
    assert kinds(state, 3_332) == []
    assert kinds(state, 3_333) == ["Renew"]


def test_the_failover_time_counts_from_when_the_renewal_was_sent() -> None:
    """An observer may have seen the new counter right then, however late the answer comes."""
    state = do(holding(MINE), 3_333, took=2_000)
    assert set(lease_coordinator.build_status(state, 13_332).held) == {KEY}
    late = lease_coordinator.build_status(state, 13_333)
    assert (late.held, late.overdue) == ({}, frozenset({KEY}))


def test_after_a_pause_a_renewal_tells_whether_the_lease_is_held() -> None:
    state = lease_coordinator.apply_report(holding(MINE), tell(processed(200)), 1)
    assert kinds(state, 30_000) == ["Renew"]
    renewal = writes(state, 30_000)[0]
    kept = do(state, 30_000)
    assert set(lease_coordinator.build_status(kept, 30_000).held) == {KEY}
    taken = replace(effect(renewal), owner=BERT)
    drop_lease = lease_coordinator.apply_write_results(
        state, [(renewal, Conflict(found=taken), 30_000)]
    )
    assert lease_coordinator.build_status(drop_lease, 30_000).overdue == frozenset()
    assert lease_coordinator.build_status(drop_lease, 30_000).rows[KEY].owner == BERT


# --- Progress ------------------------------------------------------------------------------------


def test_progress_is_written_at_once_and_then_every_interval() -> None:
    state = lease_coordinator.apply_report(holding(MINE), tell(processed(200)), 1)
    assert writes(state, 1) == [Checkpoint(lease=replace(MINE, counter=8), progress=processed(200))]
    state = lease_coordinator.apply_report(do(state, 1), tell(processed(300)), 100)
    assert kinds(state, 5_000) == []
    assert kinds(state, 5_001) == ["Checkpoint"]


def test_a_checkpoint_that_is_due_soon_takes_the_place_of_a_renewal() -> None:
    state = lease_coordinator.apply_report(holding(MINE), tell(processed(200)), 1)
    state = lease_coordinator.apply_report(do(state, 1), tell(processed(300)), 100)
    assert kinds(state, 4_999) == []
    assert kinds(state, 5_001) == ["Checkpoint"]


def test_a_checkpoint_that_is_not_due_soon_does_not() -> None:
    state = holding(MINE, checkpoint_interval_ms=60_000)
    state = do(lease_coordinator.apply_report(state, tell(processed(200)), 1), 1)
    state = lease_coordinator.apply_report(state, tell(processed(300)), 100)
    assert kinds(state, 3_334) == ["Renew"]


@pytest.mark.parametrize("old", [processed(100), processed(99), lease().progress])
def test_progress_never_goes_back(old: Progress) -> None:
    state = lease_coordinator.apply_report(holding(MINE), tell(old), 1)
    assert kinds(state, 1) == []


def test_progress_of_a_lease_that_is_not_held_is_ignored() -> None:
    state = scan(fresh(), replace(MINE, owner=BERT), now=0)
    state = lease_coordinator.apply_report(state, tell(processed(200)), 1)
    state = scan(state, replace(MINE, counter=9), now=2)
    assert kinds(state, 2) == ["Renew"]
    assert kinds(do(state, 2), 3) == []


# --- Handing over --------------------------------------------------------------------------------


def asked() -> State:
    """Anne holds the lease and has learnt that Bert wants it."""
    state = scan(holding(MINE), replace(ASKED, counter=8), now=100)
    return lease_coordinator.apply_report(state, tell(processed(200)), 200)


def test_a_lease_that_is_read_is_kept_and_renewed() -> None:
    state = do(asked(), 200)
    assert lease_coordinator.build_status(state, 200).asked_for == {KEY}
    assert kinds(state, 3_000) == []
    assert kinds(state, 4_000) == ["Renew"]


def test_what_is_read_no_longer_is_handed_over_after_the_last_checkpoint() -> None:
    state = lease_coordinator.apply_report(asked(), tell(processed(200), reading=False), 300)
    assert kinds(state, 300) == ["Checkpoint"]
    state = do(state, 300)
    (given,) = writes(state, 300)
    assert isinstance(given, Assign)
    assert given.owner == BERT
    state = do(state, 300)
    assert not lease_coordinator.build_status(state, 300).held
    assert kinds(state, 20_000) == []


def test_a_lease_that_may_be_in_the_offset_being_planned_is_kept() -> None:
    """The reader was told that it holds the lease, and not that it is asked for. Only with its next
    report does it say that it knows."""
    state = lease_coordinator.apply_report(holding(MINE), tell(reading=False), 50)
    state = scan(state, replace(ASKED, counter=8), now=100)
    assert lease_coordinator.build_status(state, 100).asked_for == {KEY}
    assert kinds(state, 100) == []
    state = lease_coordinator.apply_report(state, tell(reading=False), 200)
    assert kinds(state, 200) == ["Assign"]


def test_a_renewal_that_fails_for_a_request_is_no_loss() -> None:
    state = holding(MINE)
    (renewal,) = writes(state, 3_333)
    found = replace(ASKED, counter=8)
    state = lease_coordinator.apply_write_results(state, [(renewal, Conflict(found=found), 3_340)])
    assert lease_coordinator.build_status(state, 3_340).asked_for == {KEY}
    assert writes(state, 3_340) == [Renew(lease=found)]


def test_a_lease_that_came_back_after_another_had_it_is_a_new_one() -> None:
    """It is renewed before it counts, and its progress is the row's."""
    state = lease_coordinator.apply_report(holding(MINE), tell(processed(150)), 1)
    back = replace(MINE, counter=12, progress=processed(900))
    state = scan(state, back, now=100)
    assert not lease_coordinator.build_status(state, 100).held
    assert writes(state, 100) == [Renew(lease=back)]
    state = do(state, 100)
    assert lease_coordinator.build_status(state, 100).held[KEY].progress == processed(900)
    assert kinds(state, 101) == []


# --- Leaving -------------------------------------------------------------------------------------


def test_leaving_gives_back_what_is_not_read() -> None:
    state = lease_coordinator.apply_report(holding(MINE), tell(processed(200), leave=True), 1)
    assert lease_coordinator.build_status(state, 1).asked_for == {KEY}
    assert kinds(do(state, 1), 1) == []
    state = lease_coordinator.apply_report(
        do(state, 1), tell(processed(300), reading=False, leave=True), 2
    )
    assert kinds(state, 2) == ["Checkpoint"]
    state = do(state, 2)
    (given,) = writes(state, 2)
    assert isinstance(given, Evict)
    assert not lease_coordinator.is_finished(state)
    state = do(state, 2)
    assert lease_coordinator.build_status(state, 2).released


def test_leaving_takes_nothing_and_gives_back_what_is_not_held_yet() -> None:
    others = [lease("shardId-000000000001"), replace(MINE, shard=lease("shardId-2").shard)]
    state = lease_coordinator.apply_report(scan(fresh(), *others, now=0), Report(leave=True), 1)
    assert kinds(state, 1) == ["Evict"]


def test_leaving_withdraws_requests() -> None:
    """Else a lease would be handed over to one who is gone."""
    theirs = replace(MINE, owner=ANNE, checkpoint_owner=BERT)
    state = lease_coordinator.apply_report(scan(fresh(), theirs, now=0), Report(leave=True), 1)
    assert writes(state, 1) == [Assign(lease=theirs, owner=BERT)]
    assert not lease_coordinator.is_finished(state)
    assert lease_coordinator.is_finished(do(state, 1))


def test_closing_writes_what_is_known_and_gives_all_back_at_once() -> None:
    state = lease_coordinator.apply_report(holding(MINE), tell(processed(200)), 1)
    state = lease_coordinator.start_shutdown(state)
    assert kinds(state, 2) == ["Checkpoint"]
    state = do(state, 2)
    assert kinds(state, 2) == ["Evict"]
    assert lease_coordinator.is_finished(do(state, 2))


# --- A table that fails --------------------------------------------------------------------------


def failing(state: State, now: int) -> State:
    """The write that is due fails."""
    due = steps(state, now)
    state = lease_coordinator.mark_started(state, due, now)
    for write in due.writes:
        state = lease_coordinator.apply_write_results(state, [(write, DOWN, now + 10)])
    if due.scan:
        state = lease_coordinator.apply_scan_failure(state, DOWN, now + 10)
    return state


def test_a_failed_renewal_is_tried_again_soon() -> None:
    state = failing(holding(MINE), 3_333)
    assert kinds(state, 4_342) == []
    assert kinds(state, 4_343) == ["Renew"]


def test_a_write_in_doubt_that_took_effect_keeps_the_lease() -> None:
    state = failing(holding(MINE), 3_333)
    found = replace(MINE, counter=9)
    state = lease_coordinator.apply_write_results(
        state, [(Renew(lease=MINE), Conflict(found=found), 5_000)]
    )
    assert set(lease_coordinator.build_status(state, 13_332).held) == {KEY}
    assert not lease_coordinator.build_status(state, 13_333).held


def test_what_does_not_pass_is_a_problem() -> None:
    error = AccessError("table", found="no permission", expected="one", next_step="grant it")
    state = holding(MINE)
    (renewal,) = writes(state, 3_333)
    failed = lease_coordinator.apply_write_results(state, [(renewal, error, 3_400)])
    assert lease_coordinator.build_status(failed, 3_400).problem is error
    assert lease_coordinator.build_status(failed, 3_400).outage_ms == 0
    failed = lease_coordinator.apply_scan_failure(state, error, 3_400)
    assert lease_coordinator.build_status(failed, 3_400).problem is error
    assert lease_coordinator.build_status(scan(failed, MINE, now=4_000), 4_000).problem is None


def test_after_the_end_a_lease_that_cannot_be_given_back_runs_out() -> None:
    state = lease_coordinator.start_shutdown(holding(MINE))
    for now in range(1, 12_000, 1_100):
        state = failing(state, now)
    assert not state.held
