"""The driver's side of a query: plans from one offset to the next. `BatchPlanner` does the I/O for
the planning functions: `active_shards` determines the shards, the slot mapper their slots, and
`EndOffsetFinder` the end of each shard. Its state between two calls may be lost at any time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from spark_ssp.common.errors import StreamNotFoundError
from spark_ssp.common.logs import Detail
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import HashRange, ShardId, ShardKey, SlotId, StreamName
from spark_ssp.grouping.slots import mapper_for
from spark_ssp.kinesis_source.client.api import KinesisService
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry
from spark_ssp.kinesis_source.model.ranges import (
    MAX_SUBSCRIPTIONS,
    MAX_THREADS,
    ExpectedSize,
)
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    KeyPlacement,
    Shard,
    ShardEnd,
    ShardIterator,
    ShardState,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions, SlotAssignment
from spark_ssp.kinesis_source.planning.active_shards import (
    MOST_DEFAULT_SLOTS,
    ActiveShards,
    ActiveShardsResult,
    Listings,
    advance_streams,
    assign_slots,
    count_open,
    default_slots,
    families,
    is_one_to_one,
)
from spark_ssp.kinesis_source.planning.batch_log import BatchLog, warn_of_next_batches
from spark_ssp.kinesis_source.planning.data_loss import (
    report_expired_shards,
    report_recreated_stream,
    report_skipped_batches,
    warn_start_expired,
)
from spark_ssp.kinesis_source.planning.input_partitions import (
    Child,
    Generation,
    check_leases,
    in_slots_of_parents,
    max_caught_up_age_ms,
    next_children,
    same_positions,
    skipped_shards,
    with_unread_children,
    within_bounds,
    without_ended_ancestors,
    without_removed,
)
from spark_ssp.kinesis_source.planning.shard_discovery import (
    CONFIRM_PERIOD_S,
    CONFIRMATIONS,
    Doubts,
    PlacementWatch,
    ShardDiscovery,
)
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits
from spark_ssp.kinesis_source.probing.end_offset_finder import EndOffsetFinder
from spark_ssp.kinesis_source.probing.initial_positions import initial_states, split_waiting
from spark_ssp.kinesis_source.probing.position_advance import ShardAdvance
from spark_ssp.kinesis_source.probing.probe_protocol import ProbeResult
from spark_ssp.kinesis_source.probing.shard_lag import stream_lag
from spark_ssp.kinesis_source.reading.fetch_pacing import END_TIMEOUT_MS, not_reached_error

if TYPE_CHECKING:
    from spark_ssp.kinesis_source.leases.lease_session import LeaseSession
    from spark_ssp.kinesis_source.leases.lease_worker import LeaseWorker

T = TypeVar("T")

_log = logging.getLogger(__name__)

AWAITING_PERIOD_S = 1.0
"""The pause before a shard that has not reached its target is probed again."""


class PlannedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch planned last, or searched for, to which the lag refers."""

    offset: Offset
    listings: Listings
    time: EpochMillis


@dataclass(slots=True, kw_only=True)
class _BatchEnds:
    """The shards of a batch and the ends found for them so far."""

    active: ActiveShards
    listings: Listings
    assignment: dict[ShardKey, SlotId]
    pending: set[ShardKey]
    """Shards whose positions are not verified yet."""
    eligible: dict[ShardKey, ShardState] = field(default_factory=dict)
    """The shards that the batch may read, at their starts."""
    advances: dict[ShardKey, ShardAdvance] = field(default_factory=dict)
    results: dict[ShardKey, ProbeResult] = field(default_factory=dict)
    """The probes from which the advances follow."""

    @property
    def states(self) -> dict[ShardKey, ShardState]:
        """The states at these ends."""
        return {
            key: self.advances[key].state if key in self.advances else state
            for key, state in self.active.states.items()
        }

    @property
    def sizes(self) -> dict[ShardKey, int]:
        """The sizes of the ranges in bytes, if known."""
        return {
            key: advance.expected.size_bytes
            for key, advance in self.advances.items()
            if advance.expected is not None and advance.expected.size_bytes is not None
        }

    def withdraw_children(self) -> None:
        """Leave children to the next batch whose ancestors do not end in this one."""
        for key in without_ended_ancestors(self.active.follows, self.states):
            self.active.withdraw(key)
            del self.assignment[key]
            self.eligible.pop(key, None)
            self.advances.pop(key, None)

    def end(self, slots: int) -> Offset:
        """Return the offset at these ends."""
        active = self.active
        return Offset(
            slots=slots,
            streams=active.streams,
            assignment=self.assignment,
            states={
                key: _of_batch(state, active.resume_from.get(key), active.follows.get(key, ()))
                for key, state in self.states.items()
            },
            waiting=active.waiting,
            lost_shards=active.lost_shards,
        )


class BatchPlanner:
    """Plans one query's batches. Not thread-safe: Spark calls it from one thread. `monotonic` is a
    clock in seconds and `sleep` waits that many; both are passed in by tests."""

    def __init__(
        self,
        options: KinesisOptions,
        service: KinesisService,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        worker: LeaseWorker | None = None,
    ) -> None:
        self._options = options
        self._service = service
        self._streams: dict[StreamName, StreamRef] = {ref.name: ref for ref in options.streams}
        self._discovery = ShardDiscovery(
            service, interval_ms=options.shard_discovery_interval_ms, monotonic=monotonic
        )
        self._end_finder = EndOffsetFinder(
            options, service, self._discovery, monotonic=monotonic, sleep=sleep
        )
        self.history = self._end_finder.history
        self.alignment = self._end_finder.alignment
        self._monotonic = monotonic
        self._sleep = sleep
        self._placement = PlacementWatch(service, monotonic=monotonic)
        worker_id = None if worker is None else worker.id
        self._batch_log = BatchLog(
            options.starting_position,
            options.max_bytes_in_flight,
            worker_id,
            threads=MAX_THREADS if options.fan_out is None else MAX_SUBSCRIPTIONS,
        )
        self.leases: LeaseSession | None = None
        if worker is not None:
            # Imported only by queries with leases: a fifth of the imports of this process.
            from spark_ssp.kinesis_source.leases.lease_session import LeaseSession

            self.leases = LeaseSession(
                options,
                worker,
                self._discovery,
                resolve_latest=self._end_finder.resolve_latest,
                monotonic=monotonic,
                sleep=sleep,
            )
        self._mapper = mapper_for(options.slot_assignment.value)
        self._slots: int | None = None
        self._slot_for_each = False
        """True if the number of slots follows the shards."""
        self.last_batch: PlannedBatch | None = None
        self._has_planned = False
        """True once this run has planned a batch, so that the offset carries its assignment."""
        self._removal_warned = False
        """True once removed streams have been logged."""
        self._table_warned = False
        """True once the lease table of another application has been logged."""

    # --- Called for Spark ---------------------------------------------------------------------

    def next_offset(
        self, start: Offset, limits: Limits, *, reach_targets: bool = False
    ) -> Offset | None:
        """Return the end of the next batch; None if there is nothing to read and nothing to record.
        `reach_targets`: one batch reaches the target of every shard that it may read.

        After `stop_at_latest`, None means that everything is read: a shard that has not reached its
        target is probed again, and is an error (ServiceUnavailableError) if it never does. Other
        errors are those of the service's contract, plus DataLossError under `failOnDataLoss`.
        """
        try:
            return self._confirmed(
                lambda: self._next_offset(start, limits, reach_targets=reach_targets),
                attempts=CONFIRMATIONS if start.streams else 1,
            )
        except StreamNotFoundError as error:
            if len(start.streams) > 1:
                raise _deleted_stream(error) from error
            raise

    def _confirmed(self, plan: Callable[[], T], *, attempts: int = CONFIRMATIONS) -> T:
        """Return the result of `plan`, which is called again if a stream does not seem to exist."""
        for _ in range(attempts - 1):
            try:
                return plan()
            except StreamNotFoundError as error:
                _log.warning("a stream is not found, asking again: %s", Detail(error))
                self._sleep(CONFIRM_PERIOD_S)
        return plan()

    def _next_offset(self, logged: Offset, limits: Limits, *, reach_targets: bool) -> Offset | None:
        start = self.without_removed(logged)
        others = check_leases(start, self._options.lease_table)
        if others and not self._table_warned:
            self._table_warned = True
            _log.warning(
                "the checkpoint shared its shards by lease table %s, the query uses %s: shards "
                "missing from the checkpoint are read again",
                ", ".join(others),
                self._options.lease_table,
            )
        if self.leases is not None and self.leases.drain(start):
            self.leases.pause()
            return None
        self._recall(start)
        if not self._end_finder.wait(start.states, limits):
            return None
        began = self._monotonic()
        while True:
            end, awaited = self._search(
                start, limits, changed=start is not logged, reach_targets=reach_targets
            )
            stop = not awaited and self._is_finished()
            if stop if end is None else not (reach_targets and awaited):
                self._batch_log.write()
                return end
            if not awaited:
                began = self._monotonic()
            waited = round((self._monotonic() - began) * 1000)
            if waited >= END_TIMEOUT_MS:
                raise not_reached_error(awaited, waited, since="the run began")
            if awaited or self.leases is None:
                self._sleep(AWAITING_PERIOD_S)
            else:
                self.leases.pause()

    def without_removed(self, offset: Offset) -> Offset:
        """Return an offset without the streams that the query no longer reads."""
        options = self._options
        kept = without_removed(
            offset, self._streams.keys(), options.drop_streams, fail=options.fail_on_data_loss
        )
        if kept is not offset and not self._removal_warned:
            self._removal_warned = True
            _log.warning(
                "no longer read, and removed from the checkpoint with their unread records: "
                "streams %s",
                ", ".join(sorted(offset.streams.keys() - kept.streams.keys())),
            )
        return kept

    def next_offset_of_all(self, start: Offset) -> Offset | None:
        """Return the end of a batch of all records that the streams contain now, except those of
        children that `next_children` leaves to the next batch; as `next_offset`. It may be the
        query's only batch."""
        self.stop_at_latest()
        try:
            end = self.next_offset(start, UNLIMITED, reach_targets=True)
        finally:
            self._discovery.unfreeze()
            self._end_finder.targets.release()
        if end is not None and self.last_batch is not None:
            warn_of_next_batches(with_unread_children(end, self.last_batch.listings))
        return end

    def _recall(self, start: Offset) -> None:
        """Take over what the checkpoint knows of the streams."""
        for name, entry in start.streams.items():
            if entry.retention is not None:
                self._discovery.recall(name, entry.created, entry.retention)

    def _search(
        self, start: Offset, limits: Limits, *, changed: bool, reach_targets: bool
    ) -> tuple[Offset | None, list[ShardKey]]:
        """Return the end of the next batch, if any, and the shards that are short of their
        target. `changed`: streams were removed from the start, which a batch records."""
        leases = self.leases
        result = self._active_shards(start) if leases is None else leases.active_shards(start)
        active, listings = result.active, result.listings
        self._end_finder.targets.complete(active.states.keys())
        verified = self._end_finder.verify_positions(active.states, listings, start, active.created)
        active.restart_at(verified.states, verified.starts)
        pending = {key: active.states[key] for key in verified.pending & active.states.keys()}
        active.postpone(verified.pending, start)
        postponed = {key: state for key, state in pending.items() if key not in active.states}
        slots, previous = self._slots_and_previous(start)
        batch = _BatchEnds(
            active=active,
            listings=listings,
            assignment=assign_slots(active, listings, previous, self._mapper, slots),
            pending=verified.pending,
        )
        self._find_ends(batch, active.states.keys() - result.resolved, limits)
        if leases is None and not limits.is_bounded:
            self._chain_children(start, batch, limits, slots, excluded=result.resolved)
        if self._options.align_batches and not reach_targets:
            batch.advances = self._end_finder.align(
                active.states,
                active.waiting | postponed,
                listings,
                batch.advances,
                batch.results,
                resolved=result.resolved,
                limits=limits,
            )
            batch.withdraw_children()
            self._end_finder.alignment.retain(active.states.keys(), listings)
        advances = batch.advances
        self._end_finder.remember(
            advances, active.states.keys() | active.waiting.keys() | batch.pending
        )
        end = batch.end(slots)
        self.last_batch = PlannedBatch(
            offset=end, listings=listings, time=self._service.service_time()
        )
        self._batch_log.note(start, end, result.dropped)
        awaited = self._end_finder.targets.unreached(
            batch.eligible, advances, limits, pending=batch.pending
        )
        same = same_positions(start, end) and not changed and not self._is_retention_new(start)
        if same and not self._is_caught_up_time_old(start, advances):
            self._observe_placement(end)
            return None, awaited
        end = replace(end, streams=self._with_facts(start, end, listings))
        self._has_planned = True
        return end, awaited

    def _find_ends(self, batch: _BatchEnds, shards: Collection[ShardKey], limits: Limits) -> None:
        """Find the ends of shards that the batch may read, except of those at SHARD_END."""
        eligible = {
            key: state
            for key, state in batch.active.states.items()
            if key in shards and not isinstance(state.position, ShardEnd)
        }
        batch.eligible |= eligible
        batch.advances |= self._end_finder.find_ends(
            {key: state for key, state in eligible.items() if key not in batch.pending},
            batch.listings,
            limits,
        )
        batch.results |= self._end_finder.results

    def _chain_children(
        self,
        start: Offset,
        batch: _BatchEnds,
        limits: Limits,
        slots: int,
        *,
        excluded: Collection[ShardKey],
    ) -> None:
        """Admit the children of shards that the batch reads to their end, one generation after the
        other, and find their ends. `excluded` are left to the next batch."""
        considered = set(excluded)
        while generation := self._generation(start, batch, considered):
            considered |= generation.children.keys()
            children = self._admitted(batch, generation, limits, slots)
            self._end_finder.targets.complete(children.keys())
            verified = self._end_finder.verify_positions(
                {key: child.state for key, child in children.items()},
                batch.listings,
                start,
                batch.active.created,
            )
            batch.pending |= verified.pending
            admitted = sorted(children.keys() - verified.pending)
            for key in admitted:
                batch.active.admit(key, verified.states[key], children[key].follows)
            batch.active.restart_at({}, verified.starts)
            self._find_ends(batch, admitted, limits)

    def _generation(
        self, start: Offset, batch: _BatchEnds, considered: Collection[ShardKey]
    ) -> Generation | None:
        """Return the next generation without the children that were considered before; None if it
        has no others."""
        generation = next_children(start, batch.active, batch.states, batch.listings)
        new = {key: child for key, child in generation.children.items() if key not in considered}
        return replace(generation, children=new) if new else None

    def _admitted(
        self, batch: _BatchEnds, generation: Generation, limits: Limits, slots: int
    ) -> dict[ShardKey, Child]:
        """Return the children of a generation to admit, which get the slots that the next batch
        would give them."""
        max_bytes = None if self._end_finder.targets.are_fixed else limits.max_shard_bytes
        children = within_bounds(generation.children, batch.active.follows, batch.sizes, max_bytes)
        staying = {
            key: state
            for key, state in batch.active.states.items()
            if key not in generation.leaving
        }
        added = {key: child.state for key, child in children.items()}
        assigned = assign_slots(
            ActiveShards(states=staying | added),
            batch.listings,
            batch.assignment,
            self._mapper,
            slots,
        )
        known = batch.assignment | assigned
        if self._options.slot_assignment is SlotAssignment.HASH_RANGE:
            children = in_slots_of_parents(children, known)
        batch.assignment |= {key: known[key] for key in children}
        return children

    def _is_finished(self) -> bool:
        """Return whether a run to fixed targets is over, also for shards of other workers."""
        return self.leases is None or self.leases.is_finished()

    def stop_at_latest(self) -> None:
        """Read only the records that the streams contain now. Also of shards that may not be read
        yet, because their parents come first."""
        self._confirmed(self._freeze)

    def _freeze(self) -> None:
        self._discovery.freeze(self._streams.values())
        self._end_finder.targets.fix()

    def check_replay(self, start: Offset, end: Offset) -> None:
        """Report the records that a batch from a checkpoint leaves out, before it is run."""
        if self._has_planned or self.leases is not None:
            return
        self._recall(end)  # the newest offset
        try:
            listings = self._discovery.listings(self._streams)
        except StreamNotFoundError:
            return  # it can no longer be read, which the tasks report
        skipped = skipped_shards(start, end, listings)
        listed = [key for key in skipped if key.shard in listings[key.stream]]
        fail = self._options.fail_on_data_loss
        # The batch may have left out an expired shard under `failOnDataLoss=false`.
        report_expired_shards(set(skipped) - set(listed), (), fail=fail)
        if listed:
            report_skipped_batches(listed, fail=fail)

    def lag(self) -> dict[str, dict[ShardId, int]]:
        """Return the milliseconds behind the latest record after the batch planned last, by stream
        and shard; see `shard_lag`. Empty before the first plan."""
        return {name: self._lag_of(ref) for name, ref in sorted(self._streams.items())}

    def retention_ms(self, stream: str) -> int:
        """Return the retention of a stream that was planned."""
        return self._discovery.description(self._streams[StreamName(stream)]).retention_ms

    def _lag_of(self, ref: StreamRef) -> dict[ShardId, int]:
        planned = self.last_batch
        if planned is None or ref.name not in planned.listings:
            return {}
        history = self._end_finder.history
        entries = {**planned.offset.states, **planned.offset.waiting}
        return stream_lag(
            self._discovery.description(ref),
            {key.shard: state for key, state in entries.items() if key.stream == ref.name},
            planned.listings[ref.name],
            history.last_probes(ref.name),
            now=planned.time,
            planned_at=history.planned_at,
            fresh_ms=self.alignment.tolerance_ms,
            # A shard that is not in the offset belongs to another worker.
            with_waiting=self.leases is None,
        )

    def hash_ranges(self, end: Offset) -> dict[ShardKey, HashRange]:
        """Return the hash keys of an offset's shards, if they were listed already: no request is
        made, so a process that has planned no batch yet returns none."""
        listings = {
            name: self._discovery.known_shards(ref, entry.created)
            for name, entry in end.streams.items()
            if (ref := self._streams.get(name)) is not None
        }
        return {
            key: shard.hash_range
            for key in end.states
            if (shard := listings.get(key.stream, {}).get(key.shard)) is not None
        }

    def expected_sizes(self, end: Offset) -> dict[ShardKey, ExpectedSize]:
        """Return hints about each shard's part of the batch up to `end`, if it is the one planned
        last."""
        return self._end_finder.expected_sizes(end.states)

    def start_iterators(self, start: Offset) -> dict[ShardKey, ShardIterator]:
        """Return iterators that follow the shards' positions in `start`, if the batch planned last
        was looked for by them."""
        return self._end_finder.start_iterators(start.states)

    def close(self) -> None:
        """Stop the threads, and give back the leases."""
        if self.leases is not None:
            self.leases.close()
        self._end_finder.close()

    # --- Active shards ------------------------------------------------------------------------

    def _active_shards(self, start: Offset) -> ActiveShardsResult:
        """Return the shards of the next offset, those whose position was only just resolved, and
        the listings of both: one step of planning must not use two."""
        listings, (active, renewed) = self._discovery.confirm(
            self._streams,
            self._discovery.listings(self._streams),
            lambda current: self._advanced_streams(start, current),
            _doubts,
            sleep=self._sleep,
        )
        report_expired_shards(
            active.vanished, active.abandoned, fail=self._options.fail_on_data_loss
        )
        for key in active.unread:
            warn_start_expired(key)
        resolved: set[ShardKey] = set()
        for name in sorted(self._streams.keys() - active.streams.keys()):
            position = (
                StartingPosition(default=TrimHorizon())
                if name in renewed
                else self._options.starting_position
            )
            resolved |= self._start_stream(active, self._streams[name], listings[name], position)
        return ActiveShardsResult(active=active, resolved=resolved, listings=listings)

    def _advanced_streams(
        self, start: Offset, listings: Listings
    ) -> tuple[ActiveShards, set[StreamName]]:
        """Return the shards of the streams that continue, and the recreated streams. A new listing
        may have revealed one."""
        known, renewed = self._split_streams(start)
        return advance_streams(start, known, listings), renewed

    def _split_streams(self, start: Offset) -> tuple[set[StreamName], set[StreamName]]:
        """Return the streams that continue, and those that were recreated."""
        known: set[StreamName] = set()
        renewed: set[StreamName] = set()
        for name, entry in start.streams.items():
            created = self._discovery.description(self._streams[name]).created
            if created == entry.created:
                known.add(name)
            else:
                fail = self._options.fail_on_data_loss
                report_recreated_stream(name, before=entry.created, now=created, fail=fail)
                renewed.add(name)
        return known, renewed

    def _start_stream(
        self,
        active: ActiveShards,
        ref: StreamRef,
        listing: Mapping[ShardId, Shard],
        start: StartingPosition,
    ) -> set[ShardKey]:
        """Add a stream that is new to the query."""
        now = self._service.service_time()
        entries, resolved = initial_states(
            ref.name, listing, start, now, self._end_finder.resolve_latest
        )
        states, waiting = split_waiting(listing.values(), entries)
        created = self._discovery.description(ref).created
        active.add(ref.name, StreamEntry(created=created, start=start), states, waiting)
        return resolved

    # --- Slots --------------------------------------------------------------------------------

    def _slots_and_previous(self, start: Offset) -> tuple[int, Mapping[ShardKey, SlotId]]:
        """Return the number of slots, fixed for one run of the query, and the previous assignment.
        A restart recomputes: it starts without one if the number changed, or if the number follows
        the shards and two of them share a slot (back to 1:1)."""
        if self._slots is None:
            self._slots = self._options.slots or self._default_slots()
        afresh = start.slots != self._slots or (
            not self._has_planned and self._slot_for_each and not is_one_to_one(start)
        )
        return self._slots, {} if afresh else start.assignment

    def _default_slots(self) -> int:
        """Return one slot for each open shard, up to a number that most clusters have cores for."""
        listings = self._discovery.listings(self._streams)
        shards = count_open(listings)
        if shards > MOST_DEFAULT_SLOTS:
            _log.warning(
                "%d open shards share %d slots, the most without the option slots: set it to the "
                "number of cores that the query may use",
                *(shards, MOST_DEFAULT_SLOTS),
            )
        self._slot_for_each = shards <= MOST_DEFAULT_SLOTS
        return default_slots(listings)

    # --- Afterwards -----------------------------------------------------------------------------

    def _observe_placement(self, end: Offset) -> None:
        if self._options.deaggregate:
            for name, entry in end.streams.items():
                self._placement.observe(self._streams[name], entry.created)

    def _with_facts(
        self, start: Offset, end: Offset, listings: Listings
    ) -> dict[StreamName, StreamEntry]:
        """Return the streams of `end`, with their retention and the proof of where the batch's
        records were placed."""
        streams = {
            name: replace(entry, retention=self._discovery.retention(self._streams[name]))
            for name, entry in end.streams.items()
        }
        for name, entry in end.streams.items() if self._options.deaggregate else ():
            moved = [
                key.shard
                for key, state in end.states.items()
                if key.stream == name and start.states.get(key) != state
            ]
            found = families(listings[name], moved)
            ref = self._streams[name]
            if not found:
                self._placement.observe(ref, entry.created)
                continue
            since = self._placement.proven_since(ref, entry.created)
            if since is not None:
                placement = KeyPlacement(since=since, families=found)
                streams[name] = replace(streams[name], placement=placement)
        return streams

    def _is_retention_new(self, start: Offset) -> bool:
        """Return whether a retention has changed, which the offset must have before the query may
        be stopped and the retention changes again."""
        return any(
            entry.retention is not None
            and entry.created == self._discovery.description(self._streams[name]).created
            and entry.retention != self._discovery.retention(self._streams[name])
            for name, entry in start.streams.items()
        )

    def _is_caught_up_time_old(
        self, start: Offset, advances: Mapping[ShardKey, ShardAdvance]
    ) -> bool:
        oldest = {
            name: max_caught_up_age_ms(self._discovery.description(ref).retention_ms)
            for name, ref in self._streams.items()
        }
        for key, advance in advances.items():
            before = start.states.get(key)
            if before is None or advance.state.last_caught_up_ms is None or not advance.at_latest:
                continue
            if (
                before.last_caught_up_ms is None
                or advance.state.last_caught_up_ms - before.last_caught_up_ms >= oldest[key.stream]
            ):
                return True
        return False


def _doubts(advanced: tuple[ActiveShards, set[StreamName]]) -> Doubts:
    active, _ = advanced
    lost = {key.stream for key in (*active.vanished, *active.abandoned, *active.unread)}
    return Doubts(lost=lost, outdated=active.outdated)


def _deleted_stream(error: StreamNotFoundError) -> StreamNotFoundError:
    """Return the error of one of several streams that does not exist."""
    return StreamNotFoundError(
        error.subject,
        found=error.found,
        expected=error.expected,
        next_step=f"{error.next_step}; if the stream was deleted on purpose, remove it from the "
        "streams to read, and name it in dropStreams",
    )


def _of_batch(
    state: ShardState, begin: ShardState | None, follows: tuple[ShardId, ...]
) -> ShardState:
    """Return an end with the facts about its batch."""
    if state.resume_from == begin and state.follows == follows:
        return state
    return replace(state, resume_from=begin, follows=follows)
