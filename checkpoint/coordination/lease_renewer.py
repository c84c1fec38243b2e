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
from checkpoint.coordination.shard_end import is_left_to_others, next_write
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
class Due:
    """What is due for a lease."""

    at: Monotonic
    write: Write | None = None
    """None: nothing before `at`."""


def is_asked_for(state: State, key: LeaseKey) -> bool:
    """Whether a held lease is to be handed over, or given back."""
    return state.leaving or state.seen[key].lease.checkpoint_owner is not None


def may_be_given(state: State, key: LeaseKey) -> bool:
    """Whether a held lease is asked for, and the reader does not read its shard and will not."""
    told = state.told
    if told.gone:
        return True
    unread = key not in told.reading and (told.leaving or key in told.withheld)
    return unread and is_asked_for(state, key)


def unwritten(state: State, key: LeaseKey) -> Progress | None:
    """What is committed beyond what the row says; None if nothing is."""
    written = state.seen[key].lease.progress
    known = state.told.progress.get(key)
    if known is None or known == written or not is_forward(written, known):
        return None
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """A KCL 3 leader is there, which evens out the throughput of workers.

    `average` is what the leases say that somebody has measured; None where nobody has."""

    average: float | None


def led(state: State) -> Led | None:
    """What leases are to say their throughput by; None when no leader looks at it. Every row is
    looked at, so this is asked once for all leases."""
    if state.co_workers.leader is None:
        return None
    found = (row.lease.throughput_kbps for row in state.seen.values())
    measured = [kbps for kbps in found if kbps and kbps != NOMINAL_KBPS]
    return Led(average=fmean(measured) if measured else None)


def due(state: State, key: LeaseKey, now: Monotonic, by: Led | None) -> Due:
    """The next write of a held lease's row. `by` is what `led` says.

    After a pause first of all a renewal, which tells whether the lease is held still.
    """
    lease = state.seen[key].lease
    renew_at = state.holdings[key].renewed_at + state.settings.failover_ms // 3
    if is_overdue(state, key, now):
        return Due(at=now, write=_renew(lease, by))
    if key in state.told.ended and not is_left_to_others(state, key):
        end = next_write(state, key)
        late = isinstance(end, SetChildren) and renew_at <= now
        if end is not None and not late:
            return Due(at=now, write=end)
        return _renewal(lease, renew_at, now, by)
    progress = unwritten(state, key)
    if may_be_given(state, key):
        if progress is not None:
            return Due(at=now, write=Checkpoint(lease=lease, progress=progress))
        return Due(at=now, write=given_up(lease))
    if _throughput(lease, by) is not None:  # not in a checkpoint, which may be all that is due
        return Due(at=now, write=_renew(lease, by))
    if progress is None:
        return _renewal(lease, renew_at, now, by)
    at = _checkpoint_at(state, key, now)
    if at <= now:
        return Due(at=at, write=Checkpoint(lease=lease, progress=progress))
    soon = state.holdings[key].renewed_at + state.settings.failover_ms // 2
    return Due(at=at) if at <= soon else _renewal(lease, renew_at, now, by)


def _renewal(lease: Lease, at: Monotonic, now: Monotonic, by: Led | None) -> Due:
    return Due(at=at, write=_renew(lease, by) if at <= now else None)


def _renew(lease: Lease, by: Led | None) -> Renew:
    return Renew(lease=lease, throughput_kbps=_throughput(lease, by))


def _throughput(lease: Lease, by: Led | None) -> float | None:
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


def given_up(lease: Lease) -> Assign | Evict:
    """To who has asked for it, else to nobody."""
    if lease.checkpoint_owner is not None and lease.owner is not None:
        return Assign(lease=lease, owner=lease.owner, mine=True)
    return Evict(lease=lease, mine=True)


def not_held(state: State, now: Monotonic, by: Led | None) -> list[Write]:
    """Writes for leases that are this worker's by the table alone: assigned to it, left by its last
    process, or taken by a write whose reply was lost. They are renewed, and held from then on.

    After the end they are given up, and those that this worker still waits for are given back.
    """
    return [
        write
        for key, row in sorted(state.seen.items())
        if key not in state.holdings
        and state.may_write(key, now)
        and (write := _claim(state, row.lease, by)) is not None
    ]


def _claim(state: State, lease: Lease, by: Led | None) -> Write | None:
    worker = state.settings.worker
    if has_ended(lease):
        return None
    if lease.holder == worker:
        if state.leaving:
            return None if lease.key in state.rivals else given_up(lease)
        return _renew(lease, by) if state.concerns(lease.key) else None
    if state.leaving and lease.owner == worker and lease.checkpoint_owner is not None:
        return Assign(lease=lease, owner=lease.checkpoint_owner)
    return None


def _checkpoint_at(state: State, key: LeaseKey, now: Monotonic) -> Monotonic:
    last = state.holdings[key].checkpointed_at
    return now if last is None else last + state.settings.checkpoint_interval_ms
