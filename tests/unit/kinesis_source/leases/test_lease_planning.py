"""Which shards an offset holds under leases, and which rows are created: without an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.coordination.protocol import Status
from checkpoint.leases.checkpoint_position import (
    Processed,
    ShardEnded,
    StartAtLatest,
    StartAtTrimHorizon,
)
from checkpoint.leases.lease import Lease
from kinesis_source.leases.lease_planning import (
    LeaseTableView,
    OwnedShards,
    ahead_of_checkpoint,
    can_start,
    lease_table_view,
    limited_to,
    lost_shards,
    owned_shards,
    repeated_checkpoint,
)
from kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset, StreamEntry
from kinesis_source.model.shard import (
    EpochMillis,
    Position,
    Shard,
    ShardState,
)
from task_grouping.identifiers import (
    ShardId,
    ShardKey,
)
from tests.support.kinesis.shards import key
from tests.support.leases.tables import (
    END,
    FAMILY,
    FROM_TRIM,
    NAMES,
    ORDERS,
    SPLIT,
    TRIM,
    after,
    listing,
    offset,
    row,
    table,
)
from tests.support.leases.values import ANNE, BERT, CARL, processed


def shared(
    start: Offset, found: LeaseTableView, shards: Mapping[ShardId, Shard] = SPLIT
) -> OwnedShards:
    return owned_shards(start, found, {ORDERS: shards}, FROM_TRIM)


def test_a_shard_that_comes_back_goes_on_where_it_left() -> None:
    left = {key(1): ShardState(position=after(9), last_caught_up_ms=EpochMillis(5))}
    behind = table(row(1, owner=ANNE, progress=processed(7)), held=(1,))
    found = owned_shards(replace(offset({}), lost_shards=left), behind, {ORDERS: SPLIT}, FROM_TRIM)
    assert (found.states, found.resume_from) == (left, left)
    ahead = table(row(1, owner=ANNE, progress=processed(12)), held=(1,))
    found = owned_shards(replace(offset({}), lost_shards=left), ahead, {ORDERS: SPLIT}, FROM_TRIM)
    assert found.resume_from == {key(1): ShardState(position=after(12))}
    not_mine = table(row(1, owner=BERT, progress=processed(12)))
    found = owned_shards(
        replace(offset({}), lost_shards=left), not_mine, {ORDERS: SPLIT}, FROM_TRIM
    )
    assert (found.states, found.dropped) == ({}, {})


@pytest.mark.parametrize(
    ("stood", "its_row", "kept"),
    [
        (after(9), row(1, owner=BERT, progress=processed(7)), True),
        (after(9), row(1, owner=BERT, progress=processed(9)), False),
        (after(9), row(1, owner=BERT, progress=StartAtTrimHorizon()), True),
        (after(9), row(1, owner=BERT, progress=ShardEnded()), False),
        (TRIM, row(1, owner=BERT, progress=StartAtTrimHorizon()), False),
        (END, row(1, owner=BERT, progress=processed(9)), True),
        (after(9), None, True),
    ],
)
def test_a_shard_that_leaves_stays_known_until_its_row_is_as_far(
    stood: Position, its_row: Lease | None, kept: bool
) -> None:
    state = ShardState(position=stood, last_caught_up_ms=EpochMillis(5))
    seen = table(*([] if its_row is None else [its_row]))
    for start in (offset({1: state}), replace(offset({}), lost_shards={key(1): state})):
        assert lost_shards(start, (), seen, {ORDERS: SPLIT}) == ({key(1): state} if kept else {})
        assert lost_shards(start, {key(1)}, seen, {ORDERS: SPLIT}) == {}


def test_a_shard_without_a_row_stays_known_while_it_may_get_one() -> None:
    start = replace(offset({}), lost_shards={key(n): ShardState(position=after(9)) for n in (0, 7)})
    assert lost_shards(start, (), table(), {ORDERS: SPLIT}).keys() == {key(0)}
    assert lost_shards(start, (), table(row(2)), {ORDERS: SPLIT}) == {}


# --- Which shards ---------------------------------------------------------------------------------


def test_only_what_is_held_is_read() -> None:
    found = shared(BEFORE_FIRST_BATCH, table(row(0, owner=ANNE), row(1, owner=BERT), held=(0,)))
    assert found.states == {key(0): ShardState(position=TRIM)}
    assert found.resume_from == found.states
    assert found.reading == {key(0)}


def test_a_shard_goes_on_where_the_offset_is() -> None:
    state = ShardState(position=after(9), last_caught_up_ms=EpochMillis(5))
    found = shared(offset({1: state}), table(row(1, owner=ANNE, progress=processed(7)), held=(1,)))
    assert found.states == {key(1): state}
    assert found.resume_from == {}


def test_a_shard_goes_on_where_its_row_is_when_that_is_further() -> None:
    state = ShardState(position=after(9), last_caught_up_ms=EpochMillis(5))
    found = shared(offset({1: state}), table(row(1, owner=ANNE, progress=processed(12)), held=(1,)))
    assert found.states == {key(1): ShardState(position=after(12))}
    assert found.resume_from == {key(1): ShardState(position=after(12))}


def test_a_shard_of_which_the_offset_knows_nothing_begins_where_its_row_is() -> None:
    found = shared(offset({}), table(row(1, owner=ANNE, progress=processed(12)), held=(1,)))
    assert found.resume_from == {key(1): ShardState(position=after(12))}


def test_a_kcls_latest_is_to_be_found_out() -> None:
    found = shared(offset({}), table(row(1, owner=ANNE, progress=StartAtLatest()), held=(1,)))
    assert list(found.unresolved) == [key(1)]
    assert found.states == {}
    assert found.reading == {key(1)}


def test_a_lost_shard_leaves_and_it_is_said_who_has_it() -> None:
    state = ShardState(position=after(9))
    assert shared(offset({1: state}), table(row(1, owner=BERT))).dropped == {
        key(1): "its lease is held by bert"
    }
    assert shared(offset({1: state}), table(row(1))).dropped == {
        key(1): "its lease is held by no worker"
    }
    assert shared(offset({1: state}), table(row(1, owner=ANNE))).dropped == {
        key(1): "its lease may have expired"
    }
    ended = row(1, owner=BERT, progress=ShardEnded())
    assert shared(offset({1: state}), table(ended)).dropped == {key(1): "finished"}
    assert "cleaned up" in shared(offset({1: state}), table()).dropped[key(1)]


def test_a_shard_that_somebody_asked_for_leaves() -> None:
    asked = row(1, owner=BERT, checkpoint_owner=ANNE)
    found = shared(offset({1: ShardState(position=after(9))}), table(asked, held=(1,), asked=(1,)))
    assert found.states == {}
    assert found.dropped == {key(1): "handed over to bert"}


@pytest.mark.parametrize(
    ("parent", "reads"),
    [
        (row(0, owner=BERT), False),
        (row(0, owner=BERT, progress=processed(3)), False),
        (row(0, owner=BERT, progress=ShardEnded()), True),
        (None, True),
    ],
)
def test_a_child_waits_for_its_parents_row_to_end(parent: Lease | None, reads: bool) -> None:
    rows = [row(2, owner=ANNE), *([] if parent is None else [parent])]
    found = shared(offset({}), table(*rows, held=(2,)))
    assert (key(2) in found.states) is reads


def test_a_child_inherits_the_proof_of_its_parents() -> None:
    start = offset({0: ShardState(position=END, last_caught_up_ms=EpochMillis(77))})
    rows = (row(0, owner=ANNE, progress=ShardEnded()), row(2, owner=ANNE))
    assert shared(start, table(*rows, held=(2,))).states == {
        key(2): ShardState(position=TRIM, last_caught_up_ms=EpochMillis(77))
    }


def test_a_shard_that_was_read_to_its_end_stays_until_its_row_says_so() -> None:
    start = offset({0: ShardState(position=END)})
    for held in ((0,), ()):  # the agent holds it, or is just writing its end
        found = shared(start, table(row(0, owner=ANNE, progress=processed(9)), held=held))
        assert found.states == {key(0): ShardState(position=END)}
        assert found.ended == {key(0): (key(2), key(3))}
        assert found.reading == frozenset()
    done = shared(start, table(row(0, owner=ANNE, progress=ShardEnded())))
    assert (done.states, done.dropped) == ({}, {key(0): "finished"})
    lost = shared(start, table(row(0, owner=BERT, progress=processed(9))))
    assert (lost.states, lost.dropped) == ({}, {key(0): "its lease is held by bert"})


def test_an_end_without_children_waits_for_their_discovery() -> None:
    start = offset({1: ShardState(position=END)})
    found = shared(start, table(row(1, owner=ANNE), held=(1,)))
    assert found.undiscovered == [ORDERS]
    assert found.ended == {}
    assert found.reading == {key(1)}


def test_a_held_shard_that_is_not_listed_any_more_has_vanished() -> None:
    seen = table(row(9, owner=ANNE), held=(9,))
    found = owned_shards(offset({}), seen, {ORDERS: SPLIT}, FROM_TRIM, {key(9)})
    assert (found.vanished, found.abandoned) == ([key(9)], [])
    assert found.ended == {key(9): ()}
    at_end = offset({9: ShardState(position=END)})
    found = shared(at_end, table(row(9, owner=ANNE), held=(9,)))
    assert (found.vanished, found.abandoned) == ([], [key(9)])


def test_a_held_shard_that_the_listing_does_not_show_yet_is_left_alone() -> None:
    found = shared(offset({}), table(row(9, owner=ANNE), held=(9,)))
    assert found.unlisted == [key(9)]
    assert (found.vanished, found.ended, found.reading) == ([], {}, frozenset())


def test_what_was_not_said_to_be_read_is_not_read() -> None:
    found = shared(
        offset({1: ShardState(position=after(9))}),
        table(row(0, owner=ANNE), row(1, owner=ANNE), held=(0, 1)),
    )
    later = table(row(0, owner=ANNE), row(1, owner=BERT), held=(0,))
    assert limited_to(found, later, {key(0), key(1)}).states.keys() == {key(0)}
    assert limited_to(found, later, {key(1)}).states == {}


@pytest.mark.parametrize(
    ("leases", "rows", "lost"),
    [
        (None, (), True),
        (None, (row(1),), True),
        (None, (row(2, parents=(key(0).shard,)),), False),
        ("old", (row(1),), True),
        ("etl", (), True),  # emptied
        ("etl", (row(1),), False),  # cleaned up
    ],
)
@pytest.mark.parametrize("position", [after(9), END])
def test_a_shard_that_expired_before_it_had_a_row_is_lost(
    leases: str | None, rows: tuple[Lease, ...], lost: bool, position: Position
) -> None:
    start = offset({0: ShardState(position=position)})
    start = replace(start, streams={ORDERS: StreamEntry(created=EpochMillis(1), leases=leases)})
    shards = {ORDERS: listing({1: (), 2: (0,), 3: (0,)})}
    found = owned_shards(start, table(*rows), shards, FROM_TRIM, (), "etl")
    assert [*found.vanished, *found.abandoned] == ([key(0)] if lost else [])
    assert (found.abandoned == [key(0)]) is (lost and position == END)
    assert (key(0) in found.dropped) is not lost


def test_it_is_known_whether_the_lease_or_the_checkpoint_is_further() -> None:
    start = offset({n: ShardState(position=after(9)) for n in (0, 1)})
    seen = table(
        row(0, owner=ANNE, progress=processed(7)),
        row(1, owner=ANNE, progress=processed(12)),
        held=(0, 1),
    )
    found = shared(start, seen)
    both = {key(0): "the checkpoint", key(1): "the lease"}
    assert ahead_of_checkpoint(found, start, seen, restarted=True) == both
    assert ahead_of_checkpoint(found, start, seen, restarted=False) == {key(1): "the lease"}
    back = replace(offset({}), lost_shards=start.states)
    assert ahead_of_checkpoint(shared(back, seen), back, seen, restarted=False) == both


# --- The table ------------------------------------------------------------------------------------


def status(*rows: Lease, held: tuple[int, ...], outage_ms: int = 0, **more: Any) -> Status:
    by_key = {each.key: each for each in rows}
    held_keys = [NAMES.key(key(n)) for n in held]
    fields: dict[str, Any] = {"asked_for": frozenset(), "released": False, "problem": None}
    return Status(
        held={k: by_key[k] for k in held_keys},
        rows=by_key,
        outage_ms=outage_ms,
        **(fields | more),
    )


def test_in_an_outage_what_is_read_goes_on() -> None:
    overdue = frozenset(NAMES.key(key(n)) for n in (0, 1))
    rows = row(0, owner=ANNE), row(1, owner=ANNE)
    calm = status(*rows, held=(), overdue=overdue)
    assert lease_table_view(calm, NAMES, ANNE, {key(0)}).held == frozenset()
    outage = status(*rows, held=(), overdue=overdue, outage_ms=12_000)
    assert lease_table_view(outage, NAMES, ANNE, {key(0)}).held == {key(0)}


def test_a_parent_whose_row_cannot_be_read_is_not_done() -> None:
    spoilt = frozenset({NAMES.key(key(0))})
    found = lease_table_view(status(row(2), held=(), unreadable=spoilt), NAMES, ANNE, ())
    assert found.unreadable == {key(0)}
    assert not can_start(key(2), found, {ORDERS: SPLIT})
    assert can_start(key(2), table(row(2)), {ORDERS: SPLIT})


# --- Any number of workers ------------------------------------------------------------------------


@given(
    owners=st.dictionaries(
        st.integers(0, 4), st.sampled_from([ANNE, BERT, CARL, None]), min_size=1
    ),
    ended=st.sets(st.integers(0, 4)),
)
def test_a_shard_is_never_in_two_offsets(owners: dict[int, Any], ended: set[int]) -> None:
    shards = listing(FAMILY)
    rows = [
        row(n, owner=owner, progress=ShardEnded() if n in ended else StartAtTrimHorizon())
        for n, owner in owners.items()
    ]
    everywhere: list[ShardKey] = []
    for worker in (ANNE, BERT, CARL):
        seen = LeaseTableView(
            worker=worker,
            rows={key(int(each.shard[-3:])): each for each in rows},
            held=frozenset(
                key(n) for n, owner in owners.items() if owner == worker and n not in ended
            ),
            requested=frozenset(),
        )
        everywhere += owned_shards(offset({}), seen, {ORDERS: shards}, FROM_TRIM).states
    assert len(everywhere) == len(set(everywhere))
    for shard in everywhere:
        for parent in shards[shard.shard].parents:
            number = int(parent[-3:])
            assert number not in owners or number in ended


# --- Proofs ---------------------------------------------------------------------------------------


def test_a_proof_comes_with_the_lease() -> None:
    progress = replace(processed(12), last_caught_up_ms=EpochMillis(77))
    found = shared(offset({}), table(row(1, owner=ANNE, progress=progress), held=(1,)))
    assert found.resume_from == {
        key(1): ShardState(position=after(12), last_caught_up_ms=EpochMillis(77))
    }


@pytest.mark.parametrize(
    ("said", "now", "told"),
    [
        (None, (12, 1000), (12, 1000)),
        ((12, 1000), (12, 1999), (12, 1000)),
        ((12, 1000), (12, 2000), (12, 2000)),
        ((12, 1000), (13, 1001), (13, 1001)),
        ((12, None), (12, 1001), (12, 1001)),
        ((12, 1000), (12, None), (12, 1000)),
    ],
)
def test_a_later_proof_alone_is_told_seldom(
    said: tuple[int, int | None] | None, now: tuple[int, int | None], told: tuple[int, int | None]
) -> None:
    def progress(what: tuple[int, int | None]) -> Processed:
        number, seen = what
        return replace(
            processed(number), last_caught_up_ms=None if seen is None else EpochMillis(seen)
        )

    before = None if said is None else progress(said)
    assert repeated_checkpoint(before, progress(now), 1000) == progress(told)
