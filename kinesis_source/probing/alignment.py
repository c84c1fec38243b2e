"""Ends a batch at one instant across shards, so that no shard is read ahead of another one's unread
records.

A watermark is one value for a query: the latest event time of a batch, less the delay. If a batch
leaves records of one shard unread and contains younger ones of another shard, Spark may drop the
older ones in the next batch as late, without an error. So a batch ends everywhere at the arrival of
the oldest record that it leaves unread (`Bound`).

Shards that have to wait for their parents count as well: their records are unread until a later
batch. Near the latest record of every shard nothing is cut and no call is made: there the end of a
busy shard's batch is up to `TOLERANCE_MS` from its latest record.
The rules and the alternatives are in docs/design/batch-ends.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Final

import msgspec

from spark_ssp.common.logs import Detail
from spark_ssp.common.structs import replace
from spark_ssp.common.times import duration_text, time_text
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    ShardEnd,
    ShardState,
    TrimHorizon,
    sequence_order,
)
from spark_ssp.kinesis_source.planning.active_shards import Listings, ancestors, children_of
from spark_ssp.kinesis_source.probing.batch_end_probe import find_oldest
from spark_ssp.kinesis_source.probing.fixed_targets import FixedTargets
from spark_ssp.kinesis_source.probing.instant_probe import find_last_until, rows_until
from spark_ssp.kinesis_source.probing.position_advance import (
    LatestRecord,
    ShardAdvance,
    advance_by_records,
    advance_to_end,
)
from spark_ssp.kinesis_source.probing.probe_protocol import (
    ProbeResult,
    RecordRef,
    ShardCursor,
)
from spark_ssp.kinesis_source.probing.probe_runner import Probe
from spark_ssp.kinesis_source.probing.shard_lag import children_since, max_lag_ms
from spark_ssp.kinesis_source.probing.shard_prober import ShardProber

_log = logging.getLogger(__name__)

TOLERANCE_MS: Final = 5_000
"""The age up to which unread records of a shard that keeps up hold nothing back: above the distance
from the latest record at which a batch ends in a busy shard (`batch_end_probe.REST_MS`)."""
NEAR_ENOUGH_MS: Final = 1_000
"""The distance from the batch's end, before or after it, at which an end that is found by time may
be: a second of a busy shard's records would have to be read to find the last one."""
HELD_MS: Final = 10_000
"""The time after which a shard that holds others back is logged."""
HELD_EVERY_MS: Final = 60_000


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest record that a batch leaves unread: one of `key`, which arrived at `time` or
    later."""

    key: ShardKey
    time: EpochMillis


def oldest_unread(unread: Mapping[ShardKey, EpochMillis]) -> Bound | None:
    """Return the bound of a batch; None if it leaves nothing unread."""
    if not unread:
        return None
    key = min(unread, key=lambda key: (unread[key], key))
    return Bound(key=key, time=unread[key])


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """The distance of a batch from one instant, for the query's progress."""

    spread_ms: int
    """The result of `arrival_spread`."""
    holds_back: ShardKey | None
    """The shard for which the batch was cut in others."""
    left_behind: frozenset[ShardKey]
    """Shards that could not be read for so long that the others no longer wait for them, and those
    that come after them."""


def arrival_spread(newest: EpochMillis | None, unread: Collection[EpochMillis]) -> int:
    """Return the milliseconds from the oldest unread record to the newest record that planned
    batches contain: by how much a shard was read ahead of another one's unread records.

    `unread`: for each shard that has some, a time at or before their arrival, so the spread is
    never too small. 0 if nothing is unread, or only newer records.
    """
    if newest is None or not unread:
        return 0
    return max(0, newest - min(unread))


def next_generation(
    states: Collection[ShardKey],
    listings: Listings,
    empty: Collection[ShardKey],
) -> list[ShardKey]:
    """Return the shards that wait for those of `states`: the descendants that come next. A
    descendant among `empty`, which has ended without a record, is passed over for its own
    children: a shard's records are younger than its parents'."""
    found: set[ShardKey] = set()
    for stream in sorted({key.stream for key in states}):
        listing = listings[stream]
        known = {key.shard for key in states if key.stream == stream}
        passed = known | ancestors(listing, known)
        children = children_of(listing.values())
        pending = sorted(known)
        seen: set[str] = set()
        while pending:
            for child in children.get(pending.pop(), ()):
                if child in seen or child in known:
                    continue
                seen.add(child)
                key = ShardKey(stream=stream, shard=child)
                if child in passed or key in empty:
                    pending.append(child)
                else:
                    found.add(key)
    return sorted(found)


# --- The batch -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Hold:
    """The shard that holds others back, since when, and when that was logged."""

    key: ShardKey
    since: EpochMillis
    logged: EpochMillis | None = None


class _Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A result of `next_generation`, and its inputs."""

    keys: frozenset[ShardKey]
    empty: frozenset[ShardKey]
    listings: Listings
    found: list[ShardKey]


@dataclass(slots=True)
class BatchAlignment:
    """Aligns the batches of one query. Not thread-safe."""

    prober: ShardProber
    targets: FixedTargets
    patience_ms: int
    """The time for which a shard that cannot be read holds the others back."""
    tolerance_ms: int = TOLERANCE_MS
    bound: Bound | None = None
    """The bound of the batch planned last."""
    spared: frozenset[ShardKey] = frozenset()
    """The shards that the bound did not cut, in the batch planned last."""
    overdue: frozenset[ShardKey] = frozenset()
    """The shards that were too far behind to be held back, in the batch planned last."""
    outcome: Alignment | None = None
    """Of the batch planned last; None before the first one."""
    resolved_at: dict[ShardKey, EpochMillis] = field(default_factory=dict)
    """The probes that have resolved LATEST for the batch that is being planned."""
    _left_behind: set[ShardKey] = field(default_factory=set)
    """Shards that could not be read for that long, which was logged."""
    _newest: EpochMillis | None = None
    """The newest arrival seen in planned batches while records were unread."""
    _oldest: dict[ShardKey, EpochMillis] = field(default_factory=dict)
    """The arrival of the first record of each waiting shard."""
    _cursors: dict[ShardKey, ShardCursor] = field(default_factory=dict)
    """The cursor of each waiting shard after its last probe."""
    _none_until: dict[ShardKey, EpochMillis] = field(default_factory=dict)
    """The times until which waiting shards had no record."""
    _empty: set[ShardKey] = field(default_factory=set)
    """Shards that ended without a record."""
    children: frozenset[ShardKey] = frozenset()
    """The shards of the next generation that wait, as of the batch planned last."""
    _created: dict[ShardKey, EpochMillis] = field(default_factory=dict)
    """The creation times of their streams."""
    _ends: dict[ShardKey, tuple[EpochMillis, EpochMillis]] = field(default_factory=dict)
    """The arrival of the last record of closed shards, after the creation time of their stream."""
    _unreadable: dict[ShardKey, EpochMillis] = field(default_factory=dict)
    """Shards that could not be read, and since when."""
    _hold: _Hold | None = None
    _overdue_logged: set[StreamName] = field(default_factory=set)
    _generation: _Generation | None = None

    def align(
        self,
        states: Mapping[ShardKey, ShardState],
        waiting: Mapping[ShardKey, ShardState],
        listings: Listings,
        advances: Mapping[ShardKey, ShardAdvance],
        results: Mapping[ShardKey, ProbeResult],
        *,
        resolved: Collection[ShardKey] = (),
        limited: bool = False,
    ) -> dict[ShardKey, ShardAdvance]:
        """Return the advances of a batch that ends at one instant.

        `states`: the entries of the offset, from which each advance starts, of which those that
        are `resolved` are at their latest record; `waiting`: those that wait for their parents;
        `results`: the probes that the advances follow from; `limited`: a limit cut the advances.
        """
        now = self.prober.service_time()
        unknown: set[ShardKey] = set()
        unread: dict[ShardKey, EpochMillis] = {}
        for key, state in states.items():
            advance = advances.get(key)
            result = results.get(key)
            if key in resolved or (advance is not None and advance.at_latest):
                # Probes of other shards may have taken, or waited, so long that these have records
                # of a later time than is known of this one.
                asked = self.resolved_at.get(key) if result is None else result.time
                if self.targets.are_fixed or asked is None:
                    continue
                if now - asked > self.tolerance_ms:
                    unread[key] = asked
                continue
            since = self._unread_since(key, state, advance, result, now)
            keeps_up = since is not None and now - since <= self.tolerance_ms
            if since is None or (keeps_up and (advance is None or not limited)):
                continue
            unread[key] = since
            if advance is None:
                # One that is not due yet is as its last probe showed it.
                shows_nothing = key in self._unreadable or self.prober.history.is_failing(key)
            else:
                is_empty = result is None or not result.records
                shows_nothing = is_empty and advance.state.position == state.position
            if shows_nothing:
                unknown.add(key)
        children = self._unread_children(states, waiting, listings, unknown)
        unread |= children
        self._find_ends_before(unknown, states, listings, advances, results)
        for key in unknown:
            since = self._since_ancestors(key, states, listings, advances, results, now)
            unread[key] = max(unread.get(key, since), since)
        # Children that the batch may not read yet, as it does not read their parents to the end,
        # continue where these probes left off.
        self.prober.cursors |= {key: advances[key].cursor for key in unknown & advances.keys()}
        self.children |= unknown
        gone = self._give_up(unknown, now)
        gone |= {key for key in unread if self.prober.is_unreadable(key)}
        if gone:  # the children of such a shard wait for as long
            gone |= {key for key in children if gone & _ancestors_of(key, listings)}
        awaited = {key: since for key, since in unread.items() if key not in gone}
        self.bound = oldest_unread(awaited)
        aligned = dict(advances)
        self.spared = self.overdue = frozenset()
        held: list[ShardKey] = []
        if self.bound is not None:
            until = self.bound.time
            # The bound cuts neither its own shard, of which a record may claim to have arrived
            # before the one that it follows, nor the shards before it, whatever their clocks;
            # unless it is no record's arrival: they may contain younger ones.
            oldest = {key for key in awaited if awaited[key] <= until and key not in unknown}
            spared = oldest | {older for key in oldest for older in _ancestors_of(key, listings)}
            self.spared = frozenset(spared)
            aligned, short = self._cut(states, advances, results, until, spared)
            while short:
                # What these shards leave unread bounds the others too.
                for key in short:
                    advance, result = aligned.get(key), results.get(key)
                    since = self._unread_since(key, states[key], advance, result, now)
                    unread[key] = now if since is None else since
                earlier = min(unread[key] for key in short)
                if earlier >= until:
                    break
                until = earlier
                aligned, short = self._cut(states, aligned, results, until, spared, probing=False)
            self.overdue = self._overdue(self.bound, states, aligned, results, now)
            aligned |= {key: advances[key] for key in self.overdue & advances.keys()}
            held = [key for key in advances if aligned.get(key) != advances[key]]
        self.resolved_at.clear()
        self._note(held, now)
        self.outcome = Alignment(
            spread_ms=self._spread_ms(states, aligned, results, unread),
            holds_back=self.bound.key if self.bound is not None and held else None,
            left_behind=frozenset(gone),
        )
        return aligned

    def retain(self, keys: Collection[ShardKey], listings: Listings) -> None:
        """Drop the state of shards that are no longer listed, or that are being read."""
        for key in self._ends.keys() - keys:
            del self._ends[key]
        known = self._oldest.keys() | self._cursors.keys() | self._empty
        for key in known - self._created.keys():
            self._created[key] = self.prober.description(key).created
        for key in list(self._created):
            same = self._created[key] == self.prober.description(key).created
            if not same or key in keys or not _is_listed(key, listings):
                del self._created[key]
                self._oldest.pop(key, None)
                self._none_until.pop(key, None)
                self._cursors.pop(key, None)
                self._empty.discard(key)

    # --- What is unread ---------------------------------------------------------------------------

    def _unread_since(
        self,
        key: ShardKey,
        state: ShardState,
        advance: ShardAdvance | None,
        result: ProbeResult | None,
        now: EpochMillis,
    ) -> EpochMillis | None:
        """Return a time at or before the arrival of the oldest record that the batch leaves unread
        of a shard; None if there is none yet."""
        if isinstance(state.position, ShardEnd) or self._is_ignored(key):
            return None
        if advance is not None:
            if isinstance(advance.state.position, ShardEnd):
                return None
            following = None if result is None else _first_unread(advance, result)
            reached = advance.cursor.reached_ms
            if following is not None:
                # A record may claim to have arrived before the one that it follows.
                return following.arrival if reached is None else max(following.arrival, reached)
            if advance.state.position != state.position and reached is not None:
                return reached
        last = self.prober.history.last_probe(key)
        known = [EpochMillis(now - max_lag_ms(state, last, self.prober.description(key), now))]
        cursor = self.prober.cursor(key)
        if cursor.position == state.position:
            if cursor.lookahead is not None:
                known.append(cursor.lookahead.records[0].arrival)
            elif cursor.reached_ms is not None:
                known.append(cursor.reached_ms)
        if key in self._oldest and isinstance(state.position, TrimHorizon):
            known.append(self._oldest[key])
        return max(known)

    def _unread_children(
        self,
        states: Mapping[ShardKey, ShardState],
        waiting: Mapping[ShardKey, ShardState],
        listings: Listings,
        unknown: set[ShardKey],
    ) -> dict[ShardKey, EpochMillis]:
        """Return the arrival of the first record of each shard that waits, probed once. One that
        does not answer is added to `unknown`."""
        now = self.prober.service_time()
        at_end = {key for key, state in waiting.items() if isinstance(state.position, ShardEnd)}
        # These hold nothing back without an answer.
        recent = {
            key for key, since in self._none_until.items() if now - since <= self.tolerance_ms
        }
        while True:
            found = [
                key
                for key in {*self._next_generation(states, listings), *waiting} - at_end
                if key not in self._empty and not self._is_ignored(key)
            ]
            begin = {
                key: waiting.get(key, ShardState(position=TrimHorizon()))
                for key in found
                if key not in self._oldest and self.targets.may_probe(key)
            }
            results = self.prober.run_repeated(
                {
                    key: partial(find_oldest, state, self._cursors.get(key, ShardCursor()), now)
                    for key, state in begin.items()
                },
                lambda keys: keys - self._left_behind - recent,
            )
            ended = {
                key
                for key, result in results.items()
                # The listings of a run to fixed targets may still have the shard as open.
                if result.closed
                and isinstance(self.targets.of(key, listings[key.stream][key.shard]), ShardEnd)
            }
            for key, result in results.items():
                self._none_until.pop(key, None)
                self._cursors[key] = result.cursor
                if result.end is not None:
                    # Not asked again, so it is due when its parents are read.
                    self._oldest[key] = result.end.arrival
                    self.prober.limiter.count_calls(key, result.fetches)
                    continue
                size = result.fetched_bytes
                self.prober.limiter.record_probe(key, calls=result.fetches, size=size)
                if result.at_latest:
                    self._none_until[key] = result.time
            self._empty |= ended
            if not ended:
                break
        self.children = frozenset(found)
        unread: dict[ShardKey, EpochMillis] = {}
        for key in found:
            if key in self._oldest:
                unread[key] = self._oldest[key]
                continue
            since = self._none_until.get(key)
            if since is None:
                unknown.add(key)
            elif now - since > self.tolerance_ms:
                unread[key] = since
        return unread

    def _next_generation(
        self, states: Mapping[ShardKey, ShardState], listings: Listings
    ) -> list[ShardKey]:
        """Return `next_generation`, which is the same in most triggers."""
        known = self._generation
        same = (
            known is not None
            and known.keys == states.keys()
            and known.empty == self._empty
            and known.listings.keys() == listings.keys()
            and all(known.listings[name] is listings[name] for name in listings)
        )
        if known is None or not same:
            known = self._generation = _Generation(
                keys=frozenset(states),
                empty=frozenset(self._empty),
                listings=dict(listings),
                found=next_generation(states.keys(), listings, self._empty),
            )
        return known.found

    def _since_ancestors(
        self,
        key: ShardKey,
        states: Mapping[ShardKey, ShardState],
        listings: Listings,
        advances: Mapping[ShardKey, ShardAdvance],
        results: Mapping[ShardKey, ProbeResult],
        now: EpochMillis,
    ) -> EpochMillis:
        """Return a time at or before the arrival of all records of a shard that follow those that
        the batch reads of its ancestors."""
        since = [EpochMillis(now - self.prober.description(key).retention_ms)]
        for older in _ancestors_of(key, listings) & states.keys():
            last = self.prober.history.last_probe(older)
            known = children_since(states[older], last, self.prober.description(older), now)
            advance = advances.get(older)
            end = None if advance is None else self._end_time(older, advance, results.get(older))
            since.append(known if end is None else end)
        return max(since)

    def _find_ends_before(
        self,
        keys: Collection[ShardKey],
        states: Mapping[ShardKey, ShardState],
        listings: Listings,
        advances: Mapping[ShardKey, ShardAdvance],
        results: Mapping[ShardKey, ProbeResult],
    ) -> None:
        """Find the last records of shards that the batch reads to their end without a probe, if
        `keys` follow them."""
        probes: dict[ShardKey, Probe] = {}
        now = self.prober.service_time()
        for key in {older for child in keys for older in _ancestors_of(child, listings)}:
            advance = advances.get(key)
            if (
                advance is not None
                and isinstance(advance.state.position, ShardEnd)
                and not isinstance(states[key].position, ShardEnd)
                and self._end_time(key, advance, results.get(key)) is None
            ):
                cursor, kept_ms = self.prober.cursor(key), self.prober.kept_ms(key)
                probes[key] = partial(find_last_until, states[key], cursor, now, kept_ms, now, now)
        found = self.prober.run(probes, patient=self.targets.are_fixed)
        for key, result in found.items():
            self.prober.limiter.record_probe(key, calls=result.fetches, size=result.fetched_bytes)
            if result.end is not None and not result.has_more:
                self._ends[key] = self.prober.description(key).created, result.end.arrival

    def _is_ignored(self, key: ShardKey) -> bool:
        """Return whether a run to fixed targets reads nothing of the shard."""
        if not self.targets.are_fixed:
            return False
        target = self.targets.get(key)
        return target is None or (isinstance(target, LatestRecord) and target.record is None)

    def _give_up(self, unknown: Collection[ShardKey], now: EpochMillis) -> set[ShardKey]:
        """Return the shards that could not be read for too long."""
        self._unreadable = {key: self._unreadable.get(key, now) for key in unknown}
        gone = {key for key, since in self._unreadable.items() if now - since >= self.patience_ms}
        for key in sorted(gone - self._left_behind):
            _log.warning(
                "shard %s could not be read for %s (alignmentTimeout): the other shards are read "
                "on without it, and its rows may be late for a watermark",
                Detail(key),
                duration_text(now - self._unreadable[key]),
            )
        self._left_behind = gone
        return set(gone)

    def _overdue(
        self,
        bound: Bound,
        states: Mapping[ShardKey, ShardState],
        aligned: Mapping[ShardKey, ShardAdvance],
        results: Mapping[ShardKey, ProbeResult],
        now: EpochMillis,
    ) -> frozenset[ShardKey]:
        """Return the shards whose records could expire while they wait for the bound's: the oldest
        that an aligned batch leaves unread has half the age to which its stream keeps records, and
        the bound's stream keeps them longer. Where it does not, the bound's expire first."""
        overdue: set[ShardKey] = set()
        longest = self.prober.kept_ms(bound.key)
        keys = {key.stream: key for key in states}
        shorter = {
            stream: kept_ms
            for stream, key in keys.items()
            if (kept_ms := self.prober.kept_ms(key)) < longest
        }
        for key, state in states.items() if shorter else ():
            advance = aligned.get(key)
            if key.stream not in shorter or (advance is not None and advance.at_latest):
                continue
            kept_ms = shorter[key.stream]
            since = self._unread_since(key, state, advance, results.get(key), now)
            if since is None or now - since < kept_ms // 2:
                continue
            overdue.add(key)
            if key.stream not in self._overdue_logged:
                self._overdue_logged.add(key.stream)
                _log.warning(
                    "stream %s keeps records for %s: shard %s is read on without waiting for %s, "
                    "whose rows may be late for a watermark; raise the retention of %s, or read "
                    "the streams by two queries until the other has caught up",
                    *(key.stream, duration_text(kept_ms), Detail(key), Detail(bound.key)),
                    key.stream,
                )
        return frozenset(overdue)

    # --- The cut ----------------------------------------------------------------------------------

    def _cut(
        self,
        states: Mapping[ShardKey, ShardState],
        advances: Mapping[ShardKey, ShardAdvance],
        results: Mapping[ShardKey, ProbeResult],
        until: EpochMillis,
        spared: Collection[ShardKey],
        *,
        probing: bool = True,
    ) -> tuple[dict[ShardKey, ShardAdvance], set[ShardKey]]:
        """Return the advances up to an instant, and the shards that are short of it: those whose
        probe was throttled, or that need one without `probing`. They advance by the records that
        were counted, if there are any."""
        aligned = dict(advances)
        probes: dict[ShardKey, Probe] = {}
        for key, advance in advances.items():
            state, result = states[key], results.get(key)
            if key in spared or advance.state.position == state.position:
                continue
            if result is not None and result.closed and result.end is None:
                continue  # the end of a shard without further records
            end = self._end_time(key, advance, result)
            # Ends that were found by time for the same instant differ by the gaps of their shards.
            by_time = result is not None and result.found_by_time
            if end is not None and end <= until + (NEAR_ENOUGH_MS if by_time else 0):
                continue
            counted = _counted_part(result)
            if (
                result is not None
                and counted is not None
                and (
                    _is_counted(advance, result)
                    or rows_until(counted.records, until) < len(counted.records)
                )
            ):
                within = rows_until(_records_of(advance, result), until)
                part = counted if result.found_by_time else result
                aligned[key] = advance_by_records(state, part, within)
                continue
            probes[key] = partial(
                find_last_until,
                state,
                _with_rate(self.prober.cursor(key), result),
                self.prober.service_time(),
                self.prober.kept_ms(key),
                EpochMillis(until - NEAR_ENOUGH_MS),
                until,
            )
        if not probing:
            found: dict[ShardKey, ProbeResult] = {}
        elif self.targets.are_fixed:
            found = self.prober.run(probes, patient=True)
        else:
            found = self.prober.run_repeated(probes, lambda keys: keys)
        for key, result in found.items():
            self.prober.limiter.record_probe(key, calls=result.fetches, size=result.fetched_bytes)
            aligned[key] = self._advance_until(states[key], advances[key], result, until)
        short = probes.keys() - found.keys()
        for key in short:
            counted = _counted_part(results.get(key))
            if counted is None:
                del aligned[key]
            else:
                within = rows_until(counted.records, until)
                aligned[key] = advance_by_records(states[key], counted, within)
        return aligned, set(short)

    def _end_time(
        self, key: ShardKey, advance: ShardAdvance, result: ProbeResult | None
    ) -> EpochMillis | None:
        """Return the arrival of the last record that the advance reads; None if it is unknown."""
        position: Position = advance.state.position
        if isinstance(position, ShardEnd):
            if result is not None and result.closed and result.end is not None:
                return result.end.arrival
            created, arrival = self._ends.get(key, (None, None))
            return arrival if created == self.prober.description(key).created else None
        if advance.cursor.position == position:
            return advance.cursor.reached_ms
        target = self.targets.get(key)
        if isinstance(target, LatestRecord) and target.record is not None:
            return target.record.arrival
        return None

    def _advance_until(
        self, state: ShardState, advance: ShardAdvance, result: ProbeResult, until: EpochMillis
    ) -> ShardAdvance:
        """Return an advance that was cut by a probe."""
        if result.start_lost:
            return advance  # the task that reads the range judges the loss
        if result.found_by_time:
            if result.closed:
                return advance
            cut = advance_to_end(state, result)
        else:
            admitted = rows_until(result.records, until)
            if admitted == len(result.records) and not result.has_more:
                return advance
            if not result.records:
                # An inconclusive page: the shard waits for the next trigger.
                return replace(
                    advance,
                    state=replace(state, first=result.first or state.first),
                    cursor=result.cursor,
                    at_latest=False,
                    expected=None,
                )
            cut = advance_by_records(state, result, admitted)
        reached, behind = cut.cursor.reached_ms, cut.millis_behind
        if result.found_by_time and reached is not None:
            behind = max(result.time - reached, 1)  # that of the result is of its first page
        return replace(cut, at_latest=False, millis_behind=behind)

    # --- The status and the log -------------------------------------------------------------------

    def _spread_ms(
        self,
        states: Mapping[ShardKey, ShardState],
        aligned: Mapping[ShardKey, ShardAdvance],
        results: Mapping[ShardKey, ProbeResult],
        unread: Mapping[ShardKey, EpochMillis],
    ) -> int:
        if not unread:
            return 0
        reached: list[EpochMillis] = [] if self._newest is None else [self._newest]
        for key, state in states.items():
            advance = aligned.get(key)
            cursor = self.prober.cursor(key)
            if advance is not None and advance.state.position != state.position:
                end = self._end_time(key, advance, results.get(key))
            else:
                end = cursor.reached_ms if cursor.position == state.position else None
            if end is not None:
                reached.append(end)
        self._newest = max(reached, default=None)
        return arrival_spread(self._newest, unread.values())

    def _note(self, held: Sequence[ShardKey], now: EpochMillis) -> None:
        """Log the shard that holds others back, `held`, after a while."""
        bound = self.bound
        if bound is None or not held:
            self._hold = None
            return
        if self._hold is None or self._hold.key != bound.key:
            self._hold = _Hold(key=bound.key, since=now)
        hold = self._hold
        is_due = hold.logged is None or now - hold.logged >= HELD_EVERY_MS
        if now - hold.since >= HELD_MS and is_due:
            hold.logged = now
            _log.info(
                "shard %s holds %d others back for %s: the batch ends at %s, so that its rows are "
                "not late for a watermark",
                Detail(bound.key),
                len(held),
                duration_text(now - hold.since),
                time_text(bound.time),
            )


def _records_of(advance: ShardAdvance, result: ProbeResult) -> Sequence[RecordRef]:
    """Return the records of a result that an advance reads."""
    position = advance.state.position
    if not isinstance(position, AfterRecord):
        return result.records
    last = sequence_order(position.sequence_number)
    return tuple(takewhile(lambda row: row.order <= last, result.records))


def _with_rate(cursor: ShardCursor, result: ProbeResult | None) -> ShardCursor:
    """Return the cursor with the rate and the record size that a result counted after it."""
    if result is None:
        return cursor
    learned = result.cursor
    return replace(cursor, intake=learned.intake, record_bytes=learned.record_bytes)


def _counted_part(result: ProbeResult | None) -> ProbeResult | None:
    """Return a result up to the last of its records that follow its start without a gap."""
    if result is None or not result.records:
        return None
    end = result.records[-1]
    return replace(
        result,
        end=end,
        found_by_time=False,
        at_latest=False,
        closed=False,
        millis_behind=max(result.time - end.arrival, 1),
        expected=None,
        cursor=replace(
            result.cursor,
            position=end.position,
            reached_ms=end.arrival,
            cached_iterator=None,
            window_end_ms=None,
        ),
    )


def _is_counted(advance: ShardAdvance, result: ProbeResult) -> bool:
    """Return whether an advance ends within the records of its result that follow its start without
    a gap."""
    position = advance.state.position
    if not result.found_by_time:
        return True
    last = result.records[-1].order
    return isinstance(position, AfterRecord) and sequence_order(position.sequence_number) <= last


def _first_unread(advance: ShardAdvance, result: ProbeResult) -> RecordRef | None:
    """Return the first record of a result that an advance leaves unread, if it is known."""
    if result.found_by_time:
        return None
    at_start = isinstance(advance.state.position, TrimHorizon | AtTimestamp)
    read = 0 if at_start else len(_records_of(advance, result))
    return result.records[read] if read < len(result.records) else None


def _ancestors_of(key: ShardKey, listings: Listings) -> set[ShardKey]:
    found = ancestors(listings[key.stream], [key.shard])
    return {ShardKey(stream=key.stream, shard=shard) for shard in found}


def _is_listed(key: ShardKey, listings: Listings) -> bool:
    return key.shard in listings.get(key.stream, {})
