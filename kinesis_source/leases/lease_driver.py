"""Drives the exchanges of a query with its lease agent until the next offset's shards are known.

An exchange reports the committed checkpoints and the shards to read, and returns the lease table.
The shards that follow from it are reported in turn, so a choice takes several exchanges.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
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
    latest_checkpoints,
    lease_table_view,
    limited_to,
    offset_entries,
    owned_shards,
    repeated_checkpoint,
)
from kinesis_source.leases.lease_wait import claimable_shards, listed_keys
from kinesis_source.leases.lease_worker import LeaseWorker
from kinesis_source.leases.unlisted_shards import UnlistedShards
from kinesis_source.model.offset import Offset
from kinesis_source.model.shard import (
    EpochMillis,
    ShardEnd,
    ShardState,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from kinesis_source.options.values import KinesisOptions
from kinesis_source.planning.active_shards import Listings
from kinesis_source.planning.data_loss import report_missed_children, report_vanished_shard
from kinesis_source.planning.input_partitions import max_caught_up_age_ms
from kinesis_source.planning.shard_discovery import ShardDiscovery
from kinesis_source.probing.initial_positions import ResolveLatest, initial_states, latest_states
from ssp_common.errors import ServiceUnavailableError
from ssp_common.logs import abbreviate
from ssp_common.times import duration_text
from task_grouping.identifiers import ShardId, ShardKey, StreamName

_log = logging.getLogger(f"spark_ssp.{__name__}")

_ROUNDS: Final = 3
"""The maximum number of exchanges in a trigger, without those that wait."""
_BEGINNING: Final = ShardState(position=TrimHorizon())
Ended = Mapping[ShardKey, Collection[ShardKey]]
"""Shards read to their end, each with its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSnapshot:
    """The shards chosen by one series of exchanges, and the state that they were chosen from."""

    owned: OwnedShards
    table: LeaseTableView
    listings: Listings
    dropped: Mapping[ShardKey, str]
    """Shards that leave the offset, with the reason."""


class LeaseDriver:
    """The exchanges of one run of a query. Used by one thread. The first one starts the agent."""

    def __init__(
        self,
        options: KinesisOptions,
        worker: LeaseWorker,
        discovery: ShardDiscovery,
        resolve_latest: ResolveLatest,
    ) -> None:
        self._options = options
        self._worker = worker
        self._leases = worker.options
        self._discovery = discovery
        self._resolve_latest = resolve_latest
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
        self._unlisted = UnlistedShards(discovery, self._streams)

    def choose(self, start: Offset) -> LeaseSnapshot:
        """Choose the shards of the next offset. `start` is committed."""
        listings = self.listings()
        lease_keys = self._lease_keys()
        reading = set(start.states.keys() - self._ended)
        table = self._exchange_view(start, lease_keys, listings, reading, {})
        reported: set[ShardKey] = set()
        dropped: dict[ShardKey, str] = {}
        owned = self._owned_shards(start, table, listings)
        if owned.unlisted:
            self._unlisted.refresh(owned.unlisted)
            listings = self.listings()
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
        self._ended = frozenset(owned.ended.keys() & reported)
        self._snapshot = LeaseSnapshot(owned=owned, table=table, listings=listings, dropped=dropped)
        return self._snapshot

    def claimable(self, table: LeaseTableView, listings: Listings) -> list[ShardKey]:
        """Return the shards whose leases this worker may take soon."""
        return claimable_shards(table, listings, self._proposed.keys(), self._leases.max_leases)

    def resolve_latest(self, start: Offset, snapshot: LeaseSnapshot) -> dict[ShardKey, ShardState]:
        """Resolve LATEST of a KCL's leases, and report the time at once for the next owner."""
        now = self._discovery.service_time()
        latest = latest_states(snapshot.owned.unresolved, now, self._resolve_latest)
        begun = [key for key, state in latest.items() if not isinstance(state.position, ShardEnd)]
        if begun:
            self._since |= dict.fromkeys(begun, now)
            self.report(start, snapshot.listings, snapshot.owned.reading, {})
        return latest

    def _owned_shards(
        self, start: Offset, table: LeaseTableView, listings: Listings
    ) -> OwnedShards:
        self._unlisted.observe(table.rows, listings)
        recreated = self._unlisted.recreated_shard(table.rows, listings)
        if recreated is not None:
            raise recreated_error(str(recreated), table=self._leases.table)
        option, expired = self._options.starting_position, self._unlisted.expired
        return owned_shards(start, table, listings, option, expired, self._leases.table)

    # --- Listings -----------------------------------------------------------------------------

    def listings(self) -> Listings:
        """Return the current listings of the streams."""
        return {name: self._discovery.shards(ref) for name, ref in self._streams.items()}

    def _lease_keys(self) -> LeaseKeys:
        return make_lease_keys([self._discovery.description(ref) for ref in self._streams.values()])

    def check_not_recreated(self, start: Offset) -> None:
        """Refuse a stream that was recreated since `start`. Raises IncompatibleStateError."""
        self.listings()  # a new listing may reveal a recreated stream
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
        return self.listings()

    def _check_loss(self, owned: OwnedShards) -> None:
        for key in owned.vanished:
            report_vanished_shard(key, fail=self._options.fail_on_data_loss)
        for key in owned.abandoned:
            report_missed_children(key, fail=self._options.fail_on_data_loss)

    # --- Leases -------------------------------------------------------------------------------

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
        status = self.report(start, listings, reading, ended)
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
