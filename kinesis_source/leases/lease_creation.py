"""Determines the missing leases of a table, and the order in which they are created.

A listed shard without a lease is finished if a descendant has one. Otherwise it belongs to a known
lineage, and gets its lease, at TRIM_HORIZON, once its parents are done; or it is at the position of
the query's checkpoint (a query that had no leases before); or it is unrelated to all known shards,
and starts at `startingPosition`: at the first start, and after a worker died while creating leases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from checkpoint.leases.checkpoint_position import ShardEnded
from checkpoint.leases.lease import Lease
from kinesis_source.leases.lease_keys import LeaseKeys, to_checkpoint
from kinesis_source.model.shard import (
    Shard,
    ShardState,
    TrimHorizon,
)
from kinesis_source.planning.active_shards import Listings
from kinesis_source.planning.shard_lineage import ancestors, children_of
from task_grouping.identifiers import ShardId, ShardKey


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingLeases:
    """Shards of one stream that should have a lease."""

    known: dict[ShardId, ShardState]
    """Their positions."""
    unrelated: frozenset[ShardId]
    """Shards that start at `startingPosition`."""


def find_missing(
    listing: Mapping[ShardId, Shard],
    rows: Mapping[ShardId, Lease],
    entries: Mapping[ShardId, ShardState],
    unreadable: Collection[ShardId] = (),
) -> MissingLeases:
    """Return the missing leases of one stream. `entries`: those of the query's own offset;
    `unreadable`: shards whose leases exist but cannot be parsed."""
    children = children_of(listing.values())
    with_lease = {*rows, *unreadable}
    finished = ancestors(listing, with_lease) - with_lease
    own = {
        shard: state
        for shard, state in entries.items()
        if shard in listing and shard not in with_lease and shard not in finished
    }
    expired = entries.keys() - listing.keys()
    begun = with_lease | own.keys() | expired
    finished = ancestors(listing, begun) - begun
    below = _descendants(begun, children)
    without = listing.keys() - begun - finished
    known = dict(own)
    for shard in sorted(without & below):
        if all(_done(parent, listing, rows, finished) for parent in listing[shard].parents):
            known[shard] = ShardState(position=TrimHorizon())
    return MissingLeases(known=known, unrelated=frozenset(without - below))


def _done(
    parent: ShardId,
    listing: Mapping[ShardId, Shard],
    rows: Mapping[ShardId, Lease],
    finished: Collection[ShardId],
) -> bool:
    row = rows.get(parent)
    if row is not None:
        return isinstance(row.progress, ShardEnded)
    return parent in finished or parent not in listing


def _descendants(
    shards: Collection[ShardId], children: Mapping[ShardId, Collection[ShardId]]
) -> set[ShardId]:
    found: set[ShardId] = set()
    pending = list(shards)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found


def find_skipped(
    listing: Mapping[ShardId, Shard], points: Mapping[ShardId, ShardState]
) -> frozenset[ShardId]:
    """Return the shards that a start by shard skips: LATEST of a closed one, between an ancestor
    and a descendant that are read."""
    below = _descendants(points.keys(), children_of(listing.values()))
    return frozenset(ancestors(listing, points.keys()) & below - points.keys())


def creatable_leases(proposed: Collection[ShardKey], listings: Listings) -> frozenset[ShardKey]:
    """Return the proposed leases that can be created first, because no ancestor's is proposed: a
    shard without a lease counts as done if a descendant has one."""
    return frozenset(
        key
        for key in proposed
        if not any(
            ShardKey(stream=key.stream, shard=shard) in proposed
            for shard in ancestors(listings[key.stream], [key.shard])
        )
    )


def new_lease(key: ShardKey, shard: Shard, state: ShardState, lease_keys: LeaseKeys) -> Lease:
    """Return a lease without an owner."""
    return Lease(
        shard=key.shard,
        stream=lease_keys.streams[key.stream],
        counter=0,
        progress=to_checkpoint(state),
        parents=shard.parents,
        hash_range=shard.hash_range,
        extra_attributes=lease_keys.attributes(key.stream),
    )
