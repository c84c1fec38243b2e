"""Admits children to the batch that reads their parents to their end.

A child is read after its parents. Within a batch that takes one task, which reads them in this
order, so the shards of a batch that descend from each other form *components*, each of which is
read in one slot. The end offset names the ancestors that a child follows (`ShardState.follows`),
and `plan_ranges` derives components and slots from it.

The planner admits one generation after the other: those that the next batch would admit if the
ends found so far were committed. The shards of a component are bounded because one task reads them,
and the bytes before a child because nothing is committed until all are read. Children beyond these
bounds are admitted by the next batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_ssp.grouping.identifiers import ShardId, ShardKey, SlotId, StreamName
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import ShardEnd, ShardState
from spark_ssp.kinesis_source.planning.active_shards import (
    ActiveShards,
    Listings,
    advance_streams,
    ancestors,
    children_of,
)

MAX_COMPONENT_SHARDS: Final = 32
"""The most shards of a component: a task reads 16 side by side, and a merge of 16 shards into one,
two by two, has 31."""

Follows = Mapping[ShardKey, tuple[ShardId, ...]]
"""The ancestors that are read before each shard, in the same batch."""


# --- Components -----------------------------------------------------------------------------------


class Components:
    """The shards of a batch that descend from each other, directly or through others."""

    def __init__(self, follows: Follows) -> None:
        self._links: dict[ShardKey, ShardKey] = {}
        self._counts: dict[ShardKey, int] = {}
        for key, older in follows.items():
            self.join(key, older)

    def first(self, key: ShardKey) -> ShardKey:
        """Return the lowest shard of the component of `key`, which stands for it."""
        links = self._links
        while (link := links.get(key, key)) != key:
            links[key] = links.get(link, link)
            key = link
        return key

    def count_with(self, key: ShardKey, older: tuple[ShardId, ...]) -> int:
        """Return the number of shards of the component that `key` would join."""
        firsts = {self.first(one) for one in (key, *keys_of(key.stream, older))}
        return sum(self._counts.get(first, 1) for first in firsts)

    def join(self, key: ShardKey, older: tuple[ShardId, ...]) -> None:
        """Add a shard and the ancestors that it follows."""
        count = self.count_with(key, older)
        firsts = {self.first(one) for one in (key, *keys_of(key.stream, older))}
        first = min(firsts)
        self._links |= dict.fromkeys(firsts, first)
        self._counts[first] = count


def keys_of(stream: StreamName, shards: tuple[ShardId, ...]) -> list[ShardKey]:
    """Return shards of one stream as keys."""
    return [ShardKey(stream=stream, shard=shard) for shard in shards]


# --- Admission ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A shard that waits only for ancestors which the batch reads to their end: its start, and
    these ancestors."""

    state: ShardState
    follows: tuple[ShardId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The children that may follow the ends found so far, and the shards that would leave the
    offset with them, and with it their slots."""

    children: Mapping[ShardKey, Child]
    leaving: frozenset[ShardKey] = frozenset()


def next_children(
    start: Offset, active: ActiveShards, ends: Mapping[ShardKey, ShardState], listings: Listings
) -> Generation:
    """Return the next generation. `ends`: the states of `active` at the ends found so far."""
    ended: dict[StreamName, set[ShardId]] = {}
    for key, state in ends.items():
        if isinstance(state.position, ShardEnd) and not _had_ended(key, start, active):
            ended.setdefault(key.stream, set()).add(key.shard)
    if not ended:
        return Generation(children={})
    committed = Offset(streams=active.streams, states=ends, waiting=active.waiting)
    following = advance_streams(committed, ended.keys(), listings).states
    children: dict[ShardKey, Child] = {}
    for key in sorted(following.keys() - ends.keys()):
        older = ancestors(listings[key.stream], [key.shard]) & ended[key.stream]
        if older:
            children[key] = Child(state=following[key], follows=tuple(sorted(older)))
    leaving = {key for key in ends if key.stream in ended and key not in following}
    return Generation(children=children, leaving=frozenset(leaving))


def _had_ended(key: ShardKey, start: Offset, active: ActiveShards) -> bool:
    known, state = start.streams.get(key.stream), start.states.get(key)
    return (
        known is not None
        and known.created == active.streams[key.stream].created
        and state is not None
        and isinstance(state.position, ShardEnd)
    )


def within_bounds(
    children: Mapping[ShardKey, Child],
    admitted: Follows,
    sizes: Mapping[ShardKey, int],
    max_bytes: int | None,
) -> dict[ShardKey, Child]:
    """Return the children to admit beside those that were `admitted` before: at most
    `MAX_COMPONENT_SHARDS` shards in a component, and each child only if the shards that it follows
    have fewer than `max_bytes` together. `sizes`: the sizes of their ranges in bytes, if known.

    A size is unknown only of shards that are not far behind: all of a line of descent together can
    have received no more than `max_bytes` since.
    """
    components = Components(admitted)
    chosen: dict[ShardKey, Child] = {}
    for key, child in children.items():
        before = sum(sizes.get(one, 0) for one in keys_of(key.stream, child.follows))
        if max_bytes is not None and before >= max_bytes:
            continue
        if components.count_with(key, child.follows) <= MAX_COMPONENT_SHARDS:
            components.join(key, child.follows)
            chosen[key] = child
    return chosen


def in_slots_of_parents(
    children: Mapping[ShardKey, Child], slots: Mapping[ShardKey, SlotId]
) -> dict[ShardKey, Child]:
    """Return the children whose slots are those of all shards that they follow."""
    return {
        key: child
        for key, child in children.items()
        if all(slots[one] == slots[key] for one in keys_of(key.stream, child.follows))
    }


def without_ended_ancestors(
    admitted: Follows, ends: Mapping[ShardKey, ShardState]
) -> list[ShardKey]:
    """Return the admitted children that follow a shard which the batch does not read to its end,
    now that it has these `ends`."""
    return [
        key
        for key, older in admitted.items()
        if not all(isinstance(ends[one].position, ShardEnd) for one in keys_of(key.stream, older))
    ]


def with_unread_children(end: Offset, listings: Listings) -> list[ShardKey]:
    """Return the shards at SHARD_END of which a child is left for a later batch, or not listed
    yet."""
    found: list[ShardKey] = []
    for stream in sorted({key.stream for key in end.states}):
        listing = listings[stream]
        own = {key.shard for key in (*end.states, *end.waiting) if key.stream == stream}
        begun = {key.shard for key in end.states if key.stream == stream}
        begun |= ancestors(listing, own) - own
        children = children_of(listing.values())
        for shard in sorted(begun & own):
            key = ShardKey(stream=stream, shard=shard)
            if isinstance(end.states[key].position, ShardEnd):
                following = children.get(shard, ())
                if not following or not begun.issuperset(following):
                    found.append(key)
    return found
