"""The values that planning and reading speak in. No I/O, no clock, no SDK type.

Times are integers in milliseconds since the epoch, by the *service's* clock. Sequence numbers are
kept as the service's decimal text and compared as integers (`sequence_order`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType

from task_grouping.identifiers import EpochMillis as EpochMillis
from task_grouping.identifiers import HashRange, ShardId, ShardKey, StreamName
from task_grouping.identifiers import SequenceNumber as SequenceNumber

ShardIterator = NewType("ShardIterator", str)
"""An opaque cursor of the service; lives five minutes (Kinesis API reference, GetShardIterator)."""


CLOCK_UNCERTAINTY_MS = 2000
"""The service tells its time to the second (the header Date), and later than it was."""


def sequence_order(sequence_number: SequenceNumber) -> int:
    """The order of records within a shard. Text order is wrong: lengths differ."""
    return int(sequence_number)


# --- Positions: always the next record to read --------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrimHorizon:
    """Next is the oldest record that the shard still has."""


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """Nothing is next: the shard is closed and has been read to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamp:
    """Next is the first record that arrived at `millis` or later."""

    millis: EpochMillis


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterRecord:
    """Next is whatever follows user record `sub` of the Kinesis record `sequence_number`.

    A Kinesis record that the KPL aggregated holds user records 0..n-1; any other record counts as
    holding the one user record 0. After the whole record, `sub` is n-1 (as the KCL's
    `checkpointSubSequenceNumber` has it), whether or not the query de-aggregates.
    """

    sequence_number: SequenceNumber
    sub: int = 0


Position = TrimHorizon | AtTimestamp | AfterRecord | ShardEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """A shard's entry in an offset.

    `seen`: the last time at which reading from `position` (or an earlier one) was proven to reach
    the shard's tip; None when never. So all that follows `position` arrived after `seen`.
    `first`: set where `position` is TRIM_HORIZON or a timestamp, as the record that was found
    there and could not be read yet, and by the batch that reads the shard from there, as the one
    with which it begins: so a later batch, or a replay, notices when it has been trimmed meanwhile.
    `begin`: set by the batch that took the shard over from another worker (by a lease), as where it
    begins, with the `seen` of that place; never SHARD_END. It counts for that batch alone, whatever
    the offset before it says.
    """

    position: Position
    last_caught_up_ms: EpochMillis | None = None
    first: SequenceNumber | None = None
    resume_from: ShardState | None = None


# --- What the service says -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRef:
    """Which stream to talk to. `arn` is sent where given, else the name."""

    name: StreamName
    arn: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDescription:
    """DescribeStreamSummary, as far as this source needs it."""

    name: StreamName
    arn: str
    created: EpochMillis
    """StreamCreationTimestamp: another value means that the stream was deleted and recreated."""
    retention_millis: int
    placed_by_key: bool = True
    """Whether a record's keys decide its shard. False under the record distribution strategy AUTO,
    and for a strategy that this release does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlacement:
    """The proof of where the records of a stream's batch were placed.

    Each one that arrived at `since` or later was placed by its keys. `families` has an entry for
    each shard of the batch that may hold stragglers, which is a shard that was split off: the hash
    keys of the shard and of the ancestors that were listed. See `docs/design/kpl-aggregates.md`.
    """

    since: EpochMillis
    families: Mapping[ShardId, HashRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One entry of ListShards. `parents` holds none, one (split) or two (merge) shard ids."""

    shard_id: ShardId
    parents: tuple[ShardId, ...] = ()
    hash_range: HashRange
    first_sequence_number: SequenceNumber
    closed: bool
    """True when the service gives an EndingSequenceNumber. Whose value is not used: emulators
    give 2^63-1, and on AWS it need not be a record's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """One answer of GetRecords, by column; all columns have the same length, in shard order."""

    sequence_numbers: Sequence[SequenceNumber] = ()
    partition_keys: Sequence[str | None] = ()
    """None if the producer gave none, as it may if the service chooses the shard."""
    arrival_millis: Sequence[EpochMillis] = ()
    data: Sequence[bytes] = ()
    next_iterator: ShardIterator | None
    """None: the shard is closed and this page was its last."""
    millis_behind_latest: int
    """0 means the tip. An empty page with another value does not: follow `next_iterator`."""
    service_time: EpochMillis
    """The service's clock when it answered; never ahead of it."""

    def __len__(self) -> int:
        return len(self.sequence_numbers)


# --- Where a query starts ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Latest:
    """A start, never a position: records put after the query's first batch was planned."""


StartPoint = Latest | TrimHorizon | AtTimestamp | AfterRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPosition:
    """The option `startingPosition`, parsed.

    A shard named in `by_shard` starts there, any other at `default`; `default` is None when the
    user gave a map without one: then an unnamed shard is an error at the start. Shards that
    appear after the start always begin at TRIM_HORIZON.
    """

    default: StartPoint | None
    by_shard: Mapping[ShardKey, StartPoint] = field(default_factory=dict)
