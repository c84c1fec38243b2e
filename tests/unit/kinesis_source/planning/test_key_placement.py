"""What is left out of a batch. `tests/simulation/kinesis/test_distribution.py` tests the proof."""

from __future__ import annotations

import json

from spark_ssp.grouping.identifiers import HashRange, SlotId, StreamName
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry, decode, encode
from spark_ssp.kinesis_source.model.ranges import Stragglers
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    KeyPlacement,
    SequenceNumber,
    ShardState,
    StreamRef,
)
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.planning.shard_discovery import SETTLING_MS, PlacementWatch
from tests.support.fakes.planner_world import HOUR_MS, World
from tests.support.kinesis.shards import key

ORDERS = StreamName("orders")
SINCE = EpochMillis(1_763_720_113_207)
PLACEMENT = KeyPlacement(since=SINCE, families={key(1).shard: HashRange(first=0, last=7)})


def offset(at: int, placement: KeyPlacement | None) -> Offset:
    """Two shards in one slot, both read up to the record `at`."""
    state = ShardState(position=AfterRecord(sequence_number=SequenceNumber(str(at))))
    entry = StreamEntry(created=EpochMillis(1), placement=placement)
    return Offset(
        slots=1,
        streams={ORDERS: entry},
        assignment={key(0): SlotId(0), key(1): SlotId(0)},
        states={key(0): state, key(1): state},
    )


def stragglers(start: Offset, end: Offset) -> list[Stragglers | None]:
    texts = [json.dumps(encode(either)) for either in (start, end)]
    begin, until = (decode(json.loads(text)) for text in texts)
    (slot,) = plan_ranges(begin, until, {ORDERS: StreamRef(name=ORDERS)})
    return [shard.stragglers for shard in slot.shards]


def test_what_is_left_out_of_a_range_follows_from_the_end_alone() -> None:
    """So that a replay, which has nothing but the offsets, gives the same rows."""
    proven, bare = offset(9, PLACEMENT), offset(12, None)
    assert stragglers(proven, bare) == [None, None]
    expected = [None, Stragglers(since=SINCE, family=HashRange(first=0, last=7))]
    assert stragglers(offset(9, None), offset(12, PLACEMENT)) == expected


def test_a_machine_that_was_suspended_has_no_proof_of_the_time_between() -> None:
    """The monotonic clock stands still in that time; the service's does not."""
    world = World(shards=1)
    seconds = 0.0
    watch = PlacementWatch(world.service, monotonic=lambda: seconds)
    (stream,) = world.options.streams
    created = world.service.describe(stream).created
    proven = []
    for suspended_ms in (0, 0, HOUR_MS):
        seconds += 10
        world.clock.advance(10_000 + suspended_ms)
        proven.append(watch.proven_since(stream, created))
    assert proven == [proven[0], proven[0], world.clock.now_ms() + SETTLING_MS]
