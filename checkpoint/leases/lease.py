"""The lease of a shard, as a value.

The attributes are those of the Kinesis Client Library (KCL); `lease_serializer.py` has their names.
The holder of a lease increments its counter with every renewal; every other write has the observed
counter as a condition.

A checkpoint has a position (KCL: `ExtendedSequenceNumber`): a sequence number or one of four words.
A sequence number is the last record processed; its successor is next. TRIM_HORIZON, LATEST and
AT_TIMESTAMP are starts: nothing is processed. SHARD_END means that all records are processed.

A start and a record have a `last_caught_up_ms`, which only this project writes: a time by the
service's clock at which the shard was read up to its latest record, or was not open yet. All
records that follow arrived after it. It distinguishes a record that expired after it was read, or
before the application began, from data loss.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NewType

import msgspec

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.grouping.identifiers import (
    EpochMillis,
    HashRange,
    SequenceNumber,
    ShardId,
    StreamName,
    WorkerId,
)

# --- Positions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtTrimHorizon:
    """Start at the oldest record."""

    last_caught_up_ms: EpochMillis | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtLatest:
    """Start with the records that arrive from `since_ms` on, in the service's time. None if a KCL
    worker wrote it: the time when the shard is first read."""

    since_ms: EpochMillis | None = None
    last_caught_up_ms: EpochMillis | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtTimestamp:
    """Start with the first record that arrived at `at_ms` or later. None if a KCL worker wrote it:
    the KCL has the time in its configuration, not in the row."""

    at_ms: EpochMillis | None
    last_caught_up_ms: EpochMillis | None = None


class Processed(msgspec.Struct, frozen=True, kw_only=True):
    """All up to and including user record `sub` of the Kinesis record `sequence_number`.

    `sub` is the KCL's `checkpointSubSequenceNumber`: the index within an aggregate of the KPL, 0
    for a plain record.
    """

    sequence_number: SequenceNumber
    sub: int = 0
    last_caught_up_ms: EpochMillis | None = None


@dataclass(frozen=True, slots=True)
class ShardEnded:
    """All records of the closed shard are processed."""


Start = StartAtTrimHorizon | StartAtLatest | StartAtTimestamp
Progress = Start | Processed | ShardEnded


def is_forward(before: Progress, after: Progress) -> bool:
    """Return whether `after` is at or beyond `before`. Any record is beyond every start, and the
    end is beyond every record. Two different starts cannot be compared, so neither is beyond the
    other; but LATEST with a time is more precise than without. The time of the last catch-up does
    not matter."""
    match before, after:
        case (_, ShardEnded()):
            return True
        case (ShardEnded(), _):
            return False
        case (Processed() as old, Processed() as new):
            return _order(old) <= _order(new)
        case (
            (_, Processed())
            | (StartAtTrimHorizon(), StartAtTrimHorizon())
            | (StartAtLatest(since_ms=None), StartAtLatest())
        ):
            return True
        case (StartAtLatest() as old, StartAtLatest() as new):
            return old.since_ms == new.since_ms
        case (StartAtTimestamp() as old, StartAtTimestamp() as new):
            return old.at_ms == new.at_ms
    return False


def advanced(before: Progress, after: Progress) -> Progress | None:
    """Return the checkpoint to write in place of `before`; None if `after` says nothing new.

    It has the later time of two records, or of two equal starts: the records after a record follow
    those after an earlier one. A record may be older than the start that it replaces, if its worker
    has read the shard before the table had it: then the time of the start says nothing.
    """
    if after == before or not is_forward(before, after):
        return None
    match before, after:
        case Processed() as old, Processed() as new:
            if _is_later(old, new):
                after = msgspec.structs.replace(new, last_caught_up_ms=old.last_caught_up_ms)
        case (
            (StartAtTrimHorizon() | StartAtLatest() | StartAtTimestamp()) as old,
            (StartAtTrimHorizon() | StartAtLatest() | StartAtTimestamp()) as new,
        ):
            if _is_later(old, new):
                after = replace(new, last_caught_up_ms=old.last_caught_up_ms)
    return None if after == before else after


def _is_later(old: Start | Processed, new: Start | Processed) -> bool:
    """Return whether the time of `old` is later than that of `new`, or the only one."""
    before, after = old.last_caught_up_ms, new.last_caught_up_ms
    return before is not None and (after is None or after < before)


def _order(progress: Processed) -> tuple[int, int]:
    return int(progress.sequence_number), progress.sub


# --- Leases --------------------------------------------------------------------------------------

LeaseKey = NewType("LeaseKey", str)
"""The key of a row: the shard id; with several streams `account:stream:epoch:shardId`."""

AttributeValue = Mapping[str, Any]
"""A DynamoDB value in the API's form, such as `{"S": "text"}` or `{"N": "1"}`."""

Item = Mapping[str, AttributeValue]
"""A row in the API's form: values by attribute."""

_STREAM: Final = re.compile(r"([0-9]+):([^:]+):([0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StreamIdentifier:
    """The KCL's name of a stream in multi-stream mode (`StreamIdentifier`)."""

    account: str
    """Twelve digits."""
    name: StreamName
    created: int
    """The stream's creation, in seconds since the epoch: a recreated stream has another
    identifier."""

    def __str__(self) -> str:
        return f"{self.account}:{self.name}:{self.created}"

    @classmethod
    def parse(cls, text: str) -> StreamIdentifier | None:
        """Parse the result of `str`; None for any other text."""
        match = _STREAM.fullmatch(text)
        if match is None:
            return None
        found = cls(account=match[1], name=StreamName(match[2]), created=int(match[3]))
        return found if str(found) == text else None


def lease_key(shard: ShardId, stream: StreamIdentifier | None = None) -> LeaseKey:
    """Return the key of a shard's lease; `stream` only if the application reads several streams."""
    return LeaseKey(shard if stream is None else f"{stream}:{shard}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint that a KCL worker has prepared (`prepareCheckpoint`) but not completed."""

    progress: Progress
    state: bytes | None = field(default=None, repr=False)
    """Data of the KCL application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One row. `shard` and `stream` form its key."""

    shard: ShardId
    stream: StreamIdentifier | None = None
    counter: int
    progress: Progress
    """The attribute `checkpoint` and those that complement it."""
    owner: WorkerId | None = None
    """The owner, or, during a handoff, the next owner."""
    checkpoint_owner: WorkerId | None = None
    """During a handoff (KCL 3), the worker that still holds the lease and writes checkpoints; see
    `is_in_handoff`."""
    ssp_owner: WorkerId | None = None
    """The last holder from this project; see `is_held_by_ssp`."""
    requested_by: WorkerId | None = None
    """The worker of this project that last requested a handoff; see `is_in_handoff`."""
    requested_from: WorkerId | None = None
    """The holder at that time."""
    switches: int = 0
    """Changes of the owner since the last checkpoint."""
    pending: PendingCheckpoint | None = None
    parents: tuple[ShardId, ...] = ()
    """Sorted."""
    children: tuple[ShardId, ...] = ()
    """Sorted; written at the end of the shard."""
    hash_range: HashRange | None = None
    throughput_kbps: float | None = None
    """KCL 3's measurement of the shard, for balancing."""
    has_entity_type: bool = True
    """True if the row has `entityType` LEASE, as from KCL 3.5 on; a row without it is a lease
    too."""
    extra_attributes: Mapping[str, AttributeValue] = field(
        default_factory=dict, hash=False, repr=False
    )
    """Unknown attributes, unchanged."""

    def __post_init__(self) -> None:
        for name in ("parents", "children"):
            shards = getattr(self, name)
            if len(shards) > 1 or type(shards) is not tuple:
                object.__setattr__(self, name, tuple(sorted(set(shards))))

    @property
    def has_ended(self) -> bool:
        """True if the checkpoint is SHARD_END."""
        return isinstance(self.progress, ShardEnded)

    @property
    def key(self) -> LeaseKey:
        """The row's key."""
        return lease_key(self.shard, self.stream)

    @property
    def is_in_handoff(self) -> bool:
        """Return whether a handoff is pending. If this project has requested it, the owner is the
        worker that did: a KCL 2 worker that takes the lease meanwhile becomes the owner and leaves
        `checkpoint_owner`, which it does not know."""
        if self.checkpoint_owner is None:
            return False
        return self.checkpoint_owner != self.requested_from or self.owner == self.requested_by

    @property
    def holder(self) -> WorkerId | None:
        """The worker that may read the shard and write checkpoints (KCL: `actualOwner`)."""
        return self.checkpoint_owner if self.is_in_handoff else self.owner

    @property
    def is_held_by_ssp(self) -> bool:
        """Return whether the holder is a worker of this project. Such a worker writes its id to
        `sspOwner`, which a KCL worker does not know and so leaves unchanged when it becomes the
        holder."""
        return self.holder is not None and self.holder == self.ssp_owner


# --- Errors --------------------------------------------------------------------------------------


class LeaseTableError(IncompatibleStateError):
    """The table of the option `leaseTable` cannot be used as a lease table."""

    kind = "lease-table"


class MalformedLeaseError(IncompatibleStateError):
    """A row of the lease table has the shape of a lease but cannot be parsed."""

    kind = "malformed-lease"

    def __init__(
        self, subject: str, *, key: str | None = None, found: str, expected: str, next_step: str
    ) -> None:
        """`key` is the row's key, if it has one."""
        super().__init__(subject, found=found, expected=expected, next_step=next_step)
        self.key = key

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.subject, self.key, self.found, self.expected, self.next_step))


def _rebuild(
    subject: str, key: str | None, found: str, expected: str, next_step: str
) -> MalformedLeaseError:
    return MalformedLeaseError(
        subject, key=key, found=found, expected=expected, next_step=next_step
    )
