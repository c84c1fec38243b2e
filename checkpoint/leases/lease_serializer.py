"""Converts rows of the lease table to values and back (KCL: `DynamoDBLeaseSerializer`).

From KCL 3.5 on the table also contains rows of other types, marked by `entityType`; a row without
that attribute is a lease. Unknown attributes are kept unchanged.

Five attributes here are this project's. `sspCheckpointTimestamp` (N, milliseconds since the epoch)
is the time of AT_TIMESTAMP and LATEST, for which the KCL has no attribute. Beside a sequence number
it is `last_caught_up_ms`; it remains true when a KCL worker checkpoints and leaves it unchanged,
since records after a later one are after the earlier one too. `sspCaughtUpTimestamp` (N) is
`last_caught_up_ms` beside a start, and counts only there. `sspOwner` (S) is the last holder from
this project, by which other workers recognise it. `sspRequestedBy` and
`sspRequestedFrom` (S) are the worker of this project that last requested a handoff and the holder
then, by which a KCL 2 worker is recognised that has taken the lease meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final, TypeVar

from spark_ssp.checkpoint.leases.lease import (
    AttributeValue,
    Item,
    Lease,
    MalformedLeaseError,
    PendingCheckpoint,
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
    StreamIdentifier,
)
from spark_ssp.common.errors import shown
from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    EpochMillis,
    HashRange,
    SequenceNumber,
    ShardId,
    WorkerId,
)

T = TypeVar("T")


class Attribute(StrEnum):
    """The attributes of a lease."""

    KEY = "leaseKey"
    COUNTER = "leaseCounter"
    OWNER = "leaseOwner"
    CHECKPOINT_OWNER = "checkpointOwner"
    SSP_OWNER = "sspOwner"
    REQUESTED_BY = "sspRequestedBy"
    REQUESTED_FROM = "sspRequestedFrom"
    SWITCHES = "ownerSwitchesSinceCheckpoint"
    CHECKPOINT = "checkpoint"
    SUB = "checkpointSubSequenceNumber"
    TIMESTAMP = "sspCheckpointTimestamp"
    CAUGHT_UP = "sspCaughtUpTimestamp"
    PENDING = "pendingCheckpoint"
    PENDING_SUB = "pendingCheckpointSubSequenceNumber"
    PENDING_STATE = "pendingCheckpointState"
    PARENTS = "parentShardId"
    CHILDREN = "childShardIds"
    FIRST_HASH_KEY = "startingHashKey"
    LAST_HASH_KEY = "endingHashKey"
    THROUGHPUT = "throughputKBps"
    ENTITY_TYPE = "entityType"
    STREAM = "streamName"
    SHARD = "shardId"


class EntityType(StrEnum):
    """The type of a row (KCL 3.5, `EntityType`). Later versions may have more."""

    LEASE = "LEASE"
    STREAM = "STREAM"
    LEADER = "LEADER"
    CLIENT_VERSION_MIGRATION = "CLIENT_VERSION_MIGRATION"
    TABLE_MIGRATION = "TABLE_MIGRATION"
    WORKER_METRIC_STATS = "WORKER_METRIC_STATS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRow:
    """A row that is not a lease."""

    key: str
    entity_type: str
    """One of `EntityType`, or a type of a later KCL."""
    attributes: Item = field(default_factory=dict, repr=False, compare=False)
    """The row, for code that knows its type."""


_MAX_DIGITS: Final = 129
"""The length of the longest sequence number (Kinesis API reference, SequenceNumber)."""

_DIGITS: Final = re.compile(rf"[0-9]{{1,{_MAX_DIGITS}}}", re.ASCII)

_SHARD_END: Final = "SHARD_END"
_TRIM_HORIZON: Final = "TRIM_HORIZON"
_AT_TIMESTAMP: Final = "AT_TIMESTAMP"
_LATEST: Final = "LATEST"
_MAX_LONG: Final = (1 << 63) - 1


# --- Parsing -------------------------------------------------------------------------------------


def decode(item: Item) -> Lease | ForeignRow:
    """Parse a row. MalformedLeaseError if it is a lease with missing or invalid attributes."""
    return _Row(item).decode()


class _Row:
    """A row being parsed, and the attributes used so far."""

    def __init__(self, item: Item) -> None:
        self._item = item
        self._used: set[str] = set()

    def decode(self) -> Lease | ForeignRow:
        key = self._needed_text(Attribute.KEY)
        entity_type = self._text(Attribute.ENTITY_TYPE)
        if entity_type not in (None, EntityType.LEASE):
            return ForeignRow(
                key=key, entity_type=entity_type, attributes=deepcopy(dict(self._item))
            )
        counter = self._needed_whole(Attribute.COUNTER)
        switches = self._needed_whole(Attribute.SWITCHES)
        shard, stream = self._identity(key)
        return Lease(
            shard=shard,
            stream=stream,
            counter=counter,
            progress=self._progress(),
            owner=self._worker(Attribute.OWNER),
            checkpoint_owner=self._worker(Attribute.CHECKPOINT_OWNER),
            ssp_owner=self._worker(Attribute.SSP_OWNER),
            requested_by=self._worker(Attribute.REQUESTED_BY),
            requested_from=self._worker(Attribute.REQUESTED_FROM),
            switches=switches,
            pending=self._pending(),
            parents=self._shards(Attribute.PARENTS),
            children=self._shards(Attribute.CHILDREN),
            hash_range=self._hash_range(),
            throughput_kbps=self._throughput(),
            has_entity_type=entity_type is not None,
            extra_attributes={
                name: deepcopy(dict(value))
                for name, value in self._item.items()
                if name not in self._used
            },
        )

    def _identity(self, key: str) -> tuple[ShardId, StreamIdentifier | None]:
        """Return shard and stream; with several streams the row has them both in its key and as
        attributes."""
        stream, shard = (
            self._item.get(name, {}).get("S") for name in (Attribute.STREAM, Attribute.SHARD)
        )
        if isinstance(stream, str) and isinstance(shard, str) and key == f"{stream}:{shard}":
            identifier = StreamIdentifier.parse(stream)
            if identifier is not None:
                self._used |= {Attribute.STREAM, Attribute.SHARD}
                return ShardId(shard), identifier
        return ShardId(key), None

    def _progress(self) -> Progress:
        word = self._needed_text(Attribute.CHECKPOINT)
        sub = self._whole(Attribute.SUB)
        millis = self._millis(Attribute.TIMESTAMP)
        seen = self._millis(Attribute.CAUGHT_UP)
        return self._point(Attribute.CHECKPOINT, word, sub, millis, seen)

    def _pending(self) -> PendingCheckpoint | None:
        word = self._text(Attribute.PENDING)
        if not word:
            return None
        sub = self._whole(Attribute.PENDING_SUB)
        state = self._item.get(Attribute.PENDING_STATE, {}).get("B")
        if state is not None:
            self._used.add(Attribute.PENDING_STATE)
            state = bytes(state)
        return PendingCheckpoint(progress=self._point(Attribute.PENDING, word, sub), state=state)

    def _point(
        self,
        attribute: Attribute,
        word: str,
        sub: int | None,
        millis: EpochMillis | None = None,
        seen: EpochMillis | None = None,
    ) -> Progress:
        if word == _SHARD_END:
            return ShardEnded()
        if word == _TRIM_HORIZON:
            return StartAtTrimHorizon(last_caught_up_ms=seen)
        if word == _AT_TIMESTAMP:
            return StartAtTimestamp(at_ms=millis, last_caught_up_ms=seen)
        if word == _LATEST:
            return StartAtLatest(since_ms=millis, last_caught_up_ms=seen)
        if not _DIGITS.fullmatch(word):
            raise self._malformed(
                f"{attribute} {shown(word)}",
                "a sequence number, TRIM_HORIZON, LATEST, AT_TIMESTAMP or SHARD_END",
            )
        return Processed(
            sequence_number=SequenceNumber(word), sub=sub or 0, last_caught_up_ms=millis
        )

    def _hash_range(self) -> HashRange | None:
        names = (Attribute.FIRST_HASH_KEY, Attribute.LAST_HASH_KEY)
        if not all(name in self._item for name in names):
            return None  # as in the KCL; a single one stays an extra attribute
        first, last = (self._needed_text(name) for name in names)
        if _DIGITS.fullmatch(first) and _DIGITS.fullmatch(last):
            found = HashRange(first=int(first), last=int(last))
            if found.first <= found.last <= MAX_HASH_KEY:
                return found
        raise self._malformed(
            f"hash keys {shown(first)} to {shown(last)}", f"two of 0 to {MAX_HASH_KEY}, in order"
        )

    def _throughput(self) -> float | None:
        number = self._number(Attribute.THROUGHPUT)
        return None if number is None else float(number)

    # --- Values by type --------------------------------------------------------------------------

    def _worker(self, attribute: Attribute) -> WorkerId | None:
        text = self._text(attribute)
        return None if text is None else WorkerId(text)

    def _shards(self, attribute: Attribute) -> tuple[ShardId, ...]:
        values = self._value(attribute, "SS")
        return () if values is None else tuple(ShardId(value) for value in values)

    def _text(self, attribute: Attribute) -> str | None:
        value = self._value(attribute, "S")
        return None if value is None else str(value)

    def _needed_text(self, attribute: Attribute) -> str:
        return self._present(attribute, self._text(attribute))

    def _whole(self, attribute: Attribute) -> int | None:
        number = self._number(attribute)
        if number is None:
            return None
        if number != number.to_integral_value() or not 0 <= number <= _MAX_LONG:
            raise self._malformed(f"{attribute} {number}", "a whole number from 0 on")
        return int(number)

    def _millis(self, attribute: Attribute) -> EpochMillis | None:
        whole = self._whole(attribute)
        return None if whole is None else EpochMillis(whole)

    def _needed_whole(self, attribute: Attribute) -> int:
        return self._present(attribute, self._whole(attribute))

    def _number(self, attribute: Attribute) -> Decimal | None:
        value = self._value(attribute, "N")
        if value is None:
            return None
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            number = Decimal("NaN")
        if not number.is_finite():
            raise self._malformed(f"{attribute} {shown(str(value))}", "a number")
        return number

    def _value(self, attribute: Attribute, kind: str) -> Any:
        value = self._item.get(attribute)
        if value is None:
            return None
        if set(value) != {kind}:
            raise self._malformed(f"{attribute} of type {', '.join(sorted(value))}", f"type {kind}")
        self._used.add(attribute)
        return value[kind]

    def _present(self, attribute: Attribute, value: T | None) -> T:
        if value is None or value == "":
            raise self._malformed(f"no {attribute}", "this attribute on every lease")
        return value

    def _malformed(self, found: str, expected: str) -> MalformedLeaseError:
        key = self._item.get(Attribute.KEY, {}).get("S")
        return MalformedLeaseError(
            "lease without a key" if key is None else f"lease {shown(str(key))}",
            key=None if key is None else str(key),
            found=found,
            expected=expected,
            next_step="restore the row's attributes, or delete it: a query whose checkpoint has "
            "the shard continues there; any other reads the shard from TRIM_HORIZON, unless one of "
            "its children has a lease",
        )


# --- Serializing ---------------------------------------------------------------------------------


def encode(lease: Lease) -> dict[str, AttributeValue]:
    """Return the whole row of a lease to be created."""
    item: dict[str, AttributeValue] = {
        name: dict(value) for name, value in lease.extra_attributes.items()
    }
    item[Attribute.KEY] = text(lease.key)
    item[Attribute.COUNTER] = number(lease.counter)
    item[Attribute.SWITCHES] = number(lease.switches)
    item |= encode_progress(lease.progress)
    owners = {
        Attribute.OWNER: lease.owner,
        Attribute.CHECKPOINT_OWNER: lease.checkpoint_owner,
        Attribute.SSP_OWNER: lease.ssp_owner,
        Attribute.REQUESTED_BY: lease.requested_by,
        Attribute.REQUESTED_FROM: lease.requested_from,
    }
    item |= {name: text(owner) for name, owner in owners.items() if owner is not None}
    if lease.pending is not None:
        item |= _encode_pending(lease.pending)
    family = {Attribute.PARENTS: lease.parents, Attribute.CHILDREN: lease.children}
    item |= {name: texts(shards) for name, shards in family.items() if shards}
    if lease.hash_range is not None:
        item[Attribute.FIRST_HASH_KEY] = text(str(lease.hash_range.first))
        item[Attribute.LAST_HASH_KEY] = text(str(lease.hash_range.last))
    if lease.throughput_kbps is not None:
        item[Attribute.THROUGHPUT] = number(lease.throughput_kbps)
    if lease.has_entity_type:
        item[Attribute.ENTITY_TYPE] = text(EntityType.LEASE)
    if lease.stream is not None:
        item[Attribute.STREAM] = text(str(lease.stream))
        item[Attribute.SHARD] = text(lease.shard)
    return {str(name): value for name, value in item.items()}


def encode_progress(progress: Progress) -> dict[str, AttributeValue]:
    """Return the attributes of a checkpoint, with the times only if there are any."""
    word, sub = _word(progress)
    item = {Attribute.CHECKPOINT: text(word), Attribute.SUB: number(sub)}
    match progress:
        case (
            StartAtTimestamp(at_ms=int(millis))
            | StartAtLatest(since_ms=int(millis))
            | Processed(last_caught_up_ms=int(millis))
        ):
            item[Attribute.TIMESTAMP] = number(millis)
    match progress:
        case StartAtTrimHorizon() | StartAtTimestamp() | StartAtLatest():
            if progress.last_caught_up_ms is not None:
                item[Attribute.CAUGHT_UP] = number(progress.last_caught_up_ms)
    return {str(name): value for name, value in item.items()}


def _encode_pending(pending: PendingCheckpoint) -> dict[str, AttributeValue]:
    word, sub = _word(pending.progress)
    item: dict[str, AttributeValue] = {
        Attribute.PENDING: text(word),
        Attribute.PENDING_SUB: number(sub),
    }
    if pending.state is not None:
        item[Attribute.PENDING_STATE] = {"B": pending.state}
    return item


def _word(progress: Progress) -> tuple[str, int]:
    match progress:
        case Processed(sequence_number=sequence_number, sub=sub):
            return sequence_number, sub
        case StartAtTimestamp():
            return _AT_TIMESTAMP, 0
        case StartAtLatest():
            return _LATEST, 0
        case StartAtTrimHorizon():
            return _TRIM_HORIZON, 0
        case ShardEnded():
            return _SHARD_END, 0


def text(value: str) -> AttributeValue:
    """Return a string value."""
    return {"S": str(value)}


def texts(values: Iterable[str]) -> AttributeValue:
    """Return a sorted set of strings; DynamoDB has no empty sets."""
    return {"SS": sorted(str(value) for value in values)}


def number(value: float) -> AttributeValue:
    """Return a number value."""
    return {"N": repr(value)}
