"""A stream whose records follow from a formula, so that a day of many full shards costs no memory.

Each shard takes in one record of a fixed size every `interval_ms`, from its creation on. The
service keeps each record for the retention to the millisecond, answers a number of GetRecords in a
second, and may throttle a shard altogether.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.client.api import ExpiredIteratorError, ThrottledError
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    RecordPage,
    SequenceNumber,
    Shard,
    ShardIterator,
    StreamDescription,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.testing.kinesis.state.clock import ManualClock
from spark_ssp.testing.kinesis.state.stream import equal_ranges
from tests.support.kinesis.pages import page

HOUR_MS = 3_600_000
ITERATOR_MS = 300_000
PAGE_BYTES = 10_000_000
_FIRST = 10**20
"""Sequence numbers are the records' numbers above this one."""


def number_of(index: int) -> SequenceNumber:
    """Return the sequence number of a record: the inverse of `index_of`."""
    return SequenceNumber(str(_FIRST + index))


def index_of(sequence_number: SequenceNumber) -> int:
    """Return the index of a record in its shard."""
    return int(sequence_number) - _FIRST


@dataclass(kw_only=True)
class FormulaKinesis:
    """A `KinesisService` of one stream. `throttled` selects the shards that answer nothing now."""

    clock: ManualClock
    shards: int
    record_bytes: int
    interval_ms: int
    retention_ms: int = 24 * HOUR_MS
    calls_per_second: int = 5
    throttled: Callable[[ShardId], bool] = lambda shard: False
    calls: Counter[ShardId] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.created = EpochMillis(self.clock.now_ms())
        self._data = b"x" * self.record_bytes
        self._second = 0

    # --- The records ------------------------------------------------------------------------------

    def shard_ids(self) -> list[ShardId]:
        return [ShardId(f"shardId-{number:012d}") for number in range(self.shards)]

    def arrival(self, shard: ShardId, index: int) -> int:
        """Return the arrival of a record; the shards do not move in step."""
        phase = int(shard[-12:]) * self.interval_ms // self.shards
        return self.created + phase + index * self.interval_ms

    def first_from(self, shard: ShardId, time: int) -> int:
        """Return the first record that came at `time` or later."""
        return max(0, -((self.arrival(shard, 0) - time) // self.interval_ms))

    def horizon(self, shard: ShardId) -> int:
        """Return the oldest record that is left."""
        return self.first_from(shard, self.clock.now_ms() - self.retention_ms)

    def count(self, shard: ShardId) -> int:
        """Return the number of records that have come."""
        return self.first_from(shard, self.clock.now_ms() + 1)

    # --- KinesisService ---------------------------------------------------------------------------

    def describe(self, stream: StreamRef, *, retry: bool = True) -> StreamDescription:
        return StreamDescription(
            name=stream.name,
            arn=f"arn:aws:kinesis:us-east-1:000000000000:stream/{stream.name}",
            created=self.created,
            retention_ms=self.retention_ms,
        )

    def list_shards(self, stream: StreamRef) -> tuple[Shard, ...]:
        return tuple(
            Shard(
                shard_id=shard,
                parents=(),
                hash_range=hash_range,
                first_sequence_number=number_of(0),
                closed=False,
            )
            for shard, hash_range in zip(self.shard_ids(), equal_ranges(self.shards), strict=True)
        )

    def open_iterator(
        self,
        stream: StreamRef,
        shard: ShardId,
        position: Position,
        *,
        inclusive: bool = False,
        retry: bool = True,
    ) -> ShardIterator:
        index = self.horizon(shard)
        match position:
            case AfterRecord(sequence_number=number):
                index = index_of(number) + (0 if inclusive else 1)
            case AtTimestamp(millis=millis):
                index = self.first_from(shard, millis)
            case TrimHorizon():
                pass
        return self._iterator(index)

    def get_records(
        self,
        stream: StreamRef,
        shard: ShardId,
        iterator: ShardIterator,
        *,
        limit: int,
        retry: bool = True,
    ) -> RecordPage:
        now = self.clock.now_ms()
        if now // 1000 != self._second:
            self._second = now // 1000
            self.calls.clear()
        self.calls[shard] += 1
        if self.calls[shard] > self.calls_per_second or self.throttled(shard):
            raise ThrottledError(
                f"shard {shard}", found="throttling", expected="an answer", next_step="wait"
            )
        place, issued = map(int, iterator.split(":"))
        if now - issued > ITERATOR_MS:
            raise ExpiredIteratorError(
                f"shard {shard}", found="an old iterator", expected="a fresh one", next_step="open"
            )
        begin = max(place, self.horizon(shard))
        count = self.count(shard)
        end = min(count, begin + limit, begin + PAGE_BYTES // self.record_bytes)
        indexes = range(begin, end)
        return page(
            [self._data] * len(indexes),
            numbers=map(number_of, indexes),
            arrivals=[self.arrival(shard, index) for index in indexes],
            following=self._iterator(max(begin, end)),
            behind=max(1, now - self.arrival(shard, end)) if end < count else 0,
            now=now,
        )

    def service_time(self) -> EpochMillis:
        return EpochMillis(self.clock.now_ms())

    def _iterator(self, index: int) -> ShardIterator:
        return ShardIterator(f"{index}:{self.clock.now_ms()}")
