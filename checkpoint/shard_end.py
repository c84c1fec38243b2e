"""A shard that is read to its end: its children's rows, its children's names, SHARD_END. Pure.

The order is the KCL's (`ShutdownTask`), so that no crash in between leaves a shard that counts as
done and whose children nobody knows. A lease that has ended is not renewed any more; it keeps its
owner's name, and a KCL worker that takes it then has nothing to read.
"""

from __future__ import annotations

from checkpoint.coordination_state import State
from checkpoint.lease import Lease, LeaseKey
from checkpoint.progress import ShardEnded
from checkpoint.sightings import parent_keys
from checkpoint.writes import Checkpoint, Create, SetChildren


def is_blocked(state: State, key: LeaseKey) -> bool:
    """Whether the end cannot be written yet: a child has another parent without a row.

    The KCL's rule for merges: a child whose other parent has no row yet would be begun too early,
    since a parent without a row counts as done. It is done if the service does not list it.
    """
    return any(_waits(state, child, key) for child in state.told.ended.get(key, ()))


def _waits(state: State, child: Lease, ended: LeaseKey) -> bool:
    if child.key in state.seen:
        return False
    if state.told.gone and child.key in state.retry_at:
        return True  # another worker shall see to it
    listed = state.told.listed
    return any(
        parent != ended and parent not in state.seen and (listed is None or parent in listed)
        for parent in parent_keys(child)
    )


def children_to_create(state: State) -> list[Create]:
    """The rows of children that are not there yet."""
    missing = {
        child.key: child
        for key, children in sorted(state.told.ended.items())
        if key in state.holdings and not is_blocked(state, key)
        for child in children
        if child.key not in state.seen
    }
    return [Create(lease=missing[key]) for key in sorted(missing)]


def next_write(state: State, key: LeaseKey) -> SetChildren | Checkpoint | None:
    """Of the ended shard's own row; None while the children's rows are not there."""
    children = state.told.ended[key]
    lease = state.seen[key].lease
    if any(child.key not in state.seen for child in children):
        return None
    names = tuple(sorted({child.shard for child in children}))
    if names and names != lease.children:
        return SetChildren(lease=lease, children=names)
    return Checkpoint(lease=lease, progress=ShardEnded())
