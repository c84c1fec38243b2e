"""A query's side of its leases: exchanges with the lease agent, and the shards that result.

Once or twice per trigger. The offset that Spark passes is committed: its positions are reported as
checkpoints. Then the shards of the next offset are chosen, and reported before they are read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from checkpoint.coordination.protocol import Report, Status
from checkpoint.leases.checkpoint_position import Processed, Progress
from checkpoint.leases.lease import Lease, LeaseKey
from kinesis_source.leases.lease_creation import (
    creatable_leases,
    find_missing,
    find_skipped,
    new_lease,
)
from kinesis_source.leases.lease_keys import (
    LeaseKeys,
    check_leases_match,
    make_lease_keys,
    recreated_error,
    to_checkpoint,
)
from kinesis_source.leases.lease_planning import (
    LeaseTableView,
    OwnedShards,
    ahead_of_checkpoint,
    children_of_ended,
    latest_checkpoints,
    lease_table_view,
    limited_to,
    lost_shards,
    offset_entries,
    owned_shards,
    repeated_checkpoint,
)
from kinesis_source.leases.lease_wait import LeaseWait, claimable_shards, listed_keys, update_wait
from kinesis_source.leases.lease_worker import LeaseWorker
from kinesis_source.leases.unlisted_shards import UnlistedShards
from kinesis_source.model.offset import Offset, StreamEntry
from kinesis_source.model.shard import (
    EpochMillis,
    ShardEnd,
    ShardState,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from kinesis_source.options.values import KinesisOptions
from kinesis_source.planning.active_shards import ActiveShards, Listings
from kinesis_source.planning.data_loss import report_missed_children, report_vanished_shard
from kinesis_source.planning.input_partitions import max_caught_up_age_ms
from kinesis_source.planning.shard_discovery import ShardDiscovery
from kinesis_source.probing.initial_positions import ResolveLatest, initial_states, latest_states
from ssp_common.errors import ServiceUnavailableError
from ssp_common.logs import abbreviate
from task_grouping.identifiers import ShardId, ShardKey, StreamName

_log = logging.getLogger(f"spark_ssp.{__name__}")

_ROUNDS: Final = 3
"""The maximum number of exchanges in a trigger, without those that wait."""
WAITING_PERIOD_S: Final = 0.2
"""The pause between two exchanges while leases are about to change."""
IDLE_PERIOD_S: Final = 0.2
"""The shortest duration of a trigger without records to read."""
States = Mapping[ShardKey, ShardState]
Ended = Mapping[ShardKey, Collection[ShardKey]]
"""Shards read to their end, each with its children."""
_BEGINNING: Final = ShardState(position=TrimHorizon())


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedShards:
    """The shards of the next offset under leases."""

    active: ActiveShards
    resolved: set[ShardKey]
    listings: Listings
    dropped: Mapping[ShardKey, str]


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
        self._leases = worker.options
        self.worker: Final = worker.id
        self._client = worker.client
        self._drain_signal = worker.drain_signal
        self._discovery = discovery
        self._resolve_latest = resolve_latest
        self._monotonic = monotonic
        self._sleep = sleep
        self._streams: dict[StreamName, StreamRef] = {ref.name: ref for ref in options.streams}
        self._proposed: dict[ShardKey, Lease] = {}
        self._created: frozenset[ShardKey] = frozenset()
        """Of these, the leases in the last report."""
        self._listed: frozenset[LeaseKey] = frozenset()
        self._reported: dict[ShardKey, Processed] = {}
        self._started = False
        self._draining = False
        self._table: LeaseTableView | None = None
        self._reading: frozenset[ShardKey] = frozenset()
        self._ended: frozenset[ShardKey] = frozenset()
        self._wait = LeaseWait()
        self._since: dict[ShardKey, EpochMillis] = {}
        """The times that LATEST of a KCL's leases resolved to."""
        self._unlisted = UnlistedShards(discovery, self._streams)

    def close(self) -> None:
        """Let the lease agent give back all leases."""
        self._client.close()

    # --- Each trigger ----------------------------------------------------------------------------

    def drain(self, start: Offset) -> bool:
        """Return whether the query was asked to drain; if so, give its leases back."""
        self._draining = self._draining or self._drain_signal.is_requested()
        if not self._draining:
            return False
        listings = self._listings()
        at_end = [k for k, state in start.states.items() if isinstance(state.position, ShardEnd)]
        ended = children_of_ended(at_end, listings)
        unknown = sorted({key.stream for key in at_end if key not in ended})
        for name in unknown:
            self._discovery.refresh(self._streams[name])
        # Not released before the end is written: the next worker would read it again.
        waiting = [key for key in at_end if key not in ended]
        status = self._report(start, listings, waiting, ended, leave=True)
        if status.released:
            _log.info("worker %s has given back its shards, as requested", self.worker)
            self._drain_signal.confirm()
        return True

    def active_shards(self, start: Offset) -> LeasedShards:
        """Return the shards of the next offset. `start` is committed."""
        self._check_not_recreated(start)
        began = self._monotonic()
        while True:
            owned, listings, dropped = self._choose(start)
            if self._started or not self._claimable(listings) or self._is_wait_over(began):
                break
            self._sleep(WAITING_PERIOD_S)
        self._log_differences(start, owned, restarted=not self._started)
        self._started = True
        latest = self._resolve_latest_leases(start, owned, listings)
        shared = self._leased_shards(start, owned, latest, listings, dropped)
        if not shared.active.states and not self._discovery.frozen:
            self._sleep(IDLE_PERIOD_S)
        return shared

    def _log_differences(self, start: Offset, owned: OwnedShards, *, restarted: bool) -> None:
        if self._table is not None:
            reported = ahead_of_checkpoint(owned, start, self._table, restarted=restarted)
            for where in sorted(set(reported.values())):
                shards = [str(key) for key in reported if reported[key] == where]
                _log.info("reading resumes at %s, which is further: %s", where, abbreviate(shards))

    def _is_wait_over(self, began: float) -> bool:
        return (self._monotonic() - began) * 1000 >= self._leases.failover_ms

    def _choose(self, start: Offset) -> tuple[OwnedShards, Listings, Mapping[ShardKey, str]]:
        listings = self._listings()
        lease_keys = self._lease_keys()
        reading = set(start.states.keys() - self._ended)
        table = self._exchange_view(start, lease_keys, listings, reading, {})
        reported: set[ShardKey] = set()
        dropped: dict[ShardKey, str] = {}
        owned = self._owned_shards(start, table, listings)
        if owned.unlisted:
            self._unlisted.refresh(owned.unlisted)
            listings = self._listings()
            owned = self._owned_shards(start, table, listings)
        if self._is_stale(owned):
            listings = self._refreshed(owned)
            owned = self._owned_shards(start, table, listings)
        for _ in range(_ROUNDS):
            dropped = {**owned.dropped, **dropped}  # later rounds lose the reason
            created = self._propose(start, table, lease_keys, listings)
            self._check_loss(owned)
            if not created and owned.reading == reading and owned.ended.keys() <= reported:
                break
            reading, reported = set(owned.reading), set(owned.ended)
            table = self._exchange_view(start, lease_keys, listings, reading, owned.ended)
            owned = self._owned_shards(start, table, listings)
        owned = limited_to(owned, table, reading)
        self._table, self._reading = table, owned.reading
        self._ended = frozenset(owned.ended.keys() & reported)
        return owned, listings, dropped

    def _owned_shards(
        self, start: Offset, table: LeaseTableView, listings: Listings
    ) -> OwnedShards:
        self._unlisted.observe(table.rows, listings)
        recreated = self._unlisted.recreated_shard(table.rows, listings)
        if recreated is not None:
            raise recreated_error(str(recreated), table=self._leases.table)
        option, expired = self._options.starting_position, self._unlisted.expired
        return owned_shards(start, table, listings, option, expired, self._leases.table)

    def _resolve_latest_leases(
        self, start: Offset, owned: OwnedShards, listings: Listings
    ) -> States:
        """Resolve LATEST of a KCL's leases, and report the time at once for the next owner."""
        now = self._discovery.service_time()
        latest = latest_states(owned.unresolved, now, self._resolve_latest)
        begun = [key for key, state in latest.items() if not isinstance(state.position, ShardEnd)]
        if begun:
            self._since |= dict.fromkeys(begun, now)
            self._report(start, listings, owned.reading, {})
        return latest

    def _leased_shards(
        self,
        start: Offset,
        owned: OwnedShards,
        latest: States,
        listings: Listings,
        dropped: Mapping[ShardKey, str],
    ) -> LeasedShards:
        states = {**owned.states, **latest}
        resume_from = dict(owned.resume_from)
        resume_from |= {
            key: state for key, state in latest.items() if not isinstance(state.position, ShardEnd)
        }
        active = ActiveShards(resume_from=resume_from)
        for name, ref in sorted(self._streams.items()):
            entry = StreamEntry(
                created=self._discovery.description(ref).created, leases=self._leases.table
            )
            own = {key.shard: state for key, state in states.items() if key.stream == name}
            active.add(name, entry, own, {})
        if self._table is not None:
            active.lost_shards |= lost_shards(start, states.keys(), self._table, listings)
        return LeasedShards(active=active, resolved=set(latest), listings=listings, dropped=dropped)

    # --- Leases that are to change soon ----------------------------------------------------------

    def _claimable(self, listings: Listings) -> list[ShardKey]:
        table = self._table
        if table is None:
            return []
        return claimable_shards(table, listings, self._proposed.keys(), self._leases.max_leases)

    def is_finished(self) -> bool:
        """Return whether a run to fixed targets has read everything this worker can read."""
        if self._table is None or not self._discovery.frozen:
            return True
        listings, now_ms = self._listings(), round(self._monotonic() * 1000)
        self._wait = update_wait(
            self._wait,
            self._table,
            listings,
            claimable=self._claimable(listings),
            reading=self._reading,
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

    # --- Listings ---------------------------------------------------------------------------

    def _listings(self) -> Listings:
        return {name: self._discovery.shards(ref) for name, ref in self._streams.items()}

    def _lease_keys(self) -> LeaseKeys:
        return make_lease_keys([self._discovery.description(ref) for ref in self._streams.values()])

    def _check_not_recreated(self, start: Offset) -> None:
        self._listings()  # a new listing may reveal a recreated stream
        for name, entry in sorted(start.streams.items()):
            if self._discovery.description(self._streams[name]).created != entry.created:
                raise recreated_error(f"stream {name}", table=self._leases.table)

    def _is_stale(self, owned: OwnedShards) -> bool:
        doubtful = owned.vanished or owned.abandoned or owned.undiscovered
        return bool(doubtful) and not self._discovery.frozen

    def _refreshed(self, owned: OwnedShards) -> Listings:
        lost = {key.stream for key in (*owned.vanished, *owned.abandoned)}
        for name in sorted(lost | set(owned.undiscovered)):
            self._discovery.refresh(self._streams[name], doubt=name in lost)
        return self._listings()

    def _check_loss(self, owned: OwnedShards) -> None:
        for key in owned.vanished:
            report_vanished_shard(key, fail=self._options.fail_on_data_loss)
        for key in owned.abandoned:
            report_missed_children(key, fail=self._options.fail_on_data_loss)

    # --- Leases -----------------------------------------------------------------------------------

    def _propose(
        self, start: Offset, table: LeaseTableView, lease_keys: LeaseKeys, listings: Listings
    ) -> bool:
        """Update the proposed leases; return whether some are still to be reported."""
        self._proposed = {
            key: row
            for key, row in self._proposed.items()
            if key not in table.rows and key.shard in listings[key.stream]
        }
        for name, listing in sorted(listings.items()):
            rows = {key.shard: row for key, row in table.rows.items() if key.stream == name}
            rows |= {key.shard: row for key, row in self._proposed.items() if key.stream == name}
            entries = {
                key.shard: state
                for key, state in offset_entries(start).items()
                if key.stream == name
            }
            malformed = [key.shard for key in table.unreadable if key.stream == name]
            missing = find_missing(listing, rows, entries, malformed)
            states = dict(missing.known)
            if missing.unrelated:
                states |= self._start_states(name, start, listings, missing.unrelated)
            for shard, state in states.items():
                key = ShardKey(stream=name, shard=shard)
                self._proposed[key] = new_lease(key, listing[shard], state, lease_keys)
        return not creatable_leases(self._proposed, listings) <= self._created

    def _start_states(
        self,
        name: StreamName,
        start: Offset,
        listings: Listings,
        shards: Collection[ShardId],
    ) -> dict[ShardId, ShardState]:
        """Return the start of unrelated shards: TRIM_HORIZON if the stream has been read before."""
        position = self._options.starting_position
        if name in start.streams:
            position = StartingPosition(default=TrimHorizon())
            _log.warning(
                "lease table %s has no leases for shards of %s that are not new, reading them "
                "from TRIM_HORIZON, possibly a second time: %s",
                self._leases.table,
                name,
                abbreviate(sorted(shards)),
            )
        now = self._discovery.service_time()
        states, _ = initial_states(name, listings[name], position, now, self._resolve_latest)
        states = {shard: states[shard] for shard in sorted(shards) if shard in states}
        # Otherwise they would be taken for new once the ancestor is read.
        skipped = find_skipped(listings[name], states) & frozenset(shards)
        return states | {shard: ShardState(position=ShardEnd()) for shard in sorted(skipped)}

    # --- Exchanges with the agent ----------------------------------------------------------------

    def _exchange_view(
        self,
        start: Offset,
        lease_keys: LeaseKeys,
        listings: Listings,
        reading: Collection[ShardKey],
        ended: Ended,
    ) -> LeaseTableView:
        status = self._report(start, listings, reading, ended)
        shards = {key: listings[key.stream][key.shard] for key in listed_keys(listings)}
        check_leases_match(list(status.rows.values()), lease_keys, shards, table=self._leases.table)
        return lease_table_view(status, lease_keys, self.worker, reading)

    def _report(
        self,
        start: Offset,
        listings: Listings,
        reading: Collection[ShardKey],
        ended: Ended,
        *,
        leave: bool = False,
    ) -> Status:
        lease_keys = self._lease_keys()
        # Only the lease of an expired shard may be cleaned up.
        shown = (*listed_keys(listings), *self._unlisted.undecided)
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
        if self._table is not None:
            begun = latest_checkpoints(self._since, start, self._table)
            checkpoints |= {lease_keys.key(key): since for key, since in begun.items()}
        return checkpoints

    def _exchange(self, report: Report) -> Status:
        status = self._client.exchange(report)
        if status.problem is not None:
            raise status.problem
        if status.outage_ms > self._leases.max_outage_ms:
            raise ServiceUnavailableError(
                f"lease table {self._leases.table}",
                found=f"a table that could not be read or written for {status.outage_ms} ms",
                expected=f"an answer within {self._leases.max_outage_ms} ms (leaseMaxOutage)",
                next_step="check the connection to DynamoDB, then start the query again, which "
                "resumes where it stopped",
            )
        return status
