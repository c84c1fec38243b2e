"""Finds the end offset of the next batch for each shard, within the limits of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import (
    KinesisService,
)
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    Position,
    ShardEnd,
    ShardIterator,
    ShardState,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.active_shards import Listings
from spark_ssp.kinesis_source.planning.data_loss import (
    Evidence,
    check_absent_starts,
    is_start_point,
    is_unpromised,
    limited_start,
    warn_start_moved,
)
from spark_ssp.kinesis_source.planning.input_partitions import keys_of
from spark_ssp.kinesis_source.planning.shard_discovery import ShardDiscovery
from spark_ssp.kinesis_source.probing import batch_end_probe, instant_probe, limited_end_probe
from spark_ssp.kinesis_source.probing.alignment import TOLERANCE_MS, BatchAlignment
from spark_ssp.kinesis_source.probing.batch_limits import (
    FAR_EXCESS,
    Limits,
    admit_results,
    admit_share,
    even_shares,
    next_debt,
    rated_shares,
    reduce_by_debt,
    second_shares,
    until_first_end,
)
from spark_ssp.kinesis_source.probing.fixed_targets import FixedTargets
from spark_ssp.kinesis_source.probing.given_positions import GivenPositions, VerifiedStates
from spark_ssp.kinesis_source.probing.limited_end_probe import LimitShare
from spark_ssp.kinesis_source.probing.position_advance import (
    LatestRecord,
    ShardAdvance,
    Target,
    advance_by_records,
    advance_to_end,
    advance_to_target,
    truncate_to_target,
    with_last_caught_up,
)
from spark_ssp.kinesis_source.probing.probe_protocol import (
    CachedIterator,
    ProbeResult,
    ShardCursor,
    without_end,
)
from spark_ssp.kinesis_source.probing.probe_rate_limiter import (
    count_fetches,
)
from spark_ssp.kinesis_source.probing.probe_runner import Probe
from spark_ssp.kinesis_source.probing.shard_lag import max_lag_ms
from spark_ssp.kinesis_source.probing.shard_prober import ShardProber

_log = logging.getLogger(__name__)


class EndOffsetFinder:
    """Probes the shards of one query. Not thread-safe; the probes themselves run in parallel."""

    def __init__(
        self,
        options: KinesisOptions,
        service: KinesisService,
        discovery: ShardDiscovery,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._options = options
        self._discovery = discovery
        self._is_aligned = options.align_batches
        self._max_records_per_fetch = options.max_records_per_fetch
        self._fail_on_data_loss = options.fail_on_data_loss
        self._prober = ShardProber(options, service, discovery, monotonic=monotonic, sleep=sleep)
        self.history = self._prober.history
        self.targets = FixedTargets(
            self._prober, discovery, options.streams, fail=options.fail_on_data_loss
        )
        self._last_caught_up_ms: dict[ShardKey, EpochMillis] = {}
        """`last_caught_up_ms`, later than in the offset: probes that find no record plan no
        batch."""
        self._expected: dict[ShardKey, tuple[Position, ExpectedSize | None]] = {}
        """The known size of a shard's part of the batch that ends at a position."""
        self._iterators: dict[ShardKey, CachedIterator] = {}
        """The iterators from which the batch planned last was looked for, if nothing followed them
        when they were issued: no record after them can be trimmed while they are valid."""
        self._positions = GivenPositions(
            self._prober,
            option=options.starting_position,
            table=options.lease_table,
            fail=options.fail_on_data_loss,
        )
        self.alignment = BatchAlignment(
            prober=self._prober,
            targets=self.targets,
            patience_ms=options.alignment_timeout_ms,
            tolerance_ms=TOLERANCE_MS + options.min_fetch_period_ms,
        )
        self.results: dict[ShardKey, ProbeResult] = {}
        """The probes from which the advances found last follow; none between batches."""
        self._began: EpochMillis | None = None
        """The service's time at the first probe for the next batch."""
        self._debt = 0
        """The bytes by which the last batches had to exceed `maxBytesPerTrigger`."""
        self._far_logged = False
        self._are_far = False
        """True if shards were far behind in the last trigger."""
        self._has_stalled = False
        """True if no shard advanced although records are unread: ends are not searched at the same
        instant next time, which a shard without records until then may never reach."""

    def wait(self, states: Mapping[ShardKey, ShardState], limits: Limits) -> bool:
        """Sleep until one of the shards may be probed, unless no probe is needed; until all may, if
        they wait for each other. Return False if they have to wait for longer than one sleep: the
        shards that are due would be probed in vain."""
        is_held = self._is_held
        if not self.targets.are_fixed or limits.is_bounded or is_held:
            ended = {key for key, state in states.items() if isinstance(state.position, ShardEnd)}
            catches_up = limits.is_bounded or self._are_far or is_held
            together = self._is_aligned and catches_up and self.alignment.bound is not None
            waited = states.keys() - ended
            if together:
                waited = waited - self._left_behind or waited
            ready = self._prober.limiter.wait(waited, for_all=together)
            if together and not ready and not self.targets.are_fixed:
                return False
        self._are_far = False
        return True

    def resolve_latest(
        self, keys: Collection[ShardKey], now: EpochMillis
    ) -> dict[ShardKey, ProbeResult]:
        """Resolve LATEST for these shards; one that has expired is left out."""
        results = self._prober.find_latest(
            {key: partial(instant_probe.resolve_latest, now) for key in keys}
        )
        for key, result in results.items():
            self.alignment.resolved_at[key] = result.time
            opened = self._prober.open_at(key)
            if opened is not None and opened < result.time:
                results[key] = replace(result, time=opened)
            self._prober.cursors[key] = result.cursor
            if result.end is not None:
                self._positions.accept(key, result.end.position)
        return results

    def expected_sizes(self, ends: Mapping[ShardKey, ShardState]) -> dict[ShardKey, ExpectedSize]:
        """Return the known sizes of the shards' parts of the batch planned last."""
        return {
            key: size
            for key, (position, size) in self._expected.items()
            if size is not None and key in ends and ends[key].position == position
        }

    def start_iterators(
        self, starts: Mapping[ShardKey, ShardState]
    ) -> dict[ShardKey, ShardIterator]:
        """Return iterators that follow the starts of the batch planned last."""
        return {
            key: cached.iterator
            for key, cached in self._iterators.items()
            if key in starts and starts[key].position == cached.follows
        }

    def close(self) -> None:
        """Stop the threads."""
        self._prober.close()

    def is_unreadable(self, key: ShardKey) -> bool:
        """Return whether the service lists the shard but refuses again and again to open it."""
        return self._prober.is_unreadable(key)

    def verify_positions(
        self,
        states: Mapping[ShardKey, ShardState],
        listings: Listings,
        start: Offset,
        created: Mapping[StreamName, EpochMillis],
    ) -> VerifiedStates:
        """Verify the positions of shards that this run has not verified or planned itself; `start`
        is the offset before the batch, `created` the streams' creation times in the plan. See
        `given_positions.py`."""
        for key, state in states.items() if self.targets.are_fixed else ():
            if self.targets.is_at(key, state.position):
                self._positions.accept(key, state.position)
        verified = self._positions.verify(
            states,
            listings,
            start,
            created,
            patient=self.targets.are_fixed,
            repeated=partial(self._holding_others, states),
        )
        self._prober.cursors |= verified.cursors
        return verified

    def find_ends(
        self, eligible: Mapping[ShardKey, ShardState], listings: Listings, limits: Limits
    ) -> dict[ShardKey, ShardAdvance]:
        """Return the advance of each shard; shards without a result are left out."""
        if self._began is None:
            self._began = self._prober.service_time()
        self._expect_sizes_of_parents(eligible.keys(), listings)
        if limits.is_bounded:
            within = self._find_ends_within(eligible, listings, limits)
            return self._with_last_caught_up(eligible, within)
        now = self._prober.service_time()
        probes: dict[ShardKey, Probe] = {}
        targets: dict[ShardKey, Target] = {}
        known: dict[ShardKey, Target] = {}
        far = self._far_behind(eligible, limits)
        self._are_far |= bool(far)
        share = LimitShare(size_bytes=limits.max_shard_bytes, excess=FAR_EXCESS)
        if self._is_in_step and not self._has_stalled:
            awaited = {key: eligible[key] for key in far - self._left_behind}
            share = until_first_end(share, self._cursors_at(awaited))
        for key, state in eligible.items():
            if key in far:
                if self._prober.limiter.is_due(key):
                    probes[key] = self._scan_ahead(key, state, listings, share, now)
                continue
            target = self.targets.of(key, listings[key.stream][key.shard])
            if target is not None and is_start_point(state.position):
                if self.targets.may_probe(key):
                    targets[key] = target
                    probes[key] = self._find_first_record(key, state, now)
            elif target is not None:
                known[key] = target
            elif not self.targets.are_fixed and self._prober.limiter.is_due(key):
                probes[key] = self._probe(key, state, now)
        advances = self._advances_to(known, eligible)
        results = self._probe_all(eligible, probes)
        if not self.targets.are_fixed:
            starved, special = self._prober.starved, far | targets.keys()
            holding = self._holding_others(eligible, probes.keys() - results.keys())
            starved.repeat(
                [
                    key
                    for key in probes
                    if key in holding or (key in starved and key not in special)
                ],
                results,
                lambda keys: self._probe_all(
                    eligible,
                    {
                        key: probes[key] if key in special else self._probe(key, eligible[key], now)
                        for key in keys
                    },
                ),
            )
        self.results = {key: result for key, result in results.items() if key not in targets}
        for key, result in results.items():
            state = eligible[key]
            if key in targets:
                advances[key] = advance_to_target(state, targets[key], result)
            elif key in far:
                admitted = admit_share(result, limits.max_shard_bytes)
                advances[key] = advance_by_records(state, result, admitted)
            else:
                advances[key] = advance_to_end(state, result)
        return self._with_last_caught_up(eligible, advances)

    def align(
        self,
        states: Mapping[ShardKey, ShardState],
        waiting: Mapping[ShardKey, ShardState],
        listings: Listings,
        advances: Mapping[ShardKey, ShardAdvance],
        results: Mapping[ShardKey, ProbeResult],
        *,
        resolved: Collection[ShardKey],
        limits: Limits,
    ) -> dict[ShardKey, ShardAdvance]:
        """Return the advances of a batch, which follow from `results`, cut to one instant; see
        `alignment.py`."""
        aligned = self.alignment.align(
            states,
            waiting,
            listings,
            advances,
            results,
            resolved=resolved,
            limited=limits.is_bounded,
        )
        self._has_stalled = self.alignment.bound is not None and all(
            advance.state.position == states[key].position for key, advance in aligned.items()
        )
        return self._with_last_caught_up(states, aligned)

    def _with_last_caught_up(
        self, before: Mapping[ShardKey, ShardState], advances: Mapping[ShardKey, ShardAdvance]
    ) -> dict[ShardKey, ShardAdvance]:
        return with_last_caught_up(before, advances, self._last_caught_up_ms, self._prober.open_at)

    def _expect_sizes_of_parents(self, keys: Iterable[ShardKey], listings: Listings) -> None:
        """Expect the records of a shard that was never probed to be as large as those of its
        parents: otherwise its first page is one record wide, which after a reshard of all shards is
        a further call of each."""
        cursors = self._prober.cursors
        for key in keys:
            if key in cursors:
                continue
            parents = listings[key.stream][key.shard].parents
            found = [self._prober.cursor(one) for one in keys_of(key.stream, parents)]
            sizes = [one.record_bytes for one in found if one.record_bytes is not None]
            if sizes:
                cursors[key] = ShardCursor(record_bytes=max(sizes))

    def _far_behind(self, eligible: Mapping[ShardKey, ShardState], limits: Limits) -> set[ShardKey]:
        """Return the shards too far behind for one batch; none once targets are fixed."""
        if limits.far_ms is None or self.targets.are_fixed:
            return set()
        now = self._prober.service_time()
        far = {
            key
            for key, state in eligible.items()
            if self._max_lag_ms(key, state, now) > limits.far_ms
        }
        if far and not self._far_logged:
            self._far_logged = True
            text = "%d shards are far behind: a batch reads about %d MiB of each (maxBytesPerShard)"
            _log.info(text, len(far), (limits.max_shard_bytes or 0) >> 20)
        return far

    def _max_lag_ms(self, key: ShardKey, state: ShardState, now: EpochMillis) -> int:
        stream = self._prober.description(key)
        return max_lag_ms(state, self.history.last_probe(key), stream, now)

    def _holding_others(
        self, states: Mapping[ShardKey, ShardState], unprobed: AbstractSet[ShardKey]
    ) -> set[ShardKey]:
        """Return those of the `unprobed` shards that would end the batch in all others, since they
        count as unread from their last probe on. Unless their probes are repeated, one failure of
        many would leave a batch after a long interval without a record. None once targets are
        fixed: calls are repeated anyway."""
        if not unprobed or not self._is_aligned or self.targets.are_fixed:
            return set()
        if states.keys() <= unprobed:  # there are no others
            return set()
        now, tolerance_ms = self._prober.service_time(), self.alignment.tolerance_ms
        return {
            key
            for key in unprobed - self._left_behind
            if self._max_lag_ms(key, states[key], now) > tolerance_ms
        }

    def _advances_to(
        self, targets: Mapping[ShardKey, Target], states: Mapping[ShardKey, ShardState]
    ) -> dict[ShardKey, ShardAdvance]:
        """Advance without a probe. The task that reads the records checks for data loss."""
        self._check_absent_starts(
            {
                key: (states[key], target.time)
                for key, target in targets.items()
                if isinstance(target, LatestRecord) and target.record is None
            }
        )
        return {
            key: advance_to_target(states[key], target, None) for key, target in targets.items()
        }

    def _find_ends_within(
        self, eligible: Mapping[ShardKey, ShardState], listings: Listings, limits: Limits
    ) -> dict[ShardKey, ShardAdvance]:
        """Probe each shard for its share of the limits, then for shares left by others."""
        advances, behind = self._split_by_target(eligible)
        full, limits = limits.max_bytes, reduce_by_debt(limits, self._debt)
        if self._is_in_step:
            shares = rated_shares(behind, limits, self._cursors_at(behind), self._left_behind)
            if self._has_stalled:
                # If the limit went to shards that the bound then cut, the others come first.
                first = behind.keys() & self.alignment.spared if self._is_held else set()
                first = first or set(behind)
                shares = {key: replace(shares[key], until=None) for key in first}
                behind = {key: behind[key] for key in first}
            behind = {key: state for key, state in behind.items() if self._may_advance(key, shares)}
            shares = {key: shares[key] for key in behind}
        else:
            shares = even_shares(behind, limits)
        results = self._scan_all(behind, listings, shares)
        self._prober.starved.repeat(
            self._holding_others(eligible, behind.keys() - results.keys()),
            results,
            lambda keys: self._scan_all(behind, listings, {key: shares[key] for key in keys}),
        )
        if not self._is_in_step or not any(each.found_by_time for each in results.values()):
            # A larger share would move ends that are found by time away from the others.
            more = second_shares(results, shares, limits)
            results |= self._scan_all(behind, listings, more)
            shares |= more
        counts = admit_results(results, shares, limits, aligned=self._is_in_step)
        self._prober.limiter.wait_for_tasks(results.keys())
        if full is not None:
            self._debt = next_debt(self._debt, results, counts, full)
        self.results = results
        for key, result in results.items():
            advances[key] = advance_by_records(behind[key], result, counts[key])
        return advances

    def _cursors_at(self, states: Mapping[ShardKey, ShardState]) -> dict[ShardKey, ShardCursor]:
        """Return the cursors of shards; one of another position is void."""
        found: dict[ShardKey, ShardCursor] = {}
        for key, state in states.items():
            cursor = self._prober.cursor(key)
            at_start = cursor.position == state.position
            found[key] = cursor if at_start else replace(cursor, reached_ms=None)
        return found

    @property
    def _is_in_step(self) -> bool:
        """Return whether the limits go to the shards that are farthest behind. A shard that is read
        on without waiting for those needs its even share."""
        return self._is_aligned and not self.alignment.overdue

    @property
    def _is_held(self) -> bool:
        """Return whether the last batch was cut for a shard."""
        outcome = self.alignment.outcome
        return self._is_aligned and outcome is not None and outcome.holds_back is not None

    @property
    def _left_behind(self) -> frozenset[ShardKey]:
        outcome = self.alignment.outcome
        return frozenset() if outcome is None else outcome.left_behind

    def _may_advance(self, key: ShardKey, shares: Mapping[ShardKey, LimitShare]) -> bool:
        """Return whether a shard is not ahead of the end of the batch already."""
        reached, until = self._prober.cursor(key).reached_ms, shares[key].until
        return reached is None or until is None or reached < until

    def _scan_all(
        self,
        behind: Mapping[ShardKey, ShardState],
        listings: Listings,
        shares: Mapping[ShardKey, LimitShare],
    ) -> dict[ShardKey, ProbeResult]:
        """Scan each shard for its share of the limits, up to its target. `listings` are those from
        before the probes."""
        now = self._prober.service_time()
        probes = {
            key: self._scan_ahead(key, behind[key], listings, share, now)
            for key, share in shares.items()
        }
        results: dict[ShardKey, ProbeResult] = {}
        for key, result in self._probe_all(behind, probes).items():
            target = self.targets.get(key)
            results[key] = result if target is None else truncate_to_target(result, target)
        return results

    def _limited_start(self, key: ShardKey, state: ShardState, now: EpochMillis) -> ShardState:
        """Return the start of the probe; a cached iterator is used instead."""
        if self._prober.cursor(key).cached_iterator is not None:
            return state
        stream = self._prober.description(key)
        start = limited_start(state, stream.created, now, stream.retention_ms)
        return state if start == state.position else replace(state, position=start)

    def _split_by_target(
        self, eligible: Mapping[ShardKey, ShardState]
    ) -> tuple[dict[ShardKey, ShardAdvance], dict[ShardKey, ShardState]]:
        """Return the advances of shards that need no probe, and the shards to probe now."""
        if not self.targets.are_fixed:
            return {}, {
                key: state for key, state in eligible.items() if self._prober.limiter.is_due(key)
            }
        known: dict[ShardKey, Target] = {}
        behind: dict[ShardKey, ShardState] = {}
        for key, state in eligible.items():
            target = self.targets.get(key)
            if self.targets.is_probed(key, state.position):
                behind[key] = state
            elif target is not None:
                known[key] = target
        return self._advances_to(known, eligible), behind

    def _probe(self, key: ShardKey, state: ShardState, now: EpochMillis) -> Probe:
        starved = key in self._prober.starved
        kind = batch_end_probe.probe_starved if starved else batch_end_probe.probe
        return partial(kind, state, self._prober.cursor(key), now, self._prober.kept_ms(key, now))

    def _find_first_record(self, key: ShardKey, state: ShardState, now: EpochMillis) -> Probe:
        cursor, kept_ms = self._prober.cursor(key), self._prober.kept_ms(key, now)
        closed = isinstance(self.targets.get(key), ShardEnd)
        return partial(
            batch_end_probe.find_first_record,
            state,
            cursor,
            now,
            kept_ms,
            closed=closed,
        )

    def _scan_ahead(
        self,
        key: ShardKey,
        state: ShardState,
        listings: Listings,
        share: LimitShare,
        now: EpochMillis,
    ) -> Probe:
        target = self.targets.of(key, listings[key.stream][key.shard])
        return partial(
            limited_end_probe.scan_ahead,
            self._limited_start(key, state, now),
            self._prober.cursor(key),
            now,
            self._prober.kept_ms(key, now),
            share,
            closed=isinstance(target, ShardEnd),
            persistent=self.targets.are_fixed,
        )

    def _probe_all(
        self, states: Mapping[ShardKey, ShardState], probes: Mapping[ShardKey, Probe]
    ) -> dict[ShardKey, ProbeResult]:
        """Run the probes; shards that were throttled are left out, with their cursor kept."""
        results = self._prober.run(probes, patient=self.targets.are_fixed)
        for key in self._prober.unconfirmed_ends(results):
            _log.info("GetRecords returned no NextShardIterator for %s, which is open", key)
            results[key] = without_end(results[key])
        for key, result in results.items():
            position = states[key].position
            if result.end is None and result.cursor.position != position:
                # The cursor continues at the shard's position.
                cursor = replace(result.cursor, position=position)
                results[key] = replace(result, cursor=cursor)
            self._prober.limiter.record_probe(key, calls=result.fetches, size=result.fetched_bytes)
            if (
                not result.start_lost
                and states[key].first is not None
                and is_unpromised(states[key])
            ):
                self._check_moved_start(key, states[key], result)
        self._check_absent_starts(
            {key: (states[key], one.time) for key, one in results.items() if one.start_lost}
        )
        return results

    def _check_absent_starts(
        self, starts: Mapping[ShardKey, tuple[ShardState, EpochMillis]]
    ) -> None:
        check_absent_starts(
            {
                key: (
                    state,
                    Evidence(
                        found=None,
                        time=time,
                        kept_ms=self._prober.kept_ms(key),
                        parent_listed=self._prober.lists_parent(key),
                    ),
                )
                for key, (state, time) in starts.items()
            },
            fail=self._fail_on_data_loss,
            table=self._options.lease_table,
        )

    def _check_moved_start(self, key: ShardKey, state: ShardState, result: ProbeResult) -> None:
        decided = result.first is not None or result.at_latest or result.closed
        if decided and result.first != state.first:
            warn_start_moved(key, first=state.first, found=result.first)

    def remember(
        self, advances: Mapping[ShardKey, ShardAdvance], keys: Collection[ShardKey]
    ) -> None:
        """Keep the state that the next probes need; drop that of shards not among `keys`."""
        self._iterators, self.results = {}, {}
        now = self._prober.service_time()
        for key, advance in advances.items():
            cursor = self._prober.cursor(key)
            cached = cursor.cached_iterator
            if (
                cached is not None
                and cached.at_latest
                and cached.follows is not None
                and now - cached.issued < batch_end_probe.ITERATOR_LIFE_MS
            ):
                self._iterators[key] = cached
            if advance.cursor.position != cursor.position:
                most = self._max_records_per_fetch
                calls, size = count_fetches(advance.expected, most)
                self._prober.limiter.reserve_reads(key, calls=calls, size=size)
            self._positions.plan(key, advance.state.position)
            self._expected[key] = (advance.state.position, advance.expected)
            self._prober.cursors[key] = advance.cursor
            if advance.at_latest and advance.state.last_caught_up_ms is not None:
                self._last_caught_up_ms[key] = advance.state.last_caught_up_ms
        # Probes may be repeated for seconds: a lag counts from before the first one.
        began, self._began = self._began, None
        self.history.record_plan(
            advances, began or self._prober.service_time(), self._prober.open_at
        )
        for table in (self._last_caught_up_ms, self._expected):
            for key in table.keys() - keys:
                del table[key]
        self._positions.retain(keys)
        self._prober.retain({*keys, *self.alignment.children})
