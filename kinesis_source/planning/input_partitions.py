"""Plans the ranges of a batch: each task's part, from two offsets.

Spark replays an unfinished batch in a new process by requesting its ranges first. So the ranges
follow from the two offsets only: slots and their number from the end (a restart may have changed
them), starts by shard. A shard that was taken over from another worker, or whose parents had no
record to read, starts at the end offset's `resume_from`. Any other shard without an entry in the
start offset starts

* at the stream's own start, if the stream is new in this batch (or was recreated), which the end
  offset records; LATEST then reads nothing, since the end holds the resolved position;
* otherwise at TRIM_HORIZON: it is a child that was admitted by this batch.

A child is read after its parents. In the batch that reads them to their end, that takes one task,
which reads them in this order: the shards of a batch that descend from each other form a
*component*, which is read in the slot of its first shard, whichever slots its shards have in the
offset. The end offset names the ancestors that a child follows (`ShardState.follows`), from which
components and slots are derived.

Children are admitted one generation after the other: those that the next batch would admit if the
ends found so far were committed. The shards of a component are bounded because one task reads them,
and the bytes before a child because nothing is committed until all are read. Children beyond these
bounds are admitted by the next batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from spark_ssp.common.errors import NEW_CHECKPOINT, IncompatibleStateError
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import HashRange, ShardId, ShardKey, SlotId, StreamName
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.ranges import ExpectedSize, ShardRange, SlotRange, Stragglers
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    Latest,
    Position,
    Shard,
    ShardEnd,
    ShardIterator,
    ShardState,
    StreamRef,
    TrimHorizon,
    is_behind,
)
from spark_ssp.kinesis_source.planning.active_shards import (
    ActiveShards,
    Listings,
    advance_streams,
    ancestors,
    children_of,
)
from spark_ssp.kinesis_source.planning.data_loss import admit_child

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


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that waits only for ancestors which the batch reads to their end: its start, and
    these ancestors."""

    state: ShardState
    follows: tuple[ShardId, ...]


class Generation(msgspec.Struct, frozen=True, kw_only=True):
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
    # `is_unread` is about a batch that was committed.
    streams = {name: replace(entry, start=None) for name, entry in active.streams.items()}
    committed = Offset(streams=streams, states=ends, waiting=active.waiting)
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


# --- Ranges --------------------------------------------------------------------------------------


T = TypeVar("T")

_UNKNOWN: Mapping[ShardKey, HashRange] = MappingProxyType({})
_NO_SIZES: Mapping[ShardKey, ExpectedSize] = MappingProxyType({})
_NO_ITERATORS: Mapping[ShardKey, ShardIterator] = MappingProxyType({})


def plan_ranges(
    start: Offset,
    end: Offset,
    streams: Mapping[StreamName, StreamRef],
    hash_ranges: Mapping[ShardKey, HashRange] = _UNKNOWN,
    expected: Mapping[ShardKey, ExpectedSize] = _NO_SIZES,
    iterators: Mapping[ShardKey, ShardIterator] = _NO_ITERATORS,
    *,
    removed: Collection[StreamName] = (),
) -> tuple[SlotRange, ...]:
    """Return one range for each slot that has records to read, by slot; idle slots cost no task.
    Records of `removed` streams are left out, but a slot that had only these stays: sinks recognize
    repeated rows by the number of their task.

    `hash_ranges`, `expected` and `iterators`, which follow positions of `start`, may be unknown:
    they only save the readers requests, and records fetched past the end of the batch. Raises
    IncompatibleStateError for offsets of other streams, or that do not follow each other.
    """
    check_streams(end, {*streams, *removed})
    streams = {**{name: StreamRef(name=name) for name in removed}, **streams}
    ranges: dict[ShardKey, ShardRange] = {}
    for key in sorted(end.states):
        shard_range = _shard_range(
            key, start, end, streams, hash_ranges.get(key), expected.get(key), iterators.get(key)
        )
        if shard_range is not None:
            ranges[key] = shard_range
    follows = {
        key: older for key in ranges if (older := _followed(key, end.states[key].follows, ranges))
    }
    components = Components(follows)
    by_slot: dict[SlotId, list[ShardRange]] = {}
    for key, shard_range in ranges.items():
        if key in follows:
            shard_range = replace(shard_range, after=follows[key])
        slot = by_slot.setdefault(end.assignment[components.first(key)], [])
        if key.stream not in removed:
            slot.append(shard_range)
    return tuple(SlotRange(slot=slot, shards=tuple(by_slot[slot])) for slot in sorted(by_slot))


def _followed(
    key: ShardKey, older: tuple[ShardId, ...], ranges: Mapping[ShardKey, ShardRange]
) -> tuple[ShardId, ...]:
    """Return those of the shards that `key` follows of which the batch reads records."""
    return tuple(shard for shard in older if ShardKey(stream=key.stream, shard=shard) in ranges)


def _shard_range(
    key: ShardKey,
    start: Offset,
    end: Offset,
    streams: Mapping[StreamName, StreamRef],
    hash_range: HashRange | None,
    expected: ExpectedSize | None,
    iterator: ShardIterator | None,
) -> ShardRange | None:
    state = end.states[key]
    before = start_state(key, start, end)
    if before is None or before.position == state.position:
        return None
    first, last = before.position, state.position
    if (
        isinstance(first, ShardEnd)
        or isinstance(last, TrimHorizon | AtTimestamp)
        or (isinstance(first, AfterRecord) and is_behind(last, first))
    ):
        raise IncompatibleStateError(
            f"offsets of {key}",
            found="an end before its start",
            expected="offsets that only move forward",
            next_step="do not edit or mix the files of a checkpoint; start on a new one",
        )
    if isinstance(last, ShardEnd) and not isinstance(first, AfterRecord) and state.first is None:
        return None  # It was empty. Its records now would be those of another stream.
    return ShardRange(
        stream=streams[key.stream],
        shard=key.shard,
        hash_range=hash_range,
        expected=expected,
        iterator=iterator
        if before is start.states.get(key) and isinstance(last, AfterRecord)
        else None,
        stragglers=_stragglers(key, end),
        created=end.streams[key.stream].created,
        retention=end.streams[key.stream].retention,
        start=first,
        start_caught_up_ms=before.last_caught_up_ms,
        expect_first=state.first,
        end=last,
    )


def skipped_shards(
    start: Offset, end: Offset, listings: Mapping[StreamName, Mapping[ShardId, Shard]]
) -> list[ShardKey]:
    """Return the shards of which a batch from `start` to `end` would leave records out.

    There are none if the two offsets are consecutive: a shard leaves the offset at its end, and
    only after its children have entered it, which follow a parent that ends in the same batch.
    Spark's asynchronous progress tracking does not log every
    batch, and replays from an offset several batches before the end. Shards that are shared by
    leases may come and leave at any time, so they are not checked.
    """
    skipped: set[ShardKey] = set()
    for stream, entry in end.streams.items():
        known = start.streams.get(stream)
        if known is None or known.created != entry.created or known.leases or entry.leases:
            continue
        before = {
            key.shard: state
            for key, state in (*start.states.items(), *start.waiting.items())
            if key.stream == stream
        }
        after = {key.shard for key in (*end.states, *end.waiting) if key.stream == stream}
        gone = before.keys() - after
        left = {shard for shard in gone if not isinstance(before[shard].position, ShardEnd)}
        listing = listings.get(stream, {})
        finished = ancestors(listing, before.keys())
        for shard in (after - before.keys()) & listing.keys():
            parents = listing.keys() & set(listing[shard].parents)
            begun = end.states.get(ShardKey(stream=stream, shard=shard))
            followed = () if begun is None else begun.follows
            left |= parents - before.keys() - finished - set(followed)
        skipped |= {ShardKey(stream=stream, shard=shard) for shard in left}
    return sorted(skipped)


def _stragglers(key: ShardKey, end: Offset) -> Stragglers | None:
    placement = end.streams[key.stream].placement
    if placement is None or key.shard not in placement.families:
        return None
    return Stragglers(since=placement.since, family=placement.families[key.shard])


def check_streams(offset: Offset, streams: Collection[StreamName]) -> None:
    """Raise IncompatibleStateError for a checkpoint that holds other streams than the query."""
    foreign = offset.streams.keys() - set(streams)
    if foreign:
        raise _other_streams(offset, streams, foreign)


def without_removed(
    offset: Offset,
    streams: Collection[StreamName],
    dropped: Collection[StreamName],
    *,
    fail: bool,
) -> Offset:
    """Return the offset without the streams that the query no longer reads; the same object if it
    has none. A removal has to be accepted: by name in `dropped`, or by failOnDataLoss=false, which
    `fail` negates. Raises IncompatibleStateError if it is not, or if no stream would be left."""
    foreign = offset.streams.keys() - set(streams)
    kept = offset.streams.keys() - foreign
    refused = foreign - set(dropped) if fail and kept else set()
    if refused or (foreign and not kept):
        raise _other_streams(offset, streams, refused)
    if not foreign:
        return offset

    def of_kept(states: Mapping[ShardKey, T]) -> dict[ShardKey, T]:
        return {key: states[key] for key in states if key.stream in kept}

    return Offset(
        slots=offset.slots,
        streams={name: offset.streams[name] for name in sorted(kept)},
        assignment=of_kept(offset.assignment),
        states=of_kept(offset.states),
        waiting=of_kept(offset.waiting),
        lost_shards=of_kept(offset.lost_shards),
    )


def _other_streams(
    offset: Offset, streams: Collection[StreamName], refused: Collection[StreamName]
) -> IncompatibleStateError:
    """Return the error for streams that the query may not leave; without any, it would leave
    all."""
    names = sorted(refused)
    drop = (
        "; or, if the query no longer needs the unread records, set dropStreams to "
        f"{','.join(names)};"
    )
    return IncompatibleStateError(
        "option streamName (or streamARN)",
        found=f"{', '.join(sorted(streams))}; the checkpoint is of "
        f"{', '.join(sorted(offset.streams))}",
        expected="every stream of the checkpoint (more may be added)",
        next_step=f"add {', '.join(names or sorted(offset.streams))}{drop if names else ','} or "
        f"start on {NEW_CHECKPOINT}",
    )


def check_leases(offset: Offset, table: str | None) -> list[str]:
    """Return the lease tables of a checkpoint other than `table`, the query's own. Raises
    IncompatibleStateError if the query has none: the checkpoint holds a part of the shards, and
    other workers have continued the rest, so all of it would be read again."""
    tables = sorted({entry.leases for entry in offset.streams.values() if entry.leases is not None})
    if tables and table is None:
        raise IncompatibleStateError(
            "option applicationName",
            found=f"none; the checkpoint is of a query that shared its shards by lease table "
            f"{', '.join(tables)}",
            expected="the applicationName (or leaseTable) of the checkpoint",
            next_step=f"set it again, or start on {NEW_CHECKPOINT}",
        )
    return [name for name in tables if name != table]


def start_state(key: ShardKey, start: Offset, end: Offset) -> ShardState | None:
    """Return the start of the batch in a shard of the end offset; None if it reads nothing of
    it."""
    begin = end.states[key].resume_from if key in end.states else None
    if begin is not None:
        return begin
    known = start.streams.get(key.stream)
    if known is not None and known.created == end.streams[key.stream].created:
        if key in start.states:
            return start.states[key]
        waiting = start.waiting.get(key, ShardState(position=TrimHorizon()))
        return admit_child(waiting, known.created)
    option = end.streams[key.stream].start
    if option is None:
        state = end.states.get(key)
        if state is not None and state.first is None and isinstance(state.position, ShardEnd):
            return None  # Taken over with nothing to read: it closed before any worker started it.
        raise IncompatibleStateError(
            f"offset of stream {key.stream}",
            found="a stream that is new in this batch, without its start",
            expected="a start in the first offset that has the stream",
            next_step=f"start the query on {NEW_CHECKPOINT}",
        )
    point = option.by_shard.get(key, option.default)
    if point is None or isinstance(point, Latest):
        return None
    return ShardState(position=point)


CAUGHT_UP_REFRESHES = 8
"""`last_caught_up_ms` is renewed this often per retention period, by an empty batch if needed."""
MAX_CAUGHT_UP_AGE_MS = 3 * 3_600_000
"""The maximum age of `last_caught_up_ms`: the retention may be reduced while the query runs."""


def max_caught_up_age_ms(retention_ms: int) -> int:
    """Return the age of `last_caught_up_ms` at which it is renewed."""
    return min(MAX_CAUGHT_UP_AGE_MS, retention_ms // CAUGHT_UP_REFRESHES)


def same_positions(one: Offset, other: Offset) -> bool:
    """Return whether two offsets have the same positions, except for `last_caught_up_ms`."""
    return (
        _positions(one.states) == _positions(other.states)
        and _positions(one.waiting) == _positions(other.waiting)
        and {name: entry.created for name, entry in one.streams.items()}
        == {name: entry.created for name, entry in other.streams.items()}
    )


def _positions(states: Mapping[ShardKey, ShardState]) -> dict[ShardKey, Position]:
    return {key: state.position for key, state in states.items()}
