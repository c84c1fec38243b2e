"""Which shards an offset holds, over all streams, and their slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import HashRange, ShardId, ShardKey, SlotId, StreamName
from spark_ssp.grouping.slots import mapper_for
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    Position,
    SequenceNumber,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    StartPoint,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.active_shards import (
    ActiveShards,
    Lineage,
    advance_lineage,
    advance_streams,
    assign_slots,
    families,
    is_one_to_one,
)
from spark_ssp.kinesis_source.probing.initial_positions import (
    UnnamedShardError,
    split_waiting,
    start_points,
)
from tests.support.kinesis.planning import listed, number, positions, shard_id, states
from tests.support.kinesis.shards import key

ORDERS, CLICKS = StreamName("orders"), StreamName("clicks")
CREATED = {ORDERS: EpochMillis(1000), CLICKS: EpochMillis(2000)}
READING = AfterRecord(sequence_number=SequenceNumber("7"))
TRIM, END = TrimHorizon(), ShardEnd()
Shards = Mapping[ShardKey, Position]


def offset(
    states: Shards, waiting: Shards | None = None, slots: Mapping[ShardKey, int] | None = None
) -> Offset:
    return Offset(
        slots=2,
        streams={
            name: StreamEntry(created=created, start=StartingPosition(default=Latest()))
            for name, created in CREATED.items()
        },
        assignment={shard: SlotId(n) for shard, n in (slots or {}).items()},
        states={shard: ShardState(position=position) for shard, position in states.items()},
        waiting={
            shard: ShardState(position=position) for shard, position in (waiting or {}).items()
        },
    )


def listing(*shards: Shard) -> dict[ShardId, Shard]:
    return {shard.shard_id: shard for shard in shards}


def test_every_stream_is_carried_on_by_itself() -> None:
    start = offset(
        {key(0): END, key(5): READING, key(0, CLICKS): END, key(3, CLICKS): READING},
        {key(2): READING},
    )
    listings = {
        ORDERS: listing(listed(0, closed=True), listed(1, 0), listed(2, 5), listed(5, closed=True)),
        CLICKS: listing(listed(0, closed=True)),
    }
    members = advance_streams(start, [ORDERS, CLICKS], listings)
    assert {shard: state.position for shard, state in members.states.items()} == {
        key(0, CLICKS): END,
        key(1): TRIM,
        key(5): READING,
    }
    assert {shard: state.position for shard, state in members.waiting.items()} == {key(2): READING}
    assert members.states[key(1)].last_caught_up_ms == CREATED[ORDERS], "what follows LATEST"
    assert members.vanished == [key(3, CLICKS)]
    assert members.outdated == [CLICKS, ORDERS]


def test_what_belongs_to_one_batch_alone_is_said_once() -> None:
    """The start of a stream, and the first record of a shard."""
    first = SequenceNumber("3")
    start = Offset(
        slots=1,
        streams={ORDERS: StreamEntry(created=EpochMillis(9), start=StartingPosition(default=TRIM))},
        assignment={key(0): SlotId(0)},
        states={
            key(0): ShardState(position=READING, last_caught_up_ms=EpochMillis(5), first=first)
        },
    )
    members = advance_streams(start, [ORDERS], {ORDERS: listing(listed(0))})
    assert members.streams == {ORDERS: StreamEntry(created=EpochMillis(9))}
    assert members.states == {
        key(0): ShardState(position=READING, last_caught_up_ms=EpochMillis(5))
    }


@dataclass(frozen=True, kw_only=True)
class Parent:
    """A shard that the offset has at its end, where its batch began to read it, and whether it read
    a record: of the shard, or of an ancestor (None: it has none in this batch)."""

    point: TrimHorizon | AtTimestamp | AfterRecord | None
    has_record: bool
    ancestor_has_record: bool | None
    is_listed: bool

    def is_unread(self, *, is_new: bool) -> bool:
        began = TRIM if self.point is None and is_new else self.point
        return isinstance(began, TrimHorizon | AtTimestamp) and not (
            self.has_record or self.ancestor_has_record
        )


@given(
    parents=st.lists(
        st.builds(
            Parent,
            point=st.none() | st.sampled_from([TRIM, AtTimestamp(millis=EpochMillis(7)), READING]),
            has_record=st.booleans(),
            ancestor_has_record=st.none() | st.booleans(),
            is_listed=st.booleans(),
        ),
        max_size=2,
    ),
    is_new=st.booleans(),
    waits_at=st.none() | st.just(AtTimestamp(millis=EpochMillis(8))),
)
def test_a_child_is_promised_unless_the_query_has_read_no_record_of_any_parent(
    parents: list[Parent], is_new: bool, waits_at: AtTimestamp | None
) -> None:
    """`is_new`: the offset adds the stream. Otherwise a shard without a point of its own was begun
    by an earlier batch."""
    child, entries, shards = 9, {}, []
    for n, parent in enumerate(parents):
        older = () if parent.ancestor_has_record is None else (shard_id(n + 4),)
        first = SequenceNumber("3")
        starts = isinstance(parent.point, TrimHorizon | AtTimestamp) or is_new
        entries[key(n)] = ShardState(
            position=END,
            first=first if parent.has_record and parent.point != READING and starts else None,
            resume_from=None
            if is_new or parent.point is None
            else ShardState(position=parent.point),
            follows=older,
        )
        if older:
            begin = None if is_new else ShardState(position=TRIM)
            read = first if parent.ancestor_has_record else None
            entries[key(n + 4)] = ShardState(position=END, first=read, resume_from=begin)
            shards.append(listed(n + 4, closed=True))
        if parent.is_listed:
            shards.append(listed(n, *([n + 4] if older else []), closed=True))
    points = {key(n): parent.point for n, parent in enumerate(parents) if parent.point}
    option = StartingPosition(default=TRIM, by_shard=points)
    start = Offset(
        slots=1,
        streams={
            ORDERS: StreamEntry(created=EpochMillis(1), start=option if is_new else None),
        },
        states=entries,
        waiting={key(child): ShardState(position=waits_at)} if waits_at else {},
    )
    shards.append(listed(child, *range(len(parents))))
    members = advance_streams(start, [ORDERS], {ORDERS: listing(*shards)})
    begun = ShardState(position=waits_at or TRIM)
    unread = [n for n, parent in enumerate(parents) if parent.is_unread(is_new=is_new)]
    if parents and len(unread) == len(parents):
        assert members.states[key(child)] == begun
        assert members.resume_from == {key(child): begun}
    else:
        assert members.states[key(child)] == replace(begun, last_caught_up_ms=EpochMillis(1))
        assert not members.resume_from
    gone = [n for n, parent in enumerate(parents) if not parent.is_listed]
    assert members.unread == [key(n) for n in gone if n in unread]
    assert members.abandoned == [key(n) for n in gone if n not in unread]


def test_a_stream_that_is_left_out_leaves() -> None:
    start = offset({key(0): READING, key(0, CLICKS): READING})
    members = advance_streams(start, [CLICKS], {CLICKS: listing(listed(0))})
    assert set(members.streams) == {CLICKS}
    assert set(members.states) == {key(0, CLICKS)}


def _members(states: Shards, waiting: Shards | None = None) -> ActiveShards:
    return ActiveShards(
        states={shard: ShardState(position=position) for shard, position in states.items()},
        waiting={
            shard: ShardState(position=position) for shard, position in (waiting or {}).items()
        },
    )


def test_shards_that_wait_have_no_slot_and_ended_ones_keep_theirs() -> None:
    listings = {ORDERS: listing(listed(0, closed=True), listed(1), listed(2, 0, 1))}
    assigned = assign_slots(
        _members({key(0): END, key(1): READING}, {key(2): READING}),
        listings,
        {key(0): SlotId(1), key(1): SlotId(0)},
        mapper_for("free"),
        2,
    )
    assert assigned == {key(0): 1, key(1): 0}


def test_a_child_takes_the_slot_that_its_parent_has_left() -> None:
    listings = {ORDERS: listing(listed(0, closed=True), listed(1), listed(2, 0))}
    assigned = assign_slots(
        _members({key(1): READING, key(2): TRIM}),
        listings,
        {key(0): SlotId(2), key(1): SlotId(0)},
        mapper_for("free"),
        3,
    )
    assert assigned == {key(1): 0, key(2): 2}


@pytest.mark.parametrize(
    ("states", "slots", "expected"),
    [
        ({}, {}, True),
        ({key(0): READING, key(1): READING}, {key(0): 0, key(1): 1}, True),
        ({key(0): READING, key(1): TRIM}, {key(0): 1, key(1): 1}, False),
        ({key(0): END, key(1): TRIM}, {key(0): 1, key(1): 1}, True),
        ({key(0): READING, key(0, CLICKS): TRIM}, {key(0): 1, key(0, CLICKS): 1}, False),
    ],
)
def test_one_shard_to_a_slot(states: Shards, slots: Mapping[ShardKey, int], expected: bool) -> None:
    """What has been read to its end does not count."""
    assert is_one_to_one(offset(states, slots=slots)) is expected


ORDERS = StreamName("orders")
END, TRIM, LATEST = ShardEnd(), TrimHorizon(), Latest()
NOON = AtTimestamp(millis=EpochMillis(1_700_000_000_000))

Positions = Mapping[int, Position]


def closed(number: int, *parents: int) -> Shard:
    return listed(number, *parents, closed=True)


def gone(lineage: Lineage) -> list[int]:
    return [number(shard) for shard in lineage.vanished]


# --- One step, case by case -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    shards: Sequence[Shard]
    states: Positions = field(default_factory=dict)
    waiting: Positions = field(default_factory=dict)
    then: Positions
    still_waiting: Positions = field(default_factory=dict)
    vanished: Sequence[int] = ()
    undiscovered: bool = False


SPLIT = [closed(0), listed(1, 0), listed(2, 0)]
MERGE = [closed(0), closed(1), listed(2, 0, 1)]
CHAIN = [closed(0), closed(1, 0), closed(2, 1), listed(3, 2)]

CASES = {
    "nothing is listed": Case(shards=[], then={}),
    "open shards stay": Case(
        shards=[listed(0), listed(1)], states={0: READING, 1: TRIM}, then={0: READING, 1: TRIM}
    ),
    "a shard without parents is let in": Case(
        shards=[listed(0), listed(1)], states={0: READING}, then={0: READING, 1: TRIM}
    ),
    "children wait for a parent that is being read": Case(
        shards=SPLIT, states={0: READING}, then={0: READING}
    ),
    "children wait for a parent that has not begun": Case(
        shards=SPLIT, states={0: TRIM}, then={0: TRIM}
    ),
    "children come in when their parent is read, and it leaves": Case(
        shards=SPLIT, states={0: END}, then={1: TRIM, 2: TRIM}
    ),
    "a merge waits for both of its parents": Case(
        shards=MERGE, states={0: END, 1: READING}, then={0: END, 1: READING}
    ),
    "a merge comes in after both of its parents": Case(
        shards=MERGE, states={0: END, 1: END}, then={2: TRIM}
    ),
    "a chain is walked a generation at a time": Case(shards=CHAIN, states={0: END}, then={1: TRIM}),
    "ancestors of an entry are finished, not new": Case(
        shards=CHAIN, states={2: READING}, then={2: READING}
    ),
    "a sibling listed late comes in although the parent has left": Case(
        shards=SPLIT, states={1: READING}, then={1: READING, 2: TRIM}
    ),
    "no child listed: the parent stays and asks for them": Case(
        shards=[closed(0), listed(5)],
        states={0: END, 5: READING},
        then={0: END, 5: READING},
        undiscovered=True,
    ),
    "one of two children listed: the parent leaves": Case(
        shards=[closed(0), listed(1, 0)], states={0: END}, then={1: TRIM}
    ),
    "a child whose parent has expired unseen is let in": Case(
        shards=[listed(1, 0), listed(2, 0)], states={1: READING}, then={1: READING, 2: TRIM}
    ),
    "both parents of a merge expired": Case(shards=[listed(2, 0, 1)], then={2: TRIM}),
    "one parent expired, the other being read": Case(
        shards=[closed(1), listed(2, 0, 1)], states={1: READING}, then={1: READING}
    ),
    "one parent expired, the other read": Case(
        shards=[closed(1), listed(2, 0, 1)], states={1: END}, then={2: TRIM}
    ),
    "one parent expired, the other new": Case(shards=[closed(1), listed(2, 0, 1)], then={1: TRIM}),
    "a finished entry that has expired leaves in silence": Case(
        shards=[listed(5)], states={0: END, 5: READING}, then={5: READING}
    ),
    "an entry that expired unread has vanished": Case(
        shards=[listed(5)], states={0: READING, 5: READING}, then={5: READING}, vanished=[0]
    ),
    "children of a vanished parent come in at once": Case(
        shards=[listed(1, 0), listed(2, 0)],
        states={0: READING},
        then={1: TRIM, 2: TRIM},
        vanished=[0],
    ),
    "a waiting shard that expired has vanished too": Case(
        shards=[closed(0), listed(5)],
        states={0: READING, 5: READING},
        waiting={1: NOON},
        then={0: READING, 5: READING},
        vanished=[1],
    ),
    "a waiting shard keeps its start": Case(
        shards=CHAIN,
        states={0: READING},
        waiting={1: NOON, 2: NOON, 3: READING},
        then={0: READING},
        still_waiting={1: NOON, 2: NOON, 3: READING},
    ),
    "a waiting shard comes in with its start": Case(
        shards=CHAIN,
        states={0: END},
        waiting={1: NOON, 2: NOON, 3: READING},
        then={1: NOON},
        still_waiting={2: NOON, 3: READING},
    ),
    "a waiting child counts as an entry of its parent": Case(
        shards=MERGE,
        states={0: END, 1: READING},
        waiting={2: NOON},
        then={1: READING},
        still_waiting={2: NOON},
    ),
    "a skipped shard that waits is not done before its own parent is": Case(
        shards=[closed(0), closed(1, 0), listed(2, 1)],
        states={0: READING},
        waiting={1: END},
        then={0: READING},
        still_waiting={1: END},
    ),
    "a skipped shard that comes in is done a step later": Case(
        shards=[closed(0), closed(1, 0), listed(2, 1)],
        states={0: END},
        waiting={1: END},
        then={1: END},
    ),
    "a skipped generation still waits for the one before it": Case(
        shards=CHAIN,
        states={0: READING},
        waiting={3: READING},
        then={0: READING},
        still_waiting={3: READING},
    ),
    "a skipped generation is done with the one before it": Case(
        shards=CHAIN, states={0: END}, waiting={3: READING}, then={3: READING}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_step(name: str) -> None:
    case = CASES[name]
    lineage = advance_lineage(case.shards, states(case.states), states(case.waiting))
    assert positions(lineage.states) == case.then
    assert positions(lineage.waiting) == case.still_waiting
    assert gone(lineage) == list(case.vanished)
    assert lineage.undiscovered_children == case.undiscovered


@pytest.mark.parametrize("name", CASES)
def test_a_step_does_not_depend_on_the_order_of_anything(name: str) -> None:
    case = CASES[name]
    one = advance_lineage(case.shards, states(case.states), states(case.waiting))
    other = advance_lineage(
        case.shards[::-1],
        dict(reversed(states(case.states).items())),
        dict(reversed(states(case.waiting).items())),
    )
    assert one == other
    assert list(one.states) == sorted(other.states)
    assert list(one.waiting) == sorted(other.waiting)


def test_what_was_known_of_a_shard_is_kept() -> None:
    state = ShardState(
        position=READING, last_caught_up_ms=EpochMillis(5), first=SequenceNumber("3")
    )
    waits = ShardState(position=NOON, last_caught_up_ms=EpochMillis(9))
    lineage = advance_lineage(
        [listed(0), closed(1), listed(2, 1)],
        {shard_id(0): state, shard_id(1): ShardState(position=TRIM)},
        {shard_id(2): waits},
    )
    assert lineage.states[shard_id(0)] is state
    assert lineage.waiting[shard_id(2)] is waits


# --- The start ------------------------------------------------------------------------------------


def starts(
    shards: Sequence[Shard], default: StartPoint | None, by_shard: Mapping[int, StartPoint]
) -> dict[int, StartPoint | ShardEnd]:
    start = StartingPosition(
        default=default, by_shard={key(n): point for n, point in by_shard.items()}
    )
    points = start_points(ORDERS, shards, start)
    return {number(shard): point for shard, point in points.items()}


@pytest.mark.parametrize(
    ("shards", "default", "by_shard", "expected"),
    [
        ([], TRIM, {}, {}),
        (SPLIT, TRIM, {}, {0: TRIM}),
        (MERGE, TRIM, {}, {0: TRIM, 1: TRIM}),
        (CHAIN[1:], TRIM, {}, {1: TRIM}),
        ([closed(1), listed(2, 0, 1)], TRIM, {}, {1: TRIM}),
        (SPLIT, LATEST, {}, {1: LATEST, 2: LATEST}),
        (CHAIN, LATEST, {}, {3: LATEST}),
        ([closed(0), listed(5)], LATEST, {}, {0: END, 5: LATEST}),
        (SPLIT, NOON, {}, {0: NOON, 1: NOON, 2: NOON}),
        (SPLIT, LATEST, {0: TRIM}, {0: TRIM, 1: LATEST, 2: LATEST}),
        (SPLIT, TRIM, {1: LATEST}, {0: TRIM, 1: LATEST, 2: TRIM}),
        (SPLIT, TRIM, {1: READING}, {0: TRIM, 1: READING, 2: TRIM}),
        (SPLIT, None, {0: TRIM, 1: NOON, 2: READING}, {0: TRIM, 1: NOON, 2: READING}),
    ],
)
def test_where_the_shards_of_a_new_stream_start(
    shards: Sequence[Shard],
    default: StartPoint | None,
    by_shard: Mapping[int, StartPoint],
    expected: Mapping[int, StartPoint | ShardEnd],
) -> None:
    assert starts(shards, default, by_shard) == expected


def test_a_shard_without_a_position_is_an_error_that_names_it() -> None:
    with pytest.raises(UnnamedShardError) as caught:
        starts(SPLIT, None, {0: TRIM})
    assert str(caught.value) == (
        "[invalid-options] option startingPosition, stream orders: found no position for "
        "shardId-000000000001, shardId-000000000002; expected a position for each shard of the "
        'stream, or a default for the rest. Next step: name them, or add "default": '
        '"trim_horizon" (or another position)'
    )
    for advised in (
        starts(SPLIT, None, dict.fromkeys(range(3), TRIM)),
        starts(SPLIT, TRIM, {0: TRIM}),
    ):
        assert set(advised) <= {0, 1, 2}


def test_a_long_list_of_shards_without_a_position_is_cut() -> None:
    with pytest.raises(UnnamedShardError, match=r"shardId-000000000009 and 4990 more;"):
        starts([listed(n) for n in range(5000)], None, {})


def test_a_position_for_a_shard_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UnnamedShardError) as caught:
        starts(SPLIT, TRIM, {7: TRIM, 1: LATEST})
    assert "shardId-000000000007, which the stream does not have" in caught.value.found
    assert "shardId-000000000001" not in caught.value.found
    assert caught.value.next_step == "remove them from the option"
    assert starts(SPLIT, TRIM, {1: LATEST})


def test_a_position_for_another_streams_shard_is_no_error() -> None:
    start = StartingPosition(default=TRIM, by_shard={key(7, "clicks"): LATEST})
    assert start_points(ORDERS, SPLIT, start) == {shard_id(n): TRIM for n in range(3)}


@pytest.mark.parametrize(
    ("shards", "entries", "reading", "waiting"),
    [
        (SPLIT, {0: TRIM}, {0: TRIM}, {}),
        (SPLIT, {0: NOON, 1: NOON, 2: NOON}, {0: NOON}, {1: NOON, 2: NOON}),
        (SPLIT, {1: READING, 2: READING}, {1: READING, 2: READING}, {}),
        (CHAIN, {0: TRIM, 3: READING}, {0: TRIM}, {3: READING}),
        ([closed(0), listed(5)], {0: END, 5: NOON}, {0: END, 5: NOON}, {}),
        (MERGE, {0: NOON, 1: NOON, 2: NOON}, {0: NOON, 1: NOON}, {2: NOON}),
    ],
)
def test_the_entries_of_a_new_stream_are_parted(
    shards: Sequence[Shard], entries: Positions, reading: Positions, waiting: Positions
) -> None:
    now, later = split_waiting(shards, states(entries))
    assert (positions(now), positions(later)) == (reading, waiting)


# --- Families -------------------------------------------------------------------------------------


def keyed(of: int, first: int, last: int, *parents: int) -> Shard:
    return replace(listed(of, *parents), hash_range=HashRange(first=first, last=last))


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        pytest.param([keyed(0, 0, 9), keyed(1, 10, 19)], {}, id="no parents"),
        pytest.param([keyed(1, 0, 4, 0)], {}, id="the parent expired"),
        pytest.param(
            [keyed(0, 0, 9), keyed(1, 0, 4, 0), keyed(2, 5, 9, 0)],
            {1: (0, 9), 2: (0, 9)},
            id="split",
        ),
        pytest.param([keyed(0, 0, 4), keyed(1, 5, 9), keyed(2, 0, 9, 0, 1)], {}, id="merge"),
        pytest.param(
            [keyed(0, 0, 9), keyed(1, 0, 4, 0), keyed(3, 0, 2, 1)],
            {1: (0, 9), 3: (0, 9)},
            id="two generations",
        ),
        pytest.param(
            [keyed(0, 0, 9), keyed(1, 5, 9, 0), keyed(2, 10, 19), keyed(3, 5, 19, 1, 2)],
            {1: (0, 9), 3: (0, 19)},
            id="a merge after a split",
        ),
    ],
)
def test_families(shards: list[Shard], expected: dict[int, tuple[int, int]]) -> None:
    listing = {shard.shard_id: shard for shard in shards}
    found = families(listing, [*listing, shard_id(77)])
    assert {number(of): (keys.first, keys.last) for of, keys in found.items()} == expected
