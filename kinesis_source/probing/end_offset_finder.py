"""Finds the end offset of the next batch for each shard, within the limits of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from spark_ssp.common.errors import ServiceUnavailableError, SspError, StreamNotFoundError
from spark_ssp.common.options.endpoints import is_loopback
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import (
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
    ThrottledError,
    UnreachableError,
)
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    Position,
    Shard,
    ShardEnd,
    ShardState,
    StreamRef,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.active_shards import Listings
from spark_ssp.kinesis_source.planning.data_loss import (
    Evidence,
    check_absent_start,
    is_start_point,
    is_unpromised,
    kept_since,
    limited_start,
    report_absent_end,
    warn_start_moved,
    warn_unreadable_shard,
)
from spark_ssp.kinesis_source.planning.shard_discovery import CONFIRMATIONS, ShardDiscovery
from spark_ssp.kinesis_source.probing import batch_end_probe, latest_probe, limited_end_probe
from spark_ssp.kinesis_source.probing.batch_limits import (
    FAR_EXCESS,
    Limits,
    admit_results,
    admit_share,
    even_shares,
    next_debt,
    reduce_by_debt,
    second_shares,
)
from spark_ssp.kinesis_source.probing.fixed_targets import FixedTargets
from spark_ssp.kinesis_source.probing.given_positions import GivenPositions, VerifiedStates
from spark_ssp.kinesis_source.probing.latest_probe import NO_ENDS, EndPoint, is_end_of
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
    PositionAnswer,
    ProbeResult,
    ShardCursor,
    without_end,
)
from spark_ssp.kinesis_source.probing.probe_rate_limiter import (
    ProbeRateLimiter,
    StarvedShards,
    count_fetches,
)
from spark_ssp.kinesis_source.probing.probe_runner import Probe, ProbeRunner, R, Steps
from spark_ssp.kinesis_source.probing.shard_lag import ProbeHistory, max_lag_ms

_log = logging.getLogger(__name__)

_NOTHING_KNOWN: Final = ShardCursor()
END_TRIES: Final = 60
"""The probes of a shard whose end ListShards does not confirm."""
END_PERIOD_S: Final = 1.0
"""The pause between them."""


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
        self._service = service
        self._discovery = discovery
        self._streams: dict[StreamName, StreamRef] = {ref.name: ref for ref in options.streams}
        self._runner = ProbeRunner(service)
        self._limiter = ProbeRateLimiter(
            period_ms=options.min_fetch_period_ms,
            enforced=not is_loopback(options.connection.endpoint_url),
            monotonic=monotonic,
            sleep=sleep,
        )
        self._starved = StarvedShards(
            enabled=options.fan_out is not None, monotonic=monotonic, sleep=sleep
        )
        self._cursors: dict[ShardKey, ShardCursor] = {}
        self.history = ProbeHistory()
        self._last_caught_up_ms: dict[ShardKey, EpochMillis] = {}
        """`last_caught_up_ms`, later than in the offset: probes that find no record plan no
        batch."""
        self._expected: dict[ShardKey, tuple[Position, ExpectedSize | None]] = {}
        """The known size of a shard's part of the batch that ends at a position."""
        self._targets = FixedTargets()
        self._targets_of: dict[StreamName, EpochMillis] = {}
        """The creation times of the streams that the targets are of."""
        self._positions = GivenPositions(
            self,
            option=options.starting_position,
            table=None if options.leases is None else options.leases.table,
            fail=options.fail_on_data_loss,
        )
        self._sleep = sleep
        self._debt = 0
        """The bytes by which the last batches had to exceed `maxBytesPerTrigger`."""
        self._far_logged = False
        self._refusals: dict[ShardKey, int] = {}
        """Shards that are listed but that the service refuses to open, with the number of refusals
        in a row. After `CONFIRMATIONS` that is an error, or tolerated."""

    def wait(self, states: Mapping[ShardKey, ShardState], limits: Limits) -> None:
        """Sleep until one of the shards may be probed, unless no probe is needed."""
        if not self._targets.are_fixed or limits.is_bounded:
            ended = {key for key, state in states.items() if isinstance(state.position, ShardEnd)}
            self._limiter.wait(states.keys() - ended)

    def resolve_latest(
        self, keys: Collection[ShardKey], now: EpochMillis
    ) -> dict[ShardKey, ProbeResult]:
        """Resolve LATEST for these shards; one that has expired is left out."""
        results = self._find_latest(
            {key: partial(latest_probe.resolve_latest, now) for key in keys}
        )
        for key, result in results.items():
            self._cursors[key] = result.cursor
            if result.end is not None:
                self._positions.accept(key, result.end.position)
        return results

    def _find_latest(self, probes: Mapping[ShardKey, Probe]) -> dict[ShardKey, ProbeResult]:
        """Run the probes with retries. A shard whose end, or existence, is not confirmed is probed
        again; raises ServiceUnavailableError if it never can."""
        results = self._run(probes, patient=True)
        tries = 1
        while doubtful := [*self._refused(probes), *self._unconfirmed_ends(results)]:
            if tries == END_TRIES:
                raise ServiceUnavailableError(
                    f"shard {doubtful[0]}",
                    found=f"GetRecords without a NextShardIterator, {tries} times, for a shard "
                    "without an EndingSequenceNumber",
                    expected="an iterator, until ListShards returns the shard as closed",
                    next_step="run the query again; if the error stays, check endpointUrl and the "
                    "service's health",
                )
            self._sleep(END_PERIOD_S)
            tries += 1
            results |= self._run({key: probes[key] for key in doubtful}, patient=True)
        return results

    def _refused(self, probes: Collection[ShardKey]) -> list[ShardKey]:
        """Return the shards to ask for again that the service refused."""
        return [key for key in probes if key in self._refusals and not self._is_unreadable(key)]

    def expected_sizes(self, ends: Mapping[ShardKey, ShardState]) -> dict[ShardKey, ExpectedSize]:
        """Return the known sizes of the shards' parts of the batch planned last."""
        return {
            key: size
            for key, (position, size) in self._expected.items()
            if size is not None and key in ends and ends[key].position == position
        }

    def close(self) -> None:
        """Stop the threads."""
        self._runner.close()

    def verify_positions(
        self, states: Mapping[ShardKey, ShardState], listings: Listings, start: Offset
    ) -> VerifiedStates:
        """Verify the positions of shards that this run has not verified or planned itself; `start`
        is the offset before the batch. See `given_positions.py`."""
        for key, state in states.items() if self._targets.are_fixed else ():
            if self._targets.is_at(key, state.position):
                self._positions.accept(key, state.position)
        verified = self._positions.verify(states, listings, start, due=self._limiter.is_due)
        self._cursors |= verified.cursors
        return verified

    def fix_targets(self, ends: Mapping[ShardKey, EndPoint] = NO_ENDS) -> None:
        """Fix each listed shard's end, also if it waits for parents: the current one, or `ends`."""
        self._targets.release()
        listed = [
            ShardKey(stream=name, shard=shard)
            for name, ref in self._streams.items()
            for shard in self._discovery.shards(ref)
        ]
        self._targets.fix(self._find_targets(listed, ends))
        self._targets_of = {
            name: self._discovery.description(ref).created for name, ref in self._streams.items()
        }

    def complete_targets(self, keys: Collection[ShardKey]) -> None:
        """Fix the current ends of shards that the listing for `fix_targets` lacked."""
        for name, created in self._targets_of.items():
            if self._discovery.description(self._streams[name]).created != created:
                self._targets.ignore(name)
        if missing := self._targets.missing(keys):
            self._targets.add(self._find_targets(missing, NO_ENDS))

    def _find_targets(
        self, keys: Collection[ShardKey], ends: Mapping[ShardKey, EndPoint]
    ) -> dict[ShardKey, Target]:
        probes: dict[ShardKey, Probe] = {}
        targets: dict[ShardKey, Target] = {}
        for key in keys:
            closed = self._listing(key)[key.shard].closed
            if closed and key not in ends:
                targets[key] = ShardEnd()
                continue
            find = partial(latest_probe.find_end, ends.get(key), closed=closed)
            probes[key] = partial(find, self.service_time(), self.retention_ms(key))
        for key, outcome in self._find_latest(probes).items():
            closed = outcome.closed
            if outcome.start_lost:
                # The EndingSequenceNumber need not be a record's.
                closed = is_end_of(self._listing(key)[key.shard], ends.get(key))
                if not closed:
                    report_absent_end(key, fail=self._options.fail_on_data_loss)
            latest = LatestRecord(record=outcome.end, time=outcome.time)
            targets[key] = ShardEnd() if closed else latest
        return targets

    def release_targets(self) -> None:
        """Read beyond the targets again."""
        self._targets.release()

    def unreached_targets(
        self,
        eligible: Collection[ShardKey],
        advances: Mapping[ShardKey, ShardAdvance],
        limits: Limits,
    ) -> list[ShardKey]:
        """Return the eligible shards short of their targets, sorted; none without targets."""
        return self._targets.unreached(
            [key for key in eligible if not self._is_unreadable(key)],
            advances,
            lambda key, state: self._kept_since(key, state, limits),
        )

    def find_ends(
        self, eligible: Mapping[ShardKey, ShardState], listings: Listings, limits: Limits
    ) -> dict[ShardKey, ShardAdvance]:
        """Return the advance of each shard; shards without a result are left out."""
        if limits.is_bounded:
            within = self._find_ends_within(eligible, limits)
            return with_last_caught_up(within, self._last_caught_up_ms)
        advances: dict[ShardKey, ShardAdvance] = {}
        probes: dict[ShardKey, Probe] = {}
        targets: dict[ShardKey, Target] = {}
        far = self._far_behind(eligible, limits)
        for key, state in eligible.items():
            if key in far:
                if self._limiter.is_due(key):
                    share = LimitShare(size_bytes=limits.max_shard_bytes, excess=FAR_EXCESS)
                    probes[key] = self._scan_ahead(key, state, share)
                continue
            target = self._targets.get(key)
            if not self._targets.are_fixed and listings[key.stream][key.shard].closed:
                target = ShardEnd()
            if target is not None and is_start_point(state.position):
                if self._limiter.is_due(key):
                    targets[key] = target
                    probes[key] = self._find_first_record(key, state)
            elif target is not None:
                advances[key] = self._advance_to(key, state, target)
            elif not self._targets.are_fixed and self._limiter.is_due(key):
                probes[key] = self._probe(key, state)
        results = self._probe_all(eligible, probes)
        if not self._targets.are_fixed:
            self._starved.repeat(
                probes.keys() - targets.keys() - far,
                results,
                lambda keys: self._probe_all(
                    eligible, {key: self._probe(key, eligible[key]) for key in keys}
                ),
            )
        for key, result in results.items():
            state = eligible[key]
            if key in targets:
                advances[key] = advance_to_target(state, targets[key], result)
            elif key in far:
                admitted = admit_share(result, limits.max_shard_bytes)
                advances[key] = advance_by_records(state, result, admitted)
            else:
                advances[key] = advance_to_end(state, result)
        return with_last_caught_up(advances, self._last_caught_up_ms)

    def _far_behind(self, eligible: Mapping[ShardKey, ShardState], limits: Limits) -> set[ShardKey]:
        """Return the shards too far behind for one batch; none once targets are fixed."""
        if limits.far_ms is None or self._targets.are_fixed:
            return set()
        now = self.service_time()
        far: set[ShardKey] = set()
        for key, state in eligible.items():
            stream = self._discovery.description(self._streams[key.stream])
            if max_lag_ms(state, self.history.last_probe(key), stream, now) > limits.far_ms:
                far.add(key)
        if far and not self._far_logged:
            self._far_logged = True
            text = "%d shards are far behind: a batch reads about %d MiB of each (maxBytesPerShard)"
            _log.info(text, len(far), (limits.max_shard_bytes or 0) >> 20)
        return far

    def _advance_to(self, key: ShardKey, state: ShardState, target: Target) -> ShardAdvance:
        """Advance without a probe. The task that reads the records checks for data loss."""
        if isinstance(target, LatestRecord) and target.record is None:
            self._check_absent_start(key, state, target.time)
        return advance_to_target(state, target, None)

    def _find_ends_within(
        self, eligible: Mapping[ShardKey, ShardState], limits: Limits
    ) -> dict[ShardKey, ShardAdvance]:
        """Probe each shard for its even share of the limits, then for shares left by others."""
        advances, behind = self._split_by_target(eligible)
        full, limits = limits.max_bytes, reduce_by_debt(limits, self._debt)
        shares = even_shares(behind, limits)
        results = self._scan_all(behind, shares)
        more = second_shares(results, shares, limits)
        results |= self._scan_all(behind, more)
        counts = admit_results(results, {**shares, **more}, limits)
        self._limiter.wait_for_tasks(results.keys())
        if full is not None:
            self._debt = next_debt(self._debt, results, counts, full)
        for key, result in results.items():
            advances[key] = advance_by_records(behind[key], result, counts[key])
        return advances

    def _scan_all(
        self, behind: Mapping[ShardKey, ShardState], shares: Mapping[ShardKey, LimitShare]
    ) -> dict[ShardKey, ProbeResult]:
        """Scan each shard for its share of the limits, up to its target."""
        probes = {key: self._scan_ahead(key, behind[key], share) for key, share in shares.items()}
        results: dict[ShardKey, ProbeResult] = {}
        for key, result in self._probe_all(behind, probes).items():
            target = self._targets.get(key)
            results[key] = result if target is None else truncate_to_target(result, target)
        return results

    def _limited_start(self, key: ShardKey, state: ShardState) -> ShardState:
        """Return the start of the probe; a cached iterator is used instead."""
        if self._cursor(key).cached_iterator is not None:
            return state
        stream = self._discovery.description(self._streams[key.stream])
        start = limited_start(state, stream.created, self.service_time(), stream.retention_ms)
        return state if start == state.position else replace(state, position=start)

    def _split_by_target(
        self, eligible: Mapping[ShardKey, ShardState]
    ) -> tuple[dict[ShardKey, ShardAdvance], dict[ShardKey, ShardState]]:
        """Return the advances of shards that need no probe, and the shards to probe now."""
        if not self._targets.are_fixed:
            return {}, {key: state for key, state in eligible.items() if self._limiter.is_due(key)}
        advances: dict[ShardKey, ShardAdvance] = {}
        behind: dict[ShardKey, ShardState] = {}
        for key, state in eligible.items():
            target = self._targets.get(key)
            if self._targets.is_probed(key, state.position):
                behind[key] = state
            elif target is not None:
                advances[key] = self._advance_to(key, state, target)
        return advances, behind

    def _cursor(self, key: ShardKey) -> ShardCursor:
        return self._cursors.get(key, _NOTHING_KNOWN)

    def _kept_since(self, key: ShardKey, state: ShardState, limits: Limits) -> EpochMillis:
        stream, now = self._discovery.description(self._streams[key.stream]), self.service_time()
        created, retention_ms = stream.created, stream.retention_ms
        return kept_since(state, created, now, retention_ms, limited=limits.is_bounded)

    def _probe(self, key: ShardKey, state: ShardState) -> Probe:
        starved = key in self._starved
        kind = batch_end_probe.probe_starved if starved else batch_end_probe.probe
        return partial(kind, state, self._cursor(key), self.service_time(), self.retention_ms(key))

    def _find_first_record(self, key: ShardKey, state: ShardState) -> Probe:
        cursor, retention = self._cursor(key), self.retention_ms(key)
        closed = isinstance(self._targets.get(key), ShardEnd)
        return partial(
            batch_end_probe.find_first_record,
            state,
            cursor,
            self.service_time(),
            retention,
            closed=closed,
        )

    def _scan_ahead(self, key: ShardKey, state: ShardState, share: LimitShare) -> Probe:
        return partial(
            limited_end_probe.scan_ahead,
            self._limited_start(key, state),
            self._cursor(key),
            self.service_time(),
            self.retention_ms(key),
            share,
            self._targets.get(key),
        )

    def _probe_all(
        self, states: Mapping[ShardKey, ShardState], probes: Mapping[ShardKey, Probe]
    ) -> dict[ShardKey, ProbeResult]:
        """Run the probes; shards that were throttled are left out, with their cursor kept."""
        results = self._run(probes, patient=self._targets.are_fixed)
        for key in self._unconfirmed_ends(results):
            _log.info("GetRecords returned no NextShardIterator for %s, which is open", key)
            results[key] = without_end(results[key])
        for key, result in results.items():
            position = states[key].position
            if result.end is None and result.cursor.position != position:
                # The cursor continues at the shard's position.
                cursor = replace(result.cursor, position=position)
                results[key] = replace(result, cursor=cursor)
            self._limiter.record_probe(key, calls=result.fetches, size=result.fetched_bytes)
            if result.start_lost:
                self._check_absent_start(key, states[key], result.time)
            elif states[key].first is not None and is_unpromised(states[key]):
                self._check_moved_start(key, states[key], result)
        return results

    def _check_moved_start(self, key: ShardKey, state: ShardState, result: ProbeResult) -> None:
        decided = result.first is not None or result.at_latest or result.closed
        if decided and result.first != state.first:
            warn_start_moved(key, first=state.first, found=result.first)

    def _check_absent_start(self, key: ShardKey, state: ShardState, time: EpochMillis) -> None:
        evidence = Evidence(
            found=None,
            time=time,
            retention_ms=self.retention_ms(key),
            parent_listed=self._discovery.lists_parent(self._streams[key.stream], key.shard),
        )
        check_absent_start(key, state, evidence, fail=self._options.fail_on_data_loss)

    def _unconfirmed_ends(self, results: Mapping[ShardKey, ProbeResult]) -> list[ShardKey]:
        """Return the shards that ended by a page, but that the service lists as open.

        A single answer without an iterator would end the shard for good.
        """
        ended = [key for key, result in results.items() if result.closed]
        doubtful = [key for key in ended if self._is_open(key, self._listing(key))]
        unconfirmed: list[ShardKey] = []
        for name in sorted({key.stream for key in doubtful}):
            ref = self._streams[name]
            if self._discovery.frozen:
                fresh = self._discovery.list_now(ref)
            else:
                self._discovery.refresh(ref)
                fresh = self._discovery.shards(ref)
            unconfirmed += [
                key
                for key in doubtful
                if key.stream == name and (fresh is None or self._is_open(key, fresh))
            ]
        return unconfirmed

    def _listing(self, key: ShardKey) -> Mapping[ShardId, Shard]:
        return self._discovery.shards(self._streams[key.stream])

    @staticmethod
    def _is_open(key: ShardKey, listing: Mapping[ShardId, Shard]) -> bool:
        return key.shard in listing and not listing[key.shard].closed

    def _run(self, probes: Mapping[ShardKey, Steps[R]], *, patient: bool) -> dict[ShardKey, R]:
        outcomes = self._runner.run_all(
            probes,
            self._streams,
            patient=lambda key: patient or self._limiter.is_retry_due(key),
        )
        results: dict[ShardKey, R] = {}
        missing: dict[ShardKey, SspError] = {}
        for key, outcome in outcomes.items():
            match outcome:
                case UnreachableError():
                    self._limiter.record_failure(key)
                    self.history.record_failure(key, self.service_time(), outcome)
                case ThrottledError():
                    self._limiter.record_throttle(key)
                    self._starved.record_throttle(key)
                    self.history.record_failure(key, self.service_time(), outcome)
                case ShardNotFoundError() | InvalidPositionError() | StreamNotFoundError():
                    self._limiter.record_throttle(key)
                    self.history.record_failure(key, self.service_time(), outcome)
                    missing[key] = outcome
                    self._cursors.pop(key, None)  # its iterator may belong to a deleted stream
                case Exception():
                    raise outcome
                case _:
                    results[key] = outcome
                    self.history.record_success(key)
                    if outcome.throttled:
                        self._starved.record_throttle(key)
                    self._refusals.pop(key, None)
        self._tolerate_missing(missing)
        return results

    def _tolerate_missing(self, missing: Mapping[ShardKey, SspError]) -> None:
        """Leave out shards that the service could not find; raise the error of a listed one that
        it refuses again and again, since the listing may be behind."""
        listed = self.still_listed(missing.keys())
        for key, error in missing.items():
            if isinstance(error, InvalidPositionError):
                self._positions.reject(key)  # verified again before the next batch
            elif key not in listed:
                self._refusals.pop(key, None)
                _log.warning("%s can no longer be read: %s", key, error)
            else:
                self._refusals[key] = self._refusals.get(key, 0) + 1
                if self._refusals[key] != CONFIRMATIONS:
                    continue
                if self._options.fail_on_data_loss:
                    raise error
                warn_unreadable_shard(key, error)

    def _is_unreadable(self, key: ShardKey) -> bool:
        return self._refusals.get(key, 0) >= CONFIRMATIONS

    # --- Called to verify positions ---------------------------------------------------------------

    def run_checks(
        self, checks: Mapping[ShardKey, Steps[PositionAnswer]]
    ) -> dict[ShardKey, PositionAnswer]:
        """Run the checks; shards that were throttled are left out."""
        answers = self._run(checks, patient=self._targets.are_fixed)
        for key, answer in answers.items():
            self._limiter.count_calls(key, answer.fetches)
        return answers

    def still_listed(self, keys: Collection[ShardKey]) -> set[ShardKey]:
        """Refresh the streams of shards that the service refused; return those shards that are
        listed, in streams that were not recreated."""
        listed: set[ShardKey] = set()
        for name in sorted({key.stream for key in keys}):
            ref = self._streams[name]
            before = self._discovery.description(ref).created
            self._discovery.refresh(ref, doubt=True)
            if self._discovery.description(ref).created != before:
                self._targets.ignore(name)
                continue
            listing = self._discovery.shards(ref)
            listed |= {key for key in keys if key.stream == name and key.shard in listing}
        return listed

    def service_time(self) -> EpochMillis:
        """Return the service's time."""
        return self._service.service_time()

    def retention_ms(self, key: ShardKey) -> int:
        """Return the retention of the shard's stream."""
        return self._discovery.description(self._streams[key.stream]).retention_ms

    def remember(
        self, advances: Mapping[ShardKey, ShardAdvance], keys: Collection[ShardKey]
    ) -> None:
        """Keep the state that the next probes need; drop that of shards not among `keys`."""
        for key, advance in advances.items():
            if advance.cursor.position != self._cursor(key).position:
                most = self._options.max_records_per_fetch
                calls, size = count_fetches(advance.expected, most)
                self._limiter.reserve_reads(key, calls=calls, size=size)
            self._positions.plan(key, advance.state.position)
            self._expected[key] = (advance.state.position, advance.expected)
            self._cursors[key] = advance.cursor
            if advance.at_latest and advance.state.last_caught_up_ms is not None:
                self._last_caught_up_ms[key] = advance.state.last_caught_up_ms
        self.history.record_plan(advances, self.service_time())
        for table in (self._cursors, self._last_caught_up_ms, self._expected):
            for key in table.keys() - keys:
                del table[key]
        for key in self._refusals.keys() - keys:
            del self._refusals[key]
        for part in (self.history, self._limiter, self._positions, self._starved):
            part.retain(keys)
