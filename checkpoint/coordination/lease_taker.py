"""Which leases of others to take or to ask for. Pure.

A lease is free when nobody holds it, or when its counter has not changed for longer than the
failover time by this worker's own clock. Free ones are taken up to the fair share, all at once.
The condition on the counter makes sure that only one worker succeeds, and none if the holder has
renewed since.

Held ones are only taken to even out, from who has most, and only if that leaves the other at least
as many as this worker then has. This worker's kind and KCL 3's are asked for a hand-over; KCL 2
knows none, so a lease is taken from its workers as they do among themselves: one per two failover
times. Where a KCL 3 leader assigns leases, nothing is taken before it has had its chances.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

from checkpoint.coordination.observed_leases import count_leases, has_ended, is_expired, is_readable
from checkpoint.coordination.state import Monotonic, ObservedLease, State
from checkpoint.leases.conditional_writes import RequestHandoff, Take, Write
from checkpoint.leases.lease import LeaseKey
from task_grouping.identifiers import WorkerId

T = TypeVar("T")

VERY_OLD: Final = 3
"""A lease that stays free for so many failover times is taken beyond the fair share, since others
seem to have no room (KCL: `veryOldLeaseDurationNanosMultiplier`)."""

LEADER_GRACE: Final = 6
"""For so many failover times a free lease is left to a KCL 3 leader, which assigns every two."""

STEAL_INTERVAL: Final = 2
"""Failover times between two leases taken from living KCL 2 workers, as they do it."""


def plan_takes(state: State, now: Monotonic, draw: float) -> list[Write]:
    """Free leases to take, or held ones to ask for. `draw`, in [0, 1), says where to begin."""
    if state.leaving or not state.is_view_fresh(now):
        return []
    free = _free(state, now)
    asking = not (free or state.timestamps.rebalanced or state.kcl_workers.leader)
    if not free and not asking:
        return []
    counts = count_leases(state, now)
    room = _free_capacity(state, counts)
    fair = rotate([key for key in free if state.may_write(key, now)], draw)[: max(room, 0)]
    taken = frozenset(fair)
    chosen = fair + [key for key in free if key not in taken and _very_old(state, key, now)]
    cap = state.settings.max_leases
    if cap is not None:
        chosen = chosen[: max(0, cap - _own_load(state, counts))]
    writes: list[Write] = [
        Take(lease=state.observed[key].lease, owner=state.settings.worker)
        for key in chosen
        if state.may_write(key, now)
    ]
    return _plan_rebalancing(state, counts, room, now, draw) if asking else writes


def next_expiry(state: State, now: Monotonic) -> Monotonic | None:
    """When the next held lease becomes free, if it is not renewed."""
    failover = state.settings.failover_ms
    times = (
        row.unchanged_since + failover + 1
        for key, row in state.observed.items()
        if key not in state.held and row.lease.holder is not None and not has_ended(row.lease)
    )
    return min((at for at in times if at > now), default=None)


def _free(state: State, now: Monotonic) -> list[LeaseKey]:
    """In order of their keys; with a leader only what it leaves lying."""
    wait = LEADER_GRACE * state.settings.failover_ms if state.kcl_workers.leader else 0
    return [
        key
        for key, row in sorted(state.observed.items())
        if key not in state.held
        and state.reads_stream_of(key)
        and (row.lease.holder is None or is_expired(row, now, state.settings.failover_ms))
        and now - row.unchanged_since >= wait
        and is_readable(row.lease, state)
    ]


def _very_old(state: State, key: LeaseKey, now: Monotonic) -> bool:
    return now - state.observed[key].unchanged_since > VERY_OLD * state.settings.failover_ms


def _own_load(state: State, counts: Mapping[WorkerId, int]) -> int:
    """What this worker has, is going to have, or is just taking."""
    taking = sum(isinstance(sent.write, Take) for sent in state.in_flight.values())
    return counts[state.settings.worker] + taking


def _free_capacity(state: State, counts: Mapping[WorkerId, int]) -> int:
    """How many more leases this worker's fair share comes to: of all readable ones, rounded up."""
    total = sum(
        state.reads_stream_of(key) and is_readable(row.lease, state)
        for key, row in state.observed.items()
    )
    share = -(-total // len(counts))
    cap = state.settings.max_leases
    return (share if cap is None else min(share, cap)) - _own_load(state, counts)


def _plan_rebalancing(
    state: State, counts: Mapping[WorkerId, int], room: int, now: Monotonic, draw: float
) -> list[Write]:
    if room <= 0:
        return []
    left = dict(counts)
    worker = state.settings.worker
    left[worker] = _own_load(state, counts)
    able = _obtainable(state, left.keys() - {worker}, now, draw)
    writes: list[Write] = []
    while len(writes) < room:
        donors = [o for o in sorted(able) if able[o] and left[o] >= left[worker] + 2]
        if not donors:
            break
        donor = max(donors, key=lambda owner: left[owner])
        writes.append(able[donor].pop(0))
        if isinstance(writes[-1], Take):
            able[donor] = []
            able = {o: [w for w in able[o] if not isinstance(w, Take)] for o in able}
        left[donor] -= 1
        left[worker] += 1
    return writes


def _obtainable(
    state: State, owners: Collection[WorkerId], now: Monotonic, draw: float
) -> dict[WorkerId, list[Write]]:
    """How to get the leases of each of these workers, in the order to try. One pass over the rows:
    a table may have thousands, of hundreds of workers."""
    rows: dict[WorkerId, list[ObservedLease]] = {owner: [] for owner in sorted(owners)}
    for key, row in sorted(state.observed.items()):
        if (
            row.lease.owner in rows
            and row.lease.checkpoint_owner is None
            and state.reads_stream_of(key)
            and state.may_write(key, now)
            and not is_expired(row, now, state.settings.failover_ms)
            and is_readable(row.lease, state)
        ):
            rows[row.lease.owner].append(row)
    polite = ssp_workers(state.observed) | state.kcl_workers.graceful
    worker = state.settings.worker
    return {
        owner: [RequestHandoff(lease=row.lease, to=worker) for row in rotate(found, draw)]
        if owner in polite
        else [
            Take(lease=row.lease, owner=worker)
            for row in rotate(found, draw)
            if _may_steal(state, row, now)
        ]
        for owner, found in rows.items()
    }


def ssp_workers(seen: Mapping[LeaseKey, ObservedLease]) -> set[WorkerId]:
    """The workers of this project: one marked lease is enough."""
    return {
        row.lease.holder
        for row in seen.values()
        if row.lease.holder is not None and row.lease.is_held_by_ssp
    }


def _may_steal(state: State, row: ObservedLease, now: Monotonic) -> bool:
    """Not from who has it only since a moment ago: it may be one of ours that has yet to renew and
    leave its mark."""
    failover = state.settings.failover_ms
    stolen = state.timestamps.stolen_at
    rested = stolen is None or now - stolen >= STEAL_INTERVAL * failover
    return rested and now - row.held_since >= failover


def rotate(items: Sequence[T], draw: float) -> list[T]:
    """The items in their order, beginning somewhere."""
    start = int(draw * len(items))
    return [*items[start:], *items[:start]]
