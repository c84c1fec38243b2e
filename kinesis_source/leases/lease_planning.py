"""Determines the shards of an offset when they are shared by leases.

A shard is in the next offset if this worker holds its lease, no other worker has requested it, and
its parents are done: a parent is done if its checkpoint is SHARD_END, or if it has no lease. The
shard continues at the further one of two positions: the query's own, and the checkpoint.

A shard that this worker has read to its end stays in the offset, at SHARD_END, until its lease
records the end. If the query is restarted before that, it does not read the shard again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from checkpoint.coordination.protocol import Status
from checkpoint.leases.checkpoint_position import Processed, Progress, ShardEnded, StartAtLatest
from checkpoint.leases.lease import Lease
from kinesis_source.leases.lease_keys import (
    LeaseKeys,
    from_checkpoint,
    is_checkpoint_after,
    is_position_after,
)
from kinesis_source.model.offset import Offset
from kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    ShardEnd,
    ShardState,
    StartingPosition,
)
from kinesis_source.planning.active_shards import Listings
from kinesis_source.planning.shard_lineage import ancestors, children_of
from task_grouping.identifiers import ShardId, ShardKey, StreamName, WorkerId


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

    def is_ended(self, key: ShardKey) -> bool:
        """Return whether the lease records the end of the shard."""
        row = self.rows.get(key)
        return row is not None and isinstance(row.progress, ShardEnded)

    def is_owned(self, key: ShardKey) -> bool:
        """Return whether this worker is the owner of the lease."""
        row = self.rows.get(key)
        return row is not None and row.holder == self.worker


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
    )


# --- The next offset -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedShards:
    """This worker's part of the shards."""

    states: dict[ShardKey, ShardState] = field(default_factory=dict)
    """The entries of the next offset, before their positions have advanced."""
    resume_from: dict[ShardKey, ShardState] = field(default_factory=dict)
    """The starts of those that do not continue from the previous offset."""
    unresolved: dict[ShardKey, None] = field(default_factory=dict)
    """Shards to be added once LATEST is resolved for them."""
    ended: dict[ShardKey, tuple[ShardKey, ...]] = field(default_factory=dict)
    """Shards read to the end, with their children."""
    dropped: dict[ShardKey, str] = field(default_factory=dict)
    """Shards that leave the offset, with the reason."""
    vanished: list[ShardKey] = field(default_factory=list)
    abandoned: list[ShardKey] = field(default_factory=list)
    undiscovered: list[StreamName] = field(default_factory=list)
    unlisted: list[ShardKey] = field(default_factory=list)
    """Held shards that may be new or expired: ignored for now."""

    @property
    def reading(self) -> frozenset[ShardKey]:
        """Return the shards that are read, or about to be."""
        return frozenset({*self.states, *self.unresolved} - self.ended.keys())


def owned_shards(
    start: Offset,
    table: LeaseTableView,
    listings: Listings,
    option: StartingPosition,
    expired: Collection[ShardKey] = (),
    leases: str | None = None,
) -> OwnedShards:
    """Return this worker's shards. `option`: the start of a KCL's lease without a time. `expired`:
    the unlisted shards that are known to have expired. `leases`: the table's name."""
    owned = OwnedShards()
    children = {stream: children_of(listing.values()) for stream, listing in listings.items()}
    entries = offset_entries(start)
    start_lost = _expired_before(start, table, listings, leases)
    for key in sorted(table.held | entries.keys()):
        entry = entries.get(key)
        at_end = entry is not None and isinstance(entry.position, ShardEnd)
        own = key in table.held or (at_end and table.is_owned(key))
        if key in start_lost:
            (owned.abandoned if at_end else owned.vanished).append(key)
        elif table.is_ended(key) or not own:
            if key in start.states:
                owned.dropped[key] = _drop_reason(key, table)
        elif entry is None and not _listed(key, listings) and key not in expired:
            owned.unlisted.append(key)
        elif at_end or not _listed(key, listings):
            child_keys = children[key.stream].get(key.shard, ())
            _end_shard(owned, key, entry, tuple(_keys(key.stream, child_keys)), listings)
        elif key in table.requested:
            if key in start.states:
                owned.dropped[key] = f"handed over to {table.rows[key].owner or 'no worker'}"
        elif key in start.states or can_start(key, table, listings):
            progress = table.rows[key].progress
            if entry is not None and not is_checkpoint_after(progress, entry.position):
                owned.states[key] = entry
                if start.entry(key) is None:
                    owned.resume_from[key] = replace(entry, first=None, resume_from=None)
            else:
                inherited = _inherited_caught_up_ms(key, start, listings) if entry is None else None
                _resume_from(owned, key, progress, option, inherited)
    return owned


def _expired_before(
    start: Offset, table: LeaseTableView, listings: Listings, leases: str | None
) -> set[ShardKey]:
    """Return entries of shards that expired before there were leases by which another worker could
    have continued. If the offset was shared by this table, a missing lease was cleaned up:
    finished."""
    have_rows = {key.stream for key in (*table.rows, *table.unreadable)}
    before = {
        name
        for name, entry in start.streams.items()
        if entry.leases != leases or name not in have_rows
    }
    parents = {
        ShardKey(stream=key.stream, shard=parent)
        for key, row in table.rows.items()
        for parent in row.parents
    }
    known = table.rows.keys() | table.unreadable | parents
    return {
        key
        for key in offset_entries(start).keys() - known
        if key.stream in before and not _listed(key, listings)
    }


def offset_entries(start: Offset) -> dict[ShardKey, ShardState]:
    """Return all entries of the query's own offset."""
    return {**start.lost_shards, **start.waiting, **start.states}


def lost_shards(
    start: Offset, reading: Collection[ShardKey], table: LeaseTableView, listings: Listings
) -> dict[ShardKey, ShardState]:
    """Return the entries of shards not in `reading` whose checkpoints are still behind: if the
    shards come back, however often the query was restarted, they continue there."""
    finished = {
        ShardKey(stream=stream, shard=shard)
        for stream, listing in listings.items()
        for shard in ancestors(listing, [key.shard for key in table.rows if key.stream == stream])
    }
    return {
        key: replace(state, resume_from=None)
        for key, state in sorted(offset_entries(start).items())
        if key not in reading
        and (
            is_position_after(state.position, table.rows[key].progress)
            if key in table.rows
            else _listed(key, listings) and key not in finished
        )
    }


def _drop_reason(key: ShardKey, table: LeaseTableView) -> str:
    row = table.rows.get(key)
    if key in table.unreadable:
        return "its lease cannot be read"
    if row is None:
        return "finished; its lease is cleaned up"
    if table.is_ended(key):
        return "finished"
    if row.holder == table.worker:
        return "its lease may have expired"
    return f"its lease is held by {row.holder or 'no worker'}"


def _keys(stream: StreamName, shards: Collection[ShardId]) -> list[ShardKey]:
    return sorted(ShardKey(stream=stream, shard=shard) for shard in shards)


def _end_shard(
    owned: OwnedShards,
    key: ShardKey,
    entry: ShardState | None,
    child_keys: tuple[ShardKey, ...],
    listings: Listings,
) -> None:
    """Record a shard that has been read to its end, or that is no longer listed."""
    listed = _listed(key, listings)
    if listed and entry is not None:
        owned.states[key] = entry
        if not child_keys:
            owned.undiscovered.append(key.stream)
            return
    else:
        at_end = entry is not None and isinstance(entry.position, ShardEnd)
        (owned.abandoned if at_end else owned.vanished).append(key)
    owned.ended[key] = child_keys


def children_of_ended(
    at_end: Collection[ShardKey], listings: Listings
) -> dict[ShardKey, tuple[ShardKey, ...]]:
    """Return the shards that have been read to their end, each with its children, except those
    whose children are still to be discovered."""
    children = {stream: children_of(listing.values()) for stream, listing in listings.items()}
    child_keys = {
        key: tuple(_keys(key.stream, children[key.stream].get(key.shard, ()))) for key in at_end
    }
    return {key: new for key, new in child_keys.items() if new or not _listed(key, listings)}


def _listed(key: ShardKey, listings: Listings) -> bool:
    return key.shard in listings[key.stream]


def can_start(key: ShardKey, table: LeaseTableView, listings: Listings) -> bool:
    """Return whether the ancestors of a listed shard are done: each one that has a lease, also if a
    start by shard skipped the generation between."""
    listing = listings[key.stream]
    above = ancestors(listing, [key.shard])
    above |= {parent for shard in (key.shard, *above) for parent in listing[shard].parents}
    return all(
        table.is_ended(shard) if shard in table.rows else shard not in table.unreadable
        for shard in _keys(key.stream, above)
    )


def _resume_from(
    owned: OwnedShards,
    key: ShardKey,
    progress: Progress,
    option: StartingPosition,
    inherited_ms: EpochMillis | None,
) -> None:
    """Start a shard at its checkpoint."""
    position = from_checkpoint(progress, option)
    if isinstance(position, Latest):
        owned.unresolved[key] = None
        return
    caught_up_ms = progress.last_caught_up_ms if isinstance(progress, Processed) else inherited_ms
    owned.states[key] = owned.resume_from[key] = ShardState(
        position=position, last_caught_up_ms=caught_up_ms
    )


def ahead_of_checkpoint(
    owned: OwnedShards, start: Offset, table: LeaseTableView, *, restarted: bool
) -> dict[ShardKey, str]:
    """Return the shards whose offset and checkpoint differ, with the one that is further.

    While a query runs its checkpoints are behind, except for shards that are added.
    """
    entries = offset_entries(start)
    ahead: dict[ShardKey, str] = {}
    for key in sorted(owned.states.keys() & entries.keys() & table.rows.keys()):
        position, progress = entries[key].position, table.rows[key].progress
        if is_checkpoint_after(progress, position):
            ahead[key] = "the lease"
        elif (restarted or key in owned.resume_from) and is_position_after(position, progress):
            ahead[key] = "the checkpoint"
    return ahead


def _inherited_caught_up_ms(key: ShardKey, start: Offset, listings: Listings) -> EpochMillis | None:
    """Return `last_caught_up_ms` for a child shard: its records are younger than that of its
    parents, and than the stream."""
    parents = _keys(key.stream, listings[key.stream][key.shard].parents)
    proofs = [
        start.states[parent].last_caught_up_ms for parent in parents if parent in start.states
    ]
    if key.stream in start.streams and any(_listed(parent, listings) for parent in parents):
        proofs.append(start.streams[key.stream].created)
    return max((proof for proof in proofs if proof is not None), default=None)


def limited_to(
    owned: OwnedShards, table: LeaseTableView, reading: Collection[ShardKey]
) -> OwnedShards:
    """Return the shards without those not reported as read, and those lost since."""
    kept = {
        key: state
        for key, state in owned.states.items()
        if key in owned.ended
        or (key in reading and key in table.held)
        or isinstance(state.position, ShardEnd)
    }
    return replace(
        owned,
        states=kept,
        resume_from={key: begin for key, begin in owned.resume_from.items() if key in kept},
        unresolved={key: None for key in owned.unresolved if key in reading and key in table.held},
    )


def latest_checkpoints(
    since: Mapping[ShardKey, EpochMillis], start: Offset, table: LeaseTableView
) -> dict[ShardKey, StartAtLatest]:
    """Record the timestamp that LATEST resolved to, so that the next owner starts at the same time.
    The checkpoint stays LATEST for KCL workers."""
    checkpoints: dict[ShardKey, StartAtLatest] = {}
    for key, row in table.rows.items():
        if row.progress != StartAtLatest():
            continue
        state = start.states.get(key)
        if key in since:
            checkpoints[key] = StartAtLatest(since_ms=since[key])
        elif state is not None and isinstance(state.position, AtTimestamp):
            checkpoints[key] = StartAtLatest(since_ms=state.position.millis)
    return {
        key: progress
        for key, progress in checkpoints.items()
        if key not in start.states or not isinstance(start.states[key].position, AfterRecord)
    }


def repeated_checkpoint(last: Processed | None, now: Processed, oldest_ms: int) -> Processed:
    """Return the checkpoint to report: the last one, if only the caught-up time has advanced and
    the reported one is not yet old."""
    if last is None or (last.sequence_number, last.sub) != (now.sequence_number, now.sub):
        return now
    if last.last_caught_up_ms is None or (
        now.last_caught_up_ms is not None
        and now.last_caught_up_ms - last.last_caught_up_ms >= oldest_ms
    ):
        return now
    return last
