"""Maps the leases of a table to the shards of a query, and refuses those of an earlier use.

A lease's key is the shard's id. If a query reads several streams it contains the stream too, as in
the KCL's multi-stream mode; so leases of one mode are not found by the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from spark_ssp.checkpoint.coordination.protocol import Status
from spark_ssp.checkpoint.leases.lease import (
    Item,
    Lease,
    LeaseKey,
    Processed,
    StreamIdentifier,
    lease_key,
)
from spark_ssp.common.errors import NEW_CHECKPOINT, IncompatibleStateError
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName, WorkerId
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    Shard,
    StreamDescription,
    sequence_order,
)

STREAM_ATTRIBUTE: Final = "sspStream"
"""The stream (S) of a lease created by this source whose key does not contain it. A KCL keeps
it."""

CREATED_ATTRIBUTE: Final = "sspStreamCreated"
"""The stream's creation time beside its name (N, milliseconds since the epoch): a recreated stream
has the same name and the same shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseKeys:
    """The keys of a query's leases. None for a stream: it is the only one."""

    streams: Mapping[StreamName, StreamIdentifier | None]
    created: Mapping[StreamName, EpochMillis]
    """The creation times of the streams."""

    def key(self, shard: ShardKey) -> LeaseKey:
        """Return the key of a shard's lease."""
        return lease_key(shard.shard, self.streams[shard.stream])

    def attributes(self, stream: StreamName) -> Item:
        """Return the attributes of a new lease that identify its stream if the key does not."""
        if self.streams[stream] is not None:
            return {}
        return {
            STREAM_ATTRIBUTE: {"S": stream},
            CREATED_ATTRIBUTE: {"N": str(self.created[stream])},
        }

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
    created = {description.name: description.created for description in descriptions}
    if len(descriptions) == 1:
        return LeaseKeys(streams=dict.fromkeys(created), created=created)
    return LeaseKeys(
        streams={
            description.name: StreamIdentifier(
                account=description.arn.split(":")[4],
                name=description.name,
                created=description.created // 1000,
            )
            for description in descriptions
        },
        created=created,
    )


def check_leases_match(
    rows: Collection[Lease],
    lease_keys: LeaseKeys,
    listings: Mapping[StreamName, Mapping[ShardId, Shard]],
    *,
    table: str,
) -> None:
    """Refuse leases of an earlier use of the table: for another number of streams, or for a stream
    that was deleted and created again. Raises IncompatibleStateError."""
    several = None not in lease_keys.streams.values()
    created = {float(time) for time in lease_keys.created.values()}
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
        since = lease.extra_attributes.get(CREATED_ATTRIBUTE, {}).get("N")
        if not several and since is not None and float(since) not in created:
            raise recreated_error(str(lease_keys.shard(lease)), table=table)
        if not isinstance(lease.progress, Processed):
            continue
        key = lease_keys.shard(lease)
        shard = None if key is None else listings.get(key.stream, {}).get(key.shard)
        if shard is not None and sequence_order(lease.progress.sequence_number) < sequence_order(
            shard.first_sequence_number
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
        next_step=f"choose a new applicationName and {NEW_CHECKPOINT}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTableView:
    """The last known state of the lease table, by shard."""

    worker: WorkerId
    rows: Mapping[ShardKey, Lease]
    held: frozenset[ShardKey]
    """The shards whose leases this worker holds, except those whose end is being written."""
    requested: frozenset[ShardKey]
    unreadable: frozenset[ShardKey] = frozenset()
    """Shards whose leases cannot be parsed: missing from `rows`, and not known to be done."""
    stale: frozenset[ShardKey] | None = None
    """Shards whose leases belong to workers that do not renew them; None: not known."""


def lease_table_view(
    status: Status, lease_keys: LeaseKeys, worker: WorkerId, reading: Collection[ShardKey]
) -> LeaseTableView:
    """Return the view of a status by shard; leases of other streams are left out.

    In an outage no lease can be renewed, and no other worker is known to have taken one: the shards
    in `reading` continue.
    """
    by_key = {lease_keys.key(key): key for key in reading}
    shards = {lease.key: lease_keys.shard(lease) for lease in status.rows.values()}
    rows = {key: row for row in status.rows.values() if (key := shards[row.key]) is not None}
    held = {key for lease in status.held if (key := shards.get(lease)) is not None}
    if status.outage_ms:
        held |= {by_key[lease] for lease in status.overdue & by_key.keys()}
    asked = {key for lease in status.asked_for if (key := shards.get(lease)) is not None}
    malformed = {
        key for lease in status.unreadable if (key := lease_keys.shard_at(lease)) is not None
    }
    return LeaseTableView(
        worker=worker,
        rows=rows,
        held=frozenset(held),
        requested=frozenset(asked),
        unreadable=frozenset(malformed),
        stale=None
        if status.stale is None
        else frozenset(key for lease in status.stale if (key := shards.get(lease)) is not None),
    )
