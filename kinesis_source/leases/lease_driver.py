"""Drives the exchanges of a query with its lease agent until the next offset's shards are known.

An exchange reports the committed checkpoints and the shards to read, and returns the lease table.
The shards that follow from it are reported in turn, so a choice takes several exchanges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_ssp.checkpoint.coordination.protocol import Report, Status
from spark_ssp.checkpoint.leases.checkpoint_position import Processed, Progress
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey
from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.times import duration_text
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.leases.lease_decision import (
    Decision,
    Facts,
    LeaseTableView,
    claimable_shards,
    creatable_leases,
    decide,
    latest_checkpoints,
    lease_table_view,
    new_lease,
    repeated_checkpoint,
)
from spark_ssp.kinesis_source.leases.lease_keys import (
    LeaseKeys,
    check_leases_match,
    make_lease_keys,
    recreated_error,
    to_checkpoint,
)
from spark_ssp.kinesis_source.leases.lease_worker import LeaseWorker
from spark_ssp.kinesis_source.leases.listing_facts import ListingFacts
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    ShardEnd,
    ShardState,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.active_shards import Listings
from spark_ssp.kinesis_source.planning.data_loss import (
    report_missed_children,
    report_vanished_shard,
)
from spark_ssp.kinesis_source.planning.input_partitions import max_caught_up_age_ms
from spark_ssp.kinesis_source.planning.shard_discovery import Doubts, ShardDiscovery
from spark_ssp.kinesis_source.probing.initial_positions import (
    ResolveLatest,
    initial_states,
    latest_states,
)

_log = logging.getLogger(__name__)

_ROUNDS: Final = 3
"""The maximum number of exchanges in a trigger, without those that wait."""
_BEGINNING: Final = ShardState(position=TrimHorizon())
Ended = Mapping[ShardKey, Collection[ShardKey]]
"""Shards read to their end, each with its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSnapshot:
    """The shards chosen by one series of exchanges, and the state that they were chosen from."""

    decision: Decision
    table: LeaseTableView
    listings: Listings


class LeaseDriver:
    """The exchanges of one run of a query. Used by one thread. The first one starts the agent."""

    def __init__(
        self,
        options: KinesisOptions,
        worker: LeaseWorker,
        discovery: ShardDiscovery,
        resolve_latest: ResolveLatest,
        *,
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
        self._ended: frozenset[ShardKey] = frozenset()
        """Shards whose end was reported."""
        self._proposed: dict[ShardKey, Lease] = {}
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

    def choose(self, start: Offset) -> LeaseSnapshot:
        """Choose the shards of the next offset. `start` is committed."""
        listings = self.listings()
        lease_keys = self._lease_keys()
        reading = set(start.states.keys() - self._ended)
        table = self._exchange_view(start, lease_keys, listings, reading, {})
        reported: set[ShardKey] = set()
        dropped: dict[ShardKey, str] = {}
        listings, decision = self._confirmed(start, table, listings)
        if decision.unlisted:
            self._facts.refresh(decision.unlisted)
            listings, decision = self._confirmed(start, table, self.listings())
        for _ in range(_ROUNDS):
            dropped = {**decision.dropped, **dropped}  # later rounds lose the reason
            created = self._propose(decision, start, table, lease_keys, listings)
            ended, now_reading = decision.ended, decision.reading
            if not created and now_reading == reading and ended.keys() <= reported:
                break
            reading, reported = set(now_reading), set(ended)
            table = self._exchange_view(start, lease_keys, listings, reading, ended)
            listings, decision = self._confirmed(start, table, listings)
        self._ended = frozenset(decision.ended.keys() & reported)
        decision = replace(decision.limited_to(table, reading), dropped=dropped)
        self._snapshot = LeaseSnapshot(decision=decision, table=table, listings=listings)
        return self._snapshot

    def claimable(self, snapshot: LeaseSnapshot) -> list[ShardKey]:
        """Return the shards whose leases this worker may take soon."""
        return claimable_shards(snapshot.decision, snapshot.table, self._leases.max_leases)

    def resolve_latest(self, start: Offset, snapshot: LeaseSnapshot) -> dict[ShardKey, ShardState]:
        """Resolve LATEST of a KCL's leases, and report the time at once for the next owner."""
        now = self._discovery.service_time()
        latest = latest_states(snapshot.decision.unresolved, now, self._resolve_latest)
        begun = [key for key, state in latest.items() if not isinstance(state.position, ShardEnd)]
        if begun:
            self._since |= dict.fromkeys(begun, now)
            self.report(start, snapshot.listings, snapshot.decision.reading, {})
        return latest

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
        return Doubts(lost=lost, undiscovered=decision.undiscovered)

    def _decide(self, start: Offset, table: LeaseTableView, listings: Listings) -> Decision:
        self._facts.observe(table.rows, listings)
        recreated = self._facts.recreated_shard(table.rows, listings)
        if recreated is not None:
            raise recreated_error(str(recreated), table=self._leases.table)
        self._proposed = {
            key: row
            for key, row in self._proposed.items()
            if key not in table.rows and key.shard in listings[key.stream]
        }
        now_ms = round(self._monotonic() * 1000)

        def decided(listings: Listings) -> Decision:
            facts = Facts(
                option=self._options.starting_position,
                table=self._leases.table,
                now_ms=now_ms,
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

    # --- Listings -----------------------------------------------------------------------------

    def listings(self) -> Listings:
        """Return the current listings of the streams."""
        return self._discovery.listings(self._streams)

    def _lease_keys(self) -> LeaseKeys:
        return make_lease_keys([self._discovery.description(ref) for ref in self._streams.values()])

    def check_not_recreated(self, start: Offset) -> None:
        """Refuse a stream that was recreated since `start`. Raises IncompatibleStateError."""
        self.listings()  # a new listing may reveal a recreated stream
        for name, entry in sorted(start.streams.items()):
            if self._discovery.description(self._streams[name]).created != entry.created:
                raise recreated_error(f"stream {name}", table=self._leases.table)

    def _report_losses(self, decision: Decision) -> None:
        """Report shards that were lost since the last decision. A shard remains lost until its row
        is written."""
        for key, lost in decision.lost.items():
            if key in self._lost:
                continue
            report = report_missed_children if lost.at_end else report_vanished_shard
            next_step = (
                "set failOnDataLoss to false to continue after the gap; or delete the row "
                f"{self._lease_keys().key(key)} from lease table {self._leases.table}, which a new "
                "query would find again, and start a new query with a new checkpoint"
            )
            report(key, fail=self._options.fail_on_data_loss, next_step=next_step)
            self._lost.add(key)

    # --- Leases -------------------------------------------------------------------------------

    def _propose(
        self,
        decision: Decision,
        start: Offset,
        table: LeaseTableView,
        lease_keys: LeaseKeys,
        listings: Listings,
    ) -> bool:
        """Add the leases to create to those proposed; return whether some are still to be
        reported."""
        new = {
            key: verdict for key, verdict in decision.creations.items() if key not in self._proposed
        }
        states = {key: verdict.state for key, verdict in new.items() if verdict.state is not None}
        states |= self._start_states(new.keys() - states.keys(), listings)
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

    # --- Exchanges with the agent ----------------------------------------------------------------

    def _exchange_view(
        self,
        start: Offset,
        lease_keys: LeaseKeys,
        listings: Listings,
        reading: Collection[ShardKey],
        ended: Ended,
    ) -> LeaseTableView:
        status = self.report(start, listings, reading, ended)
        self._in_outage = bool(status.outage_ms)
        shards = {key: listings[key.stream][key.shard] for key in listed_keys(listings)}
        check_leases_match(list(status.rows.values()), lease_keys, shards, table=self._leases.table)
        return lease_table_view(status, lease_keys, self._worker.id, reading)

    def report(
        self,
        start: Offset,
        listings: Listings,
        reading: Collection[ShardKey],
        ended: Ended,
        *,
        leave: bool = False,
    ) -> Status:
        """Report the state of the reader; `leave`: give back all leases."""
        lease_keys = self._lease_keys()
        # Only the lease of an expired shard may be cleaned up.
        shown = (*listed_keys(listings), *self._facts.undecided)
        listed = frozenset(lease_keys.key(key) for key in shown)
        self._created = creatable_leases(self._proposed, listings)
        report = Report(
            create=tuple(self._proposed[key] for key in sorted(self._created)),
            progress=self._progress(start, lease_keys),
            reading=frozenset(lease_keys.key(key) for key in reading),
            ended={
                lease_keys.key(key): tuple(
                    new_lease(child, listings[child.stream][child.shard], _BEGINNING, lease_keys)
                    for child in children
                )
                for key, children in sorted(ended.items())
            },
            listed=None if listed == self._listed else listed,
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
        for key, state in start.states.items():
            progress = to_checkpoint(state)
            if isinstance(progress, Processed):
                stream = self._discovery.description(self._streams[key.stream])
                oldest = max_caught_up_age_ms(stream.retention_ms)
                self._reported[key] = repeated_checkpoint(last.get(key), progress, oldest)
                checkpoints[lease_keys.key(key)] = self._reported[key]
        if self._snapshot is not None:
            begun = latest_checkpoints(self._since, start, self._snapshot.table)
            checkpoints |= {lease_keys.key(key): since for key, since in begun.items()}
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


def listed_keys(listings: Listings) -> list[ShardKey]:
    """Return every shard of the listings, sorted."""
    return sorted(
        ShardKey(stream=name, shard=shard)
        for name, listing in listings.items()
        for shard in listing
    )
