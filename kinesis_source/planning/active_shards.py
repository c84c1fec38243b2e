"""Determines the shards of the next offset: the lineage of each stream, joined over all streams."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from spark_ssp.grouping.identifiers import ShardId, ShardKey, SlotId, StreamName
from spark_ssp.grouping.slots import MappableShard, ShardPartitionMapper
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry
from spark_ssp.kinesis_source.model.read_loss import admit_child, is_start_point
from spark_ssp.kinesis_source.model.shard import Shard, ShardEnd, ShardState
from spark_ssp.kinesis_source.planning.shard_lineage import advance_lineage

Listings = Mapping[StreamName, Mapping[ShardId, Shard]]


@dataclass(slots=True, kw_only=True)
class ActiveShards:
    """The shards of the next offset, before their positions have advanced."""

    streams: dict[StreamName, StreamEntry] = field(default_factory=dict)
    states: dict[ShardKey, ShardState] = field(default_factory=dict)
    waiting: dict[ShardKey, ShardState] = field(default_factory=dict)
    vanished: list[ShardKey] = field(default_factory=list)
    abandoned: list[ShardKey] = field(default_factory=list)
    undiscovered: list[StreamName] = field(default_factory=list)
    lost_shards: dict[ShardKey, ShardState] = field(default_factory=dict)
    resume_from: dict[ShardKey, ShardState] = field(default_factory=dict)
    """The starts of shards that do not start at the positions of the offset before."""

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
                is_recorded = state.first is not None and not is_start_point(state.position)
                if is_recorded or state.resume_from is not None:
                    state = replace(
                        state, first=None if is_recorded else state.first, resume_from=None
                    )
                target[ShardKey(stream=stream, shard=shard)] = state

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
        new to the query waits for all of its positions."""
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
                    self.states[key] = replace(start.states[key], resume_from=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveShardsResult:
    """The shards of the next offset, and the listings that they follow from."""

    active: ActiveShards
    resolved: set[ShardKey]
    """Shards whose position was only just resolved."""
    listings: Listings
    dropped: Mapping[ShardKey, str] = field(default_factory=dict)
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
        reading = {
            shard: state if shard in states.get(stream, {}) else admit_child(state, entry.created)
            for shard, state in lineage.states.items()
        }
        active.add(stream, entry, reading, lineage.waiting)
        active.vanished += [ShardKey(stream=stream, shard=shard) for shard in lineage.vanished]
        active.abandoned += [ShardKey(stream=stream, shard=shard) for shard in lineage.abandoned]
        if lineage.undiscovered_children:
            active.undiscovered.append(stream)
    return active


def _by_stream(
    states: Mapping[ShardKey, ShardState],
) -> dict[StreamName, dict[ShardId, ShardState]]:
    by_stream: dict[StreamName, dict[ShardId, ShardState]] = {}
    for key, state in states.items():
        by_stream.setdefault(key.stream, {})[key.shard] = state
    return by_stream


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
