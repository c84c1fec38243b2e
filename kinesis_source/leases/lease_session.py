"""A query's side of its leases: what it tells the keeper, and what it makes of the answer.

Once or twice per trigger. The offset that Spark gives is committed: its positions are reported as
progress. Then the shards of the next offset are chosen, and said to be read before they are.
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
    lease_keys,
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
from kinesis_source.options.values import KinesisOptions, LeaseOptions
from kinesis_source.planning.active_shards import ActiveShards, Listings
from kinesis_source.planning.data_loss import report_missed_children, report_vanished_shard
from kinesis_source.planning.input_partitions import max_caught_up_age_ms
from kinesis_source.planning.shard_discovery import ShardDiscovery
from kinesis_source.probing.initial_positions import ResolveLatest, initial_states, latest_states
from ssp_common.errors import ServiceUnavailableError
from ssp_common.logs import some_of
from task_grouping.identifiers import ShardId, ShardKey, StreamName

_log = logging.getLogger(f"spark_ssp.{__name__}")

_ROUNDS: Final = 3
"""The maximum number of exchanges in a trigger, without those that wait."""
WAITING_PERIOD_S: Final = 0.2
"""How long to wait between two looks at leases that are to change soon."""
IDLE_PERIOD_S: Final = 0.2
"""How long a trigger takes at least while there is nothing to read."""
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
    """One run of a query with leases. Used by one thread. The first use starts the keeper.

    `monotonic` and `sleep` are in seconds.
    """

    def __init__(
        self,
        options: KinesisOptions,
        leases: LeaseOptions,
        worker: LeaseWorker,
        discovery: ShardDiscovery,
        *,
        service_time: Callable[[], EpochMillis],
        find_latest: ResolveLatest,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._options = options
        self._leases = leases
        self.worker: Final = worker.id
        self._client = worker.client
        self._drain_signal = worker.drain_signal
        self._discovery = discovery
        self._service_time = service_time
        self._resolve_latest = find_latest
        self._monotonic = monotonic
        self._sleep = sleep
        self._streams: dict[StreamName, StreamRef] = {ref.name: ref for ref in options.streams}
        self._proposed: dict[ShardKey, Lease] = {}
        self._created: frozenset[ShardKey] = frozenset()
        """Of these, those that the keeper was told of last."""
        self._listed: frozenset[LeaseKey] = frozenset()
        self._reported: dict[ShardKey, Processed] = {}
        self._started = False
        self._draining = False
        self._table: LeaseTableView | None = None
        self._reading: frozenset[ShardKey] = frozenset()
        self._ended: frozenset[ShardKey] = frozenset()
        self._wait = LeaseWait()
        self._since: dict[ShardKey, EpochMillis] = {}
        """What LATEST of a KCL's rows was found to mean."""
        self._unlisted = UnlistedShards(discovery, self._streams)

    def close(self) -> None:
        """Let the keeper give everything back."""
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
        # Not given away before the end is written: the next worker would read it again.
        waiting = [key for key in at_end if key not in ended]
        status = self._report(start, listings, waiting, ended, leave=True)
        if status.released:
            _log.info("%s has given its shards back, as it was asked to", self.worker)
            self._drain_signal.confirm()
        return True

    def active_shards(self, start: Offset) -> LeasedShards:
        """The shards of the next offset. `start` is committed."""
        self._check_not_recreated(start)
        began = self._monotonic()
        while True:
            found, listings, left = self._choose(start)
            if self._started or not self._claimable(listings):
                break
            if self._is_wait_over(began):
                break
            self._sleep(WAITING_PERIOD_S)
        self._log_differences(start, found, restarted=not self._started)
        self._started = True
        latest = self._resolve_latest_leases(start, found, listings)
        shared = self._leased_shards(start, found, latest, listings, left)
        if not shared.active.states and not self._discovery.frozen:
            self._sleep(IDLE_PERIOD_S)
        return shared

    def _log_differences(self, start: Offset, found: OwnedShards, *, restarted: bool) -> None:
        if self._table is not None:
            told = ahead_of_checkpoint(found, start, self._table, restarted=restarted)
            for where in sorted(set(told.values())):
                shards = [str(key) for key in told if told[key] == where]
                _log.info("%s is further, reading goes on there: %s", where, some_of(shards))

    def _is_wait_over(self, began: float) -> bool:
        return (self._monotonic() - began) * 1000 >= self._leases.failover_ms

    def _choose(self, start: Offset) -> tuple[OwnedShards, Listings, Mapping[ShardKey, str]]:
        listings = self._listings()
        names = self._lease_keys()
        reading = set(start.states.keys() - self._ended)
        table = self._exchange_view(start, names, listings, reading, {})
        told: set[ShardKey] = set()
        left: dict[ShardKey, str] = {}
        found = self._owned_shards(start, table, listings)
        if found.unlisted:
            self._unlisted.refresh(found.unlisted)
            listings = self._listings()
            found = self._owned_shards(start, table, listings)
        if self._is_stale(found):
            listings = self._refreshed(found)
            found = self._owned_shards(start, table, listings)
        for _ in range(_ROUNDS):
            left = {**found.dropped, **left}  # later rounds no longer know who asked
            created = self._propose(start, table, names, listings)
            self._check_loss(found)
            if not created and found.reading == reading and found.ended.keys() <= told:
                break
            reading, told = set(found.reading), set(found.ended)
            table = self._exchange_view(start, names, listings, reading, found.ended)
            found = self._owned_shards(start, table, listings)
        found = limited_to(found, table, reading)
        self._table, self._reading = table, found.reading
        self._ended = frozenset(found.ended.keys() & told)
        return found, listings, left

    def _owned_shards(
        self, start: Offset, table: LeaseTableView, listings: Listings
    ) -> OwnedShards:
        self._unlisted.observe(table.rows, listings)
        reborn = self._unlisted.recreated_shard(table.rows, listings)
        if reborn is not None:
            raise recreated_error(str(reborn), table=self._leases.table)
        option, gone = self._options.starting_position, self._unlisted.expired
        return owned_shards(start, table, listings, option, gone, self._leases.table)

    def _resolve_latest_leases(
        self, start: Offset, found: OwnedShards, listings: Listings
    ) -> States:
        """Resolve LATEST of a KCL's leases, and report the time at once for the next owner."""
        now = self._service_time()
        latest = latest_states(found.unresolved, now, self._resolve_latest)
        begun = [key for key, state in latest.items() if not isinstance(state.position, ShardEnd)]
        if begun:
            self._since |= dict.fromkeys(begun, now)
            self._report(start, listings, found.reading, {})
        return latest

    def _leased_shards(
        self,
        start: Offset,
        found: OwnedShards,
        latest: States,
        listings: Listings,
        left: Mapping[ShardKey, str],
    ) -> LeasedShards:
        states = {**found.states, **latest}
        begins = dict(found.resume_from)
        begins |= {
            key: state for key, state in latest.items() if not isinstance(state.position, ShardEnd)
        }
        members = ActiveShards(resume_from=begins)
        for name, ref in sorted(self._streams.items()):
            entry = StreamEntry(
                created=self._discovery.description(ref).created, leases=self._leases.table
            )
            own = {key.shard: state for key, state in states.items() if key.stream == name}
            members.add(name, entry, own, {})
        if self._table is not None:
            members.lost_shards |= lost_shards(start, states.keys(), self._table, listings)
        return LeasedShards(active=members, resolved=set(latest), listings=listings, dropped=left)

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
            left = [str(key) for key in self._wait.pending]
            _log.warning("left to others, which do not seem to read them: %s", some_of(left))
        return over

    # --- What there is ---------------------------------------------------------------------------

    def _listings(self) -> Listings:
        return {name: self._discovery.shards(ref) for name, ref in self._streams.items()}

    def _lease_keys(self) -> LeaseKeys:
        return lease_keys([self._discovery.description(ref) for ref in self._streams.values()])

    def _check_not_recreated(self, start: Offset) -> None:
        self._listings()  # a new listing may tell of a recreated stream
        for name, entry in sorted(start.streams.items()):
            if self._discovery.description(self._streams[name]).created != entry.created:
                raise recreated_error(f"stream {name}", table=self._leases.table)

    def _is_stale(self, found: OwnedShards) -> bool:
        doubtful = found.vanished or found.abandoned or found.undiscovered
        return bool(doubtful) and not self._discovery.frozen

    def _refreshed(self, found: OwnedShards) -> Listings:
        lost = {key.stream for key in (*found.vanished, *found.abandoned)}
        for name in sorted(lost | set(found.undiscovered)):
            self._discovery.refresh(self._streams[name], doubt=name in lost)
        return self._listings()

    def _check_loss(self, found: OwnedShards) -> None:
        for key in found.vanished:
            report_vanished_shard(key, fail=self._options.fail_on_data_loss)
        for key in found.abandoned:
            report_missed_children(key, fail=self._options.fail_on_data_loss)

    # --- Rows ------------------------------------------------------------------------------------

    def _propose(
        self, start: Offset, table: LeaseTableView, names: LeaseKeys, listings: Listings
    ) -> bool:
        """Note the rows that there should be; whether the keeper is to be told of some."""
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
            spoilt = [key.shard for key in table.unreadable if key.stream == name]
            lacking = find_missing(listing, rows, entries, spoilt)
            points = dict(lacking.known)
            if lacking.unrelated:
                points |= self._start_states(name, start, listings, lacking.unrelated)
            for shard, state in points.items():
                key = ShardKey(stream=name, shard=shard)
                self._proposed[key] = new_lease(key, listing[shard], state, names)
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
                "lease table %s has no rows for shards of %s that are not new, so they are read "
                "from TRIM_HORIZON, some of it perhaps a second time: %s",
                self._leases.table,
                name,
                some_of(sorted(shards)),
            )
        now = self._service_time()
        states, _ = initial_states(name, listings[name], position, now, self._resolve_latest)
        points = {shard: states[shard] for shard in sorted(shards) if shard in states}
        # Or they would be taken for new, once the ancestor is read.
        skipped = find_skipped(listings[name], points) & frozenset(shards)
        return points | {shard: ShardState(position=ShardEnd()) for shard in sorted(skipped)}

    # --- Talking to the keeper -------------------------------------------------------------------

    def _exchange_view(
        self,
        start: Offset,
        names: LeaseKeys,
        listings: Listings,
        reading: Collection[ShardKey],
        ended: Ended,
    ) -> LeaseTableView:
        status = self._report(start, listings, reading, ended)
        shards = {key: listings[key.stream][key.shard] for key in listed_keys(listings)}
        check_leases_match(list(status.rows.values()), names, shards, table=self._leases.table)
        return lease_table_view(status, names, self.worker, reading)

    def _report(
        self,
        start: Offset,
        listings: Listings,
        reading: Collection[ShardKey],
        ended: Ended,
        *,
        leave: bool = False,
    ) -> Status:
        names = self._lease_keys()
        # A row that is not known to be gone must not be cleaned up as if it were.
        shown = (*listed_keys(listings), *self._unlisted.undecided)
        listed = frozenset(names.key(key) for key in shown)
        self._created = creatable_leases(self._proposed, listings)
        report = Report(
            create=tuple(self._proposed[key] for key in sorted(self._created)),
            progress=self._progress(start, names),
            reading=frozenset(names.key(key) for key in reading),
            ended={
                names.key(key): tuple(
                    new_lease(child, listings[child.stream][child.shard], _BEGINNING, names)
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

    def _progress(self, start: Offset, names: LeaseKeys) -> dict[LeaseKey, Progress]:
        """Return the committed checkpoints. Shard ends are reported with the children instead."""
        found: dict[LeaseKey, Progress] = {}
        said = self._reported
        self._reported = {}
        for key, state in start.states.items():
            progress = to_checkpoint(state)
            if isinstance(progress, Processed):
                stream = self._discovery.description(self._streams[key.stream])
                oldest = max_caught_up_age_ms(stream.retention_millis)
                self._reported[key] = repeated_checkpoint(said.get(key), progress, oldest)
                found[names.key(key)] = self._reported[key]
        if self._table is not None:
            begun = latest_checkpoints(self._since, start, self._table)
            found |= {names.key(key): since for key, since in begun.items()}
        return found

    def _exchange(self, report: Report) -> Status:
        status = self._client.exchange(report)
        if status.problem is not None:
            raise status.problem
        if status.outage_ms > self._leases.max_outage_ms:
            raise ServiceUnavailableError(
                f"lease table {self._leases.table}",
                found=f"that it could neither be read nor written for {status.outage_ms} ms",
                expected=f"an answer within {self._leases.max_outage_ms} ms (leaseMaxOutage)",
                next_step="see whether DynamoDB can be reached, then start the query again: it "
                "goes on where it stopped",
            )
        return status
