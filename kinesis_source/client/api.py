"""The protocol of Kinesis clients, between planning and reading on one side and the SDK on the
other. `boto3_client.py` is the only implementation that uses a network.

Contract for every implementation:

* Transient faults (5xx, dropped connections, time-outs) are retried inside, with back-off and
  jitter, up to `retry.maxAttempts` in a row; then `ServiceUnavailableError`. Throttling is retried
  in the same way, without a limit: it slows a query down and never fails it. A call made with
  `retry=False` is tried once and raises `ThrottledError` on throttling and `UnreachableError`,
  which is one, on any other transient fault.
* `ExpiredIteratorError` is raised at once: the caller has a position to reopen at.
* No permission, no credentials: `AccessError`. No such stream: `StreamNotFoundError`. No such
  shard: `ShardNotFoundError`. A sequence number the shard cannot have: `InvalidPositionError`.
* Thread-safe: shards are read concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from spark_ssp.common.errors import SspError
from spark_ssp.grouping.identifiers import ShardId, ShardKey
from spark_ssp.kinesis_source.model.shard import (
    ConsumerArn,
    EpochMillis,
    Position,
    PutEntries,
    PutOutcome,
    RecordPage,
    Shard,
    ShardIterator,
    StreamDescription,
    StreamRef,
)

MAX_PAGE_BYTES: Final = 10 << 20
"""The most bytes of keys and data in one answer of GetRecords (Kinesis API reference)."""
BYTES_PER_SECOND: Final = 2 << 20
"""The rate of a shard for all its readers together (Kinesis API reference, GetRecords)."""


class ExpiredIteratorError(SspError):
    """The iterator is older than five minutes, or invalid for another reason: open another."""

    kind = "expired-iterator"


class ThrottledError(SspError):
    """A call without retries met throttling or another transient fault."""

    kind = "throttled"
    code: str = ""
    """The service's code of the fault, or the name of the SDK's error. Lost by pickling."""


class UnreachableError(ThrottledError):
    """A call without retries met a fault (5xx, a broken connection, a time-out). If it lasts, the
    call is repeated with retries, which fails in the end."""

    kind = "unreachable"


class ShardNotFoundError(SspError):
    """The stream exists, the shard does not: it expired after its retention, or never existed."""

    kind = "shard-not-found"


class InvalidPositionError(SspError):
    """The shard cannot have such a position, as after the stream was recreated."""

    kind = "invalid-position"


class StreamInUseError(SspError):
    """A stream of that name exists already, in any state, or is being deleted."""

    kind = "stream-in-use"


class SubscriptionError(SspError):
    """A subscription was refused, broke off or fell silent: continue with GetRecords, which returns
    the same records."""

    kind = "subscription"
    code: str = ""
    """The service's code of the fault, or the name of the SDK's error. Lost by pickling."""
    is_lasting: bool = False
    """True for a fault that does not pass by itself: a wrong signature, a missing permission or
    consumer. Lost by pickling."""


class KinesisService(Protocol):
    """Reads one account's streams in one region."""

    def describe(self, stream: StreamRef, *, retry: bool = True) -> StreamDescription:
        """Call DescribeStreamSummary, which is limited to 20 per second and account (see
        `shard_discovery.py`)."""
        ...

    def list_shards(self, stream: StreamRef) -> tuple[Shard, ...]:
        """Call ListShards, all pages; return all shards that have not expired, sorted by id."""
        ...

    def open_iterator(
        self,
        stream: StreamRef,
        shard: ShardId,
        position: Position,
        *,
        inclusive: bool = False,
        retry: bool = True,
    ) -> ShardIterator:
        """Call GetShardIterator at `position` (not `ShardEnd`).

        `inclusive` turns AfterRecord into AT_SEQUENCE_NUMBER, so that the record itself comes
        first, which proves that it still exists. A timestamp ahead of the service's clock, which
        the service refuses, is replaced by the time of that clock.
        """
        ...

    def get_records(
        self,
        stream: StreamRef,
        shard: ShardId,
        iterator: ShardIterator,
        *,
        limit: int,
        retry: bool = True,
    ) -> RecordPage:
        """Call GetRecords, 1 <= limit <= 10000; returns at most 10 MB (Kinesis API reference)."""
        ...

    def service_time(self) -> EpochMillis:
        """Return the service's current time, estimated from its answers and never ahead of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """A call whose first attempt failed."""

    finish: Callable[[bool], ShardIterator | RecordPage]
    """Goes on as the method of `KinesisService`: given whether to retry, it returns the result or
    raises the error. It may take long."""


Tag = TypeVar("Tag")


class PendingCalls(Protocol[Tag]):
    """Calls of one thread that wait for the service together. Not thread-safe.

    The `begin_...` methods raise no errors. They return False if the call cannot be begun here,
    such as the first one of its kind, without credentials, or because no open connection is left:
    make it by the method of `KinesisService`, which raises the error.
    """

    def __len__(self) -> int:
        """Return the number of calls that were begun and not yet returned by `answers`."""
        ...

    def begin_iterator(
        self, stream: StreamRef, shard: ShardId, position: Position, *, inclusive: bool, tag: Tag
    ) -> bool:
        """Begin `KinesisService.open_iterator`."""
        ...

    def begin_records(
        self, stream: StreamRef, shard: ShardId, iterator: ShardIterator, *, limit: int, tag: Tag
    ) -> bool:
        """Begin `KinesisService.get_records`."""
        ...

    def answers(self) -> Iterator[tuple[Tag, ShardIterator | RecordPage | FailedCall]]:
        """Wait for at least one call, unless none is under way; return the results as they come.
        Calls may be begun in between."""
        ...

    def close(self) -> None:
        """Give the connections back."""
        ...


@runtime_checkable
class ConcurrentService(KinesisService, Protocol):
    """A service that can have many calls of one thread under way."""

    def pending_calls(self, most: int) -> PendingCalls[Any]:
        """Return a way to have up to `most` calls under way. To be closed."""
        ...


class Subscription(Protocol):
    """A subscription to a shard, used by one thread: sizes and events in turns.

    Its methods raise SubscriptionError for any fault, and for an event that does not begin or
    continue within the time limit of the connection. It ends after five minutes, or with the shard
    (API reference, SubscribeToShard).
    """

    def next_size(self) -> int | None:
        """Wait for the next event; return the size of its message in bytes. None: the subscription
        has ended."""
        ...

    def next_page(self) -> RecordPage:
        """Return the event of which `next_size` returned the size."""
        ...

    def close(self) -> None:
        """End the subscription. Idempotent."""
        ...


class Subscriber(Protocol):
    """Subscribes to shards of one account and region. Thread-safe."""

    def subscribe(
        self,
        consumer: ConsumerArn,
        shard: ShardKey,
        position: Position,
        *,
        inclusive: bool = False,
    ) -> Subscription:
        """Call SubscribeToShard once, at `position` as for `open_iterator`. Raises
        SubscriptionError, whatever the reason."""
        ...

    def close(self) -> None:
        """Close the connections, and with them all subscriptions."""
        ...


class KinesisWriter(Protocol):
    """Writes to one account's streams in one region."""

    def describe(self, stream: StreamRef, *, within: float | None = None) -> StreamDescription:
        """As `KinesisService.describe`. `within`: the seconds for which throttling is waited out,
        without a limit by default."""
        ...

    def list_shards(
        self, stream: StreamRef, *, retry: bool = True, within: float | None = None
    ) -> tuple[Shard, ...]:
        """As `KinesisService.list_shards`; without `retry`, each page is requested once. `within`
        as in `describe`."""
        ...

    def put_records(self, stream: StreamRef, entries: PutEntries) -> PutOutcome:
        """Call PutRecords once, with at most 500 entries and 10 MiB. Raises ThrottledError if the
        whole request is throttled or, as UnreachableError, if it may have been carried out."""
        ...
