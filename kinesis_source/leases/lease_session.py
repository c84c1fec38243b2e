"""The leases of a query as the batch planner uses them, once or twice per trigger.

The offset that Spark passes is committed: its positions are reported as checkpoints. An exchange
with the lease agent reports them and the shards to read, and returns the lease table. The shards of
the next offset follow from the table (`lease_decision.py`), and are reported in turn before they
are read, so a choice takes several exchanges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from spark_ssp.checkpoint.coordination.protocol import Report, Status
from spark_ssp.checkpoint.leases.lease import (
    Lease,
    LeaseKey,
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
)
from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.times import duration_text
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.leases.lease_decision import (
    AtEnd,
    Create,
    Decision,
    Elsewhere,
    Facts,
    Finished,
    Hole,
    Lost,
    NotRead,
    Read,
    Unlisted,
    Verdict,
    decide,
    inherited_caught_up_ms,
    offset_entries,
    overtaken,
    proves,
    reached,
)
from spark_ssp.kinesis_source.leases.lease_table import (
    LeaseKeys,
    LeaseTableView,
    check_leases_match,
    lease_table_view,
    make_lease_keys,
    recreated_error,
)
from spark_ssp.kinesis_source.leases.lease_worker import LeaseWorker
from spark_ssp.kinesis_source.leases.listing_facts import ListingFacts
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Shard,
    ShardEnd,
    ShardState,
    StreamRef,
    TrimHorizon,
    is_behind,
    without_batch,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.active_shards import (
    ActiveShards,
    ActiveShardsResult,
    Listings,
    ancestors,
    children_of,
)
from spark_ssp.kinesis_source.planning.data_loss import (
    is_start_point,
    report_expired_shards,
)
from spark_ssp.kinesis_source.planning.input_partitions import max_caught_up_age_ms
from spark_ssp.kinesis_source.planning.shard_discovery import Doubts, ShardDiscovery
from spark_ssp.kinesis_source.probing.initial_positions import (
    ResolveLatest,
    initial_states,
    latest_states,
)

_log = logging.getLogger(__name__)

WAITING_PERIOD_S: Final = 0.2
"""The pause between two exchanges while leases are about to change."""
IDLE_PERIOD_S: Final = 0.2
"""The shortest duration of a trigger without records to read."""
_ROUNDS: Final = 3
"""The maximum number of exchanges in a trigger, without those that wait."""
Ended = Mapping[ShardKey, Collection[ShardKey]]
"""Shards read to their end, each with its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSnapshot:
    """The shards chosen by one series of exchanges, and the state that they were chosen from."""

    decision: Decision
    table: LeaseTableView
    listings: Listings


class LeaseSession:
    """One run of a query with leases. Used by one thread. The first use starts the lease agent.

    `monotonic` and `sleep` are in seconds.
    """

    def __init__(
        self,
        options: KinesisOptions,
        worker: LeaseWorker,
        discovery: ShardDiscovery,
        *,
        resolve_latest: ResolveLatest,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._options = options
        self._worker = worker
        self._leases = worker.options
        self._discovery = discovery
        self._resolve_latest = resolve_latest
        self._monotonic = monotonic
        self._sleep = sleep
        self._streams: dict[StreamName, StreamRef] = {ref.name: ref for ref in options.streams}
        self._snapshot: LeaseSnapshot | None = None
        self._has_started = False
        """True once shards were chosen, after the wait for leases at the start."""
        self._not_read: dict[ShardKey, ShardKey] = {}
        self._ahead: dict[ShardKey, str] = {}
        """The differences that were logged last: a shard whose position waits to be verified has
        one in each trigger."""
        self._is_draining = False
        self._wait = LeaseWait()
        self._ended: frozenset[ShardKey] = frozenset()
        """Shards whose end was reported."""
        self._proposed: dict[ShardKey, Lease] = {}
        """Leases to create. Their positions do not change, however often the creation fails."""
        self._created: frozenset[ShardKey] = frozenset()
        """Of these, the leases in the last report."""
        self._listed: frozenset[LeaseKey] = frozenset()
        self._reported: dict[ShardKey, Processed] = {}
        self._since: dict[ShardKey, EpochMillis] = {}
        """The times that LATEST of a KCL's leases resolved to."""
        self._facts = ListingFacts(discovery, self._streams, sleep=sleep)
        self._lost: set[ShardKey] = set()
        """Shards whose loss was reported."""
        self._in_outage = False
        """True if the last view of the table may be old."""

    @property
    def rows(self) -> Mapping[ShardKey, Lease]:
        """The leases of the query's streams, as last observed."""
        return {} if self._snapshot is None else self._snapshot.table.rows

    def stale(self, stream: StreamName) -> int | None:
        """Return the number of leases of a stream whose owners do not renew them, None if that is
        not known."""
        found = None if self._snapshot is None else self._snapshot.table.stale
        return None if found is None else sum(key.stream == stream for key in found)

    def not_read(self, stream: StreamName) -> list[ShardId]:
        """Return the shards of a stream that no worker reads before the table is repaired."""
        return [key.shard for key in self._not_read if key.stream == stream]

    def close(self) -> None:
        """Let the lease agent give back all leases."""
        self._worker.client.close()

    def drain(self, start: Offset) -> bool:
        """Return whether the query was asked to drain; if so, give its leases back."""
        self._is_draining = self._is_draining or self._worker.drain_signal.is_requested()
        if not self._is_draining:
            return False
        listings = self._listings()
        at_end = [k for k, state in start.states.items() if isinstance(state.position, ShardEnd)]
        ended = children_of_ended(at_end, listings)
        unknown = sorted({key.stream for key in at_end if key not in ended})
        for name in unknown:
            self._discovery.refresh(self._streams[name])
        # Not released before the end is written: the next worker would read it again.
        waiting = [key for key in at_end if key not in ended]
        status = self._report(start, listings, waiting, ended, create=False, leave=True)
        if status.released:
            if not self._worker.drain_signal.is_drained():
                _log.info("worker %s has given back its shards, as requested", self._worker.id)
            self._worker.drain_signal.confirm()
        return True

    def pause(self) -> None:
        """Wait before the next exchange, while leases are about to change."""
        self._sleep(WAITING_PERIOD_S)

    def active_shards(self, start: Offset) -> ActiveShardsResult:
        """Return the shards of the next offset. `start` is committed. Raises IncompatibleStateError
        for a stream that was recreated since."""
        listings = self._listings()  # a new listing may reveal a recreated stream
        for name, entry in sorted(start.streams.items()):
            if self._discovery.description(self._streams[name]).created != entry.created:
                raise recreated_error(f"stream {name}", table=self._leases.table)
        is_first = not self._has_started
        began = self._monotonic()
        snapshot = self._choose(start, listings)
        while is_first and self._claimable(snapshot) and not self._is_wait_over(began):
            self.pause()
            snapshot = self._choose(start, self._listings())
        self._has_started = True
        self._log_differences(start, snapshot, restarted=is_first)
        self._log_not_read(snapshot)
        result = self._result(start, snapshot, self._latest(start, snapshot))
        if not result.active.states and not self._discovery.frozen:
            self._sleep(IDLE_PERIOD_S)
        return result

    def is_finished(self) -> bool:
        """Return whether a run to fixed targets has read everything this worker can read."""
        if self._snapshot is None or not self._discovery.frozen:
            return True
        now_ms = round(self._monotonic() * 1000)
        self._wait = update_wait(
            self._wait,
            self._snapshot.decision,
            self._snapshot.table,
            claimable=self._claimable(self._snapshot),
            now_ms=now_ms,
        )
        over = self._wait.is_over(now_ms, self._leases.failover_ms)
        if over and self._wait.pending:
            dropped = [str(key) for key in self._wait.pending]
            _log.warning(
                "shards left to other workers, which do not seem to read them: %s",
                abbreviate(dropped),
            )
        return over

    # --- The choice -------------------------------------------------------------------------------

    def _choose(self, start: Offset, listings: Listings) -> LeaseSnapshot:
        """Choose the shards of the next offset."""
        # An agent process that was replaced since does not know the ends reported before.
        listed = [key for key in start.states if key.shard in listings[key.stream]]
        at_end = children_of_ended([key for key in listed if key in self._ended], listings)
        reading = set(start.states.keys() - at_end.keys())
        # A shard proposed before may have been read since, and its row deleted.
        table = self._exchange_view(start, listings, reading, at_end, create=False)
        reported: set[ShardKey] = set()
        dropped: dict[ShardKey, str] = {}
        listings, decision = self._confirmed(start, table, listings)
        if decision.unlisted:
            self._facts.refresh(decision.unlisted)
            listings, decision = self._confirmed(start, table, self._listings())
        for _ in range(_ROUNDS):
            dropped = {**decision.dropped, **dropped}  # later rounds lose the reason
            created = self._propose(decision, listings)
            ended, now_reading = decision.ended, decision.reading
            if not created and now_reading == reading and ended.keys() <= reported:
                break
            reading, reported = set(now_reading), set(ended)
            table = self._exchange_view(start, listings, reading, ended)
            listings, decision = self._confirmed(start, table, listings)
        self._ended = frozenset(decision.ended.keys() & reported)
        verdicts = still_held(decision, table, reading)
        decision = Decision(verdicts=verdicts, dropped=dropped)
        self._snapshot = LeaseSnapshot(decision=decision, table=table, listings=listings)
        return self._snapshot

    def _confirmed(
        self, start: Offset, table: LeaseTableView, listings: Listings
    ) -> tuple[Listings, Decision]:
        """Return a decision by these listings, or by later ones if they may be behind, and report
        the losses that it confirms."""
        listings, decision = self._discovery.confirm(
            self._streams,
            listings,
            lambda current: self._decide(start, table, current),
            self._doubts,
            sleep=self._sleep,
        )
        self._report_losses(decision)
        return listings, decision

    def _doubts(self, decision: Decision) -> Doubts:
        lost = {key.stream for key in decision.lost.keys() - self._lost}
        return Doubts(lost=lost, outdated=decision.undiscovered)

    def _decide(self, start: Offset, table: LeaseTableView, listings: Listings) -> Decision:
        self._facts.observe(table.rows, listings)
        recreated = self._facts.recreated_shard(table.rows, listings)
        if recreated is not None:
            raise recreated_error(str(recreated), table=self._leases.table)
        finished = overtaken(table.rows, listings) if self._proposed else set()
        self._proposed = {
            key: row
            for key, row in self._proposed.items()
            if key not in table.rows and key not in finished and key.shard in listings[key.stream]
        }
        now_ms = round(self._monotonic() * 1000)
        created = self._lease_keys().created

        def decided(listings: Listings) -> Decision:
            facts = Facts(
                option=self._options.starting_position,
                table=self._leases.table,
                now_ms=now_ms,
                created=created,
                expired=self._facts.expired,
                proposed=self._proposed,
                holes=self._facts.holes,
                confirmed=self._facts.confirmed,
                finished=self._facts.finished,
            )
            return decide(start, table, listings, facts)

        decision = decided(listings)
        if self._in_outage:  # the holes may be filled by now
            self._facts.holes = {}
            return decision
        before_ms = now_ms - self._leases.failover_ms
        if self._facts.confirm_holes(listings, decision.holes, before_ms, decided):
            decision = decided(listings)
        return decision

    def _report_losses(self, decision: Decision) -> None:
        """Report shards that were lost since the last decision. A shard remains lost until its row
        is written."""
        new = decision.lost.keys() - self._lost
        report_expired_shards(
            (key for key in new if not decision.lost[key].at_end),
            (key for key in new if decision.lost[key].at_end),
            fail=self._options.fail_on_data_loss,
            table=self._leases.table,
        )
        self._lost |= new

    def _log_differences(self, start: Offset, snapshot: LeaseSnapshot, *, restarted: bool) -> None:
        decision = snapshot.decision
        ahead = ahead_of_checkpoint(decision, start, snapshot.table, restarted=restarted)
        new = {key: where for key, where in ahead.items() if self._ahead.get(key) != where}
        for where in sorted(set(new.values())):
            shards = [str(key) for key in new if new[key] == where]
            _log.info("reading resumes at %s, which is further: %s", where, abbreviate(shards))
        self._ahead = ahead

    def _log_not_read(self, snapshot: LeaseSnapshot) -> None:
        found = snapshot.decision.not_read
        if found and found != self._not_read:
            _log.warning(
                "shards that no worker reads until the rows that cannot be parsed in lease table "
                "%s are restored or deleted (%s): %s",
                self._leases.table,
                abbreviate(sorted({str(row) for row in found.values()})),
                abbreviate([str(key) for key in found]),
            )
        self._not_read = found

    def _claimable(self, snapshot: LeaseSnapshot) -> list[ShardKey]:
        return claimable_shards(snapshot.decision, snapshot.table, self._leases.max_leases)

    def _is_wait_over(self, began: float) -> bool:
        return (self._monotonic() - began) * 1000 >= self._leases.failover_ms

    def _result(
        self, start: Offset, snapshot: LeaseSnapshot, latest: Mapping[ShardKey, ShardState]
    ) -> ActiveShardsResult:
        decision = snapshot.decision
        states = {**decision.states, **latest}
        resume_from = decision.resume_from | {
            key: state for key, state in latest.items() if not isinstance(state.position, ShardEnd)
        }
        lost = departed(start, states.keys(), snapshot.table, decision)
        active = ActiveShards(resume_from=resume_from, lost_shards=lost)
        for name, ref in sorted(self._streams.items()):
            entry = StreamEntry(
                created=self._discovery.description(ref).created, leases=self._leases.table
            )
            own = {key.shard: state for key, state in states.items() if key.stream == name}
            active.add(name, entry, own, {})
        return ActiveShardsResult(
            active=active,
            resolved=set(latest),
            listings=snapshot.listings,
            dropped=decision.dropped,
        )

    def _latest(self, start: Offset, snapshot: LeaseSnapshot) -> dict[ShardKey, ShardState]:
        """Resolve LATEST of a KCL's leases, and report the time at once for the next owner."""
        now = self._discovery.service_time()
        latest = latest_states(snapshot.decision.unresolved, now, self._resolve_latest)
        begun = [key for key, state in latest.items() if not isinstance(state.position, ShardEnd)]
        if begun:
            self._since |= dict.fromkeys(begun, now)
            self._report(start, snapshot.listings, snapshot.decision.reading, {})
        return latest

    # --- Leases to create -------------------------------------------------------------------------

    def _propose(self, decision: Decision, listings: Listings) -> bool:
        """Add the leases to create to those proposed; return whether some are still to be
        reported."""
        new = {
            key: verdict for key, verdict in decision.creations.items() if key not in self._proposed
        }
        states = {key: verdict.state for key, verdict in new.items() if verdict.state is not None}
        states |= self._start_states(new.keys() - states.keys(), listings)
        lease_keys = self._lease_keys()
        self._proposed |= {
            key: new_lease(key, listings[key.stream][key.shard], state, lease_keys)
            for key, state in sorted(states.items())
        }
        holes = sorted(key for key, verdict in new.items() if verdict.is_hole)
        if holes:
            _log.warning(
                "lease table %s has no leases for shards that are not new, reading them from "
                "their beginning, possibly a second time: %s",
                self._leases.table,
                abbreviate([str(key) for key in holes]),
            )
        return not creatable_leases(self._proposed, listings) <= self._created

    def _start_states(
        self, keys: Collection[ShardKey], listings: Listings
    ) -> dict[ShardKey, ShardState]:
        """Return the states of these shards by `startingPosition`; one that has expired is left
        out."""
        found: dict[ShardKey, ShardState] = {}
        position = self._options.starting_position
        for name in sorted({key.stream for key in keys}):
            now = self._discovery.service_time()
            states, _ = initial_states(name, listings[name], position, now, self._resolve_latest)
            found |= {ShardKey(stream=name, shard=shard): state for shard, state in states.items()}
        return {key: found[key] for key in sorted(keys) if key in found}

    # --- Exchanges with the agent -----------------------------------------------------------------

    def _listings(self) -> Listings:
        return self._discovery.listings(self._streams)

    def _lease_keys(self) -> LeaseKeys:
        return make_lease_keys([self._discovery.description(ref) for ref in self._streams.values()])

    def _exchange_view(
        self,
        start: Offset,
        listings: Listings,
        reading: Collection[ShardKey],
        ended: Ended,
        *,
        create: bool = True,
    ) -> LeaseTableView:
        status = self._report(start, listings, reading, ended, create=create)
        self._in_outage = bool(status.outage_ms)
        lease_keys = self._lease_keys()
        check_leases_match(status.rows.values(), lease_keys, listings, table=self._leases.table)
        return lease_table_view(status, lease_keys, self._worker.id, reading)

    def _report(
        self,
        start: Offset,
        listings: Listings,
        reading: Collection[ShardKey],
        ended: Ended,
        *,
        create: bool = True,
        leave: bool = False,
    ) -> Status:
        """Report the state of the reader. `create`: with the leases to create, decided in this
        trigger; `leave`: give back all leases."""
        lease_keys = self._lease_keys()
        # Only the lease of an expired shard may be cleaned up.
        shown = {
            ShardKey(stream=name, shard=shard) for name in listings for shard in listings[name]
        }
        shown |= self._facts.undecided
        listed = frozenset(lease_keys.key(key) for key in shown)
        # Until the service answers again, a listing is the same object.
        before = {} if self._snapshot is None else self._snapshot.listings
        self._created = creatable_leases(self._proposed, listings) if create else frozenset()
        report = Report(
            create=tuple(self._proposed[key] for key in sorted(self._created)),
            progress=self._progress(start, lease_keys),
            reading=frozenset(lease_keys.key(key) for key in reading),
            ended={
                lease_keys.key(key): tuple(
                    new_lease(
                        child,
                        listings[child.stream][child.shard],
                        child_start(child, listings, start, lease_keys),
                        lease_keys,
                    )
                    for child in children
                )
                for key, children in sorted(ended.items())
            },
            listed=None if listed == self._listed else listed,
            listed_before=any(listings[name] is before.get(name) for name in listings),
            leave=leave,
        )
        status = self._exchange(report)
        self._listed = listed
        return status

    def _progress(self, start: Offset, lease_keys: LeaseKeys) -> dict[LeaseKey, Progress]:
        """Return the committed checkpoints. Shard ends are reported with the children instead."""
        checkpoints: dict[LeaseKey, Progress] = {}
        last = self._reported
        self._reported = {}
        oldest_ms = {
            # Batches of other shards renew the offset's time at any moment: with its own threshold
            # the time of a row could be almost twice as old.
            name: max_caught_up_age_ms(self._discovery.description(ref).retention_ms) // 4
            for name, ref in self._streams.items()
        }
        for key, state in start.states.items():
            progress = to_checkpoint(state)
            if isinstance(progress, Processed):
                reported = repeated_checkpoint(last.get(key), progress, oldest_ms[key.stream])
                self._reported[key] = reported
                checkpoints[lease_keys.key(key)] = reported
        if self._snapshot is not None:
            starts = start_checkpoints(self._since, start, self._snapshot.table, oldest_ms)
            checkpoints |= {lease_keys.key(key): progress for key, progress in starts.items()}
        return checkpoints

    def _exchange(self, report: Report) -> Status:
        status = self._worker.client.exchange(report)
        if status.problem is not None:
            raise status.problem
        if status.outage_ms > self._leases.max_outage_ms:
            raise ServiceUnavailableError(
                f"lease table {self._leases.table}",
                found=f"a table that could not be read or written for "
                f"{duration_text(status.outage_ms)}",
                expected=f"an answer within {duration_text(self._leases.max_outage_ms)} "
                "(leaseMaxOutage)",
                next_step="check the connection to DynamoDB, then start the query again, which "
                "resumes where it stopped",
            )
        return status


# --- What follows from a decision -----------------------------------------------------------------


def still_held(
    decision: Decision, table: LeaseTableView, reading: Collection[ShardKey]
) -> dict[ShardKey, Verdict]:
    """Return the verdicts without shards not reported as read, and those lost since."""

    def is_kept(key: ShardKey, verdict: Verdict) -> bool:
        return not isinstance(verdict, Read) or (key in reading and key in table.held)

    return {
        key: verdict if is_kept(key, verdict) else Elsewhere(holder=table.worker)
        for key, verdict in decision.verdicts.items()
    }


def departed(
    start: Offset, reading: Collection[ShardKey], table: LeaseTableView, decision: Decision
) -> dict[ShardKey, ShardState]:
    """Return the entries of shards not in `reading` whose checkpoints are still behind: if the
    shards come back, however often the query was restarted, they continue there."""
    return {
        key: without_batch(state)
        for key, state in sorted(offset_entries(start).items())
        if key not in reading
        and (
            is_behind(reached(table.rows[key].progress), state.position)
            if key in table.rows
            else isinstance(decision.verdicts.get(key), Create | Hole | NotRead)
        )
    }


def children_of_ended(
    at_end: Collection[ShardKey], listings: Listings
) -> dict[ShardKey, tuple[ShardKey, ...]]:
    """Return the shards that have been read to their end, each with its children, except those
    whose children are still to be discovered."""
    children = {stream: children_of(listing.values()) for stream, listing in listings.items()}
    child_keys = {
        key: tuple(
            ShardKey(stream=key.stream, shard=child)
            for child in sorted(children[key.stream].get(key.shard, ()))
        )
        for key in at_end
    }
    return {
        key: new for key, new in child_keys.items() if new or key.shard not in listings[key.stream]
    }


def ahead_of_checkpoint(
    decision: Decision, start: Offset, table: LeaseTableView, *, restarted: bool
) -> dict[ShardKey, str]:
    """Return the shards whose offset and checkpoint differ, with the one that is further.

    While a query runs its checkpoints are behind, except for shards that are added.
    """
    entries = offset_entries(start)
    resumed = decision.resume_from
    ahead: dict[ShardKey, str] = {}
    for key in sorted(decision.states.keys() & entries.keys() & table.rows.keys()):
        position, progress = entries[key].position, table.rows[key].progress
        if is_behind(position, reached(progress)):
            ahead[key] = "the lease"
        elif (restarted or key in resumed) and is_behind(reached(progress), position):
            ahead[key] = "the checkpoint"
    return ahead


def to_checkpoint(state: ShardState) -> Progress:
    """Return the checkpoint of a shard state."""
    match state.position:
        case AfterRecord(sequence_number=number, sub=sub):
            return Processed(
                sequence_number=number, sub=sub, last_caught_up_ms=state.last_caught_up_ms
            )
        case AtTimestamp(millis=millis):
            return StartAtTimestamp(at_ms=millis, last_caught_up_ms=state.last_caught_up_ms)
        case TrimHorizon():
            return StartAtTrimHorizon(last_caught_up_ms=state.last_caught_up_ms)
        case ShardEnd():
            return ShardEnded()


def start_checkpoints(
    since: Mapping[ShardKey, EpochMillis],
    start: Offset,
    table: LeaseTableView,
    oldest_ms: Mapping[StreamName, int],
) -> dict[ShardKey, Progress]:
    """Return the checkpoints to report for shards of which no record is processed. They have two
    times for the next owner: the one that LATEST resolved to, at which it starts too (for KCL
    workers LATEST remains), and that of the last catch-up from there, if the row's is missing or
    old."""
    checkpoints: dict[ShardKey, Progress] = {}
    for key, row in table.rows.items():
        progress = row.progress
        if isinstance(progress, Processed | ShardEnded):
            continue
        state = start.states.get(key)
        if state is not None and not is_start_point(state.position):
            continue
        if isinstance(progress, StartAtLatest) and progress.since_ms is None:
            begun = since.get(key)
            if begun is None and state is not None:
                at = state.position
                begun = at.millis if isinstance(at, AtTimestamp) else state.last_caught_up_ms
            if begun is None:
                continue
            progress = replace(progress, since_ms=begun)
        if (
            state is not None
            and proves(progress, state.position)
            and _is_old(progress.last_caught_up_ms, state.last_caught_up_ms, oldest_ms[key.stream])
        ):
            progress = replace(progress, last_caught_up_ms=state.last_caught_up_ms)
        if progress is not row.progress:
            checkpoints[key] = progress
    return checkpoints


def child_start(
    child: ShardKey, listings: Listings, start: Offset, lease_keys: LeaseKeys
) -> ShardState:
    """Return the start of a shard whose parents are read: none of its records may be lost."""
    seen = inherited_caught_up_ms(
        child.stream,
        child.shard,
        listings[child.stream],
        start,
        lease_keys.created[child.stream],
    )
    return ShardState(position=TrimHorizon(), last_caught_up_ms=seen)


def repeated_checkpoint(last: Processed | None, now: Processed, oldest_ms: int) -> Processed:
    """Return the checkpoint to report: the last one, if only the caught-up time has advanced and
    the reported one is not yet old."""
    if last is None or (last.sequence_number, last.sub) != (now.sequence_number, now.sub):
        return now
    is_old = _is_old(last.last_caught_up_ms, now.last_caught_up_ms, oldest_ms)
    return now if is_old else last


def _is_old(written: EpochMillis | None, now: EpochMillis | None, oldest_ms: int) -> bool:
    return now is not None and (written is None or now - written >= oldest_ms)


def creatable_leases(proposed: Collection[ShardKey], listings: Listings) -> frozenset[ShardKey]:
    """Return the proposed leases that can be created first, because no ancestor's is proposed: a
    shard without a lease counts as done if a descendant has one."""
    return frozenset(
        key
        for key in proposed
        if not any(
            ShardKey(stream=key.stream, shard=shard) in proposed
            for shard in ancestors(listings[key.stream], [key.shard])
        )
    )


def new_lease(key: ShardKey, shard: Shard, state: ShardState, lease_keys: LeaseKeys) -> Lease:
    """Return a lease without an owner."""
    return Lease(
        shard=key.shard,
        stream=lease_keys.streams[key.stream],
        counter=0,
        progress=to_checkpoint(state),
        parents=shard.parents,
        hash_range=shard.hash_range,
        extra_attributes=lease_keys.attributes(key.stream),
    )


# --- Waiting for leases ---------------------------------------------------------------------------

WAIT_FAILOVERS: Final = 4
"""The number of failover times that a run to fixed targets waits for leases without a change."""


def claimable_shards(decision: Decision, table: LeaseTableView, most: int | None) -> list[ShardKey]:
    """Return the shards whose leases this worker may take soon: without an owner, and ready; being
    created; or missing. `most`: the maximum number of leases that it may hold."""
    if most is not None and len(table.held) >= most:
        return []
    return [
        key
        for key, verdict in decision.verdicts.items()
        if isinstance(verdict, Create | Hole)
        or (isinstance(verdict, Elsewhere) and verdict.holder is None and not verdict.handed_over)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWait:
    """The observations of a run to fixed targets about the leases that it waits for.

    Such a run is over when every shard is finished, read by this worker up to its target, or held
    by another worker that is alive: one that has renewed the lease since the run began. The lease
    of a dead worker expires, and is taken.
    """

    counters: Mapping[ShardKey, int] = field(default_factory=dict)
    """The first observed counters of other workers' leases."""
    pending: tuple[ShardKey, ...] = ()
    """Shards that are neither finished nor known to be read by any worker."""
    since_ms: int = 0
    """The time when `pending` changed last."""

    def is_over(self, now_ms: int, failover_ms: int) -> bool:
        """Return whether to stop waiting."""
        return not self.pending or now_ms - self.since_ms > WAIT_FAILOVERS * failover_ms


def update_wait(
    before: LeaseWait,
    decision: Decision,
    table: LeaseTableView,
    *,
    claimable: Collection[ShardKey],
    now_ms: int,
) -> LeaseWait:
    """Return the wait after another decision. `claimable`: the result of `claimable_shards`."""
    counters = dict(before.counters)
    pending = set(claimable)
    reading = decision.reading
    for key, verdict in decision.verdicts.items():
        row = table.rows.get(key)
        if row is None or row.holder is None or isinstance(verdict, Finished | Unlisted | Lost):
            continue
        if row.holder != table.worker:
            if counters.setdefault(key, row.counter) == row.counter:
                pending.add(key)
        elif key not in reading and isinstance(verdict, Elsewhere | AtEnd | Read):
            pending.add(key)  # it is being handed over, or its end is being written
    now = tuple(sorted(pending))
    since = before.since_ms if now == before.pending else now_ms
    return LeaseWait(counters=counters, pending=now, since_ms=since)
