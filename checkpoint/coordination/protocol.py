"""What the reader of a stream and the keeper of its leases tell each other.

The reader knows what has been read and committed; the keeper alone writes to the lease table. Once
or twice per trigger they exchange one `Report` for one `Status`. Between exchanges the keeper goes
on by itself: it renews what is held, takes what is free and hands over what is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from checkpoint.leases.checkpoint_position import Progress
from checkpoint.leases.lease import Lease, LeaseKey
from ssp_common.errors import SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """From the reader: what is true for it now. Repeating one does no harm."""

    create: tuple[Lease, ...] = ()
    """Rows that shall exist: without owner and with a start, parents and hash range. One that is
    there already stays as it is. To be told again as long as `Status.rows` is without them."""
    progress: Mapping[LeaseKey, Progress] = field(default_factory=dict)
    """How far shards are processed for certain: Spark has committed it. What lies behind an earlier
    report is ignored, and so is what is said of a lease that is not this worker's."""
    reading: frozenset[LeaseKey] = frozenset()
    """The shards in an offset that is being read or about to be. A held lease that is not among
    them may be given away at once."""
    ended: Mapping[LeaseKey, tuple[Lease, ...]] = field(default_factory=dict)
    """Shards read to their end, and that committed: each with the rows of its children (as in
    `create`, at TRIM_HORIZON). Not for a shard that is still in `reading`."""
    listed: frozenset[LeaseKey] | None = None
    """The keys of all shards that the service lists, over all streams of this reader; None: no
    news. Leases of other streams are let be, and rows of shards that are gone are cleaned up."""
    listed_before: bool = False
    """`listed` was told to an earlier keeper. Shards may have come since, so that no row is cleaned
    up because it is not in there."""
    leave: bool = False
    """Give everything back that is not in `reading`, and take nothing any more. Stays so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """From the keeper: what it knows now."""

    held: Mapping[LeaseKey, Lease]
    """The leases that this worker holds and whose last renewal is younger than the failover time:
    nobody else reads these shards. Shards that have ended are not among them. `progress` lies
    beyond what this reader has reported when another had the lease meanwhile: go on from there."""
    asked_for: frozenset[LeaseKey]
    """Those of `held` that are to be handed over (or back, after `leave`): leave them out of the
    next offset and say so."""
    overdue: frozenset[LeaseKey] = frozenset()
    """Leases that nobody else is known to hold, and whose last renewal is not younger than the
    failover time, so that another may have taken them. After a pause they are renewed or lost in a
    moment; in an outage they stay so, and reading on may read twice what others read, but loses
    nothing."""
    rows: Mapping[LeaseKey, Lease]
    """Every lease in the table as seen last, in the order of their keys."""
    unreadable: frozenset[LeaseKey] = frozenset()
    """Rows that are there but cannot be read. Their shards have not ended, as far as is known."""
    outage_ms: int
    """For how long the table could not be read, or could not be written to, whichever is longer; 0:
    all is well."""
    released: bool
    """After `leave`: nothing is held any more."""
    problem: SspError | None
    """What will not pass by itself: a missing permission, a table that is none, a row that
    cannot be read of a shard that is held or in `reading`."""


class LeaseClient(Protocol):
    """The keeper, as the reader sees it. Used by one thread at a time."""

    def exchange(self, report: Report) -> Status:
        """Tell and be told. The first one waits until the table is ready and has been scanned.

        Raises SspError when the keeper cannot be started or reached any more.
        """

    def close(self) -> None:
        """Let the keeper write what is known, give everything back and end. Does not wait for
        `reading` to become empty. Not used afterwards."""
