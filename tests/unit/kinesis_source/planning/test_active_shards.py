"""Which shards an offset holds, over all streams, and their slots."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_ssp.grouping.identifiers import ShardId, ShardKey, SlotId, StreamName
from spark_ssp.grouping.slots import mapper_for
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    Latest,
    Position,
    SequenceNumber,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.active_shards import (
    ActiveShards,
    advance_streams,
    assign_slots,
    is_one_to_one,
)
from tests.support.kinesis.planning import listed
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
    assert members.vanished == [key(3, CLICKS)]
    assert members.undiscovered == [CLICKS]


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
