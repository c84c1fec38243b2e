"""The range that one task reads: frozen, picklable values, planned by the driver and read by an
executor.

A range is `(start, end]` in terms of `model.shard.Position`: `start` is the next record to read and
`end` names the last record of the batch (or the end of the shard). Reading a range again returns
the same records, on any executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from spark_ssp.grouping.identifiers import HashRange, ShardId, ShardKey, SlotId
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    ConsumerArn,
    EpochMillis,
    Retention,
    SequenceNumber,
    ShardEnd,
    ShardIterator,
    ShardState,
    StreamRef,
    TrimHorizon,
)

RangeStart = TrimHorizon | AtTimestamp | AfterRecord
"""A range always begins before something: a shard at `ShardEnd` has nothing left to read."""

RangeEnd = AfterRecord | ShardEnd
"""A range ends with a record that existed when the batch was planned, or with the shard."""

MAX_THREADS: Final = 16
"""The most shards of one task that are read at the same time. A task may have thousands: each
thread reads one after the other. Waiting for the service dominates, so more threads than cores are
worthwhile."""
MAX_SUBSCRIPTIONS: Final = 64
"""As `MAX_THREADS`, for a task with shards that are pushed, each at 2 MiB per second (API
reference, SubscribeToShard): their threads do little but wait."""


class ExpectedSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a range as the driver remembers it: a hint, which may be wrong either way.
    `records` counts Kinesis records after the start, up to and including the end; `size_bytes` is
    the sum of their data and partition keys, None if only the count is known."""

    records: int
    size_bytes: int | None = None


class Stragglers(msgspec.Struct, frozen=True, kw_only=True):
    """The rule for the stragglers of a range: user records that a KPL puts again. They are in
    aggregates that arrived at `since` or later, and their hash keys are within `family`."""

    since: EpochMillis
    family: HashRange


class ShardRange(msgspec.Struct, frozen=True, kw_only=True):
    """The range to read of one shard.

    `hash_range` is optional: it is unknown in a replay, and the reader then requests it if it meets
    an aggregated record. `created` is the stream's creation time when the batch was planned:
    another value at reading time means that the stream was deleted and recreated. `retention` is
    that of the end offset, and None if that is of an older release. `start_caught_up_ms` is
    `ShardState.last_caught_up_ms` of the start: everything that follows the start arrived after it.
    `expect_first` is `ShardState.first` of the end: for a start that names no record, the record
    with which the range begins. `expected`, unknown in a replay, changes the size of each request
    and never which records are returned. `iterator`, unknown in a replay, follows the record at
    which the range starts; it saves the request for one while it is valid. `stragglers` comes from
    the end offset, so that a replay gives the same rows. Without it nothing proves that an
    aggregate is in the shard of its keys, and every user record is delivered. `after` are shards of
    the same task that are read before this one: its ancestors. `consumer` is the registered
    consumer by which the range is pushed, with `is_polled_first` only once GetRecords is throttled;
    None: it is polled, by GetRecords. They change nothing in the records.
    """

    stream: StreamRef
    shard: ShardId
    hash_range: HashRange | None
    created: EpochMillis
    retention: Retention | None = None
    start: RangeStart
    start_caught_up_ms: EpochMillis | None
    expect_first: SequenceNumber | None
    end: RangeEnd
    expected: ExpectedSize | None = None
    iterator: ShardIterator | None = None
    stragglers: Stragglers | None = None
    after: tuple[ShardId, ...] = ()
    consumer: ConsumerArn | None = None
    is_polled_first: bool = False

    def __repr__(self) -> str:
        shown = [name for name in self.__struct_fields__ if name != "iterator"]
        return f"ShardRange({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def is_pushed(self) -> bool:
        """Return whether the range is pushed from its start."""
        return self.consumer is not None and not self.is_polled_first

    @property
    def start_state(self) -> ShardState:
        """Return the start, with the known facts about the records after it."""
        return ShardState(
            position=self.start, last_caught_up_ms=self.start_caught_up_ms, first=self.expect_first
        )

    @property
    def key(self) -> ShardKey:
        """The shard among all the shards of the query."""
        return ShardKey(stream=self.stream.name, shard=self.shard)


class SlotRange(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges that one slot, and so one Spark task, reads in a batch. Sorted by
    `ShardRange.key`. Pickled as rows of plain values: of ten thousand ranges, each with half a
    dozen objects, the driver pickles all in every batch, and Spark's pickler calls Python code for
    every object that is not plain."""

    slot: SlotId
    shards: tuple[ShardRange, ...]

    def __reduce__(self) -> tuple[Callable[..., SlotRange], tuple[SlotId, list[_Row]]]:
        return _from_rows, (self.slot, [_row(shard) for shard in self.shards])


# --- Pickled ranges -------------------------------------------------------------------------------

_Row = tuple[Any, ...]
"""The fields of a range in their order, each as a plain value, or as one object that the ranges of
a stream share."""


def _from_rows(slot: SlotId, rows: Sequence[_Row]) -> SlotRange:
    return SlotRange(slot=slot, shards=tuple(_range(*row) for row in rows))


def _row(one: ShardRange) -> _Row:
    start, end, expected, stragglers = one.start, one.end, one.expected, one.stragglers
    return (
        one.stream,
        one.shard,
        _keys(one.hash_range),
        one.created,
        one.retention,
        (start.sequence_number, start.sub) if isinstance(start, AfterRecord) else start,
        one.start_caught_up_ms,
        one.expect_first,
        (end.sequence_number, end.sub) if isinstance(end, AfterRecord) else None,
        None if expected is None else (expected.records, expected.size_bytes),
        one.iterator,
        None if stragglers is None else (stragglers.since, _keys(stragglers.family)),
        one.after,
        one.consumer,
        one.is_polled_first,
    )


def _range(
    stream: StreamRef,
    shard: ShardId,
    keys: tuple[int, int] | None,
    created: EpochMillis,
    retention: Retention | None,
    start: tuple[SequenceNumber, int] | TrimHorizon | AtTimestamp,
    start_caught_up_ms: EpochMillis | None,
    expect_first: SequenceNumber | None,
    end: tuple[SequenceNumber, int] | None,
    expected: tuple[int, int | None] | None,
    iterator: ShardIterator | None,
    stragglers: tuple[EpochMillis, tuple[int, int]] | None,
    after: tuple[ShardId, ...],
    consumer: ConsumerArn | None,
    is_polled_first: bool,
) -> ShardRange:
    return ShardRange(
        stream=stream,
        shard=shard,
        hash_range=None if keys is None else _hash_range(keys),
        created=created,
        retention=retention,
        start=_after(start) if isinstance(start, tuple) else start,
        start_caught_up_ms=start_caught_up_ms,
        expect_first=expect_first,
        end=ShardEnd() if end is None else _after(end),
        expected=None
        if expected is None
        else ExpectedSize(records=expected[0], size_bytes=expected[1]),
        iterator=iterator,
        stragglers=None
        if stragglers is None
        else Stragglers(since=stragglers[0], family=_hash_range(stragglers[1])),
        after=after,
        consumer=consumer,
        is_polled_first=is_polled_first,
    )


def _after(place: tuple[SequenceNumber, int]) -> AfterRecord:
    return AfterRecord(sequence_number=place[0], sub=place[1])


def _keys(hash_range: HashRange | None) -> tuple[int, int] | None:
    return None if hash_range is None else (hash_range.first, hash_range.last)


def _hash_range(keys: tuple[int, int]) -> HashRange:
    return HashRange(first=keys[0], last=keys[1])
