"""Assigns shards to slots: the ShardPartitionMapper.

Shards come and go, slots do not. A mapper is a pure function of the previous slots, the shards to
read and the number of slots; the order of its arguments' elements never matters. Its result
contains exactly the given shards, each in one slot of ``range(slots)``.

The free-slot rules are those of the Kinesis system consumer's design (section "Dynamic
Re-sharding"): a shard that is mapped stays, a shard that has ended frees its slot, a new shard
takes a free slot, and only when none is free does it join an occupied one, so that one slot then
carries several shards.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Final, Protocol

import msgspec

from spark_ssp.grouping.identifiers import HashRange, ShardKey, SlotId

Assignment = Mapping[ShardKey, SlotId]
"""The slot of each shard."""

_HASH_SPACE_BITS: Final = 128


class MappableShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard as a mapper sees it. `parents` are the shards that were split or merged into it, in
    any order, whether or not they are still known."""

    key: ShardKey
    parents: tuple[ShardKey, ...] = ()
    hash_range: HashRange


class ShardPartitionMapper(Protocol):
    """A strategy for giving shards their slots."""

    def assign(
        self, previous: Assignment, shards: Collection[MappableShard], slots: int
    ) -> dict[ShardKey, SlotId]:
        """The slot of each of `shards`, sorted by shard.

        `previous` is the mapper's last answer for the same number of slots, or empty for a fresh
        start. A shard in `previous` that is not among `shards` has ended. `ValueError` for fewer
        than one slot or for a shard that is given twice.
        """
        ...


class FreeSlotMapper:
    """A new shard takes a free slot, and a shard never moves.

    * A shard that has a slot keeps it.
    * A slot is free when its last shard has left.
    * First, each new shard takes the lowest free slot among those of its parents, if there
      is one; so a merge's child, and one child of a split, stay where their keys were.
    * Then each new shard that is left goes to the slot that carries least, that is, to the lowest
      free slot as long as there is one. Of equally loaded slots the lowest is taken.

    Both rounds go through the new shards in sorted order. A shard whose previous slot does not
    exist (the number of slots has shrunk) counts as new; to spread all shards over the new
    number of slots, pass an empty `previous`.

    O(n log n + s log s) for n shards and s slots.
    """

    def assign(
        self, previous: Assignment, shards: Collection[MappableShard], slots: int
    ) -> dict[ShardKey, SlotId]:
        """Assign each shard to a slot."""
        ordered = _checked_and_sorted(shards, slots)
        usable = {shard: slot for shard, slot in previous.items() if 0 <= slot < slots}
        assigned = {shard.key: usable[shard.key] for shard in ordered if shard.key in usable}
        load = Counter(assigned.values())

        orphans: list[ShardKey] = []
        for shard in ordered:
            if shard.key in assigned:
                continue
            left_by_parents = {usable[parent] for parent in shard.parents if parent in usable}
            free = sorted(slot for slot in left_by_parents if not load[slot])
            if free:
                assigned[shard.key] = free[0]
                load[free[0]] += 1
            else:
                orphans.append(shard.key)

        # The root is always the lowest of the slots that carry least: a free one while there is.
        by_load = [(load[SlotId(slot)], SlotId(slot)) for slot in range(slots)] if orphans else []
        heapq.heapify(by_load)
        for key in orphans:
            carried, slot = by_load[0]
            assigned[key] = slot
            heapq.heapreplace(by_load, (carried + 1, slot))

        return {shard.key: assigned[shard.key] for shard in ordered}


class HashRangeMapper:
    """The slot of a shard is that of the middle of its hash range: keys stay in place.

    ``slot = ((first + last) / 2 * slots) >> 128``, in integers. Neither `previous` nor the other
    shards matter, so no shard ever moves, and several streams go by the same formula. The slots
    divide the hash space evenly; while a parent's range is within one of them, so are the ranges
    of its children, and every key keeps its slot. Slots are not balanced by count: some may stay
    empty while others carry several shards.
    """

    def assign(
        self, previous: Assignment, shards: Collection[MappableShard], slots: int
    ) -> dict[ShardKey, SlotId]:
        """Assign each shard to a slot; `previous` is not used."""
        return {
            shard.key: _slot_of(shard.hash_range, slots)
            for shard in _checked_and_sorted(shards, slots)
        }


_MAPPERS: Final[Mapping[str, ShardPartitionMapper]] = {
    "free": FreeSlotMapper(),
    "hash-range": HashRangeMapper(),
}


def mapper_for(name: str) -> ShardPartitionMapper:
    """Return the mapper named by the option `slotAssignment`. Raises ValueError."""
    try:
        return _MAPPERS[name]
    except KeyError:
        known = ", ".join(sorted(_MAPPERS))
        raise ValueError(f"no slot assignment is called {name!r}; there are: {known}") from None


def _slot_of(hash_range: HashRange, slots: int) -> SlotId:
    # The middle is a half when the sum is odd: the division by two joins the shift, exactly.
    doubled_middle = hash_range.first + hash_range.last
    return SlotId((doubled_middle * slots) >> (_HASH_SPACE_BITS + 1))


def _checked_and_sorted(shards: Collection[MappableShard], slots: int) -> list[MappableShard]:
    if slots < 1:
        raise ValueError(f"there must be at least one slot, not {slots}")
    ordered = sorted(shards, key=lambda shard: shard.key)
    for shard, following in pairwise(ordered):
        if shard.key == following.key:
            raise ValueError(f"shard {shard.key} is given twice")
    return ordered
