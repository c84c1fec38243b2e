"""Consumers of enhanced fan-out, and their subscriptions to shards with the events and the end of
each.

The rules are those of SubscribeToShard in the Kinesis API reference. A `Subscription` is a value;
`advance` computes its next event from the shard and the time. The caller waits between steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from spark_ssp.testing.kinesis.state.errors import KinesisError, in_use, limit_exceeded, not_found
from spark_ssp.testing.kinesis.state.faults import (
    CutSubscription,
    EmptyEvents,
    EndSubscription,
    FailSubscription,
    SilenceSubscription,
    SubscriptionFault,
)
from spark_ssp.testing.kinesis.state.page_reads import Cursor, UnusualAnswers, child_shards
from spark_ssp.testing.kinesis.state.stream import Record, Shard, Slice, Stream, next_second

LIFE_MS = 300_000
"""A subscription ends after five minutes."""
TAKEOVER_MS = 5_000
"""From then on after a successful call, the next one takes over the subscription."""
HEARTBEAT_MS = 3_000
"""The time between events without records. The API reference has no figure; AWS sends them every
few seconds."""
MAX_EVENT_BYTES = 1024 * 1024
"""The most bytes of records in an event, unless its only record is larger. The API reference has
no figure."""
_MAX_EVENT_RECORDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A subscription opened by a successful SubscribeToShard.

    `continuation`: the last ContinuationSequenceNumber, or where it started. `last_event_ms`: None
    before the first event. `paced_until_ms`: no records are sent before, by the limit of bytes per
    second. `events`: the number of events sent. `faults`: those that have not taken effect.
    `silent_since_ms`: the start of an injected silence.
    """

    consumer_arn: str
    serial: int
    opened_ms: int
    cursor: Cursor
    continuation: int
    last_event_ms: int | None = None
    paced_until_ms: int = 0
    ended: bool = False
    events: int = 0
    faults: tuple[SubscriptionFault, ...] = ()
    silent_since_ms: int | None = None

    @property
    def stream(self) -> str:
        return self.cursor.stream

    @property
    def shard_id(self) -> str:
        return self.cursor.shard


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsEvent:
    """A SubscribeToShardEvent. At the end of a closed shard `continuation` is None, as Kinesis
    clients (the KCL, Flink) expect, and only then `child_shards` is set."""

    records: list[Record]
    size: int
    continuation: str | None
    millis_behind_latest: int
    child_shards: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent:
    """An exception as the last event of a subscription."""

    code: str
    message: str


Event = RecordsEvent | ErrorEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The subscription afterwards, and the event to send, if any. After an ended subscription's
    event the response ends; if it is `cut`, the connection is dropped within the event."""

    subscription: Subscription
    event: Event | None = None
    cut: bool = False


def open_subscription(
    shard: Shard,
    cursor: Cursor,
    previous: Subscription | None,
    *,
    consumer_arn: str,
    serial: int,
    now_ms: int,
    after_number: int | None = None,
    faults: tuple[SubscriptionFault, ...] = (),
) -> Subscription:
    """Return a new subscription at `cursor`, the result of `open_cursor`. `previous`: the latest
    one of this consumer to this shard, ended or not; within five seconds of it, ResourceInUse is
    raised. `after_number`: the StartingPosition's number if it is AFTER_SEQUENCE_NUMBER."""
    if previous is not None and 0 <= now_ms - previous.opened_ms < TAKEOVER_MS:
        raise in_use(
            f"Another subscription of consumer {consumer_arn} to shard {shard.shard_id} was opened "
            f"{now_ms - previous.opened_ms} milliseconds ago, which is less than {TAKEOVER_MS}."
        )
    return Subscription(
        consumer_arn=consumer_arn,
        serial=serial,
        opened_ms=now_ms,
        cursor=cursor,
        continuation=max(shard.position_number(_start(shard, cursor), now_ms), after_number or 0),
        paced_until_ms=previous.paced_until_ms if previous is not None else 0,
        faults=faults,
    )


def advance(
    subscription: Subscription,
    newest: Subscription | None,
    stream: Stream,
    *,
    now_ms: int,
    bytes_per_second: int | None = None,
    answers: UnusualAnswers,
) -> Step:
    """Return the next step of a subscription that has not ended. `newest`: the latest subscription
    of its consumer to its shard, None if the consumer was deregistered, or deleted with its stream.
    `bytes_per_second`: the limit of its consumer and shard, None for no limit."""
    if newest is None:
        return _failure(subscription, "ResourceNotFoundException", "The consumer was deleted.")
    if newest.serial != subscription.serial:
        return _failure(
            subscription,
            "ResourceInUseException",
            "Another call of SubscribeToShard took over the subscription.",
        )
    if now_ms - subscription.opened_ms >= LIFE_MS:
        return Step(subscription=replace(subscription, ended=True))
    try:
        shard = stream.shard(subscription.shard_id, now_ms)
    except KinesisError as error:
        return _failure(subscription, error.code, error.message)
    subscription, step = _apply_faults(subscription, now_ms)
    if step is not None:
        return step
    step = _next_event(subscription, stream, shard, now_ms, bytes_per_second, answers)
    if step.event is not None and isinstance(_due_fault(subscription), CutSubscription):
        return replace(step, subscription=replace(step.subscription, ended=True), cut=True)
    return step


def _due_fault(subscription: Subscription) -> SubscriptionFault | None:
    """Return the first fault that takes effect before the next event."""
    due = (fault for fault in subscription.faults if fault.after_events <= subscription.events)
    return next(due, None)


def _apply_faults(subscription: Subscription, now_ms: int) -> tuple[Subscription, Step | None]:
    """Apply the faults that are due, except `CutSubscription`, which needs an event: return the
    subscription afterwards, and its next step if they determine it."""
    while True:
        fault = _due_fault(subscription)
        match fault:
            case FailSubscription(code=code, message=message):
                return subscription, _failure(subscription, code, message)
            case EndSubscription():
                return subscription, Step(subscription=replace(subscription, ended=True))
            case SilenceSubscription(duration_ms=duration_ms):
                since_ms = subscription.silent_since_ms
                since_ms = now_ms if since_ms is None else since_ms
                if duration_ms is None or now_ms - since_ms < duration_ms:
                    silent = replace(subscription, silent_since_ms=since_ms)
                    return silent, Step(subscription=silent)
                subscription = _without(subscription, fault)
            case EmptyEvents(count=count):
                cursor = subscription.cursor
                cursor = replace(cursor, empty_pages=cursor.empty_pages + count)
                subscription = replace(_without(subscription, fault), cursor=cursor)
            case _:
                return subscription, None


def _without(subscription: Subscription, fault: SubscriptionFault) -> Subscription:
    rest = tuple(other for other in subscription.faults if other is not fault)
    return replace(subscription, faults=rest, silent_since_ms=None)


def _next_event(
    subscription: Subscription,
    stream: Stream,
    shard: Shard,
    now_ms: int,
    bytes_per_second: int | None,
    answers: UnusualAnswers,
) -> Step:
    cursor, last_ms = subscription.cursor, subscription.last_event_ms
    end = shard.log.visible_end(now_ms)
    limit = answers.event_records or _MAX_EVENT_RECORDS
    found = _records(subscription, shard, end, now_ms, limit)
    following = shard.log.at(found.next_ordinal) if found.next_ordinal < end else None
    at_end = following is None and not shard.is_open and end == shard.log.end
    at_end = at_end and not cursor.empty_pages
    at_end = at_end and not (answers.late_shard_end and found.records)
    quiet = last_ms is not None and 0 <= now_ms - last_ms < HEARTBEAT_MS
    if quiet and not (found.records or at_end or cursor.empty_pages):
        return Step(subscription=subscription)
    behind = 0 if following is None else max(1, now_ms - following.arrival_ms)
    if found.records:
        continuation = int(found.records[-1].sequence_number)
        behind = 0 if answers.zero_lag else behind
        cursor = replace(
            cursor, at_ms=None, ordinal=found.next_ordinal, empty_pages=answers.empty_pages
        )
    else:
        passed = shard.position_number(found.next_ordinal, now_ms)
        continuation = max(next_second(subscription.continuation), passed)
        if cursor.empty_pages:
            behind, cursor = max(1, behind), replace(cursor, empty_pages=cursor.empty_pages - 1)
    after = replace(
        subscription,
        cursor=cursor,
        continuation=continuation,
        last_event_ms=now_ms,
        paced_until_ms=_paced_until(subscription, found.size, now_ms, bytes_per_second),
        ended=at_end,
        events=subscription.events + 1,
    )
    return Step(
        subscription=after,
        event=RecordsEvent(
            records=found.records,
            size=found.size,
            continuation=None if at_end else str(continuation),
            millis_behind_latest=behind,
            child_shards=child_shards(stream, shard, now_ms) if at_end else None,
        ),
    )


def _records(subscription: Subscription, shard: Shard, end: int, now_ms: int, limit: int) -> Slice:
    """Return the records of the next event, at most `limit`; none if empty events come first, or
    if the rate does not allow any yet."""
    start = _start(shard, subscription.cursor)
    held = subscription.cursor.empty_pages > 0 or now_ms < subscription.paced_until_ms
    return shard.log.slice(
        start,
        start if held else end,
        limit=limit,
        max_bytes=MAX_EVENT_BYTES,
    )


def _start(shard: Shard, cursor: Cursor) -> int:
    """Return the ordinal of the next record."""
    if cursor.at_ms is not None:
        return shard.log.at_time(cursor.at_ms)
    return max(cursor.ordinal, shard.log.horizon)


def _paced_until(
    subscription: Subscription, size: int, now_ms: int, bytes_per_second: int | None
) -> int:
    """Return the time at which the rate allows the next records after `size` bytes."""
    if bytes_per_second is None or size == 0:
        return subscription.paced_until_ms
    return now_ms + size * 1000 // bytes_per_second


def _failure(subscription: Subscription, code: str, message: str) -> Step:
    return Step(
        subscription=replace(subscription, ended=True),
        event=ErrorEvent(code=code, message=message),
    )


# --- Registered consumers -------------------------------------------------------------------------


class ConsumerStatus(StrEnum):
    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


@dataclass(slots=True, kw_only=True)
class Consumer:
    """A registered consumer. Mutable: `newest` has its latest subscription to each shard, by shard
    id, ended ones included."""

    name: str
    arn: str
    created_ms: int
    active_from_ms: int
    deleted_from_ms: int | None = None
    tags: dict[str, str] = field(default_factory=dict)
    newest: dict[str, Subscription] = field(default_factory=dict)

    def status(self, now_ms: int) -> ConsumerStatus:
        if self.deleted_from_ms is not None:
            return ConsumerStatus.DELETING
        return ConsumerStatus.ACTIVE if now_ms >= self.active_from_ms else ConsumerStatus.CREATING


class Consumers:
    """The consumers of the stream with `stream_arn`. `last_seconds`: the second in the ARN of each
    name's latest consumer, those of deleted streams of that name included; updated here. Times are
    passed as `now_ms`; not thread-safe."""

    def __init__(self, stream_arn: str, last_seconds: dict[str, int]) -> None:
        self._stream_arn = stream_arn
        self._consumers: dict[str, Consumer] = {}
        self._last_seconds = last_seconds

    def all(self, now_ms: int) -> list[Consumer]:
        """Return the consumers that are not deleted, by name."""
        gone = [
            consumer.name
            for consumer in self._consumers.values()
            if consumer.deleted_from_ms is not None and consumer.deleted_from_ms <= now_ms
        ]
        for name in gone:
            del self._consumers[name]
        return sorted(self._consumers.values(), key=lambda consumer: consumer.name)

    def get(self, name: str, now_ms: int) -> Consumer:
        """Return the consumer; raise ResourceNotFound if it does not exist."""
        for consumer in self.all(now_ms):
            if consumer.name == name:
                return consumer
        raise not_found(f"Consumer {name} of stream {self._stream_arn} not found.")

    def check_room(self, now_ms: int, *, limit: int | None, creating_limit: int | None) -> None:
        """Raise LimitExceeded if the stream already has `limit` consumers, or `creating_limit` of
        them are CREATING; None means no limit."""
        consumers = self.all(now_ms)
        if limit is not None and len(consumers) >= limit:
            raise limit_exceeded(
                f"Stream {self._stream_arn} already has {len(consumers)} consumers; the limit is "
                f"{limit}."
            )
        creating = sum(c.status(now_ms) is ConsumerStatus.CREATING for c in consumers)
        if creating_limit is not None and creating >= creating_limit:
            raise limit_exceeded(
                f"{creating} consumers of stream {self._stream_arn} are CREATING; the limit is "
                f"{creating_limit}."
            )

    def register(
        self, name: str, now_ms: int, *, delay_ms: int, tags: Mapping[str, str] | None = None
    ) -> Consumer:
        """Add a consumer that is ACTIVE after `delay_ms`. Raises ResourceInUse if the name exists.
        Its ARN contains the second of its creation, a later one than that of an earlier consumer
        with this name."""
        if any(consumer.name == name for consumer in self.all(now_ms)):
            raise in_use(f"Consumer {name} of stream {self._stream_arn} already exists.")
        created_ms = max(now_ms, (self._last_seconds.get(name, -1) + 1) * 1000)
        self._last_seconds[name] = created_ms // 1000
        consumer = Consumer(
            name=name,
            arn=f"{self._stream_arn}/consumer/{name}:{created_ms // 1000}",
            created_ms=created_ms,
            active_from_ms=now_ms + delay_ms,
            tags=dict(tags or {}),
        )
        self._consumers[name] = consumer
        return consumer

    def deregister(self, name: str, now_ms: int, *, delay_ms: int) -> None:
        """Delete a consumer, which is DELETING for `delay_ms`."""
        consumer = self.get(name, now_ms)
        if consumer.deleted_from_ms is None:
            consumer.deleted_from_ms = now_ms + delay_ms
