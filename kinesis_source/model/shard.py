"""Values of planning and reading. No I/O, no clock, no SDK type. Times are integers in milliseconds
since the epoch, by the *service's* clock. Sequence numbers are kept as the service's decimal text
and compared as integers (`sequence_order`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType

import msgspec

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import EpochMillis as EpochMillis
from spark_ssp.grouping.identifiers import HashRange, ShardId, ShardKey, StreamName
from spark_ssp.grouping.identifiers import SequenceNumber as SequenceNumber

ShardIterator = NewType("ShardIterator", str)
"""An opaque cursor of the service; lives five minutes (Kinesis API reference, GetShardIterator)."""

ConsumerArn = NewType("ConsumerArn", str)
"""The ARN of a registered consumer of a stream. It ends with the time of its registration."""

CLOCK_UNCERTAINTY_MS = 2000
"""The service reports its time with a resolution of a second (the header Date), and late."""


def sequence_order(sequence_number: SequenceNumber) -> int:
    """Return the order of a record within its shard. Text order is wrong: lengths differ."""
    return int(sequence_number)


# --- Positions: always the next record to read --------------------------------------------------


class TrimHorizon(msgspec.Struct, frozen=True):
    """Next is the oldest record that the shard still has."""


class ShardEnd(msgspec.Struct, frozen=True):
    """Nothing is next: the shard is closed and has been read to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamp:
    """Next is the first record that arrived at `millis` or later. `is_relative`: an option gave the
    time as a duration before the query's start, so another start has another time."""

    millis: EpochMillis
    is_relative: bool = field(default=False, compare=False, repr=False)


class AfterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Next is the user record after user record `sub` of the Kinesis record `sequence_number`.

    A Kinesis record that the KPL aggregated holds user records 0..n-1; any other record counts as
    holding the one user record 0. After the whole record, `sub` is n-1 (as in the KCL's
    `checkpointSubSequenceNumber`), whether or not the query de-aggregates. If it does not, and a
    start gives no number, it is WHOLE_RECORD. With -1, which only the end of a batch read has, next
    is the record itself.
    """

    sequence_number: SequenceNumber
    sub: int = 0


Position = TrimHorizon | AtTimestamp | AfterRecord | ShardEnd


class ShardState(msgspec.Struct, frozen=True, kw_only=True):
    """A shard's entry in an offset.

    `last_caught_up_ms`: a time at which the shard was open, and reading from `position` (or an
    earlier one) was proven to reach its latest record; None if never. So all records after
    `position`, and those of the shard's children, arrived later. `first`: set if `position` is
    TRIM_HORIZON or a timestamp, as the record that was found there and could not be read yet, and
    by the batch that reads the shard from there, as its first record: so a later batch, or a
    replay, notices that it has been trimmed. `resume_from`: set by the batch that took the shard
    over from another worker (by a lease), that cannot start at the position given, or that begins a
    shard of whose parents no record was read, as its start, with the `last_caught_up_ms` of that
    position; never SHARD_END. It overrides the previous offset for that batch only. `follows`: the
    ancestors that the batch which admitted the shard reads to their end, sorted; in that batch, one
    task reads them and then the shard.
    """

    position: Position
    last_caught_up_ms: EpochMillis | None = None
    first: SequenceNumber | None = None
    resume_from: ShardState | None = None
    follows: tuple[ShardId, ...] = ()


def without_batch(state: ShardState) -> ShardState:
    """Return a state without the start and the ancestors that belong to the batch that ended with
    it."""
    if state.resume_from is None and not state.follows:
        return state
    return replace(state, resume_from=None, follows=())


# --- Answers of the service -----------------------------------------------------------------------


class StreamRef(msgspec.Struct, frozen=True, kw_only=True):
    """A stream to read. `arn` is sent if given, otherwise the name."""

    name: StreamName
    arn: str | None = None


class StreamDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of DescribeStreamSummary that this source needs."""

    name: StreamName
    arn: str
    created: EpochMillis
    """StreamCreationTimestamp: another value means that the stream was deleted and recreated."""
    retention_ms: int
    max_record_bytes: int = 1 << 20
    """The most bytes of data and key that a record may have."""
    placed_by_key: bool | None = True
    """True if a record's keys decide its shard. False under the record distribution strategy AUTO,
    and for a strategy that this release does not know. None: an on-demand stream whose service does
    not report a strategy. Keys decide there by default (API reference, CreateStream), which is no
    proof."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """The retention of a stream, and since when records are kept by it: one that expired before the
    retention was raised does not return."""

    millis: int
    kept_since: EpochMillis | None = None
    """Records that arrived earlier may have expired before the retention was raised. None: it is
    not known to have been raised."""

    @classmethod
    def described(cls, millis: int, *, now: EpochMillis, before: Retention | None) -> Retention:
        """Return the retention as it is described now, after the one known `before`. When it was
        raised is unknown, so what had expired by now under the old one counts as expired."""
        if before is None:
            return cls(millis=millis)
        since = before.kept_since
        if millis > before.millis:
            since = EpochMillis(max(now - before.millis, since or 0))
        return cls(millis=millis, kept_since=since)

    def kept_ms(self, now: EpochMillis) -> int:
        """Return the age up to which records are surely kept."""
        since = self.kept_since
        return self.millis if since is None else max(0, min(self.millis, now - since))


class KeyPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The proof of where the records of a stream's batch were placed.

    Each one that arrived at `since` or later was placed by its keys. `families` has an entry for
    each shard of the batch that may hold stragglers, which is a shard that was split off: the hash
    keys of the shard and of its listed ancestors. See `docs/design/kpl-aggregates.md`.
    """

    since: EpochMillis
    families: Mapping[ShardId, HashRange]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ListShards. `parents` holds none, one (split) or two (merge) shard ids."""

    shard_id: ShardId
    parents: tuple[ShardId, ...] = ()
    hash_range: HashRange
    first_sequence_number: SequenceNumber
    closed: bool
    """True if the service returns an EndingSequenceNumber."""
    ending_sequence_number: SequenceNumber | None = None
    """Only to be compared with a position that equals it: emulators return 2^63-1, and on AWS it
    need not be a record's."""


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of an answer of GetRecords or an event of SubscribeToShard, by column; all columns have
    the same length, in shard order."""

    sequence_numbers: Sequence[SequenceNumber] = ()
    partition_keys: Sequence[str | None] = ()
    """None if the producer gave none, as it may if the service chooses the shard."""
    arrival_ms: Sequence[EpochMillis] = ()
    data: Sequence[bytes] = ()
    sub_sequence_numbers: Sequence[int] | None = None
    """None: every row is a whole Kinesis record, numbered 0."""
    repeat_keys: Sequence[str] | None = None
    """None, in all pages of a query: its rows have no such column."""
    next_iterator: ShardIterator | None
    """None: the shard is closed and this page was its last. A page that was pushed has its
    ContinuationSequenceNumber here."""
    millis_behind_latest: int
    """0 means the latest record. On an empty page with another value, follow `next_iterator`."""
    service_time: EpochMillis
    """The service's clock when it answered; never ahead of it."""

    def __len__(self) -> int:
        return len(self.sequence_numbers)

    def part(self, begin: int, end: int) -> RecordPage:
        """Return the rows from `begin` to `end` (excluded)."""
        subs, keys = self.sub_sequence_numbers, self.repeat_keys
        return replace(
            self,
            sequence_numbers=self.sequence_numbers[begin:end],
            partition_keys=self.partition_keys[begin:end],
            arrival_ms=self.arrival_ms[begin:end],
            data=self.data[begin:end],
            sub_sequence_numbers=None if subs is None else subs[begin:end],
            repeat_keys=None if keys is None else keys[begin:end],
        )


class PutEntries(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a PutRecords request, as JSON in the form of the API reference."""

    count: int
    text: Sequence[bytes | memoryview]
    """The text of one or more entries each, with a comma after every entry."""


class PutOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of PutRecords, by column: for each entry of the request, in its order, the shard
    that stored it, or an error code."""

    shards: Sequence[ShardId | None]
    codes: Sequence[str | None] = ()
    """Empty if all entries were stored."""
    send_seconds: float | None = None
    """The time that the request took to leave this machine; None if it is unknown."""


# --- Starting positions ------------------------------------------------------------------------


class Latest(msgspec.Struct, frozen=True):
    """A start, never a position: records put after the query's first batch was planned."""


StartPoint = Latest | TrimHorizon | AtTimestamp | AfterRecord


class StartingPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The option `startingPosition`, parsed. A shard named in `by_shard` starts there, any other at
    `default`; without a `default`, an unnamed shard is an error at the start. Shards that appear
    after the start always begin at TRIM_HORIZON."""

    default: StartPoint | None
    by_shard: Mapping[ShardKey, StartPoint] = msgspec.field(default_factory=dict)


def is_behind(position: Position, target: Position) -> bool:
    """Return whether `position` is known to precede `target`; a start point precedes any record."""
    if isinstance(target, ShardEnd):
        return not isinstance(position, ShardEnd)
    if not isinstance(target, AfterRecord) or isinstance(position, ShardEnd):
        return False
    if not isinstance(position, AfterRecord):
        return True
    return (sequence_order(position.sequence_number), position.sub) < (
        sequence_order(target.sequence_number),
        target.sub,
    )
