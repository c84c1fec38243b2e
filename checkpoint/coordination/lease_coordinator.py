"""Which leases this worker takes, renews, hands over and gives up: a state machine of values.

There is no clock, no chance and no I/O in here. A loop around it does what `next_steps` says and
tells what became of it:

    state = initial(Settings(worker=worker))
    while not finished(state):
        steps = next_steps(state, now(), random())
        state = started(state, steps, now())
        ...                     # each write -> written, a scan -> scanned or scan_failed,
                                # the reader's reports -> reported, and its end -> closing

All functions return a new state. `now` is this process's monotonic clock in milliseconds, and never
goes back.
"""

from __future__ import annotations

from dataclasses import replace

from checkpoint.coordination.lease_cleanup import to_delete
from checkpoint.coordination.lease_renewer import due, is_asked_for, led, not_held
from checkpoint.coordination.lease_taker import next_free_at, to_take
from checkpoint.coordination.observed_leases import has_ended, is_overdue, surveyed
from checkpoint.coordination.protocol import Report, Status
from checkpoint.coordination.shard_end import children_to_create
from checkpoint.coordination.state import (
    METRICS_EVERY_MS,
    Monotonic,
    Settings,
    State,
    Steps,
    Told,
    UnderWay,
    stream_of,
)
from checkpoint.coordination.write_results import (
    conflicted,
    done,
    failed,
    no_write_fails,
    noted_as_stolen,
    outage_since,
    reads_troubled,
    retry_after_ms,
)
from checkpoint.leases.checkpoint_position import Progress, is_forward
from checkpoint.leases.conditional_writes import (
    Assign,
    Conflict,
    Create,
    Delete,
    Done,
    Evict,
    Outcome,
    SetChildren,
    Write,
)
from checkpoint.leases.lease import LeaseKey
from checkpoint.leases.lease_store import Rows
from checkpoint.leases.worker_metrics import CoWorkers
from ssp_common.errors import ServiceUnavailableError, SspError

__all__ = [
    "Monotonic",
    "Settings",
    "State",
    "Steps",
    "closing",
    "finished",
    "initial",
    "next_steps",
    "ready",
    "reported",
    "scan_failed",
    "scanned",
    "started",
    "status",
    "written",
]


def initial(settings: Settings) -> State:
    """Before anything is known."""
    return State(settings=settings)


# --- What is heard -------------------------------------------------------------------------------


def reported(state: State, report: Report, now: Monotonic) -> State:
    """The reader has said what is true for it.

    What it says of ends counts for leases that are held now, and of progress also for those that
    this worker is about to hold again. It is to repeat it in every report, as long as it is true.
    """
    told = state.told
    leaving = told.leaving or report.leave
    held = state.holdings
    told = Told(
        create={
            **told.create,
            **{row.key: row for row in report.create if not state.has_row(row.key)},
        },
        progress={
            **told.progress,
            **{
                key: progress
                for key, progress in report.progress.items()
                if _is_own(state, key) and _is_news(state, key, progress)
            },
        },
        reading=report.reading,
        ended={
            **told.ended,
            **{
                key: children
                for key, children in report.ended.items()
                if key in held and key not in report.reading
            },
        },
        listed=told.listed if report.listed is None else report.listed,
        listed_at=_listed_at(told, report, now),
        streams=told.streams
        if report.listed is None
        else frozenset(stream_of(key) for key in report.listed),
        withheld=frozenset(key for key in held if is_asked_for(state, key)),
        leaving=leaving,
        gone=told.gone,
    )
    return replace(state, told=told)


def _listed_at(told: Told, report: Report, now: Monotonic) -> Monotonic | None:
    if report.listed is None:
        return told.listed_at
    return None if report.listed_before else now


def _is_own(state: State, key: LeaseKey) -> bool:
    """Whether a lease is held, or is this worker's by its row: of its last process."""
    row = state.seen.get(key)
    return key in state.holdings or (row is not None and row.lease.holder == state.settings.worker)


def _is_news(state: State, key: LeaseKey, progress: Progress) -> bool:
    known = state.told.progress.get(key, state.seen[key].lease.progress)
    return is_forward(known, progress)


def scanned(state: State, rows: Rows, co_workers: CoWorkers, now: Monotonic) -> State:
    """The table was read. `now`: when the answer had come."""
    begun = now if state.timing.scan_begun is None else state.timing.scan_begun
    state = surveyed(state, rows, begun, now)
    told = state.told
    create = told.create if state.timing.scanned is None else {}
    told = replace(told, create={key: row for key, row in create.items() if not state.has_row(key)})
    cleaned = state.timing.cleaned
    timing = replace(
        state.timing,
        scan_begun=None,
        scanned=now,
        scan_failures=0,
        balanced=False,
        cleaned=now if cleaned is None else cleaned,
        reads_out_since=None,
        writes_out_since=None if no_write_fails(state, now) else state.timing.writes_out_since,
    )
    return replace(state, told=told, timing=timing, co_workers=co_workers, scan_problem=None)


def scan_failed(state: State, error: SspError, now: Monotonic) -> State:
    """The table could not be read."""
    begun = now if state.timing.scan_begun is None else state.timing.scan_begun
    state = reads_troubled(state, error, begun)
    if not isinstance(error, ServiceUnavailableError):
        state = replace(state, scan_problem=error)
    failures = state.timing.scan_failures + 1
    return replace(state, timing=replace(state.timing, scan_begun=None, scan_failures=failures))


def written(state: State, write: Write, outcome: Outcome | SspError, now: Monotonic) -> State:
    """What became of a write that was started. An error: it may have taken effect or not."""
    match outcome:
        case Done():
            return done(state, write, outcome, now)
        case Conflict():
            return conflicted(state, write, outcome, now)
    return failed(state, write, outcome, now)


def closing(state: State, now: Monotonic) -> State:
    """The reader has gone: write what it has committed, give everything back, take nothing.

    What could not be written before is tried again at once.
    """
    told = replace(state.told, gone=True, reading=frozenset())
    return replace(state, told=told, retry_at={})


# --- What to do ----------------------------------------------------------------------------------


def next_steps(state: State, now: Monotonic, draw: float) -> Steps:
    """What to do now. `draw` is uniform in [0, 1): it spreads workers that start at once."""
    scan_at = _scan_at(state)
    metrics_at = _metrics_at(state)
    scan = state.timing.scan_begun is None and scan_at <= now
    metrics = metrics_at is not None and metrics_at <= now
    wakes = [scan_at] if state.timing.scan_begun is None else []
    wakes += [] if metrics_at is None else [metrics_at]
    if state.timing.scanned is None:
        return Steps(writes=(), scan=scan, metrics=metrics, wake_at=_after(wakes, now, state))
    by = led(state)
    dues = {
        key: due(state, key, now, by) for key in sorted(state.holdings) if state.may_write(key, now)
    }
    wakes += [one.at for one in dues.values()]
    wakes += [at for key, at in state.retry_at.items() if key not in state.under_way]
    free_at = None if state.leaving else next_free_at(state, now)
    wakes += [] if free_at is None else [free_at]
    writes = [
        *_urgent_first([one.write for one in dues.values() if one.write is not None]),
        *not_held(state, now, by),
        *_creates(state, now),
        *to_take(state, now, draw),
        *to_delete(state, now),
    ]
    return Steps(
        writes=tuple({write.lease.key: write for write in reversed(writes)}.values())[::-1],
        scan=scan,
        metrics=metrics,
        wake_at=_after(wakes, now, state),
    )


def _urgent_first(writes: list[Write]) -> list[Write]:
    """What keeps a lease, before what gives one away."""
    return sorted(writes, key=lambda write: isinstance(write, Assign | Evict | SetChildren))


def _creates(state: State, now: Monotonic) -> list[Write]:
    wanted = state.view_is_fresh(now) and not state.leaving
    rows = dict(state.told.create) if wanted else {}
    rows |= {write.lease.key: write.lease for write in children_to_create(state, now)}
    return [Create(lease=rows[key]) for key in sorted(rows) if state.may_write(key, now)]


def _after(wakes: list[Monotonic], now: Monotonic, state: State) -> Monotonic:
    """What is due already is done now or waits for an answer."""
    return min((at for at in wakes if at > now), default=now + state.settings.failover_ms)


def _scan_at(state: State) -> Monotonic:
    timing, failover = state.timing, state.settings.failover_ms
    if timing.scan_tried is None:
        return 0
    if timing.scan_failures:
        return timing.scan_tried + retry_after_ms(failover)
    waiting = timing.asked is not None and timing.scan_tried - timing.asked < 2 * failover
    if waiting and not state.leaving and _is_awaited(state):
        return timing.scan_tried + failover // 10
    return timing.scan_tried + failover // 2


def _is_awaited(state: State) -> bool:
    worker = state.settings.worker
    return any(
        row.lease.owner == worker and row.lease.holder != worker for row in state.seen.values()
    )


def _metrics_at(state: State) -> Monotonic | None:
    if state.co_workers.leader is None or state.leaving:
        return None
    last = state.timing.metrics
    return 0 if last is None else last + METRICS_EVERY_MS


def started(state: State, steps: Steps, now: Monotonic) -> State:
    """The steps are about to be done. `now`: before the first of them is sent.

    Until `written` tells of a write, no other write of its row is planned; until `scanned` or
    `scan_failed`, no other scan. So `next_steps` may be asked while some are under way.
    """
    for write in steps.writes:
        state = noted_as_stolen(state, write, now)
    sent = {write.lease.key: UnderWay(write=write, sent_at=now) for write in steps.writes}
    timing = replace(state.timing, balanced=True)
    if steps.scan:
        timing = replace(timing, scan_begun=now, scan_tried=now)
    if steps.metrics:
        timing = replace(timing, metrics=now)
    if any(isinstance(write, Delete) for write in steps.writes):
        timing = replace(timing, cleaned=now)
    return replace(state, under_way={**state.under_way, **sent}, timing=timing)


# --- What to say ---------------------------------------------------------------------------------


def finished(state: State) -> bool:
    """After `closing`, or a report with `leave`: nothing is held and nothing under way.

    A table that cannot be written to keeps it from coming true: whoever waits sets an end.
    """
    if not state.leaving or state.holdings or state.under_way:
        return False
    worker = state.settings.worker
    return not any(
        worker in (row.lease.owner, row.lease.checkpoint_owner)
        and not has_ended(row.lease)
        and key not in state.rivals
        for key, row in state.seen.items()
    )


def ready(state: State) -> bool:
    """Whether the table has been scanned."""
    return state.timing.scanned is not None


def status(state: State, now: Monotonic) -> Status:
    """What the reader is to know."""
    leases = {
        key: state.seen[key].lease for key in sorted(state.holdings) if key not in state.told.ended
    }
    safe = {key: lease for key, lease in leases.items() if not is_overdue(state, key, now)}
    outage = outage_since(state)
    return Status(
        held=safe,
        asked_for=frozenset(key for key in safe if is_asked_for(state, key)),
        overdue=frozenset(leases) - frozenset(safe),
        rows={key: row.lease for key, row in sorted(state.seen.items())},
        outage_ms=0 if outage is None else max(1, now - outage),
        unreadable=frozenset(state.unreadable),
        released=finished(state),
        problem=state.scan_problem or state.write_problem or _unreadable(state),
    )


def _unreadable(state: State) -> SspError | None:
    """What cannot be read of what this worker holds, or its reader reads."""
    own = state.unreadable.keys() & (state.spoilt | state.told.reading)
    return state.unreadable[min(own)] if own else None
