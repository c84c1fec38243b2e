"""Plans the next write of each held lease: renew, checkpoint, hand over or end.

Leases are renewed every third of the failover time, like the KCL's, so that two renewals may fail.
A checkpoint renews too: the renewal of a lease with unwritten progress waits for a checkpoint that
is due before half of the failover time.

A requested lease is released as soon as the reader, after it received the request, has left the
shard out of its offset and all committed progress is written. No other worker reads the shard
before that, and no record is read twice.

At the end of a shard, its children's leases are created, their names recorded, SHARD_END written.
The order is the KCL's (`ShutdownTask`): no crash in between can leave a shard that counts as done
and whose children are unknown. A lease at SHARD_END is not renewed; it keeps its owner, and a KCL
worker that takes it finds nothing to read. A child of a merge gets its lease only once the other
parent has one, because a parent without a row counts as done. The KCL waits for that row; here
SHARD_END is written first, and the child's lease is created at the end of the other parent, or by a
reader that finds it missing. After its reader has exited, a worker that cannot create a child's
lease keeps the lease unended: the next owner reaches the end again.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Final

import msgspec

from spark_ssp.checkpoint.coordination.observed_leases import is_overdue, parent_keys
from spark_ssp.checkpoint.coordination.state import Monotonic, State
from spark_ssp.checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Create,
    Evict,
    Renew,
    SetChildren,
    Write,
)
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, Progress, ShardEnded, advanced

NOMINAL_KBPS: Final = 1.0
"""The throughput of every lease as long as no worker has measured one."""


class DueWrite(msgspec.Struct, frozen=True, kw_only=True):
    """The next write of a lease."""

    at: Monotonic
    write: Write | None = None
    """None: nothing is due before `at`."""


def is_handoff_requested(state: State, key: LeaseKey) -> bool:
    """Return whether a held lease is to be handed over or released."""
    return state.leaving or key in state.surplus or state.observed[key].lease.is_in_handoff


def can_be_released(state: State, key: LeaseKey) -> bool:
    """Return whether a held lease was requested and its shard is not, and will not be, read."""
    reported = state.reported
    if reported.reader_exited:
        return True
    unread = key not in reported.reading and (reported.leaving or key in reported.withheld)
    return unread and is_handoff_requested(state, key)


def unwritten_progress(state: State, key: LeaseKey) -> Progress | None:
    """Return committed progress beyond the row's checkpoint, if any."""
    known = state.reported.progress.get(key)
    return None if known is None else advanced(state.observed[key].lease.progress, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderThroughput:
    """A KCL 3 leader exists, which balances the throughput of workers. `average` is the mean of the
    measured throughputs in the table; None if there are none."""

    average: float | None


def leader_throughput(state: State) -> LeaderThroughput | None:
    """Return the throughput statistics for the leader, or None without a leader. It reads every
    row, so callers compute it once for all leases."""
    if state.kcl_workers.leader is None:
        return None
    found = (row.lease.throughput_kbps for row in state.observed.values())
    measured = [kbps for kbps in found if kbps and kbps != NOMINAL_KBPS]
    return LeaderThroughput(average=fmean(measured) if measured else None)


def plan_write(
    state: State, key: LeaseKey, now: Monotonic, by: LeaderThroughput | None
) -> DueWrite:
    """Return the next write of a held lease; `by` is the result of `leader_throughput`. An overdue
    lease is renewed first, which shows whether it is still held."""
    lease = state.observed[key].lease
    renew_at = state.held[key].renewed_at + state.settings.failover_ms // 3
    if is_overdue(state, key, now):
        return DueWrite(at=now, write=_renew(lease, by))
    if key in state.reported.ended and not is_left_to_others(state, key):
        end = next_end_write(state, key)
        late = isinstance(end, SetChildren) and renew_at <= now
        if end is not None and not late:
            return DueWrite(at=now, write=end)
        return _renewal(lease, renew_at, now, by)
    progress = unwritten_progress(state, key)
    if can_be_released(state, key):
        if progress is not None:
            return DueWrite(at=now, write=Checkpoint(lease=lease, progress=progress))
        return DueWrite(at=now, write=release(lease))
    if _throughput(lease, by) is not None:  # only a renewal writes it
        return DueWrite(at=now, write=_renew(lease, by))
    if progress is None:
        return _renewal(lease, renew_at, now, by)
    at = _checkpoint_at(state, key, now)
    if at <= now:
        return DueWrite(at=at, write=Checkpoint(lease=lease, progress=progress))
    soon = state.held[key].renewed_at + state.settings.failover_ms // 2
    return DueWrite(at=at) if at <= soon else _renewal(lease, renew_at, now, by)


def _renewal(lease: Lease, at: Monotonic, now: Monotonic, by: LeaderThroughput | None) -> DueWrite:
    return DueWrite(at=at, write=_renew(lease, by) if at <= now else None)


def _renew(lease: Lease, by: LeaderThroughput | None) -> Renew:
    return Renew(lease=lease, throughput_kbps=_throughput(lease, by))


def _throughput(lease: Lease, by: LeaderThroughput | None) -> float | None:
    """Return the throughput to write for a KCL 3 leader; None leaves the row unchanged.

    This worker measures nothing, and the leader counts a lease without a throughput as the average
    of the others. If no lease has one, however, the leader moves no lease, not even to a worker
    that joins: then every lease gets the same nominal value, and later the average of the measured
    ones.
    """
    if by is None or lease.throughput_kbps not in (None, NOMINAL_KBPS):
        return None
    if lease.throughput_kbps is None:
        return NOMINAL_KBPS if by.average is None else None
    return by.average


def release(lease: Lease) -> Assign | Evict:
    """Return the write that gives a lease to the worker that requested it, or to none."""
    if lease.is_in_handoff and lease.owner is not None:
        return Assign(lease=lease, owner=lease.owner, check_counter=True)
    return Evict(lease=lease, check_counter=True)


def claim_unheld(state: State, now: Monotonic, by: LeaderThroughput | None) -> list[Write]:
    """Return writes for leases that are this worker's according to their rows but are not held.

    They were assigned to it, left by its last process, or taken by a write whose reply was lost.
    They are renewed, and held from then on. During shutdown they are released, and leases whose
    handoff this worker still waits for are returned to their holder.
    """
    unheld = sorted(state.observed.keys() - state.held.keys())
    return [
        write
        for key in unheld
        if state.may_write(key, now)
        and (write := _claim(state, state.observed[key].lease, by)) is not None
    ]


def _claim(state: State, lease: Lease, by: LeaderThroughput | None) -> Write | None:
    worker = state.settings.worker
    if lease.has_ended:
        return None
    if lease.holder == worker:
        if state.leaving:
            return None if lease.key in state.duplicate_owners else release(lease)
        return _renew(lease, by) if state.reads_stream_of(lease.key) else None
    if state.leaving and lease.owner == worker and lease.holder is not None:
        return Assign(lease=lease, owner=lease.holder)
    return None


def _checkpoint_at(state: State, key: LeaseKey, now: Monotonic) -> Monotonic:
    last = state.held[key].checkpointed_at
    return now if last is None else last + state.settings.checkpoint_interval_ms


# --- The end of a shard --------------------------------------------------------------------------


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
    """Return whether the lease is released without SHARD_END. The reader has exited and a child's
    lease could not be created since; shutdown does not wait for it."""
    return state.reported.reader_exited and any(
        child.key in state.retry_at for child in missing_child_leases(state, key)
    )


def children_to_create(state: State, now: Monotonic) -> list[Create]:
    """Return the children's leases to create. Only while the lease is certainly held: otherwise
    another worker may have ended the shard and its children since, and have deleted all of their
    rows, and the children would be read again."""
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
