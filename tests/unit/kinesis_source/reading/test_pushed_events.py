"""Events that contradict the planned range: GetRecords decides what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kinesis_source.client.hash_range_cache import HashRangeCache
from kinesis_source.model.ranges import ShardRange
from kinesis_source.model.shard import (
    ConsumerArn,
    Position,
    RecordPage,
    SequenceNumber,
    ShardIterator,
)
from kinesis_source.reading.shared_read_rates import ReadRates
from kinesis_source.reading.task_reader import read_slot
from task_grouping.identifiers import ShardKey
from tests.support.fakes.scripted import NOW, FakeTime, ScriptedService, ScriptedShard, recs
from tests.support.kinesis.reading import (
    A,
    Row,
    after,
    options,
    read,
    rows_of,
    sequences,
    shard_range,
    slot_of,
)

ARN = ConsumerArn("arn:aws:kinesis:us-east-1:000000000000:stream/orders/consumer/etl:1")
RECORDS = range(1, 10)


def event(*numbers: int, continuation: int | None, behind: int = 0) -> RecordPage:
    records = recs(*numbers)
    return RecordPage(
        sequence_numbers=[SequenceNumber(str(number)) for number in numbers],
        partition_keys=[record.key for record in records],
        arrival_ms=[record.arrival for record in records],
        data=[record.data for record in records],
        next_iterator=None if continuation is None else ShardIterator(str(continuation)),
        millis_behind_latest=behind,
        service_time=NOW,
    )


class OneSubscription:
    """`Subscriber` and `Subscription` of one shard, with these events, of which `left` were not
    read."""

    def __init__(self, events: Sequence[RecordPage]) -> None:
        self.left = list(events)
        self.subscribed = 0

    def subscribe(
        self,
        consumer: ConsumerArn,
        shard: ShardKey,
        position: Position,
        *,
        inclusive: bool = False,
    ) -> OneSubscription:
        self.subscribed += 1
        return self

    def next_size(self) -> int | None:
        return 100 if self.left else None

    def next_page(self) -> RecordPage:
        return self.left.pop(0)

    def close(self) -> None:
        """Nothing is open."""


def service() -> ScriptedService:
    return ScriptedService([ScriptedShard(shard_id=A, records=recs(*RECORDS), closed=True)])


def pushed(service: ScriptedService, range_: ShardRange, source: OneSubscription) -> list[Row]:
    batches = read_slot(
        slot_of(replace(range_, consumer=ARN)),
        options(),
        service,
        clock=FakeTime().clock,
        hash_ranges=HashRangeCache(),
        rates=ReadRates(),
        open_subscriber=lambda window: source,
    )
    return rows_of(list(batches))


@pytest.mark.parametrize(
    ("range_", "events"),
    [
        (shard_range(A, after(3), after(6)), [event(4, 5, 6, continuation=6)]),
        (shard_range(A, after(3), after(6)), [event(3, 4, 7, continuation=7)]),
        (shard_range(A, after(3), after(6)), [event(3, 4, continuation=4), event(continuation=8)]),
        (shard_range(A, after(3), after(6)), [event(3, 4, continuation=None)]),
        (shard_range(A, after(3)), [event(continuation=None)]),
        (shard_range(A, after(3)), [event(3, 4, continuation=None, behind=1_000)]),
    ],
    ids=[
        "no start record",
        "no end record",
        "a continuation after the end",
        "the end of the shard before that of the range",
        "the end of the shard without the start record",
        "the end of the shard before its latest record",
    ],
)
def test_missing_records_are_read_by_getrecords(
    range_: ShardRange, events: list[RecordPage]
) -> None:
    polled, source, subscription = service(), service(), OneSubscription(events)
    assert pushed(source, range_, subscription) == read(polled, range_)
    assert not subscription.left
    assert subscription.subscribed == 1
    assert source.fetched


def test_the_last_event_of_a_shard_ends_its_range() -> None:
    source, subscription = service(), OneSubscription([event(*RECORDS, continuation=None)])
    rows = pushed(source, shard_range(A), subscription)
    assert sequences(rows) == list(RECORDS)
    assert not source.fetched
