"""What one task reads: frozen, picklable values that the driver plans and an executor carries out.

A range is `(start, end]` in the words of `model.Position`: `start` is the next thing to read and
`end` names the last record that belongs to the batch (or the end of the shard). Reading a range
twice gives the same records, however often and wherever it is done.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    SequenceNumber,
    ShardEnd,
    ShardState,
    StreamRef,
    TrimHorizon,
)
from task_grouping.identifiers import HashRange, ShardId, ShardKey, SlotId

RangeStart = TrimHorizon | AtTimestamp | AfterRecord
"""A range always begins before something: a shard at `ShardEnd` has nothing left to read."""

RangeEnd = AfterRecord | ShardEnd
"""A range ends with a record that existed when the batch was planned, or with the shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSize:
    """The size of a range as the driver remembers it: a hint, which may be wrong either way.

    `records` counts Kinesis records after the start, up to and including the end; `size` is the sum
    of their data and partition keys in bytes, None where only the count is known.
    """

    records: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """The rule for the stragglers of a range: user records that a KPL puts again.

    They are in aggregates that arrived at `since` or later, and their hash keys lie in `family`.
    """

    since: EpochMillis
    family: HashRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRange:
    """The range to read of one shard.

    `hash_range` is None when the planner does not know it, as in a replay; the reader then asks
    the service, but only if it meets an aggregated record. `created` is the stream's creation time
    when the batch was planned: another value at reading time means that the stream was deleted and
    recreated. `start_seen` is `ShardState.seen` of the start: everything that follows the start
    arrived after it. `expect_first` is `ShardState.first` of the end: with a start that names no
    record, the record with which the range begins. `expected` is None when the planner does not
    know it, as in a replay; it changes how much each call asks for and never which records come.
    `stragglers` comes from the end offset, so that a replay gives the same rows. None: nothing
    proves that an aggregate lies in the shard of its keys, and every user record is delivered.
    """

    stream: StreamRef
    shard: ShardId
    hash_range: HashRange | None
    created: EpochMillis
    start: RangeStart
    start_caught_up_ms: EpochMillis | None
    expect_first: SequenceNumber | None
    end: RangeEnd
    expected: ExpectedSize | None = None
    stragglers: Stragglers | None = None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRange:
    """What one slot, hence one Spark task, reads in one batch. Sorted by `ShardRange.key`."""

    slot: SlotId
    shards: tuple[ShardRange, ...]
