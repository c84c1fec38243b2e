"""What to write, and when, for a lease that is held: renew, checkpoint, hand over, end. Pure.

Renewals come every third of the failover time, as the KCL's, so that two may fail. A checkpoint
renews as well. So the renewal of a lease with progress to write waits for the checkpoint, if that
is due before half of the failover time.

A lease is given up at once when the reader has left it out of its offset and knew that it was asked
for, and after all that was committed is written. Nobody else reads the shard before that, and
nobody reads again what has been read.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Final

from checkpoint.coordination.observed_leases import has_ended, is_overdue
from checkpoint.coordination.shard_end import is_left_to_others, next_end_write
from checkpoint.coordination.state import Monotonic, State
from checkpoint.leases.checkpoint_position import Progress, is_forward
from checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Evict,
    Renew,
    SetChildren,
    Write,
)
from checkpoint.leases.lease import Lease, LeaseKey

NOMINAL_KBPS: Final = 1.0
"""What a lease says when nobody has measured anything: as much as the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWrite:
    """What is due for a lease."""

    at: Monotonic
    write: Write | None = None
    """None: nothing before `at`."""


def is_handoff_requested(state: State, key: LeaseKey) -> bool:
    """Whether a held lease is to be handed over, or given back."""
    return state.leaving or state.observed[key].lease.checkpoint_owner is not None


def can_be_released(state: State, key: LeaseKey) -> bool:
    """Whether a held lease is asked for, and the reader does not read its shard and will not."""
    reported = state.reported
    if reported.reader_exited:
        return True
    unread = key not in reported.reading and (reported.leaving or key in reported.withheld)
    return unread and is_handoff_requested(state, key)


def unwritten_progress(state: State, key: LeaseKey) -> Progress | None:
    """What is committed beyond what the row says; None if nothing is."""
    written = state.observed[key].lease.progress
    known = state.reported.progress.get(key)
    if known is None or known == written or not is_forward(written, known):
        return None
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderThroughput:
    """A KCL 3 leader is there, which evens out the throughput of workers.

    `average` is what the leases say that somebody has measured; None where nobody has."""

    average: float | None


def leader_throughput(state: State) -> LeaderThroughput | None:
    """What leases are to say their throughput by; None when no leader looks at it. Every row is
    looked at, so this is asked once for all leases."""
    if state.kcl_workers.leader is None:
        return None
    found = (row.lease.throughput_kbps for row in state.observed.values())
    measured = [kbps for kbps in found if kbps and kbps != NOMINAL_KBPS]
    return LeaderThroughput(average=fmean(measured) if measured else None)


def plan_write(
    state: State, key: LeaseKey, now: Monotonic, by: LeaderThroughput | None
) -> DueWrite:
    """The next write of a held lease's row. `by` is what `led` says.

    After a pause first of all a renewal, which tells whether the lease is held still.
    """
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
    if _throughput(lease, by) is not None:  # not in a checkpoint, which may be all that is due
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
    """What the row is to say beside a leader; None leaves it as it is. Nothing is measured here.

    A lease without a measure counts as the average of the others. But where none has any, the
    leader moves none, so never one to a worker that joins: then each of ours says the same, and
    once others measure, their average.
    """
    if by is None or lease.throughput_kbps not in (None, NOMINAL_KBPS):
        return None
    if lease.throughput_kbps is None:
        return NOMINAL_KBPS if by.average is None else None
    return by.average


def release(lease: Lease) -> Assign | Evict:
    """To who has asked for it, else to nobody."""
    if lease.checkpoint_owner is not None and lease.owner is not None:
        return Assign(lease=lease, owner=lease.owner, check_counter=True)
    return Evict(lease=lease, check_counter=True)


def claim_unheld(state: State, now: Monotonic, by: LeaderThroughput | None) -> list[Write]:
    """Writes for leases that are this worker's by the table alone: assigned to it, left by its last
    process, or taken by a write whose reply was lost. They are renewed, and held from then on.

    After the end they are given up, and those that this worker still waits for are given back.
    """
    return [
        write
        for key, row in sorted(state.observed.items())
        if key not in state.held
        and state.may_write(key, now)
        and (write := _claim(state, row.lease, by)) is not None
    ]


def _claim(state: State, lease: Lease, by: LeaderThroughput | None) -> Write | None:
    worker = state.settings.worker
    if has_ended(lease):
        return None
    if lease.holder == worker:
        if state.leaving:
            return None if lease.key in state.duplicate_owners else release(lease)
        return _renew(lease, by) if state.reads_stream_of(lease.key) else None
    if state.leaving and lease.owner == worker and lease.checkpoint_owner is not None:
        return Assign(lease=lease, owner=lease.checkpoint_owner)
    return None


def _checkpoint_at(state: State, key: LeaseKey, now: Monotonic) -> Monotonic:
    last = state.held[key].checkpointed_at
    return now if last is None else last + state.settings.checkpoint_interval_ms
