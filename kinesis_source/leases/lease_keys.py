"""Maps the shards of a query to the leases of its table: keys, and positions to checkpoints.

A lease's key is the shard's id. If a query reads several streams it contains the stream too, as in
the KCL's multi-stream mode; so leases of one mode are not found by the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from spark_ssp.checkpoint.leases.checkpoint_position import (
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
)
from spark_ssp.checkpoint.leases.lease import Item, Lease, LeaseKey, StreamIdentifier, lease_key
from spark_ssp.common.errors import IncompatibleStateError, InvalidOptionsError, OptionProblem
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    Latest,
    Position,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    StreamDescription,
    TrimHorizon,
    sequence_order,
)

STREAM_ATTRIBUTE: Final = "sspStream"
"""The stream (S) of a lease created by this source whose key does not contain it. A KCL keeps
it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseKeys:
    """The keys of a query's leases. None for a stream: it is the only one."""

    streams: Mapping[StreamName, StreamIdentifier | None]

    def key(self, shard: ShardKey) -> LeaseKey:
        """Return the key of a shard's lease."""
        return lease_key(shard.shard, self.streams[shard.stream])

    def attributes(self, stream: StreamName) -> Item:
        """Return the attributes of a new lease that identify its stream if the key does not."""
        return {} if self.streams[stream] is not None else {STREAM_ATTRIBUTE: {"S": stream}}

    def shard(self, lease: Lease) -> ShardKey | None:
        """Return the shard of a lease; None if the query does not read its stream."""
        for name, identifier in self.streams.items():
            if identifier == lease.stream:
                return ShardKey(stream=name, shard=lease.shard)
        return None

    def shard_at(self, key: LeaseKey) -> ShardKey | None:
        """Return the shard by the key only, for a lease that cannot be parsed."""
        for name, identifier in self.streams.items():
            shard = ShardId(key.rpartition(":")[2])
            if lease_key(shard, identifier) == key:
                return ShardKey(stream=name, shard=shard)
        return None


def make_lease_keys(descriptions: Collection[StreamDescription]) -> LeaseKeys:
    """Return the KCL's keys for leases of these streams."""
    if len(descriptions) == 1:
        return LeaseKeys(streams={description.name: None for description in descriptions})
    return LeaseKeys(
        streams={
            description.name: StreamIdentifier(
                account=description.arn.split(":")[4],
                name=description.name,
                created=description.created // 1000,
            )
            for description in descriptions
        }
    )


def check_leases_match(
    rows: Collection[Lease],
    lease_keys: LeaseKeys,
    listings: Mapping[ShardKey, Shard],
    *,
    table: str,
) -> None:
    """Refuse leases of an earlier use of the table: for another number of streams, or for a stream
    that was deleted and created again. Raises IncompatibleStateError."""
    several = None not in lease_keys.streams.values()
    for lease in rows:
        if several is not (lease.stream is not None):
            raise IncompatibleStateError(
                f"lease table {table}",
                found=f"the row {lease.key}, written for {_streams(several=not several)}",
                expected=f"rows for {_streams(several=several)}, as the query reads",
                next_step="choose another applicationName; the new table starts at "
                "startingPosition, or at the query's checkpoint",
            )
        written_for = lease.extra_attributes.get(STREAM_ATTRIBUTE, {}).get("S")
        if not several and written_for not in (None, *lease_keys.streams):
            raise IncompatibleStateError(
                f"lease table {table}",
                found=f"the row {lease.key}, written for stream {written_for}",
                expected=f"rows for {', '.join(lease_keys.streams)}, as the query reads",
                next_step="choose a different applicationName for each stream, or read all of "
                "the application's streams in one query",
            )
        key = lease_keys.shard(lease)
        shard = None if key is None else listings.get(key)
        if (
            shard is not None
            and isinstance(lease.progress, Processed)
            and sequence_order(lease.progress.sequence_number)
            < sequence_order(shard.first_sequence_number)
        ):
            raise recreated_error(str(key), table=table)


def _streams(*, several: bool) -> str:
    return "several streams" if several else "a single stream"


def recreated_error(subject: str, *, table: str) -> IncompatibleStateError:
    """Return the error of leases whose stream was deleted."""
    return IncompatibleStateError(
        f"{subject} in lease table {table}",
        found="progress in a stream that was deleted; another of the same name took its place",
        expected="the stream that the leases were written for",
        next_step="choose a new applicationName and a new checkpoint location",
    )


# --- Positions -----------------------------------------------------------------------------------


def to_checkpoint(state: ShardState) -> Progress:
    """Return the checkpoint of a shard state."""
    match state.position:
        case AfterRecord(sequence_number=number, sub=sub):
            return Processed(
                sequence_number=number, sub=sub, last_caught_up_ms=state.last_caught_up_ms
            )
        case AtTimestamp(millis=millis):
            return StartAtTimestamp(at_ms=millis)
        case TrimHorizon():
            return StartAtTrimHorizon()
        case ShardEnd():
            return ShardEnded()


def from_checkpoint(progress: Progress, start: StartingPosition) -> Position | Latest:
    """Return the position of a checkpoint, or LATEST, which the caller must resolve.

    The KCL keeps the time of AT_TIMESTAMP only in its configuration, so for a lease made by a KCL
    it is the query's own `start`; InvalidOptionsError if that is not a time.
    """
    match progress:
        case Processed(sequence_number=number, sub=sub):
            return AfterRecord(sequence_number=number, sub=sub)
        case ShardEnded():
            return ShardEnd()
        case StartAtTrimHorizon():
            return TrimHorizon()
        case StartAtLatest(since_ms=None):
            return Latest()
        case StartAtLatest(since_ms=millis) | StartAtTimestamp(at_ms=millis) if millis is not None:
            return AtTimestamp(millis=millis)
    if isinstance(start.default, AtTimestamp):
        return start.default
    raise InvalidOptionsError(
        "kinesis-ssp",
        [
            OptionProblem(
                option="startingPosition",
                found="a lease that starts at a time which a KCL worker kept in its configuration",
                expected="the time as a startingPosition",
                next_step="give the worker's time as at_timestamp",
            )
        ],
    )


def is_checkpoint_after(progress: Progress, position: Position) -> bool:
    """Return whether a checkpoint is after `position`."""
    match progress, position:
        case _, ShardEnd():
            return False
        case ShardEnded(), _:
            return True
        case Processed() as row, AfterRecord() as own:
            return (sequence_order(row.sequence_number), row.sub) > (
                sequence_order(own.sequence_number),
                own.sub,
            )
    return isinstance(progress, Processed)


def is_position_after(position: Position, progress: Progress) -> bool:
    """Return whether `position` is after a checkpoint."""
    match position, progress:
        case _, ShardEnded():
            return False
        case ShardEnd(), _:
            return True
        case AfterRecord() as own, Processed() as row:
            return (sequence_order(own.sequence_number), own.sub) > (
                sequence_order(row.sequence_number),
                row.sub,
            )
    return isinstance(position, AfterRecord)
