"""The messages between the reader of a stream and the lease agent.

Only the reader knows what is read and committed; only the agent writes to the lease table. Once or
twice per trigger they exchange one `Report` for one `Status`. Between exchanges the agent renews
held leases, takes free ones and hands over requested ones.

On the pipes between the two processes a message is a frame: a four-byte length, then a pickle. Both
ends run the same code under the same user, and no other process has the pipes. The agent's first
answer is a whole `Status`; each later one is a `StatusChange`, relative to the answer before: of
thousands of rows few change between two exchanges.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, Progress
from spark_ssp.checkpoint.leases.lease_store import TableSettings
from spark_ssp.common.errors import SspError
from spark_ssp.common.options.endpoints import ConnectionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of a lease agent. Its `repr` shows no secret; its pickle contains them and is
    sent only through the agent's pipe."""

    application: str
    """The application's name, after which KCL 3's own tables are named, regardless of the lease
    table's."""
    table: TableSettings
    coordination: Settings
    connection: ConnectionOptions
    """`endpoint_url` is `dynamodbEndpointUrl`."""


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
    """`listed` is of a listing from before the last batch. Shards may have been created since, so
    leases seen first after the last report of a new listing to this agent process are not deleted
    for being absent from it."""
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
    stale: frozenset[LeaseKey] | None = None
    """Leases of other workers that were not renewed within the failover time, of shards that could
    be read: nobody reads them until a worker takes them. None: not known, without a recent scan."""
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
        scanned. Raises SspError if the agent cannot be started or reached."""

    def close(self) -> None:
        """Let the agent write the committed progress, release all leases and exit, without waiting
        for `reading` to become empty. The client cannot be used afterwards."""


# --- On the pipes --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange:
    """A status without the rows that the one before it has."""

    changed: tuple[Lease, ...]
    removed: tuple[LeaseKey, ...]
    held: tuple[LeaseKey, ...]
    others: Status
    """The status without `held` and `rows`."""


def to_change(before: Mapping[LeaseKey, Lease], status: Status) -> StatusChange:
    """Return the change to a status from one with the rows `before`."""
    rows = status.rows
    return StatusChange(
        # Most rows are the same objects as before.
        changed=tuple(
            row for key, row in rows.items() if (old := before.get(key)) is not row and old != row
        ),
        removed=tuple(sorted(before.keys() - rows.keys())),
        held=tuple(status.held),
        others=replace(status, held={}, rows={}),
    )


def apply_change(before: Mapping[LeaseKey, Lease], change: StatusChange) -> Status:
    """Return the status that a change leads to from one with the rows `before`."""
    changed = {row.key: row for row in change.changed}
    rows = {**before, **changed}
    for key in change.removed:
        del rows[key]
    if changed.keys() - before.keys():
        rows = dict(sorted(rows.items()))
    return replace(change.others, held={key: rows[key] for key in change.held}, rows=rows)


_HEAD: Final = 4


def encode_frame(value: object) -> bytes:
    """Return the frame of a value."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(_HEAD, "big") + body


class FrameDecoder:
    """Decodes values from chunks of any size."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[object]:
        """Return the values that are now complete, in order."""
        self._pending += data
        values: list[object] = []
        begin = 0
        while len(self._pending) - begin >= _HEAD:
            body = begin + _HEAD
            end = body + int.from_bytes(self._pending[begin:body], "big")
            if len(self._pending) < end:
                break
            values.append(pickle.loads(memoryview(self._pending)[body:end].toreadonly()))
            begin = end
        del self._pending[:begin]
        return values
