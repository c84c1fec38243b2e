"""Which leases of others are taken or asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.lease_taker import plan_takes, rotate
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.coordination.state import ObservedLease, State
from spark_ssp.checkpoint.leases.conditional_writes import Conflict, RequestHandoff, Take
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, ShardEnded, StreamIdentifier
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from spark_ssp.grouping.identifiers import StreamName, WorkerId
from tests.support.leases.states import FAILOVER, do, fresh, holding, kinds, scan, steps, writes
from tests.support.leases.values import ANNE, BERT, CARL, lease, processed


def row(number: int, owner: WorkerId | None = None, *, ours: bool = True, **more: object) -> Lease:
    return lease(
        f"shardId-{number:012d}",
        **({"counter": 1, "owner": owner, "ssp_owner": owner if ours else None} | more),
    )


def keys(state: State, now: int, draw: float = 0.0) -> list[int]:
    """The numbers of the shards that are taken."""
    return [int(w.lease.shard[-4:]) for w in writes(state, now, draw) if isinstance(w, Take)]


# --- Free ones -----------------------------------------------------------------------------------


def test_nothing_is_done_before_the_first_scan() -> None:
    state = lease_coordinator.apply_report(fresh(), Report(create=(row(0),)), 0)
    due = steps(state, 0)
    assert (due.writes, due.scan) == ((), True)


def test_one_worker_takes_all_that_is_free_at_once() -> None:
    state = scan(fresh(), *(row(number) for number in range(5)), now=0)
    assert keys(state, 0) == [0, 1, 2, 3, 4]


def test_a_draw_says_where_to_begin() -> None:
    state = scan(fresh(), *(row(number) for number in range(4)), row(9, BERT), now=0)
    assert keys(state, 0, 0.0) == [0, 1, 2]
    assert keys(state, 0, 0.6) == [2, 3, 0]
    assert rotate([1, 2, 3], 0.99) == [3, 1, 2]
    assert rotate([], 0.5) == []


def test_the_fair_share_is_rounded_up_over_all_who_hold_something() -> None:
    rows = [row(0, BERT), row(1, CARL), *(row(number) for number in range(2, 7))]
    assert len(keys(scan(fresh(), *rows, now=0), 0)) == 3  # of 7 for 3


def test_a_created_row_is_taken_without_waiting_for_a_scan() -> None:
    state = lease_coordinator.apply_report(scan(fresh(), now=0), Report(create=(row(0),)), 100)
    assert kinds(state, 100) == ["Create"]
    state = do(state, 100)
    assert keys(state, 100) == [0]


def test_a_row_that_another_took_first_is_let_be_and_the_next_is_tried() -> None:
    state = scan(fresh(), row(0), row(1), row(2, BERT), now=0)
    first, second = writes(state, 0)
    state = lease_coordinator.mark_started(state, steps(state, 0), 0)
    state = lease_coordinator.apply_write_results(
        state, [(first, Conflict(found=row(0, BERT, counter=2)), 5)]
    )
    state = lease_coordinator.apply_write_results(
        state, [(second, Conflict(found=row(1, CARL, counter=2)), 5)]
    )
    assert keys(state, 5) == []


def test_no_more_than_the_maximum_is_taken() -> None:
    rows = [row(number) for number in range(5)]
    state = scan(fresh(max_leases=2), *rows, now=0)
    assert len(keys(state, 0)) == 2
    state = do(state, 0)
    late = scan(state, *[one.lease for one in state.observed.values()], now=40_000)
    assert len(late.held) == 2
    assert keys(late, 40_000) == []


def test_leases_beyond_the_maximum_that_the_last_process_left_are_released() -> None:
    """After the reader has left their shards out. What a leader assigns, before or afterwards, is
    kept."""
    rows = [row(number, ANNE) for number in range(3)]
    ended = row(3, ANNE, progress=ShardEnded())
    led = scan(fresh(max_leases=1), ended, *rows, now=0, kcl_workers=KclWorkers(leader=BERT))
    assert lease_coordinator.build_status(do(led, 0), 0).asked_for == set()
    state = do(scan(fresh(max_leases=1), ended, *rows, now=0), 0)
    surplus = {row(1).key, row(2).key}
    assert lease_coordinator.build_status(state, 0).asked_for == surplus
    read = frozenset({row(1).key})
    state = lease_coordinator.apply_report(state, Report(reading=read), 1)
    state = do(state, 1)
    assert set(state.held) == {row(0).key, row(1).key}
    state = do(lease_coordinator.apply_report(state, Report(), 2), 2)
    assert set(state.held) == {row(0).key}
    left = {key: seen.lease for key, seen in state.observed.items()}
    assert {left[key].owner for key in surplus} == {None}
    assert keys(state, 2) == []
    assigned = replace(left[row(2).key], owner=ANNE, counter=9)
    state = do(scan(state, *(left | {assigned.key: assigned}).values(), now=3), 3)
    assert set(state.held) == {row(0).key, row(2).key}
    assert lease_coordinator.build_status(state, 3).asked_for == set()


def test_only_leases_to_be_read_count_against_the_maximum_at_the_start() -> None:
    """Not those of other streams, of children that wait, nor those that are being handed over."""
    handed = replace(row(0, BERT), checkpoint_owner=ANNE)
    clicks = StreamIdentifier(account="1" * 12, name=StreamName("clicks"), created=1)
    foreign = replace(row(1, ANNE), stream=clicks)
    waiting = row(2, ANNE, parents=(row(5, BERT).shard,))
    rows = [handed, foreign, waiting, row(3, ANNE), row(4, ANNE), row(5, BERT)]
    listed = Report(listed=frozenset(one.key for one in rows if one is not foreign))
    state = lease_coordinator.apply_report(fresh(max_leases=1), listed, 0)
    assert scan(state, *rows, now=0).surplus == {row(4).key}


def test_a_lease_expires_by_the_own_clock_and_at_once() -> None:
    state = scan(scan(fresh(), row(0, BERT), now=0), row(0, BERT), now=5_000)
    assert steps(state, 5_000).wake_at == 10_000
    state = scan(state, row(0, BERT), now=10_000)
    assert keys(state, FAILOVER) == []
    assert steps(state, FAILOVER).wake_at == FAILOVER + 1
    assert keys(state, FAILOVER + 1) == [0]


def stale(state: State, now: int) -> Any:
    return lease_coordinator.build_status(state, now).stale


def test_leases_that_expired_are_stale_until_a_worker_takes_them() -> None:
    rows = [
        *(row(0, BERT), row(1, BERT), row(2, BERT, progress=ShardEnded()), row(3)),
        row(4, BERT, parents=(row(1).shard,)),
    ]
    state = do(scan(fresh(max_leases=1), *rows, now=0), 0)
    assert state.held
    rows[3] = state.observed[rows[3].key].lease
    state = scan(state, *rows, now=FAILOVER)
    assert stale(state, FAILOVER) == set()
    late = FAILOVER + 1
    assert stale(state, late) == {row(0).key, row(1).key}
    renewed = scan(state, row(0, BERT, counter=2), *rows[1:], now=late)
    assert stale(renewed, late) == {row(1).key}
    # Without a scan, as after a suspension, all look like that.
    assert stale(renewed, 10 * FAILOVER) is None


def test_a_renewed_lease_does_not_expire() -> None:
    state = scan(scan(fresh(), row(0, BERT), now=0), row(0, BERT, counter=2), now=5_000)
    state = scan(state, row(0, BERT, counter=2), now=14_000)
    assert keys(state, 15_000) == []
    assert keys(state, 15_001) == [0]


def test_after_a_pause_the_table_is_read_before_anything_is_taken() -> None:
    """Everything looks expired to one who has slept."""
    state = scan(fresh(), row(0, BERT), now=0)
    due = steps(state, 60_000)
    assert (due.writes, due.scan) == ((), True)


def test_what_stays_free_is_taken_beyond_the_fair_share() -> None:
    rows = [row(0, BERT), row(1), row(2)]
    state = do(scan(fresh(), *rows, now=0), 0)
    assert len(state.held) == 2
    rows = [row(0, BERT), row(1, CARL), row(2, ANNE), row(3), row(4), row(5)]
    state = scan(fresh(), *rows, now=0)
    assert len(keys(state, 0)) == 1
    for now in range(5_000, 35_000, 5_000):
        rows = [replace(one, counter=one.counter + 1) if one.owner else one for one in rows]
        state = scan(state, *rows, now=now)
    assert keys(state, 30_000) == [3]
    assert keys(state, 30_001) == [3, 4, 5]


def test_children_wait_for_their_parents() -> None:
    parent, other = row(0, BERT), row(1, BERT, progress=ShardEnded())
    child = row(2, parents=(parent.shard, other.shard))
    assert keys(scan(fresh(), parent, other, child, now=0), 0) == []
    done = replace(parent, progress=ShardEnded())
    assert keys(scan(fresh(), done, other, child, now=0), 0) == [2]
    assert keys(scan(fresh(), child, now=0), 0) == [2]


def test_ended_shards_are_neither_taken_nor_counted() -> None:
    ended = [row(number, BERT, progress=ShardEnded()) for number in range(5)]
    state = scan(fresh(), *ended, row(5, CARL), row(6), now=0)
    assert keys(state, 0) == [6]
    assert keys(scan(state, *ended, row(5, CARL, counter=2), row(6), now=20_000), 20_000) == [6]


def test_leases_of_streams_that_are_not_read_are_let_be() -> None:
    """A KCL application may read several streams with one table."""
    orders = StreamIdentifier(account="111122223333", name=StreamName("orders"), created=1)
    clicks = replace(orders, name=StreamName("clicks"))
    rows = [
        row(0, stream=orders),
        row(1, stream=clicks),
        row(2, ANNE, ours=False, stream=clicks),
        *(row(number, BERT, stream=clicks) for number in range(3, 9)),
    ]
    state = lease_coordinator.apply_report(
        scan(fresh(), *rows, now=0), Report(listed=frozenset({rows[0].key})), 0
    )
    assert writes(state, 0) == [Take(lease=rows[0], owner=ANNE)]
    assert kinds(do(state, 0), 1) == []
    leaving = lease_coordinator.apply_report(state, Report(leave=True), 1)
    assert kinds(leaving, 1) == ["Evict"]


# --- Asking --------------------------------------------------------------------------------------


def test_our_own_are_asked_for_as_many_as_are_missing() -> None:
    state = scan(fresh(), *(row(number, BERT) for number in range(8)), now=0)
    asked = writes(state, 0)
    assert [type(write) for write in asked] == [RequestHandoff] * 4
    assert {write.to for write in asked if isinstance(write, RequestHandoff)} == {ANNE}


def test_a_request_is_made_once_and_counts_from_then_on() -> None:
    state = do(scan(fresh(), *(row(number, BERT) for number in range(4)), now=0), 0)
    assert kinds(state, 1) == []
    asked = [one.lease for one in state.observed.values()]
    assert kinds(scan(state, *asked, now=1_000), 1_000) == []


def test_the_most_loaded_is_asked_and_nobody_is_left_with_less() -> None:
    rows = [*(row(n, BERT) for n in range(5)), *(row(n, CARL) for n in range(5, 8))]
    asked = writes(scan(fresh(), *rows, now=0), 0)
    assert sorted(str(write.lease.owner) for write in asked) == ["bert", "bert"]
    assert kinds(scan(fresh(), row(0, BERT), now=0), 0) == []
    assert kinds(scan(fresh(), row(0, BERT), row(1, BERT), now=0), 0) == ["RequestHandoff"]


class Counted(dict[LeaseKey, ObservedLease]):
    """Rows that count how often all of them are gone through."""

    passes = 0

    def items(self) -> Any:
        self.passes += 1
        return super().items()

    def values(self) -> Any:
        self.passes += 1
        return super().values()


@pytest.mark.parametrize("each", [1, 3])
def test_many_workers_cost_no_more_passes_over_the_rows_than_few(each: int) -> None:
    """Whether there is something to ask for (3 leases each) or not."""
    passes = []
    for workers in (2, 40):
        owners = [ANNE, *(WorkerId(f"worker-{number}") for number in range(workers - 1))]
        rows = [row(at, owners[at % workers]) for at in range(workers * each)]
        shown = [
            replace(one, owner=BERT, ssp_owner=BERT) if each > 1 and one.owner == ANNE else one
            for one in rows
        ]
        state = scan(fresh(), *shown, now=0)
        seen = Counted(state.observed)
        plan_takes(replace(state, observed=seen), 0, 0.0)
        passes.append(seen.passes)
    assert passes[0] == passes[1] > 0


def test_while_something_is_free_nobody_is_asked() -> None:
    rows = [row(9), *(row(number, BERT) for number in range(4))]
    assert kinds(scan(fresh(), *rows, now=0), 0) == ["Take"]


def test_while_a_hand_over_is_awaited_the_table_is_read_more_often() -> None:
    rows = [row(number, BERT) for number in range(2)]
    state = do(scan(fresh(), *rows, now=0), 0)
    assert steps(state, 1).wake_at == 1_000
    assert steps(state, 1_000).scan


def test_a_dead_owner_does_not_answer_and_the_lease_expires() -> None:
    state = do(scan(fresh(), row(0, BERT), row(1, BERT), now=0), 0)
    for now in (4_000, 9_000):
        state = scan(state, *[one.lease for one in state.observed.values()], now=now)
    taken = writes(state, 10_001)
    assert sorted(type(write).__name__ for write in taken) == ["Take", "Take"]


# --- KCL 2 ---------------------------------------------------------------------------------------


def settled(*rows: Lease) -> State:
    """These holders have had their leases for a failover time, and renewed them just now."""
    state = scan(fresh(), *rows, now=0)
    for now in (4_000, 8_000, 12_000):
        rows = tuple(replace(one, counter=one.counter + 1) for one in rows)
        state = scan(state, *rows, now=now)
    return state


def test_from_kcl_2_one_lease_is_taken_per_two_failover_times() -> None:
    state = settled(*(row(number, BERT, ours=False) for number in range(6)))
    (stolen,) = writes(state, 12_000)
    assert isinstance(stolen, Take)
    state = do(state, 12_000)
    rows = [replace(one.lease, counter=one.lease.counter + 1) for one in state.observed.values()]
    state = scan(state, *rows, now=17_000)
    assert [kind for kind in kinds(state, 17_000) if kind == "Take"] == []
    later = scan(state, *rows, now=32_000)
    assert "Take" in kinds(later, 32_000)


def test_who_has_a_lease_only_now_is_not_stolen_from() -> None:
    """It may be one of ours that has not left its mark yet."""
    assert (
        kinds(
            scan(fresh(), row(0, BERT, ours=False), row(1, BERT, ours=False), now=0),
            0,
        )
        == []
    )


def test_a_mark_on_any_lease_says_who_is_ours() -> None:
    state = settled(row(0, BERT), row(1, BERT, ours=False), row(2, BERT, ours=False))
    assert kinds(state, 12_000) == ["RequestHandoff"]


# --- KCL 3 ---------------------------------------------------------------------------------------


def test_who_has_a_metric_row_is_asked() -> None:
    rows = [row(number, BERT, ours=False) for number in range(4)]
    state = scan(fresh(), *rows, now=0, kcl_workers=KclWorkers(graceful=frozenset({BERT})))
    assert kinds(state, 0) == ["RequestHandoff", "RequestHandoff"]


def test_a_leader_is_left_its_chances() -> None:
    leader_throughput = KclWorkers(leader=BERT, graceful=frozenset({BERT}))
    rows = [row(0), *(row(number, BERT, ours=False) for number in range(1, 5))]
    state = scan(fresh(), *rows, now=0, kcl_workers=leader_throughput)
    assert kinds(state, 0) == []
    assert steps(state, 0).metrics
    for now in range(5_000, 65_000, 5_000):
        rows = [replace(one, counter=one.counter + 1) if one.owner else one for one in rows]
        state = scan(state, *rows, now=now, kcl_workers=leader_throughput)
    assert keys(state, 59_999) == []
    assert keys(state, 60_000) == [0]


def test_the_metric_row_is_written_while_there_is_a_leader() -> None:
    state = scan(fresh(), row(0, BERT, ours=False), now=0, kcl_workers=KclWorkers(leader=BERT))
    state = lease_coordinator.mark_started(state, steps(state, 0), 0)
    assert not steps(state, 29_999).metrics
    assert steps(state, 30_000).metrics
    assert not steps(lease_coordinator.apply_report(state, Report(leave=True), 1), 30_000).metrics
    assert not steps(scan(state, now=30_000), 30_000).metrics


def test_what_a_leader_assigns_is_started_on() -> None:
    leader_throughput = KclWorkers(leader=BERT)
    state = scan(fresh(), row(0, ANNE, ours=False), now=0, kcl_workers=leader_throughput)
    assert kinds(state, 0) == ["Renew"]


def test_a_holder_is_no_candidate_for_its_own_lease() -> None:
    assert kinds(holding(row(0, ANNE, progress=processed(1))), 0) == []
