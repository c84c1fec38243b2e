"""Divides the ranges of a batch read among tasks, and orders the ranges of each task. No I/O.

In a streaming query a child follows its parents in a later batch. A batch read has all generations
of shards at once: the mapper assigns one generation after the other to slots, as if each were read
after the one before, so that every slot has a part of each. Within a task a range is read after
those of its ancestors, so the rows of a key that one task returns are in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_ssp.grouping.identifiers import ShardId, ShardKey, SlotId
from spark_ssp.grouping.slots import MappableShard, ShardPartitionMapper
from spark_ssp.kinesis_source.model.ranges import ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import Shard
from spark_ssp.kinesis_source.planning.active_shards import Listings
from spark_ssp.kinesis_source.planning.shard_lineage import ancestors, children_of


def divide_ranges(
    ranges: Sequence[ShardRange], listings: Listings, mapper: ShardPartitionMapper, slots: int
) -> tuple[SlotRange, ...]:
    """Return at most `slots` tasks, by slot, that have all `ranges` between them."""
    assignment = _assign(ranges, listings, mapper, slots)
    by_slot: dict[SlotId, dict[ShardKey, ShardRange]] = {}
    for one in sorted(ranges, key=lambda each: each.key):
        by_slot.setdefault(assignment[one.key], {})[one.key] = one
    return tuple(
        SlotRange(
            slot=slot,
            shards=tuple(
                replace(one, after=_ancestors_among(by_slot[slot], one.key, listings))
                for one in by_slot[slot].values()
            ),
        )
        for slot in sorted(by_slot)
    )


def _ancestors_among(
    ranges: Mapping[ShardKey, ShardRange], key: ShardKey, listings: Listings
) -> tuple[ShardId, ...]:
    older = ancestors(listings[key.stream], [key.shard])
    return tuple(
        shard for shard in sorted(older) if ShardKey(stream=key.stream, shard=shard) in ranges
    )


def _assign(
    ranges: Sequence[ShardRange], listings: Listings, mapper: ShardPartitionMapper, slots: int
) -> dict[ShardKey, SlotId]:
    """Return the slot of each range. A shard leaves its slot with the generation of its last
    child."""
    begins: dict[ShardKey, int] = {}
    leaves: dict[ShardKey, int] = {}
    for stream, listing in listings.items():
        generations = _generations(listing)
        children = children_of(list(listing.values()))
        for shard, generation in generations.items():
            key = ShardKey(stream=stream, shard=shard)
            begins[key] = generation
            if shard in children:
                leaves[key] = max(generations[child] for child in children[shard])
    shards = [
        MappableShard(
            key=one.key,
            parents=tuple(
                ShardKey(stream=one.key.stream, shard=parent)
                for parent in listings[one.key.stream][one.shard].parents
            ),
            hash_range=listings[one.key.stream][one.shard].hash_range,
        )
        for one in ranges
    ]
    assigned: dict[ShardKey, SlotId] = {}
    current: dict[ShardKey, SlotId] = {}
    for generation in sorted({begins[shard.key] for shard in shards}):
        active = [
            shard
            for shard in shards
            if begins[shard.key] <= generation < leaves.get(shard.key, generation + 1)
        ]
        current = mapper.assign(current, active, slots)
        assigned |= current
    return assigned


def _generations(listing: Mapping[ShardId, Shard]) -> dict[ShardId, int]:
    """Return the length of the longest line of listed ancestors of each shard."""
    known: dict[ShardId, int] = {}
    pending = sorted(listing, reverse=True)
    while pending:
        shard = pending[-1]
        parents = [parent for parent in listing[shard].parents if parent in listing]
        missing = [parent for parent in parents if parent not in known]
        if missing:
            pending += missing
            continue
        pending.pop()
        known[shard] = 1 + max((known[parent] for parent in parents), default=-1)
    return known
