"""Selects the rows to delete: leases of ended shards whose children are being read.

The rule is the KCL's (`LeaseCleanupManager`): each child's checkpoint is beyond TRIM_HORIZON and
AT_TIMESTAMP, and the rows of the shard's own parents are deleted. No worker can then mistake a
child for a shard that must wait for its parent, and a lineage is deleted from its oldest shard on.

The row of an ended shard that ListShards no longer returns is deleted too, if it existed before the
list was reported. Rows of shards that have not ended are kept: the reader decides whether their
records are lost.
"""

from __future__ import annotations

from spark_ssp.checkpoint.coordination.observed_leases import parent_keys
from spark_ssp.checkpoint.coordination.state import Monotonic, ObservedLease, State
from spark_ssp.checkpoint.leases.checkpoint_position import StartAtTimestamp, StartAtTrimHorizon
from spark_ssp.checkpoint.leases.conditional_writes import Delete
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, lease_key


def _is_due(state: State, now: Monotonic) -> bool:
    """Return whether the interval between two clean-ups has passed."""
    last = state.timestamps.cleaned_at
    return (
        not state.leaving and last is not None and now - last >= state.settings.clean_up_interval_ms
    )


def plan_deletes(state: State, now: Monotonic) -> list[Delete]:
    """Return the deletions of rows that are no longer needed and that this worker is to delete."""
    if not _is_due(state, now):
        return []
    return [
        Delete(lease=row.lease)
        for key, row in sorted(state.observed.items())
        if row.lease.has_ended
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
    """Return whether ListShards no longer returns the shard.

    The list covers only the streams of this reader. During a long batch it may be old, and the
    shard may be newer.
    """
    reported = state.reported
    if (
        reported.listed is None
        or reported.listed_at is None
        or row.first_seen_at > reported.listed_at
    ):
        return False
    return key not in reported.listed and state.reads_stream_of(key)


def _is_ours_to_delete(state: State, lease: Lease) -> bool:
    """Return whether this worker deletes the row: the owner of the ended lease, or of its first
    child."""
    if lease.owner == state.settings.worker:
        return True
    children = _children(state, lease)
    if not children or children[0] is None:
        return True
    return children[0].lease.holder == state.settings.worker
