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

from checkpoint.coordination.observed_leases import has_ended, is_expired, is_readable, loads
from checkpoint.coordination.state import Monotonic, Seen, State
from checkpoint.leases.conditional_writes import RequestHandOver, Take, Write
from checkpoint.leases.lease import LeaseKey
from task_grouping.identifiers import WorkerId

T = TypeVar("T")

VERY_OLD: Final = 3
"""A lease that stays free for so many failover times is taken beyond the fair share, since others
seem to have no room (KCL: `veryOldLeaseDurationNanosMultiplier`)."""

LEADERS_CHANCES: Final = 6
"""For so many failover times a free lease is left to a KCL 3 leader, which assigns every two."""

STEAL_EVERY: Final = 2
"""Failover times between two leases taken from living KCL 2 workers, as they do it."""


def to_take(state: State, now: Monotonic, draw: float) -> list[Write]:
    """Free leases to take, or held ones to ask for. `draw`, in [0, 1), says where to begin."""
    if state.leaving or not state.view_is_fresh(now):
        return []
    free = _free(state, now)
    asking = not (free or state.timing.balanced or state.co_workers.leader)
    if not free and not asking:
        return []
    counts = loads(state, now)
    room = _room(state, counts)
    fair = rotated([key for key in free if state.may_write(key, now)], draw)[: max(room, 0)]
    taken = frozenset(fair)
    chosen = fair + [key for key in free if key not in taken and _very_old(state, key, now)]
    cap = state.settings.max_leases
    if cap is not None:
        chosen = chosen[: max(0, cap - _mine(state, counts))]
    writes: list[Write] = [
        Take(lease=state.seen[key].lease, owner=state.settings.worker)
        for key in chosen
        if state.may_write(key, now)
    ]
    return _to_ask_for(state, counts, room, now, draw) if asking else writes


def next_free_at(state: State, now: Monotonic) -> Monotonic | None:
    """When the next held lease becomes free, if it is not renewed."""
    failover = state.settings.failover_ms
    times = (
        row.since + failover + 1
        for key, row in state.seen.items()
        if key not in state.holdings and row.lease.holder is not None and not has_ended(row.lease)
    )
    return min((at for at in times if at > now), default=None)


def _free(state: State, now: Monotonic) -> list[LeaseKey]:
    """In order of their keys; with a leader only what it leaves lying."""
    wait = LEADERS_CHANCES * state.settings.failover_ms if state.co_workers.leader else 0
    return [
        key
        for key, row in sorted(state.seen.items())
        if key not in state.holdings
        and state.concerns(key)
        and (row.lease.holder is None or is_expired(row, now, state.settings.failover_ms))
        and now - row.since >= wait
        and is_readable(row.lease, state)
    ]


def _very_old(state: State, key: LeaseKey, now: Monotonic) -> bool:
    return now - state.seen[key].since > VERY_OLD * state.settings.failover_ms


def _mine(state: State, counts: Mapping[WorkerId, int]) -> int:
    """What this worker has, is going to have, or is just taking."""
    taking = sum(isinstance(sent.write, Take) for sent in state.under_way.values())
    return counts[state.settings.worker] + taking


def _room(state: State, counts: Mapping[WorkerId, int]) -> int:
    """How many more leases this worker's fair share comes to: of all readable ones, rounded up."""
    total = sum(
        state.concerns(key) and is_readable(row.lease, state) for key, row in state.seen.items()
    )
    share = -(-total // len(counts))
    cap = state.settings.max_leases
    return (share if cap is None else min(share, cap)) - _mine(state, counts)


def _to_ask_for(
    state: State, counts: Mapping[WorkerId, int], room: int, now: Monotonic, draw: float
) -> list[Write]:
    if room <= 0:
        return []
    left = dict(counts)
    worker = state.settings.worker
    left[worker] = _mine(state, counts)
    able = _givable(state, left.keys() - {worker}, now, draw)
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


def _givable(
    state: State, owners: Collection[WorkerId], now: Monotonic, draw: float
) -> dict[WorkerId, list[Write]]:
    """How to get the leases of each of these workers, in the order to try. One pass over the rows:
    a table may have thousands, of hundreds of workers."""
    rows: dict[WorkerId, list[Seen]] = {owner: [] for owner in sorted(owners)}
    for key, row in sorted(state.seen.items()):
        if (
            row.lease.owner in rows
            and row.lease.checkpoint_owner is None
            and state.concerns(key)
            and state.may_write(key, now)
            and not is_expired(row, now, state.settings.failover_ms)
            and is_readable(row.lease, state)
        ):
            rows[row.lease.owner].append(row)
    polite = ours(state.seen) | state.co_workers.graceful
    worker = state.settings.worker
    return {
        owner: [RequestHandOver(lease=row.lease, to=worker) for row in rotated(found, draw)]
        if owner in polite
        else [
            Take(lease=row.lease, owner=worker)
            for row in rotated(found, draw)
            if _may_steal(state, row, now)
        ]
        for owner, found in rows.items()
    }


def ours(seen: Mapping[LeaseKey, Seen]) -> set[WorkerId]:
    """The workers of this project: one marked lease is enough."""
    return {
        row.lease.holder
        for row in seen.values()
        if row.lease.holder is not None and row.lease.marked_as_ours
    }


def _may_steal(state: State, row: Seen, now: Monotonic) -> bool:
    """Not from who has it only since a moment ago: it may be one of ours that has yet to renew and
    leave its mark."""
    failover = state.settings.failover_ms
    stolen = state.timing.stolen
    rested = stolen is None or now - stolen >= STEAL_EVERY * failover
    return rested and now - row.held_since >= failover


def rotated(items: Sequence[T], draw: float) -> list[T]:
    """The items in their order, beginning somewhere."""
    start = int(draw * len(items))
    return [*items[start:], *items[:start]]
