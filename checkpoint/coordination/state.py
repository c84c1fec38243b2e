"""What a worker knows about the leases, and what it is to do next: the values of
`lease_coordinator.py`.

Times are milliseconds of this process's own monotonic clock. No two clocks are ever compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from checkpoint.errors import MalformedLeaseError
from checkpoint.leases.checkpoint_position import Progress
from checkpoint.leases.conditional_writes import Write
from checkpoint.leases.lease import Lease, LeaseKey
from checkpoint.leases.worker_metrics import KclWorkers
from ssp_common.errors import SspError
from task_grouping.identifiers import WorkerId

Monotonic = int
"""Milliseconds of a monotonic clock."""

MAX_COLLISIONS: Final = 3
"""A process that ends meets the next one of the same name once or twice for each lease."""

METRICS_EVERY_MS: Final = 30_000
"""KCL 3's leader leaves out workers whose metric row is older than 60 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What does not change while a worker runs."""

    worker: WorkerId
    failover_ms: int = 10_000
    """How long the counter of a held lease may stay the same before others take the lease. The
    same for all workers of a table (KCL: `failoverTimeMillis`)."""
    max_leases: int | None = None
    """At most so many leases are taken (KCL: `maxLeasesForWorker`); None: the fair share alone."""
    checkpoint_interval_ms: int = 5_000
    """Progress of a lease is written at most this often, but for the last before it is given up."""
    clean_up_interval_ms: int = 300_000
    """Rows that are not needed are deleted this often (KCL: `completedLeaseCleanupInterval`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLease:
    """One row as it was seen last."""

    lease: Lease
    unchanged_since: Monotonic
    """When its counter and its holder were first seen as they are now."""
    held_since: Monotonic
    """When its holder was first seen to be the one it is now."""
    first_seen_at: Monotonic
    """When the row was first seen."""
    written_at: Monotonic | None = None
    """When the answer to this worker's last write of it came. What a scan that began earlier says
    of the row may be older than what is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that this worker holds. The row itself is in `State.seen`."""

    renewed_at: Monotonic
    """When the last write that raised the counter was sent: the lease is safe for the failover time
    from then on, since no observer can have seen the new counter any sooner."""
    checkpointed_at: Monotonic | None = None
    """When progress was last written; None: not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightWrite:
    """A write that was sent."""

    write: Write
    sent_at: Monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedByReader:
    """What the reader has said, merged over its reports."""

    create: Mapping[LeaseKey, Lease] = field(default_factory=dict)
    """Rows that were not there when the reader looked. Void after the next scan: a row may have
    come and gone meanwhile, its shard being done, and must not come back."""
    progress: Mapping[LeaseKey, Progress] = field(default_factory=dict)
    """Of held leases."""
    reading: frozenset[LeaseKey] = frozenset()
    ended: Mapping[LeaseKey, tuple[Lease, ...]] = field(default_factory=dict)
    """Held leases whose shards are read to the end, with the rows of the children."""
    listed: frozenset[LeaseKey] | None = None
    listed_at: Monotonic | None = None
    """When it was told; None where it is older than this process."""
    streams: frozenset[str] | None = None
    """The streams that the listed shards are of, as in their keys; None: not known yet."""
    withheld: frozenset[LeaseKey] = frozenset()
    """Held leases that were asked for when the reader reported last: it knows, so that one that is
    not in `reading` is not read. Any other held lease may be in the offset it plans just now."""
    leaving: bool = False
    reader_exited: bool = False
    """The reader has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestamps:
    """When what was done last."""

    scan_started_at: Monotonic | None = None
    """Of a scan that is under way."""
    scan_tried_at: Monotonic | None = None
    """When the last scan was begun."""
    scanned_at: Monotonic | None = None
    """When the last good scan was answered."""
    scan_failures: int = 0
    """Since the last good one."""
    rebalanced: bool = False
    """Whether hand-overs were considered since the last scan."""
    handoff_requested_at: Monotonic | None = None
    """When a hand-over was last asked for."""
    stolen_at: Monotonic | None = None
    """When a lease was last taken from a living KCL 2 worker."""
    cleaned_at: Monotonic | None = None
    """When rows were last deleted; at first, when the table was first scanned."""
    metrics_written_at: Monotonic | None = None
    reads_failing_since: Monotonic | None = None
    """When the first call was made of those that could not read the table, up to now."""
    writes_failing_since: Monotonic | None = None
    """The same of writes. Each may fail alone: capacity of reads and of writes is not the same."""
    write_failed_at: Monotonic | None = None
    """When it was last told that a write could not be done."""


def stream_of(key: LeaseKey) -> str:
    """What a key says of the stream: nothing where there is only one."""
    return key.rpartition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a worker knows. Only the functions of `coordination` look inside."""

    settings: Settings
    reported: ReportedByReader = field(default_factory=ReportedByReader)
    observed: Mapping[LeaseKey, ObservedLease] = field(default_factory=dict)
    unreadable: Mapping[LeaseKey, MalformedLeaseError] = field(default_factory=dict)
    """Rows that are there and cannot be read: none of `seen`, and not known to have ended."""
    unreadable_held: frozenset[LeaseKey] = frozenset()
    """Of these, the ones that were held until then."""
    held: Mapping[LeaseKey, HeldLease] = field(default_factory=dict)
    in_flight: Mapping[LeaseKey, InFlightWrite] = field(default_factory=dict)
    in_doubt: Mapping[LeaseKey, tuple[InFlightWrite, ...]] = field(default_factory=dict)
    """Writes of which it is unknown whether they took effect."""
    duplicate_owners: frozenset[LeaseKey] = frozenset()
    """Leases that another process seems to hold under this worker's name."""
    collisions: Mapping[LeaseKey, tuple[Monotonic, ...]] = field(default_factory=dict)
    """When that was noticed, the last times."""
    retry_at: Mapping[LeaseKey, Monotonic] = field(default_factory=dict)
    """No write of the row before then: the last one failed."""
    timestamps: Timestamps = field(default_factory=Timestamps)
    kcl_workers: KclWorkers = field(default_factory=KclWorkers)
    scan_problem: SspError | None = None
    write_problem: SspError | None = None

    def is_view_fresh(self, now: Monotonic) -> bool:
        """Whether the table was scanned so recently that what is not in it can be relied upon."""
        scanned = self.timestamps.scanned_at
        return scanned is not None and now - scanned <= self.settings.failover_ms

    @property
    def leaving(self) -> bool:
        """Whether everything is given back and nothing taken."""
        return self.reported.leaving or self.reported.reader_exited

    def reads_stream_of(self, key: LeaseKey) -> bool:
        """Whether the reader reads the stream that the lease is of. A table may hold more."""
        streams = self.reported.streams
        return streams is None or stream_of(key) in streams

    def has_duplicate_worker(self, now: Monotonic) -> bool:
        """Whether another process goes on renewing the same leases under this worker's name."""
        lately = now - 4 * self.settings.failover_ms
        return any(
            len(times) == MAX_COLLISIONS and times[0] > lately for times in self.collisions.values()
        )

    def has_row(self, key: LeaseKey) -> bool:
        """Whether there is a row, be it one that cannot be read."""
        return key in self.observed or key in self.unreadable

    def may_write(self, key: LeaseKey, now: Monotonic) -> bool:
        """Whether no write of the row is under way or has just failed."""
        return key not in self.in_flight and self.retry_at.get(key, now) <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is to be done now."""

    writes: tuple[Write, ...]
    """Independent of each other, at most one per row, none of a row with a write under way: they
    may run side by side and in any order. The most urgent first."""
    scan: bool
    """Scan the table, and read what there is about co-workers."""
    metrics: bool
    """Write this worker's metric row: a KCL 3 leader is there, and leaves out who has none."""
    wake_at: Monotonic
    """Ask again then at the latest, or as soon as anything was reported, scanned or written."""
