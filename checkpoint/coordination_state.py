"""What a worker knows about the leases, and what it is to do next: the values of `coordination.py`.

Times are milliseconds of this process's own monotonic clock. No two clocks are ever compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from checkpoint.coworking import Report
from checkpoint.lease import Lease, LeaseKey
from checkpoint.progress import Progress
from checkpoint.writes import Write
from ssp_common.errors import SspError
from task_grouping.identifiers import WorkerId

Monotonic = int
"""Milliseconds of a monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What does not change while a worker runs."""

    worker: WorkerId
    failover_ms: int = 10_000
    """How long the counter of a held lease may stay the same before others take the lease. The
    same for all workers of a table (KCL: `failoverTimeMillis`)."""
    max_leases: int | None = None
    """At most so many leases are held (KCL: `maxLeasesForWorker`); None: the fair share alone."""
    checkpoint_interval_ms: int = 5_000
    """Progress of a lease is written at most this often, but for the last before it is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoWorkers:
    """What is known of KCL 3's workers, from their leader's and their metric rows."""

    leader: WorkerId | None = None
    """Who assigns leases to workers (KCL 3); None when there is no leader, when it is dead, or when
    the workers are still in the mode that is compatible with KCL 2, in which nobody assigns."""
    graceful: frozenset[WorkerId] = frozenset()
    """Workers with a living metric row: KCL 3's, which can be asked for a hand-over, and ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One row as it was seen last."""

    lease: Lease
    since: Monotonic
    """When its counter or its holder was first seen as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A lease that this worker holds. The row itself is in `State.seen`."""

    renewed_at: Monotonic
    """When the last write that raised the counter was sent: the lease is safe for the failover time
    from then on, since no observer can have seen the new counter any sooner."""
    checkpointed_at: Monotonic | None = None
    """When progress was last written; None: not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is to be done now."""

    writes: tuple[Write, ...]
    """Independent of each other, at most one per row, none of a row with a write under way: they
    may run side by side and in any order. Sorted by urgency, then by key."""
    scan: bool
    """Scan the table, and read what there is about co-workers."""
    metrics: bool
    """Write this worker's metric row, if there are KCL 3 workers."""
    wake_at: Monotonic
    """Ask again then at the latest, or as soon as anything was reported, scanned or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a worker knows. Only the functions of `coordination` look inside."""

    settings: Settings
    report: Report = field(default_factory=Report)
    """What the reader has said, merged over all reports."""
    progress: Mapping[LeaseKey, Progress] = field(default_factory=dict)
    """Of held leases, what is to be written."""
    seen: Mapping[LeaseKey, Seen] = field(default_factory=dict)
    holdings: Mapping[LeaseKey, Holding] = field(default_factory=dict)
    under_way: Mapping[LeaseKey, tuple[Write, Monotonic]] = field(default_factory=dict)
    """Writes that were started, and when."""
    co_workers: CoWorkers = field(default_factory=CoWorkers)
    problem: SspError | None = None
    closing: bool = False


METRICS_EVERY_MS: Final = 30_000
"""KCL 3's leader leaves out workers whose metric row is older than 60 s."""
