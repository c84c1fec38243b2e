"""Lease rows as observed, and the consequences for this worker's own leases.

A row is observed in a scan, in the answer to a write, or in a failed condition; `observe` compares
it with the previous observation. A lease that another worker held in between is lost even if it is
this worker's again, because that worker may have read on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from spark_ssp.checkpoint.coordination.state import (
    MAX_COLLISIONS,
    HeldLease,
    Monotonic,
    ObservedLease,
    State,
)
from spark_ssp.checkpoint.leases.conditional_writes import is_applied
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, lease_key
from spark_ssp.checkpoint.leases.lease_store import Rows
from spark_ssp.grouping.identifiers import WorkerId

K = TypeVar("K")
V = TypeVar("V")


# --- Predicates ----------------------------------------------------------------------------------


def is_expired(seen: ObservedLease, now: Monotonic, failover_ms: int) -> bool:
    """Return whether the lease's holder has not renewed it for longer than the failover time."""
    return seen.lease.holder is not None and now - seen.unchanged_since > failover_ms


def parent_keys(lease: Lease) -> tuple[LeaseKey, ...]:
    """Return the keys of the parents' rows."""
    return tuple(lease_key(parent, lease.stream) for parent in lease.parents)


def are_parents_done(lease: Lease, state: State) -> bool:
    """Return whether all parents' rows have SHARD_END or are deleted.

    A row is created only once a parent without a row is known to be done, so a missing row means
    done. A malformed row is not missing.
    """
    return all(
        state.observed[key].lease.has_ended
        if key in state.observed
        else key not in state.unreadable
        for key in parent_keys(lease)
    )


def is_readable(lease: Lease, state: State) -> bool:
    """Return whether the shard has, or may have, records to read."""
    return not lease.has_ended and are_parents_done(lease, state)


# --- Observations --------------------------------------------------------------------------------


def observe(
    state: State, key: LeaseKey, found: Lease | None, now: Monotonic, *, answer: bool = False
) -> State:
    """Apply one observed row (None: there is none), from a scan or from the `answer` to a write."""
    known = state.observed.get(key)
    if known is not None:
        state = _check_ownership(state, key, known.lease, found, now)
    if found is None:
        return replace(
            state, observed=without(state.observed, key), unreadable=without(state.unreadable, key)
        )
    return record_row(state, key, found, now, answer=answer)


def record_row(state: State, key: LeaseKey, found: Lease, now: Monotonic, *, answer: bool) -> State:
    """Store an observed row without checking the ownership of a held lease."""
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
    """Apply a complete scan that started at `started_at`.

    For a row that this worker is writing, or wrote after that time, the scan may be outdated.
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
    """Return the state after a lease was observed again.

    A held lease is still held if its counter is unchanged, if only handoff requests were withdrawn,
    or if a write of this worker whose result is unknown explains the row. Otherwise it is dropped.
    """
    is_held, worker = key in state.held, state.settings.worker
    if found is None or found.holder != worker or found.has_ended:
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
    """Return whether the row differs only by handoff requests that were made and withdrawn.

    A withdrawal (`Assign`) raises the counter and counts as a switch back to the holder. No other
    write under the holder's name does both: a renewal keeps the switches, a checkpoint sets them to
    0. Two withdrawals are indistinguishable from another worker's take and its return, but a take
    is possible only after the lease has expired.
    """
    raised = found.counter - known.counter
    if raised != found.switches - known.switches or found.progress != known.progress:
        return False
    return raised == 1 or (raised > 1 and key in state.held and not is_overdue(state, key, now))


def _record_collision(state: State, key: LeaseKey, now: Monotonic) -> State:
    """Record a write by another process under this worker's id, or a take and return by another
    worker."""
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
    """Record that a write sent at `sent_at` has raised the counter under this worker's id."""
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
    """Return whether a held lease has not been renewed for so long that another worker may have
    taken it."""
    return now - state.held[key].renewed_at >= state.settings.failover_ms


def drop_lease(state: State, key: LeaseKey) -> State:
    """Remove a lease that is no longer held, with the progress to be written for it."""
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
    """Return the number of readable leases by worker, with requested handoffs counted as done.

    This worker, and workers that are only handing leases over, are included even with 0.
    """
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
    """Return the mapping without one key."""
    if key not in mapping:
        return mapping
    rest = dict(mapping)
    del rest[key]
    return rest
