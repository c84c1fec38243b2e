"""Determines the shards of the next offset, by lineage: parents before children, across splits,
merges and expiry.

The functions of lineage are about one stream, from the service's listing (every shard not yet
expired) and the entries of an offset (`states`, being read, and `waiting`).

A listed shard that has no entry is *finished* if one of its descendants has an entry, otherwise
*new*. A new or waiting shard may be read once each of its parents is done, and a parent is done if

* its entry is at SHARD_END: it was read to the end and committed by Spark; or
* it is finished, and so is every ancestor of it that has an entry (a start by shard may skip a
  generation: LATEST for a closed shard whose own parent is read from the beginning); or
* it is no longer listed: it expired with all its records.

A new shard inherits its parents' latest `last_caught_up_ms`: they were open then
(`with_last_caught_up`), so its records are younger. Without one, its records are promised from the
first on, unless no record was read of its parents (`is_unread`): then the query starts there, which
the offset says by `resume_from`.

An entry leaves the offset if it is at SHARD_END and every listed child has an entry or is finished,
or if it is at SHARD_END and has expired itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import HashRange, ShardId, ShardKey, SlotId, StreamName
from spark_ssp.grouping.slots import MappableShard, ShardPartitionMapper
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    Latest,
    Shard,
    ShardEnd,
    ShardState,
    TrimHorizon,
    without_batch,
)
from spark_ssp.kinesis_source.planning.data_loss import admit_child, is_start_point, is_unpromised

Listings = Mapping[StreamName, Mapping[ShardId, Shard]]


@dataclass(slots=True, kw_only=True)
class ActiveShards:
    """The shards of the next offset, before their positions have advanced."""

    streams: dict[StreamName, StreamEntry] = field(default_factory=dict)
    states: dict[ShardKey, ShardState] = field(default_factory=dict)
    waiting: dict[ShardKey, ShardState] = field(default_factory=dict)
    vanished: list[ShardKey] = field(default_factory=list)
    abandoned: list[ShardKey] = field(default_factory=list)
    unread: list[ShardKey] = field(default_factory=list)
    """Shards at SHARD_END that have expired, and of which nothing was read: the query starts with
    their children."""
    outdated: list[StreamName] = field(default_factory=list)
    lost_shards: dict[ShardKey, ShardState] = field(default_factory=dict)
    resume_from: dict[ShardKey, ShardState] = field(default_factory=dict)
    """The starts of shards that do not start at the positions of the offset before."""
    follows: dict[ShardKey, tuple[ShardId, ...]] = field(default_factory=dict)
    """The shards that were admitted with their parents, each with the ancestors that the same batch
    reads to their end."""
    waited: dict[ShardKey, ShardState] = field(default_factory=dict)
    """The entries of those that had waited."""

    @property
    def created(self) -> dict[StreamName, EpochMillis]:
        """The creation times of the streams."""
        return {name: entry.created for name, entry in self.streams.items()}

    def add(
        self,
        stream: StreamName,
        entry: StreamEntry,
        states: Mapping[ShardId, ShardState],
        waiting: Mapping[ShardId, ShardState],
    ) -> None:
        """Add one stream."""
        self.streams[stream] = entry
        for target, source in ((self.states, states), (self.waiting, waiting)):
            for shard, state in source.items():
                # `first` is recorded only by the batch that starts to read the shard.
                if state.first is not None and not is_start_point(state.position):
                    state = replace(state, first=None)
                target[ShardKey(stream=stream, shard=shard)] = without_batch(state)

    def admit(self, key: ShardKey, state: ShardState, follows: tuple[ShardId, ...]) -> None:
        """Add a shard that is read after others of this batch."""
        if key in self.waiting:
            self.waited[key] = self.waiting.pop(key)
        self.states[key] = state
        self.follows[key] = follows

    def withdraw(self, key: ShardKey) -> None:
        """Undo the admission of a shard."""
        if key in self.waited:
            self.waiting[key] = self.waited.pop(key)
        del self.states[key], self.follows[key]
        self.resume_from.pop(key, None)

    def restart_at(
        self, states: Mapping[ShardKey, ShardState], starts: Mapping[ShardKey, ShardState | None]
    ) -> None:
        """Replace the states, some of which have other `starts`; None is that of the offset
        before."""
        self.states.update(states)
        for key, begin in starts.items():
            self.resume_from.pop(key, None)
            if begin is not None:
                self.resume_from[key] = begin

    def postpone(self, keys: Collection[ShardKey], start: Offset) -> None:
        """Leave out positions that are not verified yet, unless `start` has them: as a part of the
        offset they would be the checkpoint's, whichever option or lease gave them. A stream that is
        new to the query waits for all of its positions. Shards that `start` has as lost remain
        so, with the position at which they are read on."""
        new = {key.stream for key in keys} - start.streams.keys()
        for stream in new:
            del self.streams[stream]
        for table in (self.states, self.waiting, self.resume_from):
            for key in [key for key in table if key.stream in new]:
                del table[key]
        for key in keys:
            if key in self.resume_from:
                del self.resume_from[key], self.states[key]
                if key in start.states:
                    self.states[key] = without_batch(start.states[key])
                elif key in start.lost_shards and key.stream not in new:
                    self.lost_shards[key] = without_batch(start.lost_shards[key])


class ActiveShardsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The shards of the next offset, and the listings that they follow from."""

    active: ActiveShards
    resolved: set[ShardKey]
    """Shards whose position was only just resolved."""
    listings: Listings
    dropped: Mapping[ShardKey, str] = msgspec.field(default_factory=dict)
    """Shards that leave the offset for another reason than their end."""


def advance_streams(
    start: Offset, streams: Collection[StreamName], listings: Listings
) -> ActiveShards:
    """Return the given streams of an offset, each one step further in its lineage."""
    states = _by_stream(start.states)
    waiting = _by_stream(start.waiting)
    active = ActiveShards()
    for stream in sorted(streams):
        listing = listings[stream].values()
        lineage = advance_lineage(listing, states.get(stream, {}), waiting.get(stream, {}))
        # Only the first offset that has the stream contains `start`.
        entry = StreamEntry(created=start.streams[stream].created)
        # A shard is begun by a listing of now: an older one may be of a stream that was deleted
        # since, and another of its name may have a shard of the same id.
        begins = lineage.states.keys() - states.get(stream, {}).keys()
        reading = dict(lineage.states)
        for shard in begins:
            key, state = ShardKey(stream=stream, shard=shard), reading[shard]
            if is_unpromised(state) and _follows_unread(key, start, listings[stream]):
                active.resume_from[key] = state
            else:
                reading[shard] = admit_child(state, entry.created)
        active.add(stream, entry, reading, lineage.waiting)
        active.vanished += [ShardKey(stream=stream, shard=shard) for shard in lineage.vanished]
        for shard in lineage.abandoned:
            key = ShardKey(stream=stream, shard=shard)
            is_parent = any(shard in child.parents for child in listing)
            skipped = is_parent and is_unread(key, start)
            (active.unread if skipped else active.abandoned).append(key)
        if lineage.undiscovered_children or begins:
            active.outdated.append(stream)
    return active


def is_unread(key: ShardKey, end: Offset) -> bool:
    """Return whether the query starts in a shard and has read no record of it: the batch up to
    `end` began and ended the shard, and read none of the ancestors before it either. So the
    children of the shard follow no record that was read."""
    state = end.states.get(key)
    if state is None or not isinstance(state.position, ShardEnd) or state.first is not None:
        return False
    begin, option = state.resume_from, end.streams[key.stream].start
    if option is not None:
        point = option.by_shard.get(key, option.default)
        begin = None if point is None or isinstance(point, Latest) else ShardState(position=point)
    older = [ShardKey(stream=key.stream, shard=shard) for shard in state.follows]
    return begin is not None and is_unpromised(begin) and all(is_unread(one, end) for one in older)


def _follows_unread(key: ShardKey, start: Offset, listing: Mapping[ShardId, Shard]) -> bool:
    """Return whether a shard has parents that are known, and nothing was read of any of them."""
    parents = [ShardKey(stream=key.stream, shard=shard) for shard in listing[key.shard].parents]
    known = [one for one in parents if one.shard in listing or one in start.states]
    return bool(known) and all(is_unread(one, start) for one in known)


def _by_stream(
    states: Mapping[ShardKey, ShardState],
) -> dict[StreamName, dict[ShardId, ShardState]]:
    by_stream: dict[StreamName, dict[ShardId, ShardState]] = {}
    for key, state in states.items():
        by_stream.setdefault(key.stream, {})[key.shard] = state
    return by_stream


# --- Lineage -------------------------------------------------------------------------------------

States = Mapping[ShardId, ShardState]
Children = Mapping[ShardId, Sequence[ShardId]]


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one stream after one listing."""

    states: dict[ShardId, ShardState]
    """To be read now, or at SHARD_END and waiting for their children to be listed."""
    waiting: dict[ShardId, ShardState]
    vanished: tuple[ShardId, ...]
    """Entries before SHARD_END that the service no longer lists: their remaining records are
    lost."""
    abandoned: tuple[ShardId, ...]
    """Entries at SHARD_END that expired before a child was started. A child is younger than its
    parent's last record, so its first records may have expired as well."""
    undiscovered_children: bool
    """True if a shard is at SHARD_END without a listed child: the listing may be stale."""


def advance_lineage(listed: Collection[Shard], states: States, waiting: States) -> Lineage:
    """Admit every shard that may now be read, and drop every shard that is finished."""
    by_id = {shard.shard_id: shard for shard in listed}
    children = children_of(listed)
    entries = {**states, **waiting}
    finished = ancestors(by_id, entries.keys()) - entries.keys()
    unread = [
        shard_id
        for shard_id, state in entries.items()
        if shard_id in by_id and (shard_id in waiting or not isinstance(state.position, ShardEnd))
    ]
    undone = {*unread, *_descendants_through(unread, children, finished)}

    def done(parent: ShardId) -> bool:
        known = parent in entries or parent in finished or parent not in by_id
        return known and parent not in undone

    reading = dict(states)
    still_waiting = {}
    for shard_id, state in waiting.items():
        shard = by_id.get(shard_id)
        if shard is None or all(done(parent) for parent in shard.parents):
            reading[shard_id] = state
        else:
            still_waiting[shard_id] = state
    for shard in listed:
        if shard.shard_id in entries or shard.shard_id in finished:
            continue
        if all(done(parent) for parent in shard.parents):
            proofs = [
                entries[parent].last_caught_up_ms for parent in shard.parents if parent in entries
            ]
            seen = max((proof for proof in proofs if proof is not None), default=None)
            reading[shard.shard_id] = ShardState(position=TrimHorizon(), last_caught_up_ms=seen)
    begun = reading.keys() | still_waiting.keys() | finished
    return _drop_finished(by_id, children, reading, still_waiting, begun)


def _drop_finished(
    by_id: Mapping[ShardId, Shard],
    children: Children,
    reading: Mapping[ShardId, ShardState],
    waiting: Mapping[ShardId, ShardState],
    begun: Collection[ShardId],
) -> Lineage:
    """Drop the shards that are finished. `begun`: every shard that has an entry or is finished."""
    kept: dict[ShardId, ShardState] = {}
    vanished: list[ShardId] = []
    abandoned: list[ShardId] = []
    undiscovered = False
    for shard_id in sorted(reading):
        state = reading[shard_id]
        ended = isinstance(state.position, ShardEnd)
        if shard_id not in by_id:
            (abandoned if ended else vanished).append(shard_id)
            continue
        own = children.get(shard_id, ())
        if ended and own and all(child in begun for child in own):
            continue
        undiscovered = undiscovered or (ended and not own)
        kept[shard_id] = state
    return Lineage(
        states=kept,
        waiting={shard_id: waiting[shard_id] for shard_id in sorted(waiting)},
        vanished=tuple(vanished),
        abandoned=tuple(abandoned),
        undiscovered_children=undiscovered,
    )


def children_of(listed: Collection[Shard]) -> dict[ShardId, list[ShardId]]:
    """Return the listed children by parent; the parent may have expired."""
    children: dict[ShardId, list[ShardId]] = {}
    for shard in listed:
        for parent in shard.parents:
            children.setdefault(parent, []).append(shard.shard_id)
    return children


def ancestors(by_id: Mapping[ShardId, Shard], shards: Collection[ShardId]) -> set[ShardId]:
    """Return every listed shard that has a descendant among `shards`."""
    found: set[ShardId] = set()
    pending = [shard_id for shard_id in shards if shard_id in by_id]
    while pending:
        for parent in by_id[pending.pop()].parents:
            if parent in by_id and parent not in found:
                found.add(parent)
                pending.append(parent)
    return found


def families(
    listed: Mapping[ShardId, Shard], shards: Collection[ShardId]
) -> dict[ShardId, HashRange]:
    """Return the hash keys of each shard and its listed ancestors, if they are more than its own.
    Only such a shard may hold an aggregate that was made for an ancestor. A merge removes no keys,
    so its child has a family only if a split came before."""
    found: dict[ShardId, HashRange] = {}
    for shard_id in shards:
        shard = listed.get(shard_id)
        if shard is None or listed.keys().isdisjoint(shard.parents):
            continue
        own = shard.hash_range
        line = [own, *(listed[one].hash_range for one in ancestors(listed, [shard_id]))]
        family = HashRange(
            first=min(keys.first for keys in line), last=max(keys.last for keys in line)
        )
        if family != own:
            found[shard_id] = family
    return found


def _descendants_through(
    shards: Collection[ShardId], children: Children, through: Collection[ShardId]
) -> set[ShardId]:
    """Return the descendants of `shards` that are reached only through shards among `through`."""
    found: set[ShardId] = set()
    pending = list(shards)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child in through and child not in found:
                found.add(child)
                pending.append(child)
    return found


# --- Slots ---------------------------------------------------------------------------------------


def assign_slots(
    active: ActiveShards,
    listings: Listings,
    previous: Mapping[ShardKey, SlotId],
    mapper: ShardPartitionMapper,
    slots: int,
) -> dict[ShardKey, SlotId]:
    """Return the slot of each active shard. A shard keeps its slot until it leaves the offset, so
    the offset shows which slots are free."""
    shards = [
        MappableShard(
            key=key,
            parents=tuple(
                ShardKey(stream=key.stream, shard=parent)
                for parent in listings[key.stream][key.shard].parents
            ),
            hash_range=listings[key.stream][key.shard].hash_range,
        )
        for key in sorted(active.states)
    ]
    return mapper.assign(previous, shards, slots)


MOST_DEFAULT_SLOTS = 64
"""A task reads 16 shards side by side, so 64 slots read 1,000 shards at once."""


def default_slots(listings: Listings) -> int:
    """Return one slot for each open shard, up to a number that most clusters have cores for."""
    return max(1, min(count_open(listings), MOST_DEFAULT_SLOTS))


def count_open(listings: Listings) -> int:
    """Return the number of open shards."""
    return sum(not shard.closed for listing in listings.values() for shard in listing.values())


def is_one_to_one(offset: Offset) -> bool:
    """Return whether no slot of the offset has two shards with records left to read."""
    carrying = [
        offset.assignment[key]
        for key, state in offset.states.items()
        if not isinstance(state.position, ShardEnd)
    ]
    return len(set(carrying)) == len(carrying)
