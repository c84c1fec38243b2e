"""The driver's side of a query: from one offset to the next.

`BatchPlanner` holds only what may be lost at any time (listings, cursors, what was seen last) and
fetches what the pure parts ask for: `membership` says which shards are read and in which slots,
`ends` how far each could be read, `limits` how much of that is admitted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from kinesis_source import ends
from kinesis_source.data_loss import shard_vanished, start_trimmed, stream_recreated
from kinesis_source.discovery import ShardDiscovery
from kinesis_source.ends import Finding, Memory
from kinesis_source.limits import Candidate, Limits, admit
from kinesis_source.lineage import split_waiting, start_points
from kinesis_source.membership import Membership, assign_slots, carry_on, one_to_one
from kinesis_source.model import (
    AtTimestamp,
    EpochMillis,
    Latest,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from kinesis_source.offset import Offset, StreamEntry
from kinesis_source.options import KinesisOptions
from kinesis_source.outcome import (
    Advance,
    Target,
    advance_all,
    advance_by,
    advance_to,
    clip,
    is_behind,
)
from kinesis_source.planning import is_start_point, same_reading
from kinesis_source.probe_pacing import Pacing
from kinesis_source.probing import Prober, Procedure
from kinesis_source.service import (
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
    ThrottledError,
    UnreachableError,
)
from ssp_common.errors import IncompatibleStateError
from task_grouping.identifiers import ShardId, ShardKey, SlotId, StreamName
from task_grouping.slots import mapper_for

_log = logging.getLogger("spark_ssp.planner")

SEEN_REFRESHES = 8
"""`seen` is renewed at least so many times per retention period, by an empty batch if need be."""


class BatchPlanner:
    """Plans one query's batches. Not thread-safe: Spark calls it from one thread.

    `monotonic` is a clock in seconds and `sleep` waits that many; both are passed in by tests.
    """

    def __init__(
        self,
        options: KinesisOptions,
        service: KinesisService,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._options = options
        self._service = service
        self._streams: dict[StreamName, StreamRef] = {ref.name: ref for ref in options.streams}
        self._discovery = ShardDiscovery(
            service, interval_ms=options.shard_discovery_interval_ms, monotonic=monotonic
        )
        self._prober = Prober(service)
        self._pacing = Pacing(
            period_ms=options.min_fetch_period_ms, monotonic=monotonic, sleep=sleep
        )
        self._mapper = mapper_for(options.slot_assignment.value)
        self._memories: dict[ShardKey, Memory] = {}
        self._lag: dict[ShardKey, int] = {}
        self._targets: dict[ShardKey, Target] | None = None
        self._slots: int | None = None

    # --- What Spark asks ---------------------------------------------------------------------

    def next_offset(self, start: Offset, limits: Limits) -> Offset | None:
        """The end of the next batch; None when there is nothing to read and nothing to record.

        Errors are those of the service's contract, plus DataLossError when `failOnDataLoss`.
        """
        self._check_streams(start)
        if self._targets is None or limits.bounded:
            self._pacing.wait(self._memories.keys() & start.states.keys())
        members, resolved = self._members(start)
        slots, previous = self._slots_and_previous(start)
        listings = {name: self._discovery.shards(ref) for name, ref in self._streams.items()}
        assignment = assign_slots(members, listings, previous, self._mapper, slots)
        advances = self._advance(members, resolved, listings, limits)
        self._remember(members, advances)
        end = Offset(
            slots=slots,
            streams=members.streams,
            assignment=assignment,
            states={
                key: advances[key].state if key in advances else state
                for key, state in members.states.items()
            },
            waiting=members.waiting,
        )
        if same_reading(start, end) and not self._seen_is_old(start, advances):
            return None
        self._log_changes(start, end)
        return end

    def stop_at_tip(self) -> None:
        """From now on read what the streams hold at this moment and no more.

        Also for shards that may not be read yet, because their parents come first.
        """
        self._targets = None
        self._discovery.freeze(self._streams.values())
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
                procedures[key] = partial(ends.find_tip, TrimHorizon(), now, oldest=oldest)
        for key, outcome in self._run(procedures, patient=True).items():
            targets[key] = ShardEnd() if outcome.closed else outcome.end
        self._targets = targets

    def lag(self) -> dict[str, dict[str, int]]:
        """Milliseconds behind the tip after the batch planned last, by stream and shard."""
        by_stream: dict[str, dict[str, int]] = {name: {} for name in sorted(self._streams)}
        for key in sorted(self._lag):
            by_stream[key.stream][key.shard] = self._lag[key]
        return by_stream

    def close(self) -> None:
        """Stop the threads."""
        self._prober.close()

    # --- Which shards ------------------------------------------------------------------------

    def _check_streams(self, start: Offset) -> None:
        foreign = sorted(start.streams.keys() - self._streams.keys())
        if foreign:
            raise IncompatibleStateError(
                "option streamName (or streamARN)",
                found=f"{', '.join(sorted(self._streams))}; the checkpoint is of "
                f"{', '.join(sorted(start.streams))}",
                expected="every stream of the checkpoint (more may be added)",
                next_step=f"add {', '.join(foreign)}, or start on a new checkpoint location",
            )

    def _members(self, start: Offset) -> tuple[Membership, set[ShardKey]]:
        """The shards of the next offset, and those whose position was only just resolved."""
        known, renewed = self._part_streams(start)
        listings = {name: self._discovery.shards(ref) for name, ref in self._streams.items()}
        members = carry_on(start, known, listings)
        doubtful = {key.stream for key in members.vanished} | set(members.undiscovered)
        if doubtful and not self._discovery.frozen:
            lost = {key.stream for key in members.vanished}
            for name in sorted(doubtful):
                self._discovery.renew(self._streams[name], doubt=name in lost)
            known, renewed = self._part_streams(start)
            listings = {name: self._discovery.shards(ref) for name, ref in self._streams.items()}
            members = carry_on(start, known, listings)
        for key in members.vanished:
            shard_vanished(key, fail=self._options.fail_on_data_loss)
        resolved: set[ShardKey] = set()
        for name in sorted(self._streams.keys() - known):
            position = (
                StartingPosition(default=TrimHorizon())
                if name in renewed
                else self._options.starting_position
            )
            resolved |= self._begin(members, self._streams[name], position)
        return members, resolved

    def _part_streams(self, start: Offset) -> tuple[set[StreamName], set[StreamName]]:
        """The streams that go on, and those that were recreated under the query's feet."""
        known: set[StreamName] = set()
        renewed: set[StreamName] = set()
        for name, entry in start.streams.items():
            created = self._discovery.description(self._streams[name]).created
            if created == entry.created:
                known.add(name)
            else:
                fail = self._options.fail_on_data_loss
                stream_recreated(name, before=entry.created, now=created, fail=fail)
                renewed.add(name)
        return known, renewed

    def _begin(self, members: Membership, ref: StreamRef, start: StartingPosition) -> set[ShardKey]:
        """Take in a stream that is new to the query."""
        listing = self._discovery.shards(ref)
        points = start_points(ref.name, list(listing.values()), start)
        now = self._service.service_time()
        procedures: dict[ShardKey, Procedure] = {
            ShardKey(stream=ref.name, shard=shard): partial(ends.find_latest, now)
            for shard, point in points.items()
            if isinstance(point, Latest)
        }
        found = self._run(procedures, patient=True)
        points = {
            shard: point
            for shard, point in points.items()
            if not isinstance(point, Latest) or ShardKey(stream=ref.name, shard=shard) in found
        }
        entries: dict[ShardId, ShardState] = {}
        for shard, point in points.items():
            if isinstance(point, Latest):
                key = ShardKey(stream=ref.name, shard=shard)
                entries[shard] = _resolved(found[key], now)
                self._memories[key] = found[key].memory
            else:
                entries[shard] = ShardState(position=point)
        states, waiting = split_waiting(listing.values(), entries)
        created = self._discovery.description(ref).created
        members.add(ref.name, StreamEntry(created=created, start=start), states, waiting)
        _log.info("stream %s starts with %d shards", ref.name, len(entries))
        return set(procedures)

    # --- Which slots -------------------------------------------------------------------------

    def _slots_and_previous(self, start: Offset) -> tuple[int, Mapping[ShardKey, SlotId]]:
        """The number of slots, fixed for one run of the query, and the assignment to go on from.

        A restart recomputes: it starts afresh if the number changed, or if the number follows the
        shards and two of them share a slot (back to 1:1).
        """
        restarted = self._slots is None
        if self._slots is None:
            self._slots = self._options.slots or max(1, self._open_shards())
        afresh = start.slots != self._slots or (
            restarted and self._options.slots is None and not one_to_one(start)
        )
        return self._slots, {} if afresh else start.assignment

    def _open_shards(self) -> int:
        return sum(
            not shard.closed
            for ref in self._streams.values()
            for shard in self._discovery.shards(ref).values()
        )

    # --- How far -----------------------------------------------------------------------------

    def _advance(
        self,
        members: Membership,
        resolved: set[ShardKey],
        listings: Mapping[StreamName, Mapping[ShardId, Shard]],
        limits: Limits,
    ) -> dict[ShardKey, Advance]:
        """Where each shard gets to; shards without news are left out."""
        eligible = {
            key: state
            for key, state in members.states.items()
            if key not in resolved and not isinstance(state.position, ShardEnd)
        }
        if limits.bounded:
            return self._advance_within(eligible, limits)
        advances: dict[ShardKey, Advance] = {}
        procedures: dict[ShardKey, Procedure] = {}
        targets: dict[ShardKey, Target] = {}
        for key, state in eligible.items():
            closed = listings[key.stream][key.shard].closed
            if closed or self._targets is not None:
                target: Target = ShardEnd() if closed else self._target(key)
                if not is_start_point(state.position):
                    advances[key] = advance_to(state, target, None)
                else:
                    targets[key] = target
                    procedures[key] = partial(
                        ends.find_first, state, self._memory(key), self._now()
                    )
            elif self._pacing.due(key):
                procedures[key] = self._probe(key, state)
        for key, finding in self._look(eligible, procedures).items():
            state = eligible[key]
            if key in targets:
                advances[key] = advance_to(state, targets[key], finding)
            else:
                advances[key] = advance_all(state, finding)
        return advances

    def _advance_within(
        self, eligible: Mapping[ShardKey, ShardState], limits: Limits
    ) -> dict[ShardKey, Advance]:
        """Every shard is looked at for its even share of the limits; what some shards do not use
        is looked for in the others. What was found too much is left for the next batch."""
        behind = {
            key: state
            for key, state in eligible.items()
            if (self._targets is None and self._pacing.due(key))
            or self._short_of_target(key, state)
        }
        found: dict[ShardKey, Finding] = {}
        wanted = _shares(behind, limits)
        for _ in range(2):
            procedures = {
                key: self._read_ahead(key, behind[key], *share) for key, share in wanted.items()
            }
            for key, finding in self._look(behind, procedures).items():
                found[key] = finding if self._targets is None else clip(finding, self._target(key))
            wanted = _second_shares(found, wanted, limits)
            if not wanted:
                break
        counts = admit(
            {
                key: Candidate(
                    sizes=[row.size for row in finding.rows], millis_behind=finding.millis_behind
                )
                for key, finding in found.items()
            },
            limits,
        )
        return {key: advance_by(behind[key], found[key], counts[key]) for key in found}

    def _short_of_target(self, key: ShardKey, state: ShardState) -> bool:
        if self._targets is None:
            return False
        target = self._target(key)
        if target is None or isinstance(target, ShardEnd):
            return target is not None
        return is_behind(state.position, target.position)

    def _target(self, key: ShardKey) -> Target:
        return self._targets.get(key) if self._targets is not None else None

    def _now(self) -> EpochMillis:
        return self._service.service_time()

    def _memory(self, key: ShardKey) -> Memory:
        return self._memories.get(key, Memory())

    def _retention(self, key: ShardKey) -> int:
        return self._discovery.description(self._streams[key.stream]).retention_millis

    def _probe(self, key: ShardKey, state: ShardState) -> Procedure:
        memory, retention = self._memory(key), self._retention(key)
        return partial(ends.probe, state, memory, self._now(), retention)

    def _read_ahead(
        self, key: ShardKey, state: ShardState, records: int, size: int | None
    ) -> Procedure:
        return partial(
            ends.read_ahead,
            state,
            self._memory(key),
            self._now(),
            self._retention(key),
            records=records,
            size=size,
            tireless=self._targets is not None,
        )

    # --- Looking -----------------------------------------------------------------------------

    def _look(
        self, states: Mapping[ShardKey, ShardState], procedures: Mapping[ShardKey, Procedure]
    ) -> dict[ShardKey, Finding]:
        """The findings; shards that were throttled are left out, with their memory kept."""
        findings = self._run(procedures, patient=self._targets is not None)
        for key, finding in findings.items():
            self._pacing.looked(key, busy=finding.jumped)
            if finding.start_lost:
                start_trimmed(
                    key,
                    seen=states[key].seen,
                    retention_ms=self._retention(key),
                    fail=self._options.fail_on_data_loss,
                )
        return findings

    def _run(
        self, procedures: Mapping[ShardKey, Procedure], *, patient: bool
    ) -> dict[ShardKey, Finding]:
        outcomes = self._prober.run_all(
            procedures,
            self._streams,
            patient=lambda key: patient or self._pacing.patience_is_due(key),
        )
        findings: dict[ShardKey, Finding] = {}
        for key, outcome in outcomes.items():
            match outcome:
                case Finding():
                    findings[key] = outcome
                case UnreachableError():
                    self._pacing.failed(key)
                    _log.warning("no news of %s: %s", key, outcome)
                case ThrottledError():
                    self._pacing.throttled(key)
                    _log.debug("no news of %s: %s", key, outcome)
                case ShardNotFoundError() | InvalidPositionError():
                    self._doubt(key, outcome)
                case _:
                    raise outcome
        return findings

    def _doubt(self, key: ShardKey, error: Exception) -> None:
        """A shard that was listed is not to be had: look what became of its stream.

        If it was recreated or the shard has expired, the next call finds that out by itself.
        """
        ref = self._streams[key.stream]
        before = self._discovery.description(ref).created
        self._discovery.renew(ref, doubt=True)
        gone = key.shard not in self._discovery.shards(ref)
        if self._discovery.description(ref).created == before and not gone:
            raise error
        _log.warning("%s is not to be had any more: %s", key, error)

    # --- Afterwards --------------------------------------------------------------------------

    def _remember(self, members: Membership, advances: Mapping[ShardKey, Advance]) -> None:
        for key, advance in advances.items():
            self._memories[key] = advance.memory
            self._lag[key] = advance.millis_behind
        for key in list(self._memories):
            if key not in members.states and key not in members.waiting:
                del self._memories[key]
        for key in list(self._lag):
            if key not in members.states:
                del self._lag[key]
        self._pacing.forget_all_but(members.states.keys())

    def _seen_is_old(self, start: Offset, advances: Mapping[ShardKey, Advance]) -> bool:
        for key, advance in advances.items():
            before = start.states.get(key)
            if before is None or advance.state.seen is None or not advance.at_tip:
                continue
            age = advance.state.seen - (before.seen if before.seen is not None else 0)
            if age >= self._retention(key) / SEEN_REFRESHES:
                return True
        return False

    def _log_changes(self, start: Offset, end: Offset) -> None:
        for key in sorted(end.states.keys() - start.states.keys()):
            _log.info("%s is read in slot %d", key, end.assignment[key])
        for key in sorted(start.states.keys() - end.states.keys()):
            _log.info("%s is finished", key)
        if start.slots != end.slots:
            _log.info("the query has %d slots", end.slots)


def _resolved(finding: Finding, now: EpochMillis) -> ShardState:
    """LATEST as a position. A shard that closed meanwhile has nothing later."""
    if finding.closed:
        return ShardState(position=ShardEnd())
    if finding.end is None:
        return ShardState(position=AtTimestamp(millis=now), seen=now)
    return ShardState(position=finding.end.position, seen=finding.time)


Share = tuple[int, int | None]


def _shares(keys: Mapping[ShardKey, ShardState], limits: Limits) -> dict[ShardKey, Share]:
    """Each shard's even share of the limits, in records and bytes, at least one record."""
    count = max(1, len(keys))
    records = ends.MANY_RECORDS if limits.records is None else -(-limits.records // count)
    size = None if limits.size is None else -(-limits.size // count)
    return dict.fromkeys(keys, (max(1, records), size))


def _second_shares(
    found: Mapping[ShardKey, Finding], asked: Mapping[ShardKey, Share], limits: Limits
) -> dict[ShardKey, Share]:
    """What is left of the limits, for the shards that had more than their share."""
    hungry = [
        key
        for key in sorted(asked)
        if key in found and found[key].rows and not found[key].jumped and found[key].has_more
    ]
    if not hungry or len(hungry) == len(found):
        return {}
    records, size = limits.records, limits.size
    for key, finding in found.items():
        used = asked[key] if finding.jumped else _used(finding)
        records = None if records is None else records - used[0]
        size = None if size is None else size - (used[1] or 0)
    if (records is not None and records < len(hungry)) or (size is not None and size <= 0):
        return {}
    return {
        key: (
            ends.MANY_RECORDS if records is None else asked[key][0] + records // len(hungry),
            None if size is None else (asked[key][1] or 0) + size // len(hungry),
        )
        for key in hungry
    }


def _used(finding: Finding) -> Share:
    return len(finding.rows), sum(row.size for row in finding.rows)
