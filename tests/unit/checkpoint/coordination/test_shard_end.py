"""The end of a shard, and what is deleted after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.coordination.state import State
from spark_ssp.checkpoint.leases.conditional_writes import (
    Checkpoint,
    Create,
    Delete,
    Done,
    SetChildren,
)
from spark_ssp.checkpoint.leases.lease import (
    Lease,
    LeaseKey,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
    StreamIdentifier,
)
from spark_ssp.common.errors import AccessError
from spark_ssp.grouping.identifiers import StreamName
from tests.support.leases.states import do, effect, holding, kinds, scan, steps, writes
from tests.support.leases.values import ANNE, BERT, lease, processed

PARENT, OTHER, LEFT, RIGHT = (f"shardId-{number:012d}" for number in range(4))
MINE = lease(PARENT, counter=7, owner=ANNE, ssp_owner=ANNE, progress=processed(100))
CHILDREN = (lease(LEFT, parents=(PARENT,)), lease(RIGHT, parents=(PARENT,)))
MERGED = lease(LEFT, parents=(PARENT, OTHER))
BROKEN = AccessError("row", found="x", expected="y", next_step="mend it")


def ended(state: State, *children: Lease, now: int = 1, listed: tuple[str, ...] = ()) -> State:
    return lease_coordinator.apply_report(
        state,
        Report(
            ended={MINE.key: children},
            listed=frozenset(LeaseKey(key) for key in listed) if listed else None,
        ),
        now,
    )


def test_the_order_is_the_kcls() -> None:
    state = ended(holding(MINE), *CHILDREN)
    assert writes(state, 1) == [Create(lease=child) for child in CHILDREN]
    assert not lease_coordinator.build_status(state, 1).held
    state = do(state, 1)
    names = tuple(child.shard for child in CHILDREN)
    parents_write = [write for write in writes(state, 1) if write.lease.key == MINE.key]
    assert parents_write == [SetChildren(lease=replace(MINE, counter=8), children=names)]
    state = do(state, 1)
    (end,) = writes(state, 1)
    assert isinstance(end, Checkpoint)
    assert end.progress == ShardEnded()


def test_children_are_taken_only_after_the_end() -> None:
    state = do(do(ended(holding(MINE), *CHILDREN), 1), 1)
    assert "Take" not in kinds(state, 1)
    state = do(state, 1)
    assert kinds(state, 1) == ["Take", "Take"]
    assert MINE.key not in state.held
    assert kinds(do(state, 1), 3_400) == ["Renew", "Renew"]


def test_what_is_there_already_is_not_written_again() -> None:
    names = tuple(child.shard for child in CHILDREN)
    state = ended(holding(replace(MINE, children=names), *CHILDREN), *CHILDREN)
    assert [write for write in kinds(state, 1) if write != "Take"] == ["Checkpoint"]


def test_a_shard_without_children_just_ends() -> None:
    """The stream was deleted, for example."""
    assert kinds(ended(holding(MINE)), 1) == ["Checkpoint"]


def test_the_lease_is_renewed_while_children_cannot_be_created() -> None:
    state = ended(holding(MINE), *CHILDREN)
    due = steps(state, 1)
    state = lease_coordinator.mark_started(state, due, 1)
    for write in due.writes:
        state = lease_coordinator.apply_write_results(state, [(write, BROKEN, 2)])
    assert lease_coordinator.build_status(state, 2).problem is BROKEN
    assert [type(write) for write in writes(state, 500)] == []
    assert "Renew" in kinds(state, 3_333)


def refused(state: State, *children: Lease, now: int) -> State:
    """All that is due is written but the rows of these children."""
    due = steps(state, now)
    state = lease_coordinator.mark_started(state, due, now)
    for write in due.writes:
        fails = isinstance(write, Create) and write.lease in children
        outcome = BROKEN if fails else Done(lease=effect(write))
        state = lease_coordinator.apply_write_results(state, [(write, outcome, now + 1)])
    return state


@pytest.mark.parametrize("children", [CHILDREN, CHILDREN[:1]])
def test_a_shard_whose_children_cannot_be_created_is_left_to_others(
    children: tuple[Lease, ...],
) -> None:
    """They do not keep a worker from ending, and are not forgotten: the shard has not ended."""
    told = Report(ended={MINE.key: CHILDREN}, progress={MINE.key: processed(200)})
    state = lease_coordinator.start_shutdown(lease_coordinator.apply_report(holding(MINE), told, 1))
    state = refused(state, *children, now=1)
    assert writes(state, 3) == [Checkpoint(lease=replace(MINE, counter=8), progress=processed(200))]
    state = do(state, 3)
    assert kinds(state, 4) == ["Evict"]
    state = do(state, 4)
    assert lease_coordinator.is_finished(state)
    row = state.observed[MINE.key].lease
    assert (row.owner, row.progress, row.children) == (None, processed(200), ())


def test_who_stops_tries_once_more_to_create_the_children() -> None:
    state = refused(ended(holding(MINE), *CHILDREN), *CHILDREN, now=1)
    state = lease_coordinator.start_shutdown(state)
    assert writes(state, 3) == [Create(lease=child) for child in CHILDREN]
    for now in (3, 4, 5):
        state = do(state, now)
    assert state.observed[MINE.key].lease.progress == ShardEnded()
    assert lease_coordinator.is_finished(state)


def test_no_children_are_created_by_one_who_may_have_lost_the_lease() -> None:
    state = ended(holding(MINE), *CHILDREN)
    assert kinds(state, 20_000) == ["Renew"]


def test_an_end_that_is_lost_is_forgotten() -> None:
    state = scan(ended(holding(MINE), *CHILDREN), replace(MINE, counter=9, owner=BERT), now=5)
    assert kinds(state, 5) == []


# --- Merges --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "listed", "created"),
    [
        ((), (PARENT, OTHER), False),
        ((), (), False),
        ((), (PARENT, LEFT), True),
        ((lease(OTHER, owner=BERT),), (PARENT, OTHER), True),
    ],
    ids=["no row yet", "nothing known", "listed no longer", "with a row"],
)
def test_a_merged_shard_is_created_when_both_parents_are_known(
    rows: tuple[Lease, ...], listed: tuple[str, ...], created: bool
) -> None:
    state = ended(holding(MINE, *rows), MERGED, listed=listed)
    assert (Create(lease=MERGED) in writes(state, 1)) is created


def test_the_end_does_not_wait_for_the_other_parent() -> None:
    state = ended(holding(MINE), MERGED, listed=(PARENT, OTHER))
    assert kinds(state, 1) == ["SetChildren"]
    assert kinds(do(state, 1), 1) == ["Checkpoint"]


# --- Cleaning up ---------------------------------------------------------------------------------

INTERVAL = 300_000
DONE = replace(
    MINE, progress=ShardEnded(), children=(CHILDREN[0].shard, CHILDREN[1].shard), counter=9
)


def cleaning(*rows: Lease, listed: frozenset[LeaseKey] | None = None) -> list[str]:
    """The keys of the rows that are deleted when it is time."""
    state = scan(holding(), *rows, now=0)
    state = lease_coordinator.apply_report(state, Report(listed=listed), 1)
    assert "Delete" not in kinds(state, INTERVAL - 1)
    rows = tuple(replace(row, counter=row.counter + 1) if row.owner else row for row in rows)
    state = scan(state, *rows, now=INTERVAL)
    return [w.lease.shard for w in writes(state, INTERVAL) if type(w).__name__ == "Delete"]


def begun(progress: Progress) -> tuple[Lease, Lease]:
    left, right = (replace(child, owner=BERT, progress=processed(1)) for child in CHILDREN)
    return left, replace(right, progress=progress)


@pytest.mark.parametrize("progress", [processed(1), ShardEnded(), StartAtLatest()])
def test_a_shard_whose_children_are_all_begun_goes(progress: Progress) -> None:
    assert cleaning(DONE, *begun(progress)) == [PARENT]


@pytest.mark.parametrize("progress", [StartAtTrimHorizon(), StartAtTimestamp(at_ms=None)])
def test_one_with_a_child_that_is_not_begun_stays(progress: Progress) -> None:
    assert cleaning(DONE, *begun(progress)) == []


def test_one_with_a_child_without_a_row_stays() -> None:
    assert cleaning(DONE, begun(processed(1))[0]) == []


def test_one_with_a_parent_stays_and_the_parent_goes_first() -> None:
    older = replace(
        DONE, shard=lease("shardId-old").shard, children=(MINE.shard,), parents=(), counter=1
    )
    rows = (older, replace(DONE, parents=(older.shard,)), *begun(processed(1)))
    assert cleaning(*rows) == ["shardId-old"]


def test_one_that_has_not_ended_stays() -> None:
    assert cleaning(replace(DONE, progress=processed(1), owner=BERT), *begun(processed(2))) == []


def test_it_is_for_one_worker_to_delete() -> None:
    theirs = replace(DONE, owner=BERT)
    assert cleaning(theirs, *begun(processed(1))) == []
    left, right = begun(processed(1))
    assert cleaning(theirs, replace(left, owner=ANNE), right) == [PARENT]


def test_a_done_shard_that_is_listed_no_longer_goes() -> None:
    listed = frozenset({LeaseKey(LEFT), LeaseKey(RIGHT)})
    lonely = replace(DONE, owner=BERT, children=())
    assert cleaning(lonely, listed=listed) == [PARENT]
    assert cleaning(lonely, listed=listed | {MINE.key}) == []
    assert cleaning(lonely, listed=None) == []
    assert cleaning(replace(lonely, progress=processed(3)), listed=listed) == []


@pytest.mark.parametrize("before", [False, True])
def test_a_list_says_nothing_of_rows_that_came_after_it(before: bool) -> None:
    """In a long batch, or told again to an agent that was restarted."""
    born = replace(DONE, owner=BERT, children=())
    report = Report(listed=frozenset({MINE.key, LeaseKey(LEFT)}), listed_before=before)
    state = lease_coordinator.apply_report(
        scan(holding(), *([born] if before else []), now=0), report, 1
    )
    state = scan(scan(state, born, now=5_000), born, now=INTERVAL)
    assert kinds(state, INTERVAL) == []
    again = Report(listed=frozenset({LeaseKey(LEFT)}))
    state = lease_coordinator.apply_report(state, again, INTERVAL)
    assert kinds(lease_coordinator.apply_report(state, Report(), INTERVAL), INTERVAL) == ["Delete"]


def test_a_list_that_was_reported_before_keeps_its_time() -> None:
    """With other keys: the reader adds those of rows that the listing lacks."""
    older, newer = (
        lease(shard, owner=ANNE, progress=ShardEnded(), counter=1)
        for shard in ("shardId-older", "shardId-newer")
    )
    state = scan(holding(), older, now=0)
    listed = frozenset({MINE.key})
    state = lease_coordinator.apply_report(state, Report(listed=listed), 1)
    state = scan(state, older, newer, now=5_000)
    again = Report(listed=listed | {LeaseKey(LEFT)}, listed_before=True)
    state = lease_coordinator.apply_report(state, again, 6_000)
    state = scan(state, older, newer, now=INTERVAL)
    assert [w.lease.key for w in writes(state, INTERVAL) if isinstance(w, Delete)] == [older.key]


def test_of_other_streams_nothing_is_known() -> None:
    orders = StreamIdentifier(account="111122223333", name=StreamName("orders"), created=1)
    others = replace(orders, created=2)
    lonely = replace(DONE, stream=orders, children=())
    listed = frozenset({LeaseKey(f"{others}:{LEFT}")})
    assert cleaning(lonely, listed=listed) == []
    assert cleaning(lonely, listed=listed | {LeaseKey(f"{orders}:{LEFT}")}) == [PARENT]


def test_a_row_that_cannot_be_deleted_is_no_problem() -> None:
    """The permission may be missing; another worker may have it."""
    state = scan(holding(), DONE, *begun(processed(1)), now=0)
    state = scan(state, DONE, *begun(processed(1)), now=INTERVAL)
    (delete,) = [w for w in writes(state, INTERVAL) if type(w).__name__ == "Delete"]
    error = AccessError("table", found="no permission", expected="one", next_step="grant it")
    state = lease_coordinator.mark_started(state, steps(state, INTERVAL), INTERVAL)
    state = lease_coordinator.apply_write_results(state, [(delete, error, INTERVAL + 1)])
    assert lease_coordinator.build_status(state, INTERVAL + 1).problem is None
    assert "Delete" not in kinds(state, 2 * INTERVAL - 1)


def test_the_effect_of_a_set_of_children_is_theirs() -> None:
    names = tuple(child.shard for child in CHILDREN)
    assert effect(SetChildren(lease=MINE, children=names)).children == names
