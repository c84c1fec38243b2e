"""Plans a batch read: start and end of every listed shard, once, before any task starts.

The parts of the streaming planner are used without its gate: all generations of shards are in one
plan, and the order within each task replaces the order of batches (`task_order.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from spark_ssp.common.logs import count_of, versions
from spark_ssp.grouping.identifiers import ShardKey, SlotId
from spark_ssp.grouping.slots import mapper_for
from spark_ssp.kinesis_source.batch_read.bounds import end_points, start_states
from spark_ssp.kinesis_source.batch_read.task_order import divide_ranges
from spark_ssp.kinesis_source.client.api import KinesisService
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset, StreamEntry
from spark_ssp.kinesis_source.model.ranges import ExpectedSize, SlotRange
from spark_ssp.kinesis_source.model.read_loss import is_start_point
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    Latest,
    ShardEnd,
    ShardState,
    StartingPosition,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.active_shards import Listings, default_slots
from spark_ssp.kinesis_source.planning.admission_control import Limits
from spark_ssp.kinesis_source.planning.batch_log import describe_position, describe_streams
from spark_ssp.kinesis_source.planning.data_loss import report_recreated_stream
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.planning.shard_discovery import ShardDiscovery
from spark_ssp.kinesis_source.probing.end_offset_finder import EndOffsetFinder
from spark_ssp.kinesis_source.probing.given_positions import VerifiedStates
from spark_ssp.kinesis_source.probing.initial_positions import check_not_future
from spark_ssp.kinesis_source.probing.latest_probe import EndPoint
from spark_ssp.kinesis_source.probing.position_advance import ShardAdvance
from spark_ssp.kinesis_source.reading.fetch_rate import END_TIMEOUT_MS, not_reached_error

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
    """Return the ranges of each task with records to read: at most `slots` tasks.

    Raises the errors of the service's contract, UnnamedShardError, InvalidOptionsError for a
    position in the future, and DataLossError under `failOnDataLoss`.
    """
    discovery = ShardDiscovery(
        service, interval_ms=options.shard_discovery_interval_ms, monotonic=monotonic
    )
    finder = EndOffsetFinder(options, service, discovery, monotonic=monotonic, sleep=sleep)
    try:
        _await_ends(options, service, discovery, sleep)
        # Later than the ends by time: records before them may be in shards of a last reshard.
        discovery.freeze(options.streams)
        listings = {ref.name: discovery.shards(ref) for ref in options.streams}
        created = {ref.name: discovery.description(ref).created for ref in options.streams}
        starts: dict[ShardKey, ShardState] = {}
        ends: dict[ShardKey, EndPoint] = {}
        now = service.service_time()
        for name, listing in listings.items():
            begun = start_states(name, listing, options.starting_position, created[name])
            check_not_future("startingPosition", name, _times(begun), now)
            starts |= begun
            ends |= end_points(name, listing, options.ending_position or _LATEST)
        finder.fix_targets(ends)
        positions = _verified(finder, starts, listings, sleep)
        starts |= {key: begin for key, begin in positions.starts.items() if begin is not None}
        found = _find_ends(
            options, finder, positions.states, listings, monotonic=monotonic, sleep=sleep
        )
        for ref in options.streams:
            before, after = created[ref.name], discovery.description(ref).created
            if before != after:
                fail = options.fail_on_data_loss
                report_recreated_stream(ref.name, before=before, now=after, fail=fail)
    finally:
        finder.close()
    # A state's `resume_from` is its start.
    whole = plan_ranges(
        BEFORE_FIRST_BATCH,
        Offset(
            slots=1,
            streams={name: StreamEntry(created=time) for name, time in created.items()},
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


# --- Starts --------------------------------------------------------------------------------------


def _verified(
    finder: EndOffsetFinder,
    starts: Mapping[ShardKey, ShardState],
    listings: Listings,
    sleep: Callable[[float], None],
) -> VerifiedStates:
    """Verify the starts, until the service has answered for every shard."""
    while True:
        verified = finder.verify_positions(starts, listings, BEFORE_FIRST_BATCH)
        if not verified.pending:
            return verified
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
        finder.remember(advances, found.states.keys())
        awaited = finder.unreached_targets(eligible, advances, limits)
        moved = False
        for key, advance in advances.items():
            if not found.advance(key, advance):
                continue
            moved = True
            if left is not None and advance.expected is not None:
                left -= advance.expected.records
        if not awaited or (left is not None and left <= 0):
            return found
        if moved:
            moved_at = monotonic()
            continue
        waited = round((monotonic() - moved_at) * 1000)
        if waited >= END_TIMEOUT_MS:
            raise not_reached_error(awaited, waited, since="the read was planned")
        sleep(AWAITING_PERIOD_S)
