"""Ends a shard: creates its children's leases, records the children's names, writes SHARD_END.

The order is the KCL's (`ShutdownTask`): no crash in between can leave a shard that counts as done
and whose children are unknown. A lease at SHARD_END is not renewed; it keeps its owner, and a KCL
worker that takes it finds nothing to read.

A child of a merge gets its lease only once the other parent has one, because a parent without a row
counts as done. The KCL waits for that row; here SHARD_END is written first, and the child's lease
is created at the end of the other parent, or by a reader that finds it missing.

After its reader has exited, a worker that cannot create a child's lease keeps the lease unended:
the next owner reaches the end again.
"""

from __future__ import annotations

from spark_ssp.checkpoint.coordination.observed_leases import is_overdue, parent_keys
from spark_ssp.checkpoint.coordination.state import Monotonic, State
from spark_ssp.checkpoint.leases.checkpoint_position import ShardEnded
from spark_ssp.checkpoint.leases.conditional_writes import Checkpoint, Create, SetChildren
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey


def missing_child_leases(state: State, key: LeaseKey) -> list[Lease]:
    """Return the children's leases that must be created before the end of this shard is written."""
    return [
        child
        for child in state.reported.ended[key]
        if not state.has_row(child.key) and not _is_for_later(state, child, key)
    ]


def _is_for_later(state: State, child: Lease, ended: LeaseKey) -> bool:
    listed = state.reported.listed
    return any(
        parent != ended and parent not in state.observed and (listed is None or parent in listed)
        for parent in parent_keys(child)
    )


def is_left_to_others(state: State, key: LeaseKey) -> bool:
    """Return whether the lease is released without SHARD_END.

    The reader has exited and a child's lease could not be created since; shutdown does not wait for
    it.
    """
    return state.reported.reader_exited and any(
        child.key in state.retry_at for child in missing_child_leases(state, key)
    )


def children_to_create(state: State, now: Monotonic) -> list[Create]:
    """Return the children's leases to create.

    Only while the lease is certainly held: otherwise another worker may have ended the shard and
    its children since, and have deleted all of their rows, and the children would be read again.
    """
    missing = {
        child.key: child
        for key in sorted(state.reported.ended)
        if not is_overdue(state, key, now) and not is_left_to_others(state, key)
        for child in missing_child_leases(state, key)
    }
    return [Create(lease=missing[key]) for key in sorted(missing)]


def next_end_write(state: State, key: LeaseKey) -> SetChildren | Checkpoint | None:
    """Return the next write of the ended shard's row; None while children's leases are missing."""
    if missing_child_leases(state, key):
        return None
    lease = state.observed[key].lease
    names = tuple(sorted({child.shard for child in state.reported.ended[key]}))
    if names and names != lease.children:
        return SetChildren(lease=lease, children=names)
    return Checkpoint(lease=lease, progress=ShardEnded())
