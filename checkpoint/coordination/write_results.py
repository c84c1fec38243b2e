"""What becomes of a worker's knowledge when a write was answered, or was not. Pure."""

from __future__ import annotations

from dataclasses import replace

from checkpoint.coordination.observed_leases import (
    has_ended,
    held,
    is_overdue,
    lost,
    recorded,
    sighted,
    without,
)
from checkpoint.coordination.state import Monotonic, State, UnderWay
from checkpoint.errors import MalformedLeaseError
from checkpoint.leases.conditional_writes import (
    Checkpoint,
    Conflict,
    Delete,
    Done,
    Renew,
    RequestHandOver,
    Take,
    Write,
)
from checkpoint.leases.lease import LeaseKey
from ssp_common.errors import ServiceUnavailableError, SspError


def retry_after_ms(failover_ms: int) -> int:
    """How long to wait after a failure. The store has waited and tried again before."""
    return failover_ms // 10


def done(state: State, write: Write, outcome: Done, now: Monotonic) -> State:
    """The write took effect."""
    key, lease = write.lease.key, outcome.lease
    state, sent_at = _answered(state, key, now)
    if isinstance(write, Delete):
        return sighted(state, key, None, now, answer=True)
    if isinstance(write, RequestHandOver):
        state = replace(state, timing=replace(state.timing, asked=now))
    if not isinstance(write, Renew | Take | Checkpoint):
        return sighted(state, key, lease, now, answer=True)
    state = recorded(state, key, lease, now, answer=True)
    if has_ended(lease):
        return lost(state, key)
    return held(state, key, sent_at=sent_at, checkpointed=isinstance(write, Checkpoint))


def conflicted(state: State, write: Write, outcome: Conflict, now: Monotonic) -> State:
    """The row is not as expected."""
    key = write.lease.key
    state, _ = _answered(state, key, now)
    return sighted(state, key, outcome.found, now, answer=True)


def _answered(state: State, key: LeaseKey, now: Monotonic) -> tuple[State, Monotonic]:
    """The table can be written to. Also: when the write was sent."""
    sent = state.under_way.get(key)
    return (
        replace(
            state,
            under_way=without(state.under_way, key),
            retry_at=without(state.retry_at, key),
            timing=replace(state.timing, writes_out_since=None),
            write_problem=None,
        ),
        now if sent is None else sent.sent_at,
    )


def failed(state: State, write: Write, error: SspError, now: Monotonic) -> State:
    """It is unknown whether the write took effect."""
    key = write.lease.key
    sent = state.under_way.get(key, UnderWay(write=write, sent_at=now))
    delay = retry_after_ms(state.settings.failover_ms)
    state = replace(
        state,
        under_way=without(state.under_way, key),
        retry_at={**state.retry_at, key: now + delay},
    )
    before = state.doubts.get(key, ())
    doubtful = key in state.holdings or isinstance(write, Renew)
    if doubtful and write not in {doubt.write for doubt in before}:
        state = replace(state, doubts={**state.doubts, key: (*before, sent)})
    state = _writes_troubled(state, error, sent.sent_at, now)
    if not isinstance(error, ServiceUnavailableError) and not _is_let_be(state, write, error):
        state = replace(state, write_problem=error)
    overdue = key in state.holdings and is_overdue(state, key, now)
    return lost(state, key) if state.told.gone and overdue else state


def _is_let_be(state: State, write: Write, error: SspError) -> bool:
    """Cleaning up may fail, say for a permission; and a row that cannot be read is only trouble for
    who holds it."""
    if isinstance(error, MalformedLeaseError):
        return write.lease.key not in state.holdings.keys() | state.told.reading
    return isinstance(write, Delete)


def reads_troubled(state: State, error: SspError, since: Monotonic) -> State:
    """A scan failed: the outage began when the first one was begun that did."""
    if not isinstance(error, ServiceUnavailableError):
        return state
    first = state.timing.reads_out_since
    first = since if first is None else first
    return replace(state, timing=replace(state.timing, reads_out_since=first))


def _writes_troubled(state: State, error: SspError, since: Monotonic, now: Monotonic) -> State:
    if not isinstance(error, ServiceUnavailableError):
        return state
    first = state.timing.writes_out_since
    first = since if first is None else first
    return replace(state, timing=replace(state.timing, writes_out_since=first, write_failed=now))


def no_write_fails(state: State, now: Monotonic) -> bool:
    """Whether there was nothing to write for the failover time: what failed before is no outage
    any more, or it would last until there is something to write again."""
    last = state.timing.write_failed
    rested = last is None or now - last > state.settings.failover_ms
    return rested and not state.under_way


def outage_since(state: State) -> Monotonic | None:
    """Since when the table could not be read, or could not be written to; None: all is well."""
    times = (state.timing.reads_out_since, state.timing.writes_out_since)
    return min((at for at in times if at is not None), default=None)


def noted_as_stolen(state: State, write: Write, now: Monotonic) -> State:
    """A lease is about to be taken from a worker that may well be alive."""
    row = state.seen.get(write.lease.key)
    if not isinstance(write, Take) or row is None or row.lease.holder is None:
        return state
    if now - row.since > state.settings.failover_ms:
        return state
    return replace(state, timing=replace(state.timing, stolen=now))
