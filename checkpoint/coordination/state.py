"""The state of the lease coordinator: a worker's knowledge of the leases, and its next steps. Times
are milliseconds of this process's monotonic clock. Clocks of two machines are never compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import msgspec

from spark_ssp.checkpoint.leases.conditional_writes import Write
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, MalformedLeaseError, Progress
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from spark_ssp.common.errors import SspError
from spark_ssp.grouping.identifiers import WorkerId

K = TypeVar("K")
V = TypeVar("V")

Monotonic = int
"""Milliseconds of a monotonic clock."""

MAX_IN_FLIGHT: Final = 400
"""Writes in flight beyond which only handoffs are requested, so that renewals do not queue behind
thousands of other writes."""

MAX_COLLISIONS: Final = 3
"""Collisions after which another process is assumed to use this worker's id. A process that exits
and its successor with the same id collide once or twice for each lease."""

METRICS_EVERY_MS: Final = 30_000
"""KCL 3's leader leaves out workers whose metric row is older than 60 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a worker. They do not change while it runs."""

    worker: WorkerId
    failover_ms: int = 10_000
    """Time without a change of a held lease's counter after which other workers take the lease. The
    same for all workers of a table (KCL: `failoverTimeMillis`)."""
    max_leases: int | None = None
    """The maximum number of leases to take (KCL: `maxLeasesForWorker`); None: only the fair share.
    """
    checkpoint_interval_ms: int = 5_000
    """The minimum interval between two checkpoints of a lease, except the last before its release.
    """
    clean_up_interval_ms: int = 300_000
    """The interval of deleting rows that are not needed (KCL:
    `completedLeaseCleanupIntervalMillis`)."""


class ObservedLease(msgspec.Struct, frozen=True, kw_only=True):
    """One lease row as last observed."""

    lease: Lease
    unchanged_since: Monotonic
    """The first observation of the current counter and holder."""
    held_since: Monotonic
    """The first observation of the current holder."""
    first_seen_at: Monotonic
    """The first observation of the row."""
    written_at: Monotonic | None = None
    """The answer to this worker's last write of the row. A scan that started earlier may return an
    older row."""


class HeldLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that this worker holds. Its row is in `State.observed`."""

    renewed_at: Monotonic
    """The sending of the last write that raised the counter. The lease is safe for the failover
    time from then on, since no worker can have observed the new counter earlier."""
    checkpointed_at: Monotonic | None = None
    """The last write of progress; None: not yet."""


class InFlightWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write that was sent and not yet answered."""

    write: Write
    sent_at: Monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedByReader:
    """The reader's reports, merged."""

    create: Mapping[LeaseKey, Lease] = field(default_factory=dict)
    """Leases that did not exist when the reader reported. Discarded after the next scan: a lease
    may have been created and deleted since, its shard being done, and must not be created again."""
    progress: Mapping[LeaseKey, Progress] = field(default_factory=dict)
    """The committed positions of held leases."""
    reading: frozenset[LeaseKey] = frozenset()
    ended: Mapping[LeaseKey, tuple[Lease, ...]] = field(default_factory=dict)
    """Held leases whose shards are read to their end, with the leases of the children."""
    listed: frozenset[LeaseKey] | None = None
    listed_at: Monotonic | None = None
    """The time of the last report of a new listing; None if an earlier process received it."""
    streams: frozenset[str] | None = None
    """The streams of the listed shards, as in their keys; None: not known yet."""
    withheld: frozenset[LeaseKey] = frozenset()
    """Held leases that were requested when the reader last reported. The reader has received those
    requests, so one that is not in `reading` is not read. Any other held lease may be part of the
    offset that the reader is planning."""
    leaving: bool = False
    reader_exited: bool = False
    """The reader has exited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestamps:
    """Times of the last step of each kind."""

    scan_started_at: Monotonic | None = None
    """The start of the scan in flight."""
    scan_tried_at: Monotonic | None = None
    """The start of the last scan."""
    scanned_at: Monotonic | None = None
    """The answer of the last successful scan."""
    scan_failures: int = 0
    """Failed scans since the last successful one."""
    rebalanced: bool = False
    """True if handoffs were considered since the last scan."""
    handoff_requested_at: Monotonic | None = None
    """The last handoff request."""
    stolen_at: Monotonic | None = None
    """The last take of a lease from a live KCL 2 worker."""
    cleaned_at: Monotonic | None = None
    """The last deletion of rows; initially the first scan."""
    metrics_written_at: Monotonic | None = None
    reads_failing_since: Monotonic | None = None
    """The start of the first read of the current outage of reads."""
    writes_failing_since: Monotonic | None = None
    """The start of the first write of the current outage of writes. Reads and writes may fail
    independently, since their capacities are separate."""
    write_failed_at: Monotonic | None = None
    """The last failed write."""


def stream_of(key: LeaseKey) -> str:
    """Return the stream part of a lease key, empty for a single stream."""
    return key.rpartition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything that a worker knows. Only `coordination` accesses the fields."""

    settings: Settings
    reported: ReportedByReader = field(default_factory=ReportedByReader)
    observed: Mapping[LeaseKey, ObservedLease] = field(default_factory=dict)
    unreadable: Mapping[LeaseKey, MalformedLeaseError] = field(default_factory=dict)
    """Malformed rows: not in `observed`, and not known to have ended."""
    unreadable_held: frozenset[LeaseKey] = frozenset()
    """The leases of `unreadable` that were held before."""
    held: Mapping[LeaseKey, HeldLease] = field(default_factory=dict)
    surplus: frozenset[LeaseKey] = frozenset()
    """Leases beyond `max_leases` that this worker's last process has left: they are released. None
    while a KCL 3 leader runs, and none that one assigns later: it would assign a released one
    again."""
    in_flight: Mapping[LeaseKey, InFlightWrite] = field(default_factory=dict)
    in_doubt: Mapping[LeaseKey, tuple[InFlightWrite, ...]] = field(default_factory=dict)
    """Writes whose result is unknown."""
    duplicate_owners: frozenset[LeaseKey] = frozenset()
    """Leases that another process appears to hold under this worker's id."""
    collisions: Mapping[LeaseKey, tuple[Monotonic, ...]] = field(default_factory=dict)
    """Times of the last detections, by lease."""
    retry_at: Mapping[LeaseKey, Monotonic] = field(default_factory=dict)
    """The earliest time of the next write of a row whose last write failed."""
    timestamps: Timestamps = field(default_factory=Timestamps)
    kcl_workers: KclWorkers = field(default_factory=KclWorkers)
    scan_problem: SspError | None = None
    write_problem: SspError | None = None
    due: Mapping[LeaseKey, Monotonic] = field(default_factory=dict)
    """Times before which nothing is to be written for held leases. One that is not here must be
    planned."""
    others_due: Monotonic = 0
    """The same for all rows whose leases are not held, and for leases to be created."""

    def is_view_fresh(self, now: Monotonic) -> bool:
        """Return whether the last scan is recent enough to rely on the absence of a row."""
        scanned = self.timestamps.scanned_at
        return scanned is not None and now - scanned <= self.settings.failover_ms

    @property
    def leaving(self) -> bool:
        """Return whether all leases are to be released and none taken."""
        return self.reported.leaving or self.reported.reader_exited

    def reads_stream_of(self, key: LeaseKey) -> bool:
        """Return whether the reader reads the lease's stream. A table may contain other streams."""
        streams = self.reported.streams
        return streams is None or stream_of(key) in streams

    def has_duplicate_worker(self, now: Monotonic) -> bool:
        """Return whether another process keeps renewing leases under this worker's id."""
        lately = now - 4 * self.settings.failover_ms
        return any(
            len(times) == MAX_COLLISIONS and times[0] > lately for times in self.collisions.values()
        )

    def has_row(self, key: LeaseKey) -> bool:
        """Return whether the table has a row, possibly a malformed one."""
        return key in self.observed or key in self.unreadable

    def may_write(self, key: LeaseKey, now: Monotonic) -> bool:
        """Return whether no write of the row is in flight or failed shortly before."""
        return key not in self.in_flight and self.retry_at.get(key, now) <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps that are due."""

    writes: tuple[Write, ...]
    """Independent writes, the most urgent first, at most one per row and none for a row with a
    write in flight. They may run in parallel and in any order."""
    scan: bool
    """Scan the table and the rows of KCL 3 workers."""
    metrics: bool
    """Write this worker's metric row: a KCL 3 leader assigns no leases to workers without one."""
    due: Mapping[LeaseKey, Monotonic] = field(default_factory=dict)
    """The leases that were planned and have nothing to write yet, as in `State.due`."""
    others_due: Monotonic | None = None
    """As `State.others_due`; None if it was not due."""
    wake_at: Monotonic
    """The latest time to call `next_steps` again. Any event calls for an earlier call."""


# --- Changes of large mappings -------------------------------------------------------------------


class Draft(dict[K, V]):
    """A copy of a mapping that `put` and `without` change in place while it is open: a group of
    results copies the mappings of thousands of leases once, and not once for each result."""

    __slots__ = ("is_open",)

    def __init__(self, mapping: Mapping[K, V]) -> None:
        super().__init__(mapping)
        self.is_open = True


def put(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    """Return the mapping with one more value."""
    if isinstance(mapping, Draft) and mapping.is_open:
        mapping[key] = value
        return mapping
    return {**mapping, key: value}


def without(mapping: Mapping[K, V], key: K) -> Mapping[K, V]:
    """Return the mapping without one key."""
    if key not in mapping:
        return mapping
    rest = mapping if isinstance(mapping, Draft) and mapping.is_open else dict(mapping)
    del rest[key]
    return rest


_DRAFTED: Final = ("observed", "held", "in_flight", "in_doubt", "retry_at", "due")


def drafted(state: State) -> State:
    """Return a copy whose mappings are open drafts. Nobody else may keep it, nor a later state,
    until `settle` has closed them."""
    drafts: dict[str, Any] = {name: Draft(getattr(state, name)) for name in _DRAFTED}
    return replace(state, **drafts)


def settle(state: State) -> None:
    """Close the drafts of a state: from now on `put` and `without` copy them."""
    for name in _DRAFTED:
        mapping = getattr(state, name)
        if isinstance(mapping, Draft):
            mapping.is_open = False


def changed(state: State, **fields: Any) -> State:
    """Return the state with these fields, which is itself if they are the same objects."""
    same = all(getattr(state, name) is value for name, value in fields.items())
    return state if same else replace(state, **fields)
