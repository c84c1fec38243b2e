"""Ranges on their way from the driver to the tasks."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import HashRange, ShardId, SlotId, StreamName
from spark_ssp.kinesis_source.model.ranges import (
    ExpectedSize,
    RangeEnd,
    RangeStart,
    ShardRange,
    SlotRange,
    Stragglers,
)
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    ConsumerArn,
    EpochMillis,
    Retention,
    SequenceNumber,
    ShardEnd,
    ShardIterator,
    StreamRef,
    TrimHorizon,
)
from tests.support.kinesis.shards import after

ORDERS = StreamRef(name=StreamName("orders"), arn="arn:aws:kinesis:us-east-1:1:stream/orders")
RETENTION = Retention(millis=86_400_000, kept_since=EpochMillis(5))
BARE = ShardRange(
    stream=StreamRef(name=StreamName("orders")),
    shard=ShardId("shardId-000000000000"),
    hash_range=None,
    created=EpochMillis(1),
    start=TrimHorizon(),
    start_caught_up_ms=None,
    expect_first=None,
    end=ShardEnd(),
)


def ranges(count: int) -> SlotRange:
    """Ranges with every fact that a range may have."""
    return SlotRange(
        slot=SlotId(3),
        shards=tuple(
            ShardRange(
                stream=ORDERS,
                shard=ShardId(f"shardId-{number:012d}"),
                hash_range=HashRange(first=number, last=1 << 127),
                created=EpochMillis(1_700_000_000_000),
                retention=RETENTION,
                start=after(number),
                start_caught_up_ms=EpochMillis(1_700_000_000_001),
                expect_first=SequenceNumber(str(number)),
                end=after(number + 1, sub=7),
                expected=ExpectedSize(records=4, size_bytes=800),
                iterator=ShardIterator("AAAA"),
                stragglers=Stragglers(since=EpochMillis(2), family=HashRange(first=0, last=number)),
                after=(ShardId("shardId-000000000000"),),
                consumer=ConsumerArn("arn:consumer"),
                is_polled_first=True,
            )
            for number in range(count)
        ),
    )


@pytest.mark.parametrize("end", [ShardEnd(), after(1, sub=-1)])
@pytest.mark.parametrize("start", [TrimHorizon(), AtTimestamp(millis=EpochMillis(9)), after(0, 2)])
def test_ranges_unpickle_as_they_were(start: RangeStart, end: RangeEnd) -> None:
    both = SlotRange(
        slot=SlotId(1),
        shards=(
            replace(BARE, start=start, end=end),
            *(replace(one, start=start, end=end) for one in ranges(1).shards),
        ),
    )
    assert pickle.loads(pickle.dumps(both)) == both


def test_the_text_of_a_range_does_not_contain_its_iterator() -> None:
    text = repr(replace(BARE, iterator=ShardIterator("AAAAopaque")))
    assert "shardId-000000000000" in text
    assert "AAAAopaque" not in text


def test_a_time_relative_to_the_start_of_the_query_stays_one() -> None:
    start = AtTimestamp(millis=EpochMillis(9), is_relative=True)
    one = SlotRange(slot=SlotId(0), shards=(replace(BARE, start=start),))
    (copy,) = pickle.loads(pickle.dumps(one)).shards
    assert copy.start.is_relative


def test_a_pickler_is_called_as_often_for_many_ranges_as_for_few() -> None:
    assert asked(ranges(200)) == asked(ranges(2))


class Counting(pickle.Pickler):
    """Counts the objects for which Spark's pickler, too, calls Python code."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.count = 0

    def reducer_override(self, _: object) -> Any:
        self.count += 1
        return NotImplemented


def asked(value: SlotRange) -> int:
    pickler = Counting()
    pickler.dump(value)
    return pickler.count
