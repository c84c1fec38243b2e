"""Lease rows as observed, and the consequences for this worker's own leases.

A row is observed in a scan, in the answer to a write, or in a failed condition; `observe` compares
it with the previous observation. A lease that another worker held in between is lost even if it is
this worker's again, because that worker may have read on.
"""

from __future__ import annotations

from dataclasses import replace

from spark_ssp.checkpoint.coordination.state import (
    MAX_COLLISIONS,
    HeldLease,
    InFlightWrite,
    Monotonic,
    ObservedLease,
    State,
    changed,
    put,
    without,
)
from spark_ssp.checkpoint.leases.conditional_writes import (
    Checkpoint,
    Conflict,
    Delete,
    Done,
    Renew,
    RequestHandoff,
    Take,
    Write,
    is_applied,
)
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, MalformedLeaseError, lease_key
from spark_ssp.checkpoint.leases.lease_store import Rows
from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.grouping.identifiers import WorkerId

# --- Predicates ----------------------------------------------------------------------------------


def is_expired(seen: ObservedLease, now: Monotonic, failover_ms: int) -> bool:
    """Return whether the lease's holder has not renewed it for longer than the failover time."""
    return seen.lease.holder is not None and now - seen.unchanged_since > failover_ms


def parent_keys(lease: Lease) -> tuple[LeaseKey, ...]:
    """Return the keys of the parents' rows."""
    return tuple(lease_key(parent, lease.stream) for parent in lease.parents)


def are_parents_done(lease: Lease, state: State) -> bool:
    """Return whether all parents' rows have SHARD_END or are deleted. A row is created only once a
    parent without a row is known to be done, so a missing row means done. A malformed row is not
    missing."""
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
    return changed(
        state,
        observed=put(state.observed, key, row),
        unreadable=without(state.unreadable, key),
        reported=reported,
    )


def observe_scan(state: State, rows: Rows, started_at: Monotonic, now: Monotonic) -> State:
    """Apply a complete scan that started at `started_at`. For a row that this worker is writing, or
    wrote after that time, the scan may be outdated."""
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
    """Return the state after a lease was observed again. A held lease is still held if its counter
    is unchanged, if only handoff requests were withdrawn, or if a write of this worker whose result
    is unknown explains the row. Otherwise it is dropped."""
    is_held, worker = key in state.held, state.settings.worker
    if found is None or found.holder != worker or found.has_ended:
        state = replace(
            state,
            duplicate_owners=state.duplicate_owners - {key},
            surplus=state.surplus - {key},
        )
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
    write under the holder's name does both: a renewal keeps the switches, a checkpoint changes the
    progress. Two withdrawals are indistinguishable from another worker's take and its return, but a
    take is possible only after the lease has expired.
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
    duplicates = state.duplicate_owners
    return changed(
        state,
        held=put(state.held, key, now),
        in_doubt=without(state.in_doubt, key),
        duplicate_owners=duplicates - {key} if key in duplicates else duplicates,
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
        due=without(state.due, key),
    )


def count_leases(state: State, now: Monotonic) -> dict[WorkerId, int]:
    """Return the number of readable leases by worker, with requested handoffs counted as done. This
    worker, and workers that are only handing leases over, are included even with 0."""
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


# --- Results of writes ---------------------------------------------------------------------------


def retry_after_ms(failover_ms: int) -> int:
    """Return the delay of repeating a failed write or scan, beyond the retries of the store."""
    return failover_ms // 10


def apply_done(state: State, write: Write, outcome: Done, now: Monotonic) -> State:
    """Apply a write that took effect."""
    key, lease = write.lease.key, outcome.lease
    state, sent_at = _clear_in_flight(state, key, now)
    if isinstance(write, Delete):
        return observe(state, key, None, now, answer=True)
    if isinstance(write, RequestHandoff):
        state = replace(state, timestamps=replace(state.timestamps, handoff_requested_at=now))
    if not isinstance(write, Renew | Take | Checkpoint):
        return observe(state, key, lease, now, answer=True)
    state = record_row(state, key, lease, now, answer=True)
    if lease.has_ended:
        return drop_lease(state, key)
    return record_renewal(state, key, sent_at=sent_at, checkpointed=isinstance(write, Checkpoint))


def apply_conflict(state: State, write: Write, outcome: Conflict, now: Monotonic) -> State:
    """Apply a write whose condition failed."""
    key = write.lease.key
    state, _ = _clear_in_flight(state, key, now)
    return observe(state, key, outcome.found, now, answer=True)


def _clear_in_flight(state: State, key: LeaseKey, now: Monotonic) -> tuple[State, Monotonic]:
    """Record that a write was answered. Also return when it was sent."""
    sent = state.in_flight.get(key)
    timestamps = state.timestamps
    if timestamps.writes_failing_since is not None:
        timestamps = replace(timestamps, writes_failing_since=None)
    return (
        changed(
            state,
            in_flight=without(state.in_flight, key),
            retry_at=without(state.retry_at, key),
            timestamps=timestamps,
            write_problem=None,
        ),
        now if sent is None else sent.sent_at,
    )


def apply_failure(state: State, write: Write, error: SspError, now: Monotonic) -> State:
    """Record a failed write, whose effect is unknown."""
    key = write.lease.key
    sent = state.in_flight.get(key, InFlightWrite(write=write, sent_at=now))
    delay = retry_after_ms(state.settings.failover_ms)
    state = replace(
        state,
        in_flight=without(state.in_flight, key),
        retry_at=put(state.retry_at, key, now + delay),
    )
    before = state.in_doubt.get(key, ())
    doubtful = key in state.held or isinstance(write, Renew)
    if doubtful and write not in {doubt.write for doubt in before}:
        state = replace(state, in_doubt=put(state.in_doubt, key, (*before, sent)))
    state = _record_write_outage(state, error, sent.sent_at, now)
    if not isinstance(error, ServiceUnavailableError) and not _is_ignorable(state, write, error):
        state = replace(state, write_problem=error)
    overdue = key in state.held and is_overdue(state, key, now)
    return drop_lease(state, key) if state.reported.reader_exited and overdue else state


def _is_ignorable(state: State, write: Write, error: SspError) -> bool:
    """Return whether an error is not reported: a failed clean-up, for instance for a missing
    permission, or a malformed row of a lease that is neither held nor read."""
    if isinstance(error, MalformedLeaseError):
        return write.lease.key not in state.held.keys() | state.reported.reading
    return isinstance(write, Delete)


def record_read_outage(state: State, error: SspError, since: Monotonic) -> State:
    """Record a failed scan. An outage begins at the start of its first failed scan."""
    if not isinstance(error, ServiceUnavailableError):
        return state
    first = state.timestamps.reads_failing_since
    first = since if first is None else first
    return replace(state, timestamps=replace(state.timestamps, reads_failing_since=first))


def _record_write_outage(state: State, error: SspError, since: Monotonic, now: Monotonic) -> State:
    if not isinstance(error, ServiceUnavailableError):
        return state
    first = state.timestamps.writes_failing_since
    first = since if first is None else first
    return replace(
        state, timestamps=replace(state.timestamps, writes_failing_since=first, write_failed_at=now)
    )


def is_write_outage_over(state: State, now: Monotonic) -> bool:
    """Return whether no write has failed for the failover time and none is in flight. Without this,
    an outage would last until there is something to write again."""
    last = state.timestamps.write_failed_at
    rested = last is None or now - last > state.settings.failover_ms
    return rested and not state.in_flight


def outage_since(state: State) -> Monotonic | None:
    """Return the start of the current outage of reads or writes, if any."""
    times = (state.timestamps.reads_failing_since, state.timestamps.writes_failing_since)
    return min((at for at in times if at is not None), default=None)


def record_steal(state: State, write: Write, now: Monotonic) -> State:
    """Record a take of a lease from a worker that may be alive."""
    row = state.observed.get(write.lease.key)
    if not isinstance(write, Take) or row is None or row.lease.holder is None:
        return state
    if now - row.unchanged_since > state.settings.failover_ms:
        return state
    return replace(state, timestamps=replace(state.timestamps, stolen_at=now))
