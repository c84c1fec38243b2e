"""The messages between the reader of a stream and the lease agent.

Only the reader knows what is read and committed; only the agent writes to the lease table. Once or
twice per trigger they exchange one `Report` for one `Status`. Between exchanges the agent renews
held leases, takes free ones and hands over requested ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from spark_ssp.checkpoint.leases.checkpoint_position import Progress
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey
from spark_ssp.common.errors import SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The reader's current state. Repeating a report has no further effect."""

    create: tuple[Lease, ...] = ()
    """Leases to create: without owner and with a start, parents and hash range. An existing row is
    not changed. Repeated until `Status.rows` contains them."""
    progress: Mapping[LeaseKey, Progress] = field(default_factory=dict)
    """The committed position of each shard. A position behind an earlier one is ignored, and so are
    leases that are not this worker's."""
    reading: frozenset[LeaseKey] = frozenset()
    """The shards of an offset that is being read or about to be. Other held leases may be given
    away at once."""
    ended: Mapping[LeaseKey, tuple[Lease, ...]] = field(default_factory=dict)
    """Shards read to their end, with that end committed, each with the leases of its children (as
    in `create`, at TRIM_HORIZON). Not for shards in `reading`."""
    listed: frozenset[LeaseKey] | None = None
    """The keys of all shards that ListShards returns, over all streams of this reader; None means
    no change. Leases of other streams are ignored; leases of shards that no longer exist are
    deleted."""
    listed_before: bool = False
    """`listed` was reported to an earlier agent process. Shards may have been created since, so no
    lease is deleted for being absent from it."""
    leave: bool = False
    """Release every lease that is not in `reading`, and take none. Cannot be undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The agent's current view of the leases."""

    held: Mapping[LeaseKey, Lease]
    """The leases that this worker holds and renewed within the failover time: no other worker reads
    these shards. Leases at SHARD_END are excluded. If the position is beyond the one reported,
    another worker held the lease in between: continue from there."""
    asked_for: frozenset[LeaseKey]
    """The leases of `held` to hand over (or to release, after `leave`): exclude them from the next
    offset and report that."""
    overdue: frozenset[LeaseKey] = frozenset()
    """Leases that no other worker is known to hold but that were not renewed within the failover
    time, so another worker may have taken them. After a pause they are soon renewed or lost; in an
    outage they stay, and reading them may duplicate records but loses none."""
    rows: Mapping[LeaseKey, Lease]
    """All leases in the table as last observed, sorted by key."""
    unreadable: frozenset[LeaseKey] = frozenset()
    """Malformed rows. Their shards have not ended, as far as known."""
    outage_ms: int
    """Duration of the current outage of reads or writes of the table, the longer of both; 0 without
    one."""
    released: bool
    """After `leave`: no lease is held any more."""
    problem: SspError | None
    """An error that does not pass by itself: a missing permission, a table that is not a lease
    table, or a malformed row of a shard that is held or in `reading`."""


class LeaseClient(Protocol):
    """The lease agent from the reader's side. Used by one thread at a time."""

    @property
    def restarts(self) -> int:
        """The number of agent processes that were lost and replaced."""

    def exchange(self, report: Report) -> Status:
        """Send a report and return the status. The first call waits until the table is ready and
        scanned.

        Raises SspError if the agent cannot be started or reached.
        """

    def close(self) -> None:
        """Let the agent write the committed progress, release all leases and exit, without waiting
        for `reading` to become empty. The client cannot be used afterwards."""
