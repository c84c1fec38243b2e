"""Rows as a worker has seen them, and what follows for its own leases. Pure.

A row may be seen in a scan, in the answer to a write, and in a failed condition. Whatever it was,
`observe` compares it with what is known. A lease of this worker that another has held meanwhile is
lost even if it is this worker's again: its shard has moved on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from checkpoint.coordination.state import MAX_COLLISIONS, HeldLease, Monotonic, ObservedLease, State
from checkpoint.leases.checkpoint_position import ShardEnded
from checkpoint.leases.conditional_writes import is_applied
from checkpoint.leases.lease import Lease, LeaseKey, lease_key
from checkpoint.leases.lease_store import Rows
from task_grouping.identifiers import WorkerId

K = TypeVar("K")
V = TypeVar("V")


# --- What is seen --------------------------------------------------------------------------------


def has_ended(lease: Lease) -> bool:
    """Whether its shard is read to the end."""
    return isinstance(lease.progress, ShardEnded)


def is_expired(seen: ObservedLease, now: Monotonic, failover_ms: int) -> bool:
    """Whether its holder has not renewed it for longer than the failover time."""
    return seen.lease.holder is not None and now - seen.unchanged_since > failover_ms


def parent_keys(lease: Lease) -> tuple[LeaseKey, ...]:
    """The keys of the parents' rows."""
    return tuple(lease_key(parent, lease.stream) for parent in lease.parents)


def are_parents_done(lease: Lease, state: State) -> bool:
    """Whether all parents' rows say SHARD_END or are gone.

    A row is created only once a parent without one is known to be done, so gone means done. One
    that cannot be read is not gone.
    """
    return all(
        has_ended(state.observed[key].lease)
        if key in state.observed
        else key not in state.unreadable
        for key in parent_keys(lease)
    )


def is_readable(lease: Lease, state: State) -> bool:
    """Whether there is, or may be, something to read in its shard."""
    return not has_ended(lease) and are_parents_done(lease, state)


# --- Seeing --------------------------------------------------------------------------------------


def observe(
    state: State, key: LeaseKey, found: Lease | None, now: Monotonic, *, answer: bool = False
) -> State:
    """The row was seen as `found` (None: there is none), in an `answer` to a write or in a scan."""
    known = state.observed.get(key)
    if known is not None:
        state = _check_ownership(state, key, known.lease, found, now)
    if found is None:
        return replace(
            state, observed=without(state.observed, key), unreadable=without(state.unreadable, key)
        )
    return record_row(state, key, found, now, answer=answer)


def record_row(state: State, key: LeaseKey, found: Lease, now: Monotonic, *, answer: bool) -> State:
    """The row is as `found`, whatever that means for a lease that is held."""
    known = state.observed.get(key)
    reported = state.reported
    if key in reported.create:
        reported = replace(reported, create=without(reported.create, key))
    row = _to_observed(known, found, now, answer=answer)
    return replace(
        state,
        observed={**state.observed, key: row},
        unreadable=without(state.unreadable, key),
        reported=reported,
    )


def observe_scan(state: State, rows: Rows, started_at: Monotonic, now: Monotonic) -> State:
    """All rows were observed at once, in a scan that began then.

    Of a row that this worker writes or has written meanwhile, it may say what is over already.
    """
    found = {lease.key: lease for lease in rows.leases}
    before = state.held.keys() | state.unreadable_held
    observed: dict[LeaseKey, ObservedLease] = {}
    for key in sorted({*state.observed, *found}):
        known = state.observed.get(key)
        newer = (
            known is not None and known.written_at is not None and known.written_at >= started_at
        )
        if key in state.in_flight or newer:
            if known is not None:
                observed[key] = known
            continue
        row = found.get(key)
        if known is not None:
            state = _check_ownership(state, key, known.lease, row, now)
        if row is not None:
            observed[key] = _to_observed(known, row, now, answer=False)
    unreadable = {
        key: error
        for error in rows.malformed
        if error.key is not None and (key := LeaseKey(error.key)) not in observed
    }
    spoilt = frozenset(unreadable.keys() & before)
    return replace(state, observed=observed, unreadable=unreadable, unreadable_held=spoilt)


def _to_observed(
    known: ObservedLease | None, found: Lease, now: Monotonic, *, answer: bool
) -> ObservedLease:
    written_at = now if answer else None if known is None else known.written_at
    since = held_since = now
    first_at = now if known is None else known.first_seen_at
    if known is not None and found.holder == known.lease.holder:
        held_since = known.held_since
        if found.counter == known.lease.counter:
            since = known.unchanged_since
    return ObservedLease(
        lease=found,
        unchanged_since=since,
        held_since=held_since,
        first_seen_at=first_at,
        written_at=written_at,
    )


def _check_ownership(
    state: State, key: LeaseKey, known: Lease, found: Lease | None, now: Monotonic
) -> State:
    """Whether a held lease still is: nobody else can have had it if the counter is the one known,
    if only requests for it were withdrawn, or if a write of this worker's in doubt has left it."""
    is_held, worker = key in state.held, state.settings.worker
    if found is None or found.holder != worker or has_ended(found):
        state = replace(state, duplicate_owners=state.duplicate_owners - {key})
        return drop_lease(state, key) if is_held or key in state.reported.progress else state
    if found.counter == known.counter or known.holder != worker:
        return state
    if _is_request_withdrawn(state, key, known, found, now):
        withheld = state.reported.withheld - {key}  # the reader may take it up again
        reported = replace(state.reported, withheld=withheld)
        return replace(state, reported=reported, in_doubt=without(state.in_doubt, key))
    for doubt in state.in_doubt.get(key, ()):
        if is_applied(doubt.write, found):
            return record_renewal(state, key, sent_at=doubt.sent_at) if is_held else state
    return drop_lease(_record_collision(state, key, now), key)


def _is_request_withdrawn(
    state: State, key: LeaseKey, known: Lease, found: Lease, now: Monotonic
) -> bool:
    """Whether the row, its holder being the same, differs by nothing but requests for a hand-over
    whose writers have taken them back.

    That raises the counter, and counts as a switch back to the holder (`Assign`). No other write
    in the holder's name does both: a renewal leaves the switches alone, a checkpoint sets them to
    0. Two may also be another's taking and its way back, but not before the lease has expired.
    """
    raised = found.counter - known.counter
    if raised != found.switches - known.switches or found.progress != known.progress:
        return False
    return raised == 1 or (raised > 1 and key in state.held and not is_overdue(state, key, now))


def _record_collision(state: State, key: LeaseKey, now: Monotonic) -> State:
    """Somebody else has written in this worker's name; or, for once, has taken the lease meanwhile
    and given it back."""
    times = (*state.collisions.get(key, ()), now)[-MAX_COLLISIONS:]
    return replace(
        state,
        duplicate_owners=state.duplicate_owners | {key},
        collisions={**state.collisions, key: times},
    )


# --- Held leases ---------------------------------------------------------------------------------


def record_renewal(
    state: State, key: LeaseKey, *, sent_at: Monotonic, checkpointed: bool = False
) -> State:
    """A write that was sent then has raised the counter in this worker's name."""
    before = state.held.get(key)
    at = sent_at if checkpointed else None if before is None else before.checkpointed_at
    now = HeldLease(renewed_at=sent_at, checkpointed_at=at)
    return replace(
        state,
        held={**state.held, key: now},
        in_doubt=without(state.in_doubt, key),
        duplicate_owners=state.duplicate_owners - {key},
    )


def is_overdue(state: State, key: LeaseKey, now: Monotonic) -> bool:
    """Whether a held lease was not renewed for so long that another may have taken it."""
    return now - state.held[key].renewed_at >= state.settings.failover_ms


def drop_lease(state: State, key: LeaseKey) -> State:
    """The lease is not held any more; what was to be written for it is void."""
    reported = state.reported
    reported = replace(
        reported,
        progress=without(reported.progress, key),
        ended=without(reported.ended, key),
        withheld=reported.withheld - {key},
    )
    return replace(
        state,
        reported=reported,
        held=without(state.held, key),
        in_doubt=without(state.in_doubt, key),
    )


def count_leases(state: State, now: Monotonic) -> dict[WorkerId, int]:
    """How many readable leases each worker has, or is going to have once hand-overs are done. This
    worker and those that are only handing over are there too, be it with 0."""
    counts: dict[WorkerId, int] = {state.settings.worker: 0}
    for key, row in state.observed.items():
        lease = row.lease
        mine = key in state.held
        if not state.reads_stream_of(key):
            continue
        if lease.holder is None or (is_expired(row, now, state.settings.failover_ms) and not mine):
            continue
        if is_readable(lease, state):
            counts.setdefault(lease.holder, 0)
            owner = lease.holder if lease.owner is None else lease.owner
            counts[owner] = counts.get(owner, 0) + 1
    return counts


def without(mapping: Mapping[K, V], key: K) -> Mapping[K, V]:
    """The mapping, but for one key."""
    if key not in mapping:
        return mapping
    return {k: v for k, v in mapping.items() if k != key}
