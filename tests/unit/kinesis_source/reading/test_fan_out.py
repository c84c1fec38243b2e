"""The choice of the ranges that are pushed, and events that contradict the planned range:
GetRecords decides what they mean."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import SubscriptionError
from spark_ssp.kinesis_source.model.ranges import ExpectedSize, ShardRange
from spark_ssp.kinesis_source.model.shard import ConsumerArn, Position, RecordPage, ShardIterator
from spark_ssp.kinesis_source.reading.fan_out import (
    MIN_PUSHED_BYTES,
    MIN_PUSHED_RECORDS,
    RESUBSCRIBE_AFTER_S,
    choose_pushed,
    is_worth_pushing,
    pushed_shards,
)
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from tests.support.fakes.scripted import (
    NOW,
    STREAM,
    Do,
    FakeTime,
    Page,
    ScriptedService,
    ScriptedShard,
    page_of,
    recs,
    throttle,
)
from tests.support.kinesis.reading import (
    A,
    B,
    Row,
    options,
    read,
    rows_of,
    sequences,
    shard_range,
    slot_of,
)
from tests.support.kinesis.shards import after

ARN = ConsumerArn("arn:aws:kinesis:us-east-1:000000000000:stream/orders/consumer/etl:1")
RECORDS = range(1, 10)


def event(*numbers: int, continuation: int | None, behind: int = 0) -> RecordPage:
    following = None if continuation is None else ShardIterator(str(continuation))
    return page_of(recs(*numbers), following, behind, NOW)


Next = RecordPage | SubscriptionError


def fault() -> SubscriptionError:
    error = SubscriptionError("it", found="a fault", expected="events", next_step="poll")
    error.code = "ResourceInUseException"
    return error


class OneSubscription:
    """`Subscriber` and `Subscription` of one shard, with these events, of which `left` were not
    read. With `refusal` there is no subscription."""

    def __init__(self, events: Sequence[Next], refusal: SubscriptionError | None = None) -> None:
        self.left = list(events)
        self.subscribed = 0
        self._refusal = refusal

    def subscribe(
        self,
        consumer: ConsumerArn,
        shard: ShardKey,
        position: Position,
        *,
        inclusive: bool = False,
    ) -> OneSubscription:
        self.subscribed += 1
        if self._refusal is not None:
            raise self._refusal
        return self

    def next_size(self) -> int | None:
        return 100 if self.left else None

    def next_page(self) -> RecordPage:
        following = self.left.pop(0)
        if isinstance(following, SubscriptionError):
            raise following
        return following

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


@pytest.mark.parametrize(
    "subscription",
    [
        OneSubscription([], refusal=fault()),
        OneSubscription([fault()]),
        OneSubscription([]),
        OneSubscription([event(continuation=4)]),
        OneSubscription([event(6, continuation=6)]),
        OneSubscription([event(4, 5, continuation=5), fault()]),
    ],
    ids=[
        "refused",
        "failed before an event",
        "ended before an event",
        "an empty event",
        "an event without the record polled last",
        "failed after an event",
    ],
)
def test_a_subscription_within_a_polled_range_may_fail(subscription: OneSubscription) -> None:
    """GetRecords is throttled after its first page, so the rest is to be pushed. An iterator that
    was made before does not give the record that must come first."""
    range_ = replace(shard_range(A, after(2), after(9)), is_polled_first=True)
    polled, source = service(), service()
    source.shards[A].script.extend([Page(3), throttle()])
    assert pushed(source, range_, subscription) == read(polled, range_)
    assert subscription.subscribed


def test_the_wait_for_the_end_begins_again_after_an_event() -> None:
    """Each wait is shorter than the longest, but both together are not."""
    source, subscription = service(), OneSubscription([event(5, 6, continuation=6), fault()])
    shard = source.shards[A]
    shard.closed, shard.hidden = False, 4
    waiting = [Page(9)] * 10
    shard.script.extend([Page(5), *waiting, throttle(), *waiting])
    shard.script.append(Do(lambda: setattr(shard, "hidden", 0)))
    range_ = replace(shard_range(A, after(2), after(9)), is_polled_first=True)
    assert sequences(pushed(source, range_, subscription)) == [3, 4, 5, 6, 7, 8, 9]
    assert not subscription.left


ETL = ConsumerArn("arn:aws:kinesis:us-east-1:000000000000:stream/orders/consumer/etl:1")
LARGE = ExpectedSize(records=10, size_bytes=MIN_PUSHED_BYTES)
RANGES = (slot_of(shard_range(A, expected=LARGE), shard_range(B, expected=LARGE)),)


def key(shard: str) -> ShardKey:
    return next(each.key for each in RANGES[0].shards if each.shard == shard)


def test_large_ranges_of_a_stream_with_a_consumer_are_pushed() -> None:
    chosen = choose_pushed(RANGES, {STREAM.name: ETL}, {}, now=0.0)
    assert pushed_shards(chosen) == [key(A), key(B)]
    assert {each.consumer for each in chosen[0].shards} == {ETL}
    without = [replace(each, consumer=None) for each in chosen[0].shards]
    assert without == list(RANGES[0].shards)
    assert choose_pushed(RANGES, {}, {}, now=0.0) == RANGES


def test_a_shard_is_pushed_again_once_its_consumer_may_subscribe_again() -> None:
    pushed_at = {key(A): 100.0}
    for now, expected in (
        (100.0, [key(B)]),
        (100.0 + RESUBSCRIBE_AFTER_S - 0.1, [key(B)]),
        (100.0 + RESUBSCRIBE_AFTER_S, [key(A), key(B)]),
    ):
        chosen = choose_pushed(RANGES, {STREAM.name: ETL}, pushed_at, now)
        assert pushed_shards(chosen) == expected
        assert {each.consumer for each in chosen[0].shards} == {ETL}


@pytest.mark.parametrize(
    ("expected", "fetched", "worth"),
    [
        (None, 0, True),
        (LARGE, 0, True),
        (LARGE, 1, False),
        (replace(LARGE, size_bytes=MIN_PUSHED_BYTES - 1), 0, False),
        (replace(LARGE, size_bytes=2 * MIN_PUSHED_BYTES), 5, True),
        (ExpectedSize(records=MIN_PUSHED_RECORDS), 0, True),
        (ExpectedSize(records=MIN_PUSHED_RECORDS), 1, False),
        (ExpectedSize(records=0, size_bytes=0), 0, False),
        (LARGE, 20, False),
    ],
)
def test_what_is_left_of_a_range_decides(
    expected: ExpectedSize | None, fetched: int, worth: bool
) -> None:
    assert is_worth_pushing(expected, fetched) is worth
