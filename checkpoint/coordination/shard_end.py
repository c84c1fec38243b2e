"""A shard that is read to its end: its children's rows, its children's names, SHARD_END. Pure.

The order is the KCL's (`ShutdownTask`), so that no crash in between leaves a shard that counts as
done and whose children nobody knows. A lease that has ended is not renewed any more; it keeps its
owner's name, and a KCL worker that takes it then has nothing to read.

A child of a merge gets its row only when the other parent has one, since a parent without a row
counts as done. The KCL waits for that; here the end is written without, and the row is created at
the end of the other parent, or by a reader that misses it.

A worker whose reader has gone, and that cannot create a child's row, leaves the shard as it is: the
next holder comes to the end once more.
"""

from __future__ import annotations

from checkpoint.coordination.observed_leases import is_overdue, parent_keys
from checkpoint.coordination.state import Monotonic, State
from checkpoint.leases.checkpoint_position import ShardEnded
from checkpoint.leases.conditional_writes import Checkpoint, Create, SetChildren
from checkpoint.leases.lease import Lease, LeaseKey


def missing_child_leases(state: State, key: LeaseKey) -> list[Lease]:
    """The rows that the end of this shard must not come before."""
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
    """Whether the lease of an ended shard is given up without its end: the reader has gone, and a
    child's row could not be created since. Whoever stops is not kept waiting for it."""
    return state.reported.reader_exited and any(
        child.key in state.retry_at for child in missing_child_leases(state, key)
    )


def children_to_create(state: State, now: Monotonic) -> list[Create]:
    """The rows of children that are not there yet.

    Only while the lease is held for certain. Else another may have ended the shard since, and its
    children too, and have deleted all of their rows: they would be read a second time.
    """
    missing = {
        child.key: child
        for key in sorted(state.reported.ended)
        if not is_overdue(state, key, now) and not is_left_to_others(state, key)
        for child in missing_child_leases(state, key)
    }
    return [Create(lease=missing[key]) for key in sorted(missing)]


def next_end_write(state: State, key: LeaseKey) -> SetChildren | Checkpoint | None:
    """Of the ended shard's own row; None while the children's rows are not there."""
    if missing_child_leases(state, key):
        return None
    lease = state.observed[key].lease
    names = tuple(sorted({child.shard for child in state.reported.ended[key]}))
    if names and names != lease.children:
        return SetChildren(lease=lease, children=names)
    return Checkpoint(lease=lease, progress=ShardEnded())
