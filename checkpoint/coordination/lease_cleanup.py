"""Which rows to delete: of shards that are done, once their children are under way. Pure.

The KCL's rule (`LeaseCleanupManager`): every child's checkpoint is beyond TRIM_HORIZON and
AT_TIMESTAMP, and the rows of the shard's own parents are gone. So nobody can take a child for one
that may not be read yet, and a chain goes from its oldest end.

A row of a shard that has ended and that the service lists no longer goes as well, if it was there
before the list was told. Rows of shards that have not ended stay: whether the rest of one is
lost is for the reader to say.
"""

from __future__ import annotations

from checkpoint.coordination.observed_leases import has_ended, parent_keys
from checkpoint.coordination.state import Monotonic, ObservedLease, State
from checkpoint.leases.checkpoint_position import StartAtTimestamp, StartAtTrimHorizon
from checkpoint.leases.conditional_writes import Delete
from checkpoint.leases.lease import Lease, LeaseKey, lease_key


def _is_due(state: State, now: Monotonic) -> bool:
    """Whether to look for rows now."""
    last = state.timestamps.cleaned_at
    return (
        not state.leaving and last is not None and now - last >= state.settings.clean_up_interval_ms
    )


def plan_deletes(state: State, now: Monotonic) -> list[Delete]:
    """Rows that are not needed any more and that are this worker's to delete."""
    if not _is_due(state, now):
        return []
    return [
        Delete(lease=row.lease)
        for key, row in sorted(state.observed.items())
        if has_ended(row.lease)
        and state.may_write(key, now)
        and (_is_done(state, row.lease) or _is_unlisted(state, key, row))
        and _is_ours_to_delete(state, row.lease)
    ]


def _children(state: State, lease: Lease) -> list[ObservedLease | None]:
    return [state.observed.get(lease_key(child, lease.stream)) for child in lease.children]


def _is_done(state: State, lease: Lease) -> bool:
    begun = [
        child is not None
        and not isinstance(child.lease.progress, StartAtTrimHorizon | StartAtTimestamp)
        for child in _children(state, lease)
    ]
    orphaned = not any(state.has_row(key) for key in parent_keys(lease))
    return bool(begun) and all(begun) and orphaned


def _is_unlisted(state: State, key: LeaseKey, row: ObservedLease) -> bool:
    """The list is of this reader's streams alone; of others nothing is known. In a long batch it
    may be old, and the shard have come since."""
    reported = state.reported
    if (
        reported.listed is None
        or reported.listed_at is None
        or row.first_seen_at > reported.listed_at
    ):
        return False
    return key not in reported.listed and state.reads_stream_of(key)


def _is_ours_to_delete(state: State, lease: Lease) -> bool:
    """One worker is enough: who finished the shard, and who has the first of its children."""
    if lease.owner == state.settings.worker:
        return True
    children = _children(state, lease)
    if not children or children[0] is None:
        return True
    return children[0].lease.holder == state.settings.worker
