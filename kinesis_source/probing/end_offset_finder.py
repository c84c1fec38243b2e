"""Finds the end offset of the next batch for each shard, within the limits of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from kinesis_source.client.api import (
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
    ThrottledError,
    UnreachableError,
)
from kinesis_source.model import read_loss as loss
from kinesis_source.model.ranges import ExpectedSize
from kinesis_source.model.read_loss import Evidence, is_start_point, is_unpromised, limited_start
from kinesis_source.model.shard import (
    EpochMillis,
    Position,
    ShardEnd,
    ShardState,
    StreamRef,
    TrimHorizon,
)
from kinesis_source.options.values import KinesisOptions
from kinesis_source.planning.active_shards import Listings
from kinesis_source.planning.admission_control import Limits, admit
from kinesis_source.planning.data_loss import judge_absent_start, shard_refused, start_moved
from kinesis_source.planning.input_partitions import is_behind
from kinesis_source.planning.shard_discovery import ShardDiscovery
from kinesis_source.planning.shard_lag import behind_now
from kinesis_source.probing import batch_end_probe, latest_probe, limited_end_probe
from kinesis_source.probing.limit_shares import Share, candidate_of, even_shares, second_shares
from kinesis_source.probing.position_advance import (
    Advance,
    Target,
    Tip,
    advance_all,
    advance_by,
    advance_to,
    clip,
    is_reached,
)
from kinesis_source.probing.probe_history import Sights
from kinesis_source.probing.probe_protocol import Finding, Memory
from kinesis_source.probing.probe_rate_limiter import Pacing, fetches_of
from kinesis_source.probing.probe_runner import Prober, Procedure
from ssp_common.errors import SspError, StreamNotFoundError
from ssp_common.options.endpoints import is_loopback
from task_grouping.identifiers import ShardKey, StreamName

_log = logging.getLogger(f"spark_ssp.{__name__}")

_NOTHING_KNOWN: Final = Memory()


class Frontier:
    """The looks at one query's shards. Not thread-safe; the looks themselves run side by side."""

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
        self._prober = Prober(service)
        self._pacing = Pacing(
            period_ms=options.min_fetch_period_ms,
            enforced=not is_loopback(options.connection.endpoint_url),
            monotonic=monotonic,
            sleep=sleep,
        )
        self._memories: dict[ShardKey, Memory] = {}
        self.sights = Sights()
        self._proofs: dict[ShardKey, EpochMillis] = {}
        """`seen`, later than in the offset: looks that find nothing new plan no batch."""
        self._expected: dict[ShardKey, tuple[Position, ExpectedSize | None]] = {}
        """The known size of a shard's part of the batch that ends at a position."""
        self._targets: dict[ShardKey, Target] | None = None
        """Once fixed: the end of each shard that is to be read; any other is left alone."""
        self._recreated: set[StreamName] = set()
        """Streams found to be others than those that the targets are about: left alone, too."""
        self._told_far = False
        self._refused: set[ShardKey] = set()
        """Shards that are listed but that the service refuses to open, which is tolerated."""

    def wait(self, states: Mapping[ShardKey, ShardState], limits: Limits) -> None:
        """Sleep until one of the shards may be looked at; not where no look is needed. A shard
        that has ended is not looked at any more, and one that never was need not be waited for."""
        if self._targets is None or limits.bounded:
            ended = {key for key, state in states.items() if isinstance(state.position, ShardEnd)}
            self._pacing.wait(states.keys() - ended)

    def latest(self, keys: Collection[ShardKey], now: EpochMillis) -> dict[ShardKey, Finding]:
        """What LATEST means for these shards now; one that has expired meanwhile is left out."""
        found = self._run(
            {key: partial(latest_probe.find_latest, now) for key in keys}, patient=True
        )
        for key, finding in found.items():
            self._memories[key] = finding.memory
        return found

    def expected(self, ends: Mapping[ShardKey, ShardState]) -> dict[ShardKey, ExpectedSize]:
        """Return the known sizes of the shards' parts of the batch planned last."""
        return {
            key: expected
            for key, (position, expected) in self._expected.items()
            if expected is not None and key in ends and ends[key].position == position
        }

    def close(self) -> None:
        """Stop the threads."""
        self._prober.close()

    def fix_targets(self) -> None:
        """From now on read what the listed shards hold at this moment and no more.

        Also for shards that may not be read yet, because their parents come first.
        """
        self._targets = None
        self._recreated.clear()
        procedures: dict[ShardKey, Procedure] = {}
        targets: dict[ShardKey, Target] = {}
        for name, ref in self._streams.items():
            retention = self._discovery.description(ref).retention_millis
            for shard in self._discovery.shards(ref).values():
                key = ShardKey(stream=name, shard=shard.shard_id)
                if shard.closed:
                    targets[key] = ShardEnd()
                    continue
                now = self._service.service_time()
                oldest = EpochMillis(now - retention)
                procedures[key] = partial(latest_probe.find_tip, TrimHorizon(), now, oldest=oldest)
        for key, outcome in self._run(procedures, patient=True).items():
            tip_then = Tip(row=outcome.end, time=outcome.time)
            targets[key] = ShardEnd() if outcome.closed else tip_then
        self._targets = targets

    def awaited(
        self, eligible: Collection[ShardKey], advances: Mapping[ShardKey, Advance], limits: Limits
    ) -> list[ShardKey]:
        """Of the shards that were to `advance`, those whose target is still ahead; sorted. None
        while no targets are fixed."""
        if self._targets is None:
            return []
        return [
            key
            for key in sorted(eligible)
            if (target := self._target(key)) is not None
            and key not in self._refused
            and not (
                (advance := advances.get(key)) is not None
                and is_reached(advance, target, self._kept_since(key, advance.state, limits))
            )
        ]

    def advance(
        self, eligible: Mapping[ShardKey, ShardState], listings: Listings, limits: Limits
    ) -> dict[ShardKey, Advance]:
        """Where each shard gets to; shards without news are left out."""
        if limits.bounded:
            return self._with_latest_proofs(self._advance_within(eligible, limits))
        advances: dict[ShardKey, Advance] = {}
        procedures: dict[ShardKey, Procedure] = {}
        targets: dict[ShardKey, Target] = {}
        far = self._far_behind(eligible, limits)
        for key, state in eligible.items():
            if key in far:
                if self._pacing.due(key):
                    size = limits.shard_size
                    procedures[key] = self._read_ahead(
                        key, state, limited_end_probe.MANY_RECORDS, size
                    )
                continue
            target = self._target(key)
            if self._targets is None and listings[key.stream][key.shard].closed:
                target = ShardEnd()
            if target is not None and is_start_point(state.position):
                if self._pacing.due(key):
                    targets[key] = target
                    procedures[key] = self._find_first(key, state)
            elif target is not None:
                advances[key] = self._advance_to(key, state, target)
            elif self._targets is None and self._pacing.due(key):
                procedures[key] = self._probe(key, state)
        for key, finding in self._look(eligible, procedures).items():
            state = eligible[key]
            if key in targets:
                advances[key] = advance_to(state, targets[key], finding)
            else:
                advances[key] = advance_all(state, finding)
        return self._with_latest_proofs(advances)

    def _far_behind(self, eligible: Mapping[ShardKey, ShardState], limits: Limits) -> set[ShardKey]:
        """Return the shards that may contain more than a batch should read of one; none in a run to
        the latest_probe."""
        if limits.far_ms is None or self._targets is not None:
            return set()
        now = self._now()
        far: set[ShardKey] = set()
        for key, state in eligible.items():
            stream = self._discovery.description(self._streams[key.stream])
            if behind_now(state, self.sights.last(key), stream, now) > limits.far_ms:
                far.add(key)
        if far and not self._told_far:
            self._told_far = True
            _log.info(
                "%d shards are far behind: a batch reads at most about %d MiB of each "
                "(maxBytesPerShard)",
                *(len(far), (limits.shard_size or 0) >> 20),
            )
        return far

    def _with_latest_proofs(self, advances: Mapping[ShardKey, Advance]) -> dict[ShardKey, Advance]:
        """A shard that ends leaves its children the latest proof there is: they are younger."""
        latest = dict(advances)
        for key in advances.keys() & self._proofs.keys():
            advance, proof = advances[key], self._proofs[key]
            if isinstance(advance.state.position, ShardEnd):
                seen = max(proof, advance.state.seen or proof)
                latest[key] = replace(advance, state=replace(advance.state, seen=seen))
        return latest

    def _advance_to(self, key: ShardKey, state: ShardState, target: Target) -> Advance:
        """Without a look; what is to be read on the way is verified by whoever reads it. Where
        there is nothing to read, nothing may have been lost since the last proof."""
        if isinstance(target, Tip) and target.row is None:
            self._judge_absent_start(key, state, target.time)
        return advance_to(state, target, None)

    def _advance_within(
        self, eligible: Mapping[ShardKey, ShardState], limits: Limits
    ) -> dict[ShardKey, Advance]:
        """Every shard is looked at for its even share of the limits; what some shards do not use
        is looked for in the others. What was found too much is left for the next batch."""
        advances, behind = self._part(eligible)
        shares = even_shares(behind, limits)
        found = self._look_ahead(behind, shares)
        found |= self._look_ahead(behind, second_shares(found, shares, limits))
        counts = admit({key: candidate_of(finding) for key, finding in found.items()}, limits)
        for key, finding in found.items():
            advances[key] = advance_by(behind[key], finding, counts[key])
        return advances

    def _look_ahead(
        self, behind: Mapping[ShardKey, ShardState], shares: Mapping[ShardKey, Share]
    ) -> dict[ShardKey, Finding]:
        """What each shard's share of the limits finds, up to its target."""
        procedures = {
            key: self._read_ahead(key, behind[key], *share) for key, share in shares.items()
        }
        found: dict[ShardKey, Finding] = {}
        for key, finding in self._look(behind, procedures).items():
            target = self._target(key)
            found[key] = finding if target is None else clip(finding, target)
        return found

    def _limited_start(self, key: ShardKey, state: ShardState) -> ShardState:
        """Return where to look from; a cursor that continues there is used instead."""
        if self._memory(key).cursor is not None:
            return state
        stream = self._discovery.description(self._streams[key.stream])
        start = limited_start(state, stream.created, self._now(), stream.retention_millis)
        return state if start == state.position else replace(state, position=start)

    def _part(
        self, eligible: Mapping[ShardKey, ShardState]
    ) -> tuple[dict[ShardKey, Advance], dict[ShardKey, ShardState]]:
        """Shards that need no look, where they get to; and the shards to be looked at now."""
        if self._targets is None:
            return {}, {key: state for key, state in eligible.items() if self._pacing.due(key)}
        advances: dict[ShardKey, Advance] = {}
        behind: dict[ShardKey, ShardState] = {}
        for key, state in eligible.items():
            target = self._target(key)
            if isinstance(target, ShardEnd) or (
                isinstance(target, Tip)
                and target.row is not None
                and is_behind(state.position, target.row.position)
            ):
                behind[key] = state
            elif target is not None:
                advances[key] = self._advance_to(key, state, target)
        return advances, behind

    def _target(self, key: ShardKey) -> Target | None:
        if self._targets is None or key.stream in self._recreated:
            return None
        return self._targets.get(key)

    def _now(self) -> EpochMillis:
        return self._service.service_time()

    def _memory(self, key: ShardKey) -> Memory:
        return self._memories.get(key, _NOTHING_KNOWN)

    def _retention(self, key: ShardKey) -> int:
        return self._discovery.description(self._streams[key.stream]).retention_millis

    def _kept_since(self, key: ShardKey, state: ShardState, limits: Limits) -> EpochMillis:
        stream, now = self._discovery.description(self._streams[key.stream]), self._now()
        retention = stream.retention_millis
        return loss.kept_since(state, stream.created, now, retention, limited=limits.bounded)

    def _probe(self, key: ShardKey, state: ShardState) -> Procedure:
        memory, retention = self._memory(key), self._retention(key)
        return partial(batch_end_probe.probe, state, memory, self._now(), retention)

    def _find_first(self, key: ShardKey, state: ShardState) -> Procedure:
        memory, retention = self._memory(key), self._retention(key)
        closed = isinstance(self._target(key), ShardEnd)
        return partial(
            batch_end_probe.find_first, state, memory, self._now(), retention, closed=closed
        )

    def _read_ahead(
        self, key: ShardKey, state: ShardState, records: int, size: int | None
    ) -> Procedure:
        return partial(
            limited_end_probe.read_ahead,
            self._limited_start(key, state),
            self._memory(key),
            self._now(),
            self._retention(key),
            records=records,
            size=size,
            tireless=self._targets is not None,
            closed=isinstance(self._target(key), ShardEnd),
        )

    def _look(
        self, states: Mapping[ShardKey, ShardState], procedures: Mapping[ShardKey, Procedure]
    ) -> dict[ShardKey, Finding]:
        """The findings; shards that were throttled are left out, with their memory kept."""
        findings = self._run(procedures, patient=self._targets is not None)
        for key, finding in findings.items():
            if finding.end is None:  # the cursor continues at the shard's position
                memory = replace(finding.memory, position=states[key].position)
                findings[key] = replace(finding, memory=memory)
            self._pacing.looked(key, calls=finding.fetches, size=finding.fetched_bytes)
            if finding.start_lost:
                self._judge_absent_start(key, states[key], finding.time)
            elif states[key].first is not None and is_unpromised(states[key]):
                self._note_moved_start(key, states[key], finding)
        return findings

    def _note_moved_start(self, key: ShardKey, state: ShardState, finding: Finding) -> None:
        decided = finding.first is not None or finding.at_tip or finding.closed
        if decided and finding.first != state.first:
            start_moved(key, first=state.first, found=finding.first)

    def _judge_absent_start(self, key: ShardKey, state: ShardState, time: EpochMillis) -> None:
        evidence = Evidence(
            found=None,
            time=time,
            retention_ms=self._retention(key),
            parent_listed=self._parent_is_listed(key),
        )
        judge_absent_start(key, state, evidence, fail=self._options.fail_on_data_loss)

    def _parent_is_listed(self, key: ShardKey) -> bool:
        listing = self._discovery.shards(self._streams[key.stream])
        shard = listing.get(key.shard)  # a look of a moment ago may have renewed the listing
        return shard is not None and any(parent in listing for parent in shard.parents)

    def _run(
        self, procedures: Mapping[ShardKey, Procedure], *, patient: bool
    ) -> dict[ShardKey, Finding]:
        outcomes = self._prober.run_all(
            procedures,
            self._streams,
            patient=lambda key: patient or self._pacing.patience_is_due(key),
        )
        findings: dict[ShardKey, Finding] = {}
        missing: dict[ShardKey, SspError] = {}
        for key, outcome in outcomes.items():
            match outcome:
                case Finding():
                    findings[key] = outcome
                    self.sights.looked(key)
                    self._refused.discard(key)
                case UnreachableError():
                    self._pacing.failed(key)
                    self.sights.failed(key, self._now(), outcome)
                    _log.warning("no news of %s: %s", key, outcome)
                case ThrottledError():
                    self._pacing.throttled(key)
                    self.sights.failed(key, self._now(), outcome)
                case ShardNotFoundError() | InvalidPositionError() | StreamNotFoundError():
                    self._pacing.throttled(key)
                    self.sights.failed(key, self._now(), outcome)
                    missing[key] = outcome
                    self._memories.pop(key, None)  # its cursor may be of a deleted stream
                case _:
                    raise outcome
        self._doubt(missing)
        return findings

    def _doubt(self, missing: Mapping[ShardKey, SspError]) -> None:
        """Shards that were listed are not to be had: look what became of their streams.

        If one was recreated or a shard has expired, the next call finds that out by itself.
        """
        refs = [self._streams[name] for name in sorted({key.stream for key in missing})]
        before = {ref.name: self._discovery.description(ref).created for ref in refs}
        for ref in refs:
            self._discovery.renew(ref, doubt=True)
            if self._discovery.description(ref).created != before[ref.name]:
                self._recreated.add(ref.name)
        for key, error in missing.items():
            ref = self._streams[key.stream]
            recreated = self._discovery.description(ref).created != before[key.stream]
            if recreated or key.shard not in self._discovery.shards(ref):
                _log.warning("%s can no longer be read: %s", key, error)
            elif self._options.fail_on_data_loss:
                raise error
            elif key not in self._refused:
                self._refused.add(key)
                shard_refused(key, error)

    def remember(self, advances: Mapping[ShardKey, Advance], keys: Collection[ShardKey]) -> None:
        """Keep what the next looks need; drop what is known of shards not among `keys`."""
        for key, advance in advances.items():
            if advance.memory.position != self._memory(key).position:
                most = self._options.max_records_per_fetch
                calls, size = fetches_of(advance.expected, most)
                self._pacing.will_be_read(key, calls=calls, size=size)
            self._expected[key] = (advance.state.position, advance.expected)
            self._memories[key] = advance.memory
            if advance.at_tip and advance.state.seen is not None:
                self._proofs[key] = advance.state.seen
        self.sights.planned(advances, self._now())
        for table in (self._memories, self._proofs, self._expected):
            for key in table.keys() - keys:
                del table[key]
        self.sights.forget_all_but(keys)
        self._pacing.forget_all_but(keys)
