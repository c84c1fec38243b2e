"""Plans a batch read: start and end of every listed shard, once, before any task starts, and the
order of the ranges in each task.

The parts of the streaming planner are used without its gate. A streaming query reads children in
the task of their parents, or in a later batch; a batch read has all generations of shards at once,
in any task. The mapper assigns one generation after the other to slots, as if each were read after
the one before, so that every slot has a part of each. Within a task a range is read after those of
its ancestors, so the rows of a key that one task returns are in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from spark_ssp.common.logs import abbreviate, count_of, versions
from spark_ssp.common.structs import replace
from spark_ssp.common.times import duration_text
from spark_ssp.grouping.identifiers import ShardId, ShardKey, SlotId, StreamName
from spark_ssp.grouping.slots import MappableShard, ShardPartitionMapper, mapper_for
from spark_ssp.kinesis_source.client.api import KinesisService
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset, StreamEntry
from spark_ssp.kinesis_source.model.ranges import ExpectedSize, ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    Latest,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.active_shards import (
    Listings,
    ancestors,
    children_of,
    default_slots,
)
from spark_ssp.kinesis_source.planning.batch_log import describe_position, describe_streams
from spark_ssp.kinesis_source.planning.data_loss import (
    admit_child,
    is_start_point,
    is_unpromised,
    report_expired_shards,
    report_recreated_stream,
    warn_start_expired,
)
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.planning.shard_discovery import Doubts, ShardDiscovery
from spark_ssp.kinesis_source.probing.batch_limits import Limits
from spark_ssp.kinesis_source.probing.end_offset_finder import EndOffsetFinder
from spark_ssp.kinesis_source.probing.given_positions import VerifiedStates
from spark_ssp.kinesis_source.probing.initial_positions import (
    UnnamedShardError,
    check_named_shards,
    check_not_future,
    start_points,
)
from spark_ssp.kinesis_source.probing.instant_probe import EndPoint
from spark_ssp.kinesis_source.probing.position_advance import ShardAdvance
from spark_ssp.kinesis_source.reading.fetch_pacing import (
    END_TIMEOUT_MS,
    not_reached_error,
    unanswered_error,
)

_log = logging.getLogger(__name__)

AWAITING_PERIOD_S: Final = 1.0
"""The pause before shards that have not shown their ends are probed again."""
_LATEST: Final = StartingPosition(default=Latest())


def plan_read(
    options: KinesisOptions,
    service: KinesisService,
    *,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> tuple[SlotRange, ...]:
    """Return the ranges of each task with records to read: at most `slots` tasks. Raises the errors
    of the service's contract, UnnamedShardError, InvalidOptionsError for a position in the future,
    and DataLossError under `failOnDataLoss`."""
    discovery = ShardDiscovery(
        service, interval_ms=options.shard_discovery_interval_ms, monotonic=monotonic
    )
    finder = EndOffsetFinder(options, service, discovery, monotonic=monotonic, sleep=sleep)

    def created_now() -> dict[StreamName, EpochMillis]:
        return {ref.name: discovery.description(ref).created for ref in options.streams}

    try:
        _await_ends(options, service, discovery, sleep)
        # Later than the ends by time: records before them may be in shards of a last reshard.
        discovery.freeze(options.streams)
        listings = {ref.name: discovery.shards(ref) for ref in options.streams}
        created = created_now()
        starts: dict[ShardKey, ShardState] = {}
        ends: dict[ShardKey, EndPoint] = {}
        now = service.service_time()
        for name, listing in listings.items():
            begun = start_states(name, listing, options.starting_position, created[name])
            check_not_future("startingPosition", name, _times(begun), now)
            starts |= begun
            ends |= end_points(name, listing, options.ending_position or _LATEST)
        finder.targets.fix(ends)
        leave_out = partial(_leave_out_expired, options, discovery, created, created_now, sleep)
        leave_out(starts, [key for key in starts if finder.targets.get(key) is None])
        positions = _verified(
            finder,
            starts,
            listings,
            created,
            created_now,
            leave_out,
            monotonic=monotonic,
            sleep=sleep,
        )
        starts |= {key: begin for key, begin in positions.starts.items() if begin is not None}
        found = _find_ends(
            options, finder, positions.states, listings, leave_out, monotonic=monotonic, sleep=sleep
        )
        for name, after in created_now().items():
            if created[name] != after:
                fail = options.fail_on_data_loss
                report_recreated_stream(name, before=created[name], now=after, fail=fail)
    finally:
        finder.close()
    # A state's `resume_from` is its start.
    whole = plan_ranges(
        BEFORE_FIRST_BATCH,
        Offset(
            slots=1,
            streams={
                ref.name: StreamEntry(created=created[ref.name], retention=discovery.retention(ref))
                for ref in options.streams
            },
            assignment=dict.fromkeys(found.states, SlotId(0)),
            states={
                key: replace(state, resume_from=starts[key]) for key, state in found.states.items()
            },
        ),
        {ref.name: ref for ref in options.streams},
        {
            ShardKey(stream=name, shard=shard.shard_id): shard.hash_range
            for name, listing in listings.items()
            for shard in listing.values()
        },
        found.sizes,
    )
    ranges = [one for slot in whole for one in slot.shards]
    slots = options.slots or default_slots(listings)
    tasks = divide_ranges(ranges, listings, mapper_for(options.slot_assignment.value), slots)
    _log.info("%s", _describe(options, starts, len(ranges), len(tasks)))
    return tasks


def _describe(
    options: KinesisOptions, shards: Collection[ShardKey], with_records: int, tasks: int
) -> str:
    """Return the line for the plan."""
    begin = describe_position(options.starting_position)
    end = describe_position(options.ending_position) if options.ending_position else "LATEST"
    streams = describe_streams([ref.name for ref in options.streams], shards)
    return "; ".join(
        [
            f"batch read from {begin} to {end}: {streams}",
            f"{count_of(with_records, 'shard')} with records to read",
            count_of(tasks, "task"),
            versions(),
        ]
    )


def _await_ends(
    options: KinesisOptions,
    service: KinesisService,
    discovery: ShardDiscovery,
    sleep: Callable[[float], None],
) -> None:
    """Sleep until all ends by time have passed. Raises InvalidOptionsError for one that is farther
    in the future than the clock is uncertain."""
    end = options.ending_position or _LATEST
    for ref in options.streams:
        discovery.description(ref)  # whose answer has the service's time
        points = (end.default, *(p for key, p in end.by_shard.items() if key.stream == ref.name))
        until = [point.millis for point in points if isinstance(point, AtTimestamp)]
        now = service.service_time()
        check_not_future("endingPosition", ref.name, until, now)
        sleep(max(0, max(until, default=now) - now) / 1000)


def _times(states: Mapping[ShardKey, ShardState]) -> list[int]:
    positions = [state.position for state in states.values()]
    return [position.millis for position in positions if isinstance(position, AtTimestamp)]


# --- Bounds ---------------------------------------------------------------------------------------


def start_states(
    stream: StreamName,
    listing: Mapping[ShardId, Shard],
    start: StartingPosition,
    created: EpochMillis,
) -> dict[ShardKey, ShardState]:
    """Return the start of each listed shard, closed ones included.

    As in a streaming query, the records of a shard whose parent is listed are all there when the
    read is planned, so one that is trimmed before its task reads it is lost; the oldest records of
    other shards were never promised. Raises UnnamedShardError if the option misses a shard.
    """
    points = dict.fromkeys(listing, TrimHorizon()) | start_points(
        stream, list(listing.values()), start
    )
    states: dict[ShardKey, ShardState] = {}
    for shard, point in points.items():
        if isinstance(point, Latest | ShardEnd):
            raise TypeError(f"a batch read cannot start at {point}")
        state = ShardState(position=point)
        if any(parent in listing for parent in listing[shard].parents):
            state = admit_child(state, created)
        states[ShardKey(stream=stream, shard=shard)] = state
    return states


def has_fixed_end(end: StartingPosition | None) -> bool:
    """Return whether a plan made later ends at the same records: `end` is nowhere the latest
    record, nor a time that is relative to the query's start."""
    return end is not None and not any(
        isinstance(point, Latest) or (isinstance(point, AtTimestamp) and point.is_relative)
        for point in (end.default, *end.by_shard.values())
    )


def end_points(
    stream: StreamName, listing: Mapping[ShardId, Shard], end: StartingPosition
) -> dict[ShardKey, EndPoint]:
    """Return the end of each shard that has another one than its latest record. Raises
    UnnamedShardError if the option misses a shard, or names one that is not listed."""
    check_named_shards("endingPosition", stream, listing, end)
    points: dict[ShardKey, EndPoint] = {}
    unnamed: list[ShardId] = []
    for shard in sorted(listing):
        key = ShardKey(stream=stream, shard=shard)
        point = end.by_shard.get(key, end.default)
        if point is None:
            unnamed.append(shard)
        elif isinstance(point, TrimHorizon):
            raise TypeError("a batch read cannot end at TRIM_HORIZON")
        elif not isinstance(point, Latest):
            points[key] = point
    if unnamed:
        raise UnnamedShardError(
            f"option endingPosition, stream {stream}",
            found=f"no position for {abbreviate(unnamed)}",
            expected="a position for each shard of the stream, or a default for the rest",
            next_step='name them, or add "default": "latest" (or another position)',
        )
    return points


LeaveOut = Callable[[dict[ShardKey, ShardState], Collection[ShardKey]], bool]


def _leave_out_expired(
    options: KinesisOptions,
    discovery: ShardDiscovery,
    created: Mapping[StreamName, EpochMillis],
    created_now: Callable[[], Mapping[StreamName, EpochMillis]],
    sleep: Callable[[float], None],
    states: dict[ShardKey, ShardState],
    doubted: Collection[ShardKey],
) -> bool:
    """Drop those of the `doubted` shards from the states that have expired since they were listed;
    return whether there are any. Their records are a loss, unless the read starts there. Shards of
    a recreated stream are kept."""

    def missing(current: Listings) -> list[ShardKey]:
        now = created_now()
        return [
            key
            for key in sorted(doubted)
            if created[key.stream] == now[key.stream] and key.shard not in current[key.stream]
        ]

    streams = {ref.name: ref for ref in options.streams}
    _, expired = discovery.confirm(
        streams,
        discovery.listings(streams),
        missing,
        lambda lost: Doubts(lost={key.stream for key in lost}),
        sleep=sleep,
    )
    promised = [key for key in expired if not is_unpromised(states[key])]
    report_expired_shards(promised, (), fail=options.fail_on_data_loss)
    for key in expired:
        if is_unpromised(states.pop(key)):
            warn_start_expired(key)
    return bool(expired)


def _verified(
    finder: EndOffsetFinder,
    starts: Mapping[ShardKey, ShardState],
    listings: Listings,
    created: Mapping[StreamName, EpochMillis],
    created_now: Callable[[], Mapping[StreamName, EpochMillis]],
    leave_out: LeaveOut,
    *,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> VerifiedStates:
    """Verify the starts, until the service has answered for every shard. Left out are those for
    which it no longer can: of a recreated stream, refused, or expired."""

    def awaited(pending: Collection[ShardKey]) -> list[ShardKey]:
        now = created_now()
        return [
            key
            for key in sorted(pending)
            if created[key.stream] == now[key.stream] and not finder.is_unreadable(key)
        ]

    left = dict(starts)
    fewest = len(starts) + 1
    moved_at = monotonic()
    while True:
        verified = finder.verify_positions(left, listings, BEFORE_FIRST_BATCH, created)
        leave_out(left, awaited(verified.pending))
        unanswered = awaited(verified.pending & left.keys())
        if not unanswered:
            for key in verified.pending:
                del verified.states[key]
            return verified
        if len(unanswered) < fewest:
            fewest = len(unanswered)
            moved_at = monotonic()
        waited = round((monotonic() - moved_at) * 1000)
        if waited >= END_TIMEOUT_MS:
            raise unanswered_error(
                unanswered,
                found=f"a start that could not be verified for {duration_text(waited)}",
                expected="an answer to whether the shard has the record of its start",
                option="startingPosition",
            )
        sleep(AWAITING_PERIOD_S)


# --- Ends ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Found:
    """The ends found so far; `sizes` are hints for the tasks."""

    states: dict[ShardKey, ShardState]
    sizes: dict[ShardKey, ExpectedSize] = field(default_factory=dict)

    def advance(self, key: ShardKey, advance: ShardAdvance) -> bool:
        """Move the end of one shard; return whether it moved."""
        before, after = self.states[key], advance.state
        if not is_start_point(before.position):
            after = replace(after, first=before.first)  # of the whole range
        self.states[key] = after
        if before.position == after.position:
            return False
        if advance.expected is not None and (is_start_point(before.position) or key in self.sizes):
            self.sizes[key] = _sum(self.sizes.get(key), advance.expected)
        return True


def _sum(one: ExpectedSize | None, other: ExpectedSize) -> ExpectedSize:
    if one is None:
        return other
    size = None
    if one.size_bytes is not None and other.size_bytes is not None:
        size = one.size_bytes + other.size_bytes
    return ExpectedSize(records=one.records + other.records, size_bytes=size)


def _find_ends(
    options: KinesisOptions,
    finder: EndOffsetFinder,
    starts: Mapping[ShardKey, ShardState],
    listings: Listings,
    leave_out: LeaveOut,
    *,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> _Found:
    """Advance every shard to its target, or all of them together by `maxRecords`."""
    found = _Found(dict(starts))
    left = options.max_records
    moved_at = monotonic()
    while True:
        limits = Limits(max_records=left)
        eligible = {
            key: state
            for key, state in found.states.items()
            if not isinstance(state.position, ShardEnd)
        }
        finder.wait(eligible, limits)
        advances = finder.find_ends(eligible, listings, limits)
        with_records = {key for key, result in finder.results.items() if result.end is not None}
        finder.remember(advances, found.states.keys())
        awaited = finder.targets.unreached(eligible, advances, limits)
        share = 0 if left is None else -(-left // max(1, len(eligible)))
        moved = False
        for key, advance in advances.items():
            if not found.advance(key, advance):
                continue
            moved = True
            if left is not None and key in with_records:
                left -= share if advance.expected is None else advance.expected.records
        if not awaited or (left is not None and left <= 0):
            return found
        if moved or leave_out(found.states, [key for key in awaited if key not in advances]):
            moved_at = monotonic()
            continue
        waited = round((monotonic() - moved_at) * 1000)
        if waited >= END_TIMEOUT_MS:
            raise not_reached_error(awaited, waited, since="the read was planned")
        sleep(AWAITING_PERIOD_S)


# --- Tasks ----------------------------------------------------------------------------------------


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
