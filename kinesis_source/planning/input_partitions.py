"""Plans the ranges of a batch: each task's part, from two offsets.

Spark replays an unfinished batch in a new process by requesting its ranges first. So the ranges
follow from the two offsets only: slots and their number from the end (a restart may have changed
them), starts by shard. A shard that was taken over from another worker starts at the end offset's
`resume_from`. Any other shard without an entry in the start offset starts

* at the stream's own start, if the stream is new in this batch (or was recreated), which the end
  offset records; LATEST then reads nothing, since the end holds the resolved position;
* otherwise at TRIM_HORIZON: it is a child that was admitted by this batch.

A child that follows its parents in the same batch is read by one task with them, in the slot of the
first shard of their component, whichever slot it has in the offset: see `chained_children`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from spark_ssp.common.errors import NEW_CHECKPOINT, IncompatibleStateError
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
    ShardState,
    StreamRef,
    TrimHorizon,
    is_behind,
)
from spark_ssp.kinesis_source.planning.active_shards import ancestors
from spark_ssp.kinesis_source.planning.chained_children import Components
from spark_ssp.kinesis_source.planning.data_loss import admit_child

T = TypeVar("T")

_UNKNOWN: Mapping[ShardKey, HashRange] = MappingProxyType({})
_NO_SIZES: Mapping[ShardKey, ExpectedSize] = MappingProxyType({})


def plan_ranges(
    start: Offset,
    end: Offset,
    streams: Mapping[StreamName, StreamRef],
    hash_ranges: Mapping[ShardKey, HashRange] = _UNKNOWN,
    expected: Mapping[ShardKey, ExpectedSize] = _NO_SIZES,
) -> tuple[SlotRange, ...]:
    """Return one range for each slot that has records to read, by slot; idle slots cost no task.

    `hash_ranges` and `expected` may be unknown: they only save the readers a request, and records
    fetched past the end of the batch. Raises IncompatibleStateError for offsets of other streams,
    or that do not follow each other.
    """
    check_streams(end, streams.keys())
    ranges: dict[ShardKey, ShardRange] = {}
    for key in sorted(end.states):
        shard_range = _shard_range(
            key, start, end, streams, hash_ranges.get(key), expected.get(key)
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
        by_slot.setdefault(end.assignment[components.first(key)], []).append(shard_range)
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
