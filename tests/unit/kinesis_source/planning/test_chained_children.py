"""Children that follow their parents within a batch, and the slot that reads them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardKey, SlotId, StreamName
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset, StreamEntry
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    Position,
    SequenceNumber,
    ShardEnd,
    ShardState,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.active_shards import ActiveShards
from spark_ssp.kinesis_source.planning.input_partitions import (
    MAX_COMPONENT_SHARDS,
    Child,
    Components,
    in_slots_of_parents,
    next_children,
    plan_ranges,
    skipped_shards,
    with_unread_children,
    within_bounds,
)
from tests.support.kinesis.planning import listed, shard_id
from tests.support.kinesis.shards import after, key

ORDERS = StreamName("orders")
CREATED, SEEN = EpochMillis(1000), EpochMillis(5000)
TRIM, END = TrimHorizon(), ShardEnd()
LISTING = {
    shard.shard_id: shard
    for shard in (
        listed(0, closed=True),
        listed(1, closed=True),
        listed(2, 0, closed=True),
        listed(3, 0),
        listed(4, 1, 2),
        listed(5),
    )
}
"""0 was split into 2 and 3; 1 and 2 were merged into 4; 5 is open."""


def states(positions: Mapping[int, Position]) -> dict[ShardKey, ShardState]:
    return {
        key(n): ShardState(position=position, last_caught_up_ms=SEEN)
        for n, position in positions.items()
    }


def offset(
    positions: Mapping[int, Position],
    *,
    slots: Mapping[int, int] | None = None,
    follows: Mapping[int, tuple[int, ...]] | None = None,
) -> Offset:
    entries = states(positions)
    for n, older in (follows or {}).items():
        entries[key(n)] = replace(
            entries[key(n)], first=SequenceNumber("1"), follows=tuple(map(shard_id, older))
        )
    return Offset(
        slots=9,
        streams={ORDERS: StreamEntry(created=CREATED)},
        assignment={key(n): SlotId((slots or {}).get(n, n)) for n in positions},
        states=entries,
    )


def following(
    start: Offset, ends: Mapping[int, Position], waiting: Mapping[int, Position] | None = None
) -> tuple[dict[ShardKey, Child], set[ShardKey]]:
    reached = states(ends)
    active = ActiveShards(
        streams=dict(start.streams) or {ORDERS: StreamEntry(created=CREATED)},
        states=reached,
        waiting=states(waiting or {}),
    )
    found = next_children(start, active, reached, {ORDERS: LISTING})
    return dict(found.children), set(found.leaving)


def child(*older: int, position: Position = TRIM) -> Child:
    return Child(
        state=ShardState(position=position, last_caught_up_ms=SEEN),
        follows=tuple(map(shard_id, older)),
    )


# --- Generations ----------------------------------------------------------------------------------


def test_each_generation_follows_the_ends_of_those_before() -> None:
    start = offset({0: after(3), 1: after(4), 5: after(5)})
    first: dict[int, Position] = {0: END, 1: END, 5: after(6)}
    assert following(start, first) == ({key(2): child(0), key(3): child(0)}, {key(0)})
    second: dict[int, Position] = {**first, 2: END, 3: after(7)}
    assert following(start, second) == ({key(4): child(0, 1, 2)}, {key(0), key(1), key(2)})
    assert following(start, {**second, 4: after(8)})[0] == {}


def test_no_child_follows_a_parent_that_has_records_left_or_had_ended_before() -> None:
    assert following(offset({0: after(3)}), {0: after(4)})[0] == {}
    # Of 4, only 2 ends in this batch.
    start = offset({1: END, 2: after(3)})
    assert following(start, {1: END, 2: END})[0] == {key(4): child(2)}
    assert following(start, {1: END, 2: after(4)})[0] == {}


def test_a_child_that_waits_keeps_its_position() -> None:
    start = offset({0: after(3)})
    waiting: dict[int, Position] = {2: after(8), 3: TRIM}
    children, _ = following(start, {0: END}, waiting)
    assert children == {key(2): child(0, position=after(8)), key(3): child(0)}


def test_a_new_or_recreated_stream_has_no_shard_that_had_ended_before() -> None:
    old = offset({0: END})
    recreated = replace(old, streams={ORDERS: StreamEntry(created=EpochMillis(1))})
    active = ActiveShards(streams=dict(old.streams), states=states({0: END}))
    for start in (BEFORE_FIRST_BATCH, recreated):
        found = next_children(start, active, active.states, {ORDERS: LISTING})
        assert found.children.keys() == {key(2), key(3)}


# --- Bounds ---------------------------------------------------------------------------------------


def test_a_component_is_bounded_by_the_number_of_its_shards() -> None:
    line = {key(n): tuple(map(shard_id, range(n))) for n in range(1, MAX_COMPONENT_SHARDS - 1)}
    children = {key(n): child(0) for n in (100, 101)} | {key(200): child(150)}
    assert within_bounds(children, line, {}, None).keys() == {key(100), key(200)}


def test_a_child_follows_fewer_bytes_than_the_bound() -> None:
    children = {key(2): child(0), key(4): child(0, 1)}
    sizes = {key(0): 60, key(1): 40}
    assert within_bounds(children, {}, sizes, 100).keys() == {key(2)}
    assert within_bounds(children, {}, sizes, 101).keys() == {key(2), key(4)}
    assert within_bounds(children, {}, sizes, None).keys() == {key(2), key(4)}


def test_only_children_in_the_slots_of_all_their_parents() -> None:
    children = {key(2): child(0), key(4): child(0, 1), key(3): child(1)}
    slots = {key(n): SlotId(slot) for n, slot in {0: 0, 1: 1, 2: 0, 3: 1, 4: 1}.items()}
    assert in_slots_of_parents(children, slots).keys() == {key(2), key(3)}


_links = st.dictionaries(st.integers(0, 12), st.sets(st.integers(0, 12), max_size=3))


@given(links=_links)
def test_components_are_the_shards_that_are_connected(links: dict[int, set[int]]) -> None:
    components = Components(
        {key(n): tuple(map(shard_id, sorted(older))) for n, older in links.items()}
    )
    groups = [{n} for n in range(13)]
    for n, older in links.items():
        joined = [group for group in groups if group & {n, *older}]
        groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    for group in groups:
        assert {components.first(key(n)) for n in group} == {key(min(group))}
        assert components.count_with(key(min(group)), ()) == len(group)


# --- The batch ------------------------------------------------------------------------------------

CHAINED = offset(
    {0: END, 1: END, 2: END, 3: after(7), 4: after(8), 5: after(6)},
    slots={0: 1, 1: 0, 2: 1, 3: 2, 4: 0, 5: 3},
    follows={2: (0,), 3: (0,), 4: (0, 1, 2)},
)
BEFORE = offset({0: after(3), 1: after(4), 5: after(5)})


def _plan(start: Offset, end: Offset) -> dict[int, dict[ShardKey, tuple[int, ...]]]:
    """The ranges by slot, each with the numbers of the shards that it follows."""
    ranges = plan_ranges(start, end, {ORDERS: StreamRef(name=ORDERS)})
    return {
        task.slot: {one.key: tuple(int(shard[-2:]) for shard in one.after) for one in task.shards}
        for task in ranges
    }


def test_a_component_is_read_in_the_slot_of_its_first_shard() -> None:
    assert _plan(BEFORE, CHAINED) == {
        1: {key(0): (), key(1): (), key(2): (0,), key(3): (0,), key(4): (0, 1, 2)},
        3: {key(5): ()},
    }


def test_shards_without_records_connect_no_others() -> None:
    empty = replace(CHAINED.states[key(2)], first=None)
    assert _plan(BEFORE, replace(CHAINED, states={**CHAINED.states, key(2): empty})) == {
        1: {key(0): (), key(1): (), key(3): (0,), key(4): (0, 1)},
        3: {key(5): ()},
    }
    nothing_left = offset({0: END, 1: after(4), 5: after(6)})
    assert _plan(nothing_left, CHAINED)[2] == {key(3): ()}


def test_in_the_next_batch_each_shard_is_read_in_its_own_slot() -> None:
    end = offset({3: after(17), 4: after(18), 5: after(16)}, slots={3: 2, 4: 0, 5: 3})
    assert _plan(CHAINED, end) == {0: {key(4): ()}, 2: {key(3): ()}, 3: {key(5): ()}}


def test_a_batch_that_reads_parents_and_children_leaves_nothing_out() -> None:
    listings = {ORDERS: LISTING}
    assert skipped_shards(BEFORE, CHAINED, listings) == []
    after_it = offset({3: after(17), 4: after(18), 5: after(16)})
    assert skipped_shards(CHAINED, after_it, listings) == []
    assert skipped_shards(BEFORE, after_it, listings) == [key(0), key(1), key(2)]
    # 4 followed 1 and 2 in a batch that is missing.
    later = offset({2: END, 3: after(9), 4: after(8), 5: after(6)}, follows={2: (0,), 3: (0,)})
    ended = offset({0: END, 1: END, 5: after(5)})
    assert key(2) in skipped_shards(ended, later, listings)


@pytest.mark.parametrize(
    ("positions", "ended"),
    [
        ({0: END, 1: END, 2: END, 3: TRIM, 4: TRIM}, ()),
        ({0: END, 1: END, 2: END, 3: TRIM}, (1, 2)),
        ({0: END, 1: after(4), 2: after(3)}, (0,)),
        ({0: after(3), 1: after(4)}, ()),
        ({4: after(8), 5: END}, (5,)),
    ],
)
def test_shards_whose_children_are_left_for_a_later_batch(
    positions: Mapping[int, Position], ended: tuple[int, ...]
) -> None:
    assert with_unread_children(offset(positions), {ORDERS: LISTING}) == [key(n) for n in ended]
