"""Selects leases of other workers to take or to request.

A lease is free if it has no holder, or if its counter has not changed for longer than the failover
time by this worker's own clock. Free leases are taken up to the fair share, all at once. Because of
the condition on the counter only one worker succeeds, and none if the holder has renewed.

A held lease is taken only for balance: from the worker with the most leases, and only if that
worker then still has at least as many as this one. Workers of this project and KCL 3 workers get a
handoff request. KCL 2 has no requests, so leases are stolen from its workers as they do among
themselves: one per two failover times. With a KCL 3 leader, free leases are left to it for some
time first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

from spark_ssp.checkpoint.coordination.observed_leases import count_leases, is_expired, is_readable
from spark_ssp.checkpoint.coordination.state import Monotonic, ObservedLease, State
from spark_ssp.checkpoint.leases.conditional_writes import RequestHandoff, Take, Write
from spark_ssp.checkpoint.leases.lease import LeaseKey
from spark_ssp.grouping.identifiers import WorkerId

T = TypeVar("T")

VERY_OLD: Final = 3
"""A lease that has been free for this many failover times is taken beyond the fair share: the other
workers have no room for it (KCL: `veryOldLeaseDurationNanosMultiplier`)."""

LEADER_GRACE: Final = 6
"""Failover times for which a free lease is left to a KCL 3 leader, which assigns leases every two
failover times."""

STEAL_INTERVAL: Final = 2
"""Failover times between two leases stolen from live KCL 2 workers, as in the KCL."""


def plan_takes(state: State, now: Monotonic, draw: float) -> list[Write]:
    """Return writes that take free leases or request held ones, from a random one on (`draw`)."""
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


def next_change(state: State, now: Monotonic) -> Monotonic | None:
    """Return when time alone next changes the takes: a lease that another worker holds
    expires, or a free one has been free for long."""
    failover = state.settings.failover_ms
    waits: tuple[int, ...] = (failover + 1, VERY_OLD * failover + 1)
    if state.kcl_workers.leader:
        waits = (*waits, LEADER_GRACE * failover)
    times = (
        row.unchanged_since + wait
        for key, row in state.observed.items()
        if key not in state.held and not row.lease.has_ended
        for wait in waits
    )
    return min((at for at in times if at > now), default=None)


def _free(state: State, now: Monotonic) -> list[LeaseKey]:
    """Return the free leases by key; with a leader only those that it has left unassigned."""
    wait = LEADER_GRACE * state.settings.failover_ms if state.kcl_workers.leader else 0
    return sorted(
        key
        for key, row in state.observed.items()
        if key not in state.held
        and (row.lease.holder is None or is_expired(row, now, state.settings.failover_ms))
        and now - row.unchanged_since >= wait
        and state.reads_stream_of(key)
        and is_readable(row.lease, state)
    )


def _very_old(state: State, key: LeaseKey, now: Monotonic) -> bool:
    return now - state.observed[key].unchanged_since > VERY_OLD * state.settings.failover_ms


def _own_load(state: State, counts: Mapping[WorkerId, int]) -> int:
    """Return the number of leases that this worker has, will receive or is taking."""
    taking = sum(isinstance(sent.write, Take) for sent in state.in_flight.values())
    return counts[state.settings.worker] + taking


def _free_capacity(state: State, counts: Mapping[WorkerId, int]) -> int:
    """Return how many leases this worker is short of its fair share: the readable leases divided by
    the number of workers, rounded up. Negative if it has more."""
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
    """Return by owner the writes that obtain a lease from it, in the order to try. One pass over
    the rows: a table may have thousands, of hundreds of workers."""
    rows: dict[WorkerId, list[ObservedLease]] = {owner: [] for owner in sorted(owners)}
    for key, row in sorted(state.observed.items()):
        if (
            row.lease.owner in rows
            and not row.lease.is_in_handoff
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
    """Return the workers of this project. One lease with `sspOwner` identifies a worker."""
    return {
        row.lease.holder
        for row in seen.values()
        if row.lease.holder is not None and row.lease.is_held_by_ssp
    }


def _may_steal(state: State, row: ObservedLease, now: Monotonic) -> bool:
    """Return whether a lease may be stolen. Not shortly after its holder took it: the holder may be
    a worker of this project that has not yet written `sspOwner`."""
    failover = state.settings.failover_ms
    stolen = state.timestamps.stolen_at
    rested = stolen is None or now - stolen >= STEAL_INTERVAL * failover
    return rested and now - row.held_since >= failover


def rotate(items: Sequence[T], draw: float) -> list[T]:
    """Return the items in cyclic order from a random one."""
    start = int(draw * len(items))
    return [*items[start:], *items[:start]]
