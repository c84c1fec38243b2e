"""The counts of a stream in the query's progress: its shards by state, its leases by owner.

They are totals, since Spark keeps and logs each report. Single shards are listed only for a while
after a reshard, at most `MAX_LISTED_SHARDS` of a stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import Shard, ShardEnd
from spark_ssp.kinesis_source.planning.active_shards import Listings

MAX_LISTED_SHARDS: Final = 100
MAX_LISTED_OWNERS: Final = 20

NewShards = Mapping[ShardKey, tuple[ShardId, ...]]
"""Shards that came from a reshard, with their parents."""


def new_shards(
    start: Offset, end: Offset, listings: Listings
) -> dict[ShardKey, tuple[ShardId, ...]]:
    """Return the shards of a batch that continue others of its start, with their parents."""
    found = {}
    for key in sorted(end.states.keys() - start.states.keys()):
        listed = listings.get(key.stream, {}).get(key.shard)
        parents = () if listed is None else listed.parents
        if any(ShardKey(stream=key.stream, shard=one) in start.states for one in parents):
            found[key] = parents
    return found


def count_reshards(new: NewShards, known: NewShards) -> int:
    """Return the number of splits and merges that the new shards came from. The second child of a
    split may follow in a later batch: `known` has the shards of recent ones."""
    counted = {(key.stream, parents) for key, parents in known.items()}
    return len({(key.stream, parents) for key, parents in new.items()} - counted)


def shard_entry(
    stream: StreamName,
    offset: Offset,
    listing: Mapping[ShardId, Shard],
    lagging: Collection[ShardId],
    recent: NewShards,
) -> dict[str, Any]:
    """Return the shards of a stream by state, and the exceptional ones: those that are closed and
    still read, and the parents of recent ones.

    `lagging`: the shards of the offset, and those that wait for their parents.
    """
    own = {key.shard: state for key, state in offset.states.items() if key.stream == stream}
    ended = {shard for shard, state in own.items() if isinstance(state.position, ShardEnd)}
    closed = sorted(
        shard
        for shard in own.keys() - ended
        if (listed := listing.get(shard)) is not None and listed.closed
    )
    entry: dict[str, Any] = {
        "shards": {
            "open": len(own) - len(ended) - len(closed),
            "closed": len(closed),
            "waiting": len(set(lagging) - own.keys()),
            "ended": len(ended),
        }
    }
    if closed:
        entry["closedShards"] = closed[:MAX_LISTED_SHARDS]
    parents = {key.shard: list(recent[key]) for key in sorted(recent) if key.stream == stream}
    if parents:
        entry["parents"] = dict(list(parents.items())[:MAX_LISTED_SHARDS])
    return entry


def lease_entry(leases: Collection[Lease], not_read: Sequence[ShardId] = ()) -> dict[str, Any]:
    """Return the number of leases by owner, without those of ended shards, and the shards that no
    worker reads before the table is repaired."""
    owners = Counter(lease.holder for lease in leases if not lease.has_ended)
    free = owners.pop(None, 0)
    named = sorted(
        ((owner, count) for owner, count in owners.items() if owner is not None),
        key=lambda one: (-one[1], one[0]),
    )
    shown = dict(sorted(named[:MAX_LISTED_OWNERS]))
    others = sum(count for _, count in named[MAX_LISTED_OWNERS:])
    counts = {"owners": shown, "free": free} | ({"others": others} if others else {})
    if not not_read:
        return {"leases": counts}
    listed = list(not_read[:MAX_LISTED_SHARDS])
    return {"leases": counts | {"notRead": len(not_read)}, "notReadShards": listed}
