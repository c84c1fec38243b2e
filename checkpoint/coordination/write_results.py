"""Applies the results of writes to the state."""

from __future__ import annotations

from dataclasses import replace

from spark_ssp.checkpoint.coordination.observed_leases import (
    drop_lease,
    is_overdue,
    observe,
    record_renewal,
    record_row,
    without,
)
from spark_ssp.checkpoint.coordination.state import InFlightWrite, Monotonic, State
from spark_ssp.checkpoint.errors import MalformedLeaseError
from spark_ssp.checkpoint.leases.conditional_writes import (
    Checkpoint,
    Conflict,
    Delete,
    Done,
    Renew,
    RequestHandoff,
    Take,
    Write,
)
from spark_ssp.checkpoint.leases.lease import LeaseKey
from spark_ssp.common.errors import ServiceUnavailableError, SspError


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
    return (
        replace(
            state,
            in_flight=without(state.in_flight, key),
            retry_at=without(state.retry_at, key),
            timestamps=replace(state.timestamps, writes_failing_since=None),
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
        retry_at={**state.retry_at, key: now + delay},
    )
    before = state.in_doubt.get(key, ())
    doubtful = key in state.held or isinstance(write, Renew)
    if doubtful and write not in {doubt.write for doubt in before}:
        state = replace(state, in_doubt={**state.in_doubt, key: (*before, sent)})
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
    """Return whether no write has failed for the failover time and none is in flight.

    Without this, an outage would last until there is something to write again.
    """
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
