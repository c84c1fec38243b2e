"""Subscriptions of simulated queries: pages of the world's service as events, with faults.

Half of all ranges are pushed, a quarter once GetRecords is throttled, and half of the subscriptions
have a fault. All is drawn from the shard and the position: threads must not share a source of
randomness.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from spark_ssp.common.errors import SspError
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import KinesisService, SubscriptionError
from spark_ssp.kinesis_source.model.ranges import ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import (
    ConsumerArn,
    Position,
    RecordPage,
    SequenceNumber,
    ShardIterator,
    StreamRef,
)

CONSUMER = ConsumerArn("arn:aws:kinesis:us-east-1:000000000000:stream/s/consumer/simulated:1")
_MOST_EMPTY = 3
_FAULTS = ("ResourceInUseException", "InternalFailureException", "TimeoutError", "ends early")


def push_some(slot: SlotRange) -> SlotRange:
    """Return the ranges of which most have a consumer."""
    return replace(slot, shards=tuple(_pushed(each) for each in slot.shards))


def _pushed(range_: ShardRange) -> ShardRange:
    drawn = Random(f"{range_.key} {range_.start} {range_.end}").random()
    if drawn < 0.25:
        return range_
    # Without `expected`, a range of any size is worth pushing.
    return replace(range_, consumer=CONSUMER, expected=None, is_polled_first=drawn < 0.5)


class SimulatedSubscriber:
    """`Subscriber` on a service in the same process."""

    def __init__(self, service: KinesisService) -> None:
        self._service = service

    def subscribe(
        self,
        consumer: ConsumerArn,
        shard: ShardKey,
        position: Position,
        *,
        inclusive: bool = False,
    ) -> _SimulatedSubscription:
        random = Random(f"{shard} {position} {inclusive}")
        fault = random.choice(_FAULTS) if random.random() < 0.5 else None
        after = random.randrange(4)
        if fault is not None and after == 0:
            raise _error(fault)
        stream = StreamRef(name=shard.stream)
        try:
            iterator = self._service.open_iterator(
                stream, shard.shard, position, inclusive=inclusive, retry=False
            )
        except SspError as error:
            raise _error(error.kind) from error
        return _SimulatedSubscription(
            self._service, shard, iterator, random=random, fault=fault, after=after
        )

    def close(self) -> None:
        """Nothing is open."""


class _SimulatedSubscription:
    def __init__(
        self,
        service: KinesisService,
        shard: ShardKey,
        iterator: ShardIterator,
        *,
        random: Random,
        fault: str | None,
        after: int,
    ) -> None:
        self._service = service
        self._shard = shard
        self._iterator: ShardIterator | None = iterator
        self._random = random
        self._fault = fault
        self._left = after
        self._page: RecordPage | None = None
        self._continuation = SequenceNumber("0")
        self._empty = 0

    def next_size(self) -> int | None:
        if self._fault is not None and self._left == 0:
            if self._fault == "ends early":
                return None
            raise _error(self._fault)
        self._left -= 1
        if self._iterator is None or self._empty == _MOST_EMPTY:
            return None
        try:
            page = self._service.get_records(
                StreamRef(name=self._shard.stream),
                self._shard.shard,
                self._iterator,
                limit=self._random.randint(1, 20),
                retry=False,
            )
        except SspError as error:
            raise _error(error.kind) from error
        self._iterator = page.next_iterator
        if len(page):
            self._continuation = page.sequence_numbers[-1]
        self._empty = 0 if len(page) else self._empty + 1
        following = None if page.next_iterator is None else ShardIterator(self._continuation)
        self._page = replace(page, next_iterator=following)
        return 1_000 + sum(map(len, page.data))

    def next_page(self) -> RecordPage:
        assert self._page is not None
        return self._page

    def close(self) -> None:
        """Nothing is open."""


def _error(code: str) -> SubscriptionError:
    error = SubscriptionError("shard", found=code, expected="events", next_step="poll")
    error.code = code
    return error
