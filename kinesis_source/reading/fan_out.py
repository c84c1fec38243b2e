"""Enhanced fan-out: which ranges of a batch are pushed to the consumers of a query, and when a task
reads one by GetRecords.

A consumer may subscribe to a shard again five seconds after it did so before (API reference,
SubscribeToShard), and a subscription costs more than the one GetRecords call that a small range
takes. So a query with a short trigger interval never waits for a subscription. A polled range whose
GetRecords other readers use up is pushed as soon as the consumer may subscribe.

Exactly-once does not depend on subscriptions. Whatever goes wrong with one, `ShardReader` continues
the range by GetRecords after the last record that it has, and tries to subscribe again later, if
enough is left to read. After `MAX_FAULTS` faults, or one that does not pass by itself, it reads the
rest by GetRecords. If these are throttled, even a small rest is pushed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from spark_ssp.common.logs import count_of
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import Subscriber, Subscription, SubscriptionError
from spark_ssp.kinesis_source.client.consumers import (
    ConsumerGuard,
    ConsumerService,
    GuardSettings,
    QueryConsumers,
    start_guard,
)
from spark_ssp.kinesis_source.model.ranges import ExpectedSize, ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    ConsumerArn,
    Position,
    RecordPage,
    SequenceNumber,
    sequence_order,
)
from spark_ssp.kinesis_source.options.values import ConsumerLifecycle, KinesisOptions

if TYPE_CHECKING:
    from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis

_log = logging.getLogger(__name__)


# --- The driver -----------------------------------------------------------------------------------

RESUBSCRIBE_AFTER_S: Final = 5.5
"""The time from one batch that pushes a shard to the next. The tasks of two batches do not begin
equally long after their planning."""

MIN_PUSHED_BYTES: Final = 1 << 20
"""The least size of a range that is pushed: half of what a shard pushes in a second."""

MIN_PUSHED_RECORDS: Final = 2_000
"""The same for a range of which only the number of records is known."""


def choose_pushed(
    ranges: Sequence[SlotRange],
    consumers: Mapping[StreamName, ConsumerArn],
    pushed_at: Mapping[ShardKey, float],
    now: float,
) -> tuple[SlotRange, ...]:
    """Return the ranges with their consumer, and the choice for each. `consumers` are those that
    can be subscribed; `pushed_at` has the times at which shards were planned to be pushed before.
    Both times are in seconds."""
    return tuple(
        replace(
            slot,
            shards=tuple(
                replace(
                    each,
                    consumer=consumers.get(each.key.stream),
                    is_polled_first=not _is_pushed(each, pushed_at, now),
                )
                for each in slot.shards
            ),
        )
        for slot in ranges
    )


def pushed_shards(ranges: Sequence[SlotRange]) -> list[ShardKey]:
    """Return the shards whose ranges are pushed."""
    return [each.key for slot in ranges for each in slot.shards if each.is_pushed]


def _is_pushed(range_: ShardRange, pushed_at: Mapping[ShardKey, float], now: float) -> bool:
    since = pushed_at.get(range_.key)
    if since is not None and now - since < RESUBSCRIBE_AFTER_S:
        return False
    return is_worth_pushing(range_.expected)


def is_worth_pushing(expected: ExpectedSize | None, fetched: int = 0) -> bool:
    """Return whether the rest of a range is large enough after `fetched` records. One of unknown
    size, as in a replay, is."""
    if expected is None:
        return True
    rest = expected.records - fetched
    if expected.size_bytes is None:
        return rest >= MIN_PUSHED_RECORDS
    return rest * expected.size_bytes >= MIN_PUSHED_BYTES * max(expected.records, 1)


class FanOut:
    """Chooses the pushed ranges of each batch of one query. Used by one thread. `monotonic` is in
    seconds."""

    def __init__(
        self,
        options: KinesisOptions,
        consumers: QueryConsumers,
        *,
        monotonic: Callable[[], float],
        guard: ConsumerGuard | None = None,
    ) -> None:
        """`guard` deregisters the consumers at the end of the query."""
        self._guard = guard
        self._streams = options.streams
        self._consumers = consumers
        self._monotonic = monotonic
        self._pushed_at: dict[ShardKey, float] = {}
        self._counts: dict[StreamName, Counter[str]] = {}

    def assign(self, ranges: Sequence[SlotRange]) -> tuple[SlotRange, ...]:
        """Return the ranges of a batch with their consumer, and the choice for each. The first call
        finds or registers the consumers; see `QueryConsumers.active` for errors."""
        consumers = self._consumers.active(self._streams)
        now = self._monotonic()
        chosen = choose_pushed(ranges, consumers, self._pushed_at, now)
        self._pushed_at = {
            key: since
            for key, since in self._pushed_at.items()
            if now - since < RESUBSCRIBE_AFTER_S
        }
        self._pushed_at |= dict.fromkeys(pushed_shards(chosen), now)
        self._counts = {}
        for each in (each for slot in chosen for each in slot.shards):
            counts = self._counts.setdefault(each.stream.name, Counter())
            counts["pushed" if each.is_pushed else "polled"] += 1
        return chosen

    def close(self) -> None:
        """End the use of the consumers."""
        if self._guard is not None:
            self._guard.close()

    def entry(self, stream: StreamName) -> dict[str, Any]:
        """Return the number of shards of the last batch that were pushed and polled, for the
        query's progress."""
        counts = self._counts.get(stream, Counter())
        return {"fanOut": {"pushed": counts["pushed"], "polled": counts["polled"]}}


def open_fan_out(options: KinesisOptions, kinesis: Boto3Kinesis) -> FanOut | None:
    """Return the fan-out of a query; None with polling. Starts the process that deregisters the
    consumers at the end of the query, if it is to do so: the end of a batch read is that of Spark's
    application. Consumers of a query with leases are those of the application, and remain."""
    fan_out = options.fan_out
    if fan_out is None:
        return None
    guard: ConsumerGuard | None = None
    if fan_out.lifecycle is ConsumerLifecycle.JOB and options.leases is None:
        guard = start_guard(
            GuardSettings(
                streams=options.streams,
                consumer_name=fan_out.consumer_name or "",
                connection=options.connection,
                endpoint=kinesis.endpoint,
                watched=None if options.ending_position is None else os.getppid(),
            )
        )
    consumers = QueryConsumers(
        fan_out,
        ConsumerService(kinesis),
        describe_arn=lambda stream: kinesis.describe(stream).arn,
        monotonic=time.monotonic,
        sleep=time.sleep,
    )
    return FanOut(options, consumers, monotonic=time.monotonic, guard=guard)


# --- Tasks ----------------------------------------------------------------------------------------

MAX_FAULTS: Final = 3
"""The number of failed subscriptions after which a range is polled to its end."""

MAX_EMPTY_AT_LATEST: Final = 2

MAX_EMPTY_EVENTS: Final = 20
"""The numbers of events without a record in a row, at the shard's latest record and before it,
after which the rest of the range is polled. The service sends one every few seconds."""


@dataclass(slots=True, eq=False)
class FaultLog:
    """Counts the faults of subscriptions in one process, and logs each cause once. Thread-safe."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counts: Counter[str] = field(default_factory=Counter)

    def record(self, error: SubscriptionError) -> None:
        """Count a fault. Log the first of its cause, and each one that doubles the number."""
        with self._lock:
            self._counts[error.code] += 1
            count = self._counts[error.code]
        if count & (count - 1) == 0:
            _log.log(
                logging.WARNING if error.is_lasting else logging.INFO,
                "%s: %s (%s in this process); its records are read by GetRecords",
                *(error.subject, error.found, count_of(count, "time")),
            )


PROCESS_WIDE_FAULTS: Final = FaultLog()
"""Executors keep their worker process, and this with it, from task to task."""


class OnDemandSubscriber:
    """`Subscriber` that is opened at the first subscription. Thread-safe."""

    def __init__(self, open_: Callable[[], Subscriber]) -> None:
        self._open = open_
        self._lock = threading.Lock()
        self._opened: Subscriber | None = None

    def subscribe(
        self, consumer: ConsumerArn, shard: ShardKey, position: Position, *, inclusive: bool = False
    ) -> Subscription:
        """Call SubscribeToShard once."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
        return self._opened.subscribe(consumer, shard, position, inclusive=inclusive)

    def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            self._opened.close()


class PushedPages:
    """The subscriptions to one range, one at a time. Used by one thread. Times are monotonic
    seconds."""

    def __init__(
        self,
        range_: ShardRange,
        subscriber: Subscriber | None,
        *,
        monotonic: Callable[[], float],
        faults: FaultLog,
    ) -> None:
        """Without `subscriber` the range is polled."""
        self._range = range_
        self._subscriber = subscriber
        self._monotonic = monotonic
        self._faults = faults
        self._subscription: Subscription | None = None
        self._not_before = 0.0
        self._failed = 0
        self._empty_events = 0
        self._is_throttled = False

    def record_throttle(self) -> None:
        """Record that GetRecords was throttled."""
        self._is_throttled = True

    def is_due(self, fetched: int) -> bool:
        """Return whether to subscribe now, after `fetched` records of the range."""
        range_ = self._range
        if self._subscriber is None or range_.consumer is None or self._failed >= MAX_FAULTS:
            return False
        if self._monotonic() < self._not_before:
            return False
        is_preferred = not range_.is_polled_first and is_worth_pushing(range_.expected, fetched)
        return is_preferred or self._is_throttled

    def subscribe(self, open_at: Callable[[Subscriber], Subscription], fetched: int) -> bool:
        """Return whether there is a subscription. Make one by `open_at` if it is due, after
        `fetched` records of the range."""
        if self._subscription is not None:
            return True
        if self._subscriber is None or not self.is_due(fetched):
            return False
        self._is_throttled = False
        self._not_before = self._monotonic() + RESUBSCRIBE_AFTER_S
        try:
            self._subscription = open_at(self._subscriber)
        except SubscriptionError as error:
            self._fail(error)
            return False
        return True

    def next_size(self) -> int | None:
        """Wait for the next event and return its size in bytes. None: poll instead."""
        subscription = self._subscription
        if subscription is None:
            return None
        try:
            size = subscription.next_size()
        except SubscriptionError as error:
            self._fail(error)
            return None
        if size is None:
            self.close()
        return size

    def next_page(self) -> RecordPage | None:
        """Return the event of which `next_size` returned the size. None: poll instead."""
        subscription = self._subscription
        if subscription is None:
            return None
        try:
            return subscription.next_page()
        except SubscriptionError as error:
            self._fail(error)
            return None

    def record_event(self, page: RecordPage) -> None:
        """Poll the rest of the range if its last record, which was not among the events so far,
        should have come: the subscription has passed it, or the end of the shard, or has nothing
        more. GetRecords then shows whether the records are gone."""
        self._empty_events = 0 if len(page) else self._empty_events + 1
        most = MAX_EMPTY_AT_LATEST if page.millis_behind_latest == 0 else MAX_EMPTY_EVENTS
        end, continuation = self._range.end, page.next_iterator
        if (
            continuation is None
            or self._empty_events >= most
            or (
                isinstance(end, AfterRecord)
                and sequence_order(SequenceNumber(continuation))
                > sequence_order(end.sequence_number)
            )
        ):
            self.give_up()

    def close(self) -> None:
        """End the subscription, if there is one."""
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def give_up(self) -> None:
        """Poll the rest of the range."""
        self._failed = MAX_FAULTS
        self.close()

    def _fail(self, error: SubscriptionError) -> None:
        self._failed = MAX_FAULTS if error.is_lasting else self._failed + 1
        self._not_before = self._monotonic() + RESUBSCRIBE_AFTER_S
        self._faults.record(error)
        self.close()
