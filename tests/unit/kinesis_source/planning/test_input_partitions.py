"""Planning a batch from two offsets: what each slot reads, and what no batch can be."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import NEW_CHECKPOINT, IncompatibleStateError
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import HashRange, ShardKey, SlotId, StreamName
from spark_ssp.kinesis_source.model.offset import (
    BEFORE_FIRST_BATCH,
    Offset,
    StreamEntry,
    decode,
    encode,
)
from spark_ssp.kinesis_source.model.ranges import ExpectedSize, ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    Latest,
    Position,
    SequenceNumber,
    ShardEnd,
    ShardState,
    StartingPosition,
    StartPoint,
    StreamRef,
    TrimHorizon,
    is_behind,
)
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges, same_positions
from tests.support.kinesis.shards import after, key

ORDERS, CLICKS = StreamName("orders"), StreamName("clicks")
REFS = {
    ORDERS: StreamRef(name=ORDERS),
    CLICKS: StreamRef(name=CLICKS, arn="arn:aws:kinesis:eu-west-1:000000000000:stream/clicks"),
}
CREATED, SEEN = EpochMillis(1000), EpochMillis(5000)
TRIM, END = TrimHorizon(), ShardEnd()
NOON, LATER = AtTimestamp(millis=EpochMillis(50)), AtTimestamp(millis=EpochMillis(60))


Entries = Mapping[ShardKey, tuple[int, Position]]


def offset(
    entries: Entries,
    *,
    slots: int = 2,
    waiting: Mapping[ShardKey, Position] | None = None,
    start: StartPoint | StartingPosition | None = None,
    created: EpochMillis = CREATED,
    streams: tuple[StreamName, ...] = (ORDERS,),
) -> Offset:
    if start is not None and not isinstance(start, StartingPosition):
        start = StartingPosition(default=start)
    return Offset(
        slots=slots,
        streams={name: StreamEntry(created=created, start=start) for name in streams},
        assignment={shard: SlotId(slot) for shard, (slot, _) in entries.items()},
        states={shard: ShardState(position=at) for shard, (_, at) in entries.items()},
        waiting={shard: ShardState(position=at) for shard, at in (waiting or {}).items()},
    )


def plan(start: Offset, end: Offset) -> tuple[SlotRange, ...]:
    return plan_ranges(start, end, REFS)


def brief(ranges: tuple[SlotRange, ...]) -> dict[int, dict[ShardKey, tuple[Position, Position]]]:
    return {
        part.slot: {shard.key: (shard.start, shard.end) for shard in part.shards} for part in ranges
    }


# --- What is read ---------------------------------------------------------------------------------


def inherit(end: Offset, begins: Mapping[ShardKey, Position]) -> Offset:
    """The offset, with shards in it that began elsewhere than where they stood before."""
    states = {
        k: replace(state, resume_from=ShardState(position=begins[k])) if k in begins else state
        for k, state in end.states.items()
    }
    return replace(end, states=states)


@pytest.mark.parametrize("before", [{}, {key(0): (0, after(9))}, {key(0): (0, after(99))}])
@pytest.mark.parametrize("begin", [TRIM, NOON, after(7, 2), after(50)])
def test_a_shard_that_was_taken_over_begins_where_the_end_says(
    before: Entries, begin: Position
) -> None:
    end = inherit(offset({key(0): (0, after(60))}), {key(0): begin})
    assert brief(plan(offset(before), end)) == {0: {key(0): (begin, after(60))}}
    assert brief(plan(BEFORE_FIRST_BATCH, end)) == {0: {key(0): (begin, after(60))}}


def test_a_shard_that_was_taken_over_brings_its_proof() -> None:
    end = offset({key(0): (0, after(60))})
    begin = ShardState(position=after(50), last_caught_up_ms=SEEN)
    end = replace(end, states={key(0): ShardState(position=after(60), resume_from=begin)})
    (part,) = plan(offset({}), end)
    assert (part.shards[0].start, part.shards[0].start_caught_up_ms) == (after(50), SEEN)


def test_a_shard_that_was_taken_over_at_its_latest_record_reads_nothing() -> None:
    end = inherit(offset({key(0): (0, after(60))}), {key(0): after(60)})
    assert plan(offset({}), end) == ()


def test_where_a_shard_was_taken_over_counts_for_one_batch_alone() -> None:
    first = inherit(offset({key(0): (0, after(60))}), {key(0): after(50)})
    second = offset({key(0): (0, after(70))})
    assert brief(plan(first, second)) == {0: {key(0): (after(60), after(70))}}


def test_a_shard_taken_over_behind_the_end_of_its_batch_is_refused() -> None:
    end = inherit(offset({key(0): (0, after(60))}), {key(0): after(61)})
    with pytest.raises(IncompatibleStateError, match="an end before its start"):
        plan(offset({key(0): (0, after(9))}), end)


_numbers = st.integers(0, 99)


@given(
    before=st.dictionaries(st.integers(0, 5), _numbers),
    begins=st.dictionaries(st.integers(0, 5), _numbers),
    steps=st.dictionaries(st.integers(0, 5), _numbers, min_size=1),
)
def test_what_a_batch_reads_follows_from_the_texts_of_its_two_offsets(
    before: dict[int, int], begins: dict[int, int], steps: dict[int, int]
) -> None:
    """A replay has nothing else: neither leases nor memory."""
    start = offset({key(n): (0, after(at)) for n, at in before.items()})
    froms = {key(n): after(begins[n]) for n in steps if n in begins}
    ends = {n: begins.get(n, before.get(n, 0)) + step for n, step in steps.items()}
    end = inherit(offset({key(n): (n % 2, after(at)) for n, at in ends.items()}), froms)
    texts = [json.dumps(encode(either)) for either in (start, end)]
    again = plan(*(decode(json.loads(text)) for text in texts))
    assert again == plan(start, end)
    read = {shard.key: shard.start for part in again for shard in part.shards}
    for n, step in steps.items():
        expected = froms.get(key(n), after(before[n]) if n in before else TRIM)
        if step or expected == TRIM:
            assert read[key(n)] == expected


def test_all_that_a_range_says() -> None:
    start = offset({key(0): (0, after(9, 2))})
    state = ShardState(position=after(9, 2), last_caught_up_ms=SEEN)
    start = replace(start, states={key(0): state})
    end = offset({key(0): (1, after(12))})
    assert plan(start, end) == (
        SlotRange(
            slot=SlotId(1),
            shards=(
                ShardRange(
                    stream=REFS[ORDERS],
                    shard=key(0).shard,
                    hash_range=None,
                    created=CREATED,
                    start=after(9, 2),
                    start_caught_up_ms=SEEN,
                    expect_first=None,
                    end=after(12),
                ),
            ),
        ),
    )


def test_hints_reach_only_the_range_of_their_shard() -> None:
    start = offset({key(0): (0, after(9)), key(1): (0, after(9))})
    end = offset({key(0): (0, after(12)), key(1): (0, after(12))})
    keys = HashRange(first=0, last=7)
    size = ExpectedSize(records=3, size_bytes=300)
    (bare,) = plan(start, end)
    (hinted,) = plan_ranges(start, end, REFS, {key(0): keys}, {key(1): size})
    first, second = bare.shards
    assert hinted.shards == (replace(first, hash_range=keys), replace(second, expected=size))


def test_the_first_record_comes_from_the_end() -> None:
    end = offset({key(0): (0, after(12))}, start=TRIM)
    first = SequenceNumber("3")
    end = replace(end, states={key(0): ShardState(position=after(12), first=first)})
    (part,) = plan(BEFORE_FIRST_BATCH, end)
    assert part.shards[0].expect_first == first


@pytest.mark.parametrize("start", [TRIM, NOON])
def test_a_shard_is_read_from_a_start_to_its_end_if_it_holds_anything(start: Position) -> None:
    end = offset({key(0): (0, END)})
    end = replace(end, states={key(0): ShardState(position=END, first=SequenceNumber("3"))})
    assert brief(plan(offset({key(0): (0, start)}), end)) == {0: {key(0): (start, END)}}


@pytest.mark.parametrize(
    ("before", "then", "read"),
    [
        (after(9), after(9), None),
        (after(9), after(9, 1), (after(9), after(9, 1))),
        (after(9), after(10), (after(9), after(10))),
        (after(99), after(100), (after(99), after(100))),
        (after(9), END, (after(9), END)),
        (TRIM, TRIM, None),
        (TRIM, after(9), (TRIM, after(9))),
        (TRIM, END, None),  # found empty: there is no first record
        (NOON, NOON, None),
        (NOON, after(9), (NOON, after(9))),
        (END, END, None),
    ],
)
def test_a_shard_is_read_from_where_it_stood(
    before: Position, then: Position, read: tuple[Position, Position] | None
) -> None:
    ranges = plan(offset({key(0): (0, before)}), offset({key(0): (0, then)}))
    assert brief(ranges) == ({} if read is None else {0: {key(0): read}})


def test_idle_slots_cost_no_task_and_the_rest_is_sorted() -> None:
    start = offset({key(n): (n % 4, after(1)) for n in range(8)}, slots=4)
    end = offset(
        {key(n): (n % 4, after(1 if n % 4 == 2 else n + 2)) for n in reversed(range(8))}, slots=4
    )
    ranges = plan(start, end)
    assert [part.slot for part in ranges] == [0, 1, 3]
    assert [[shard.key for shard in part.shards] for part in ranges] == [
        [key(0), key(4)],
        [key(1), key(5)],
        [key(3), key(7)],
    ]


def test_slots_come_from_the_end() -> None:
    start = offset({key(0): (0, after(1)), key(1): (0, after(1))}, slots=1)
    end = offset({key(0): (0, after(2)), key(1): (2, after(2))}, slots=3)
    assert brief(plan(start, end)) == {
        0: {key(0): (after(1), after(2))},
        2: {key(1): (after(1), after(2))},
    }
    assert brief(plan(end, offset({key(0): (0, after(3)), key(1): (0, after(3))}, slots=1))) == {
        0: {key(0): (after(2), after(3)), key(1): (after(2), after(3))}
    }


def test_a_child_let_in_by_this_batch_begins_at_its_beginning() -> None:
    start = offset({key(0): (0, END)})
    end = offset({key(1): (0, after(5)), key(2): (1, TRIM)})
    assert brief(plan(start, end)) == {0: {key(1): (TRIM, after(5))}}


def test_a_shard_that_waited_begins_where_it_was_to_start() -> None:
    start = offset({key(0): (0, END)}, waiting={key(1): NOON, key(2): after(4)})
    end = offset({key(1): (0, after(5)), key(2): (1, after(6))})
    assert brief(plan(start, end)) == {
        0: {key(1): (NOON, after(5))},
        1: {key(2): (after(4), after(6))},
    }


def test_a_shard_that_has_left_is_not_read() -> None:
    start = offset({key(0): (0, END), key(1): (1, after(3))})
    end = offset({key(1): (1, after(3))})
    assert plan(start, end) == ()


# --- Where a query starts -------------------------------------------------------------------------


@pytest.mark.parametrize("point", [TRIM, NOON, after(3)])
def test_the_first_batch_reads_from_the_start_that_its_end_tells(point: Position) -> None:
    assert not isinstance(point, ShardEnd)
    end = offset({key(0): (0, after(5)), key(1): (1, point)}, start=point)
    assert brief(plan(BEFORE_FIRST_BATCH, end)) == {0: {key(0): (point, after(5))}}


@pytest.mark.parametrize("at", [after(5), NOON, END])
def test_a_start_at_latest_reads_nothing(at: Position) -> None:
    end = offset({key(0): (0, at)}, start=Latest())
    assert plan(BEFORE_FIRST_BATCH, end) == ()


def test_a_start_by_shard() -> None:
    start = StartingPosition(
        default=NOON, by_shard={key(0): TRIM, key(1): Latest(), key(2): after(3)}
    )
    end = offset({key(n): (0, after(9)) for n in range(4)}, start=start)
    assert brief(plan(BEFORE_FIRST_BATCH, end)) == {
        0: {
            key(0): (TRIM, after(9)),
            key(2): (after(3), after(9)),
            key(3): (NOON, after(9)),
        }
    }


def test_a_stream_that_is_added_starts_in_the_batch_that_adds_it() -> None:
    start = offset({key(0): (0, after(1))})
    end = Offset(
        slots=2,
        streams={
            ORDERS: StreamEntry(created=CREATED),
            CLICKS: StreamEntry(created=EpochMillis(7), start=StartingPosition(default=TRIM)),
        },
        assignment={key(0): SlotId(0), key(0, CLICKS): SlotId(1)},
        states={
            key(0): ShardState(position=after(2)),
            key(0, CLICKS): ShardState(position=after(3)),
        },
    )
    ranges = plan(start, end)
    assert brief(ranges) == {
        0: {key(0): (after(1), after(2))},
        1: {key(0, CLICKS): (TRIM, after(3))},
    }
    assert ranges[1].shards[0].stream == REFS[CLICKS]
    assert ranges[1].shards[0].created == EpochMillis(7)


def test_a_recreated_stream_is_read_anew() -> None:
    """The positions of the deleted stream mean nothing in the one of its name."""
    start = offset({key(0): (0, after(100)), key(1): (1, END)})
    end = offset(
        {key(0): (0, after(5)), key(1): (1, after(6))}, created=EpochMillis(2000), start=TRIM
    )
    ranges = plan(start, end)
    assert brief(ranges) == {
        0: {key(0): (TRIM, after(5))},
        1: {key(1): (TRIM, after(6))},
    }
    assert {shard.created for part in ranges for shard in part.shards} == {EpochMillis(2000)}


# --- What no batch can be -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "then"),
    [
        (after(10), after(9)),
        (after(100), after(99)),
        (after(9, 3), after(9, 2)),
        (after(9), TRIM),
        (after(9), NOON),
        (NOON, LATER),
        (LATER, NOON),
        (TRIM, NOON),
        (NOON, TRIM),
        (END, after(9)),
        (END, TRIM),
    ],
)
def test_an_end_before_its_start_is_an_error(before: Position, then: Position) -> None:
    with pytest.raises(IncompatibleStateError) as caught:
        plan(offset({key(0): (0, before)}), offset({key(0): (0, then)}))
    assert str(caught.value) == (
        "[incompatible-state] offsets of orders/shardId-000000000000: found an end before its "
        "start; expected offsets that only move forward. Next step: do not edit or mix the files "
        "of a checkpoint; start on a new one"
    )


def test_where_departed_shards_stand_is_no_part_of_what_is_read() -> None:
    one = offset({key(0): (0, after(9))})
    assert same_positions(one, replace(one, lost_shards={key(1): ShardState(position=after(5))}))


def test_a_first_batch_that_takes_over_a_closed_shard_with_nothing_to_read() -> None:
    """LATEST, found out when the shard had closed: its end, and no start of the stream."""
    assert plan(BEFORE_FIRST_BATCH, offset({key(0): (0, END)})) == ()


def test_a_new_stream_without_its_start_is_an_error() -> None:
    with pytest.raises(IncompatibleStateError) as caught:
        plan(BEFORE_FIRST_BATCH, offset({key(0): (0, after(5))}))
    assert caught.value.subject == "offset of stream orders"
    assert "without its start" in caught.value.found


def test_a_stream_that_the_query_does_not_read_is_an_error_that_names_the_option() -> None:
    start = offset({}, streams=(ORDERS, StreamName("old")))
    with pytest.raises(IncompatibleStateError) as caught:
        plan(start, offset({}, streams=(ORDERS, StreamName("old"))))
    assert str(caught.value) == (
        "[incompatible-state] option streamName (or streamARN): found clicks, orders; the "
        "checkpoint is of old, orders; expected every stream of the checkpoint (more may be "
        "added). Next step: add old; or, if the query no longer needs the unread records, set "
        f"dropStreams to old; or start on {NEW_CHECKPOINT}"
    )


@given(slots=st.lists(st.integers(0, 3), min_size=4, max_size=4), last=st.booleans())
def test_slots_keep_their_task_without_a_removed_stream(slots: list[int], last: bool) -> None:
    """Sinks recognize the rows of a batch that runs again by the number of their task."""
    streams = (ORDERS, StreamName("views" if last else "clicks"))
    keys = [ShardKey(stream=name, shard=key(n).shard) for name in streams for n in (0, 1)]
    end = offset(
        {one: (slot, after(9)) for one, slot in zip(keys, slots, strict=True)},
        slots=4,
        streams=streams,
        start=TRIM,
    )
    planned = plan_ranges(BEFORE_FIRST_BATCH, end, {n: StreamRef(name=n) for n in streams})
    again = plan_ranges(BEFORE_FIRST_BATCH, end, {ORDERS: REFS[ORDERS]}, removed=streams[1:])
    assert [part.slot for part in again] == [part.slot for part in planned]
    for part, before in zip(again, planned, strict=True):
        kept = tuple(shard for shard in before.shards if shard.stream.name == ORDERS)
        assert part.shards == kept


# --- Comparing ------------------------------------------------------------------------------------


def test_proofs_and_slots_make_no_reading() -> None:
    one = offset({key(0): (0, after(1))}, waiting={key(1): TRIM}, start=TRIM)
    other = replace(
        one,
        slots=9,
        streams={ORDERS: StreamEntry(created=CREATED)},
        assignment={key(0): SlotId(8)},
        states={
            key(0): ShardState(position=after(1), last_caught_up_ms=SEEN, first=SequenceNumber("1"))
        },
        waiting={key(1): ShardState(position=TRIM, last_caught_up_ms=SEEN)},
    )
    assert same_positions(one, other)


@pytest.mark.parametrize(
    "other",
    [
        offset({key(0): (0, after(2))}, waiting={key(1): TRIM}),
        offset({key(0): (0, after(1, 1))}, waiting={key(1): TRIM}),
        offset({key(0): (0, after(1))}, waiting={key(1): NOON}),
        offset({key(0): (0, after(1)), key(1): (0, TRIM)}),
        offset({key(0): (0, after(1))}, waiting={key(1): TRIM}, created=EpochMillis(1)),
        offset({key(0): (0, after(1))}, waiting={key(1): TRIM}, streams=(ORDERS, CLICKS)),
    ],
)
def test_any_other_change_is_one(other: Offset) -> None:
    assert not same_positions(offset({key(0): (0, after(1))}, waiting={key(1): TRIM}), other)


@pytest.mark.parametrize(
    ("position", "target", "behind"),
    [
        (TRIM, after(1), True),
        (NOON, after(1), True),
        (after(9), after(10), True),
        (after(9), after(9, 1), True),
        (after(9, 1), after(9, 1), False),
        (after(9, 1), after(9), False),
        (after(10), after(9), False),
        (TRIM, END, True),
        (after(9), END, True),
        (END, END, False),
        (END, after(9), False),
        (TRIM, NOON, False),
        (after(9), NOON, False),
    ],
)
def test_behind(position: Position, target: Position, behind: bool) -> None:
    assert is_behind(position, target) is behind
