"""Decides which leases this worker takes, renews, hands over and releases: a pure state machine.

It uses no clock, random numbers or I/O. A loop around it executes `next_steps` and applies the
results:

    state = initial_state(Settings(worker=worker))
    while not is_finished(state):
        steps = next_steps(state, now(), random())
        state = mark_started(state, steps, now())
        ...   # each write -> apply_write_result, a scan -> apply_scan or apply_scan_failure,
              # reports of the reader -> apply_report, its exit -> start_shutdown

All functions return a new state. `now` is this process's monotonic clock in milliseconds.
"""

from __future__ import annotations

from dataclasses import replace

from spark_ssp.checkpoint.coordination.lease_renewer import (
    children_to_create,
    claim_unheld,
    is_handoff_requested,
    leader_throughput,
    plan_write,
)
from spark_ssp.checkpoint.coordination.lease_taker import next_expiry, plan_takes
from spark_ssp.checkpoint.coordination.observed_leases import (
    apply_conflict,
    apply_done,
    apply_failure,
    is_expired,
    is_overdue,
    is_readable,
    is_write_outage_over,
    observe_scan,
    outage_since,
    parent_keys,
    record_read_outage,
    record_steal,
    retry_after_ms,
)
from spark_ssp.checkpoint.coordination.protocol import Report, Status
from spark_ssp.checkpoint.coordination.state import (
    METRICS_EVERY_MS,
    InFlightWrite,
    Monotonic,
    ObservedLease,
    ReportedByReader,
    Settings,
    State,
    Steps,
    stream_of,
)
from spark_ssp.checkpoint.leases.conditional_writes import (
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
from spark_ssp.checkpoint.leases.lease import (
    Lease,
    LeaseKey,
    Progress,
    StartAtTimestamp,
    StartAtTrimHorizon,
    is_forward,
    lease_key,
)
from spark_ssp.checkpoint.leases.lease_store import Rows
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from spark_ssp.common.errors import ServiceUnavailableError, SspError


def initial_state(settings: Settings) -> State:
    """Return the state before the first scan."""
    return State(settings=settings)


# --- Events --------------------------------------------------------------------------------------


def apply_report(state: State, report: Report, now: Monotonic) -> State:
    """Apply a report of the reader. `ended` is accepted for held leases, `progress` also for leases
    that belong to this worker by their row. The reader repeats both in every report for as long as
    they are true."""
    reported = state.reported
    leaving = reported.leaving or report.leave
    held = state.held
    reported = ReportedByReader(
        create={
            **reported.create,
            **{row.key: row for row in report.create if not state.has_row(row.key)},
        },
        progress={
            **reported.progress,
            **{
                key: progress
                for key, progress in report.progress.items()
                if _is_own(state, key) and _is_news(state, key, progress)
            },
        },
        reading=report.reading,
        ended={
            **reported.ended,
            **{
                key: children
                for key, children in report.ended.items()
                if key in held and key not in report.reading
            },
        },
        listed=reported.listed if report.listed is None else report.listed,
        listed_at=_listed_at(reported, report, now),
        streams=reported.streams
        if report.listed is None
        else frozenset(stream_of(key) for key in report.listed),
        withheld=frozenset(key for key in held if is_handoff_requested(state, key)),
        leaving=leaving,
        reader_exited=reported.reader_exited,
    )
    return replace(state, reported=reported)


def _listed_at(reported: ReportedByReader, report: Report, now: Monotonic) -> Monotonic | None:
    if report.listed is None:
        return reported.listed_at
    return None if report.listed_before else now


def _is_own(state: State, key: LeaseKey) -> bool:
    """Return whether a lease is held, or its row names this worker, from an earlier process."""
    row = state.observed.get(key)
    return key in state.held or (row is not None and row.lease.holder == state.settings.worker)


def _is_news(state: State, key: LeaseKey, progress: Progress) -> bool:
    known = state.reported.progress.get(key, state.observed[key].lease.progress)
    return is_forward(known, progress)


def apply_scan(state: State, rows: Rows, kcl_workers: KclWorkers, now: Monotonic) -> State:
    """Apply a scan of the table. `now` is the time of the answer."""
    begun = now if state.timestamps.scan_started_at is None else state.timestamps.scan_started_at
    state = observe_scan(state, rows, begun, now)
    reported = state.reported
    create = reported.create if state.timestamps.scanned_at is None else {}
    reported = replace(
        reported, create={key: row for key, row in create.items() if not state.has_row(key)}
    )
    cleaned = state.timestamps.cleaned_at
    timestamps = replace(
        state.timestamps,
        scan_started_at=None,
        scanned_at=now,
        scan_failures=0,
        rebalanced=False,
        cleaned_at=now if cleaned is None else cleaned,
        reads_failing_since=None,
        writes_failing_since=None
        if is_write_outage_over(state, now)
        else state.timestamps.writes_failing_since,
    )
    return replace(
        state, reported=reported, timestamps=timestamps, kcl_workers=kcl_workers, scan_problem=None
    )


def apply_scan_failure(state: State, error: SspError, now: Monotonic) -> State:
    """Record that the table could not be read."""
    begun = now if state.timestamps.scan_started_at is None else state.timestamps.scan_started_at
    state = record_read_outage(state, error, begun)
    if not isinstance(error, ServiceUnavailableError):
        state = replace(state, scan_problem=error)
    failures = state.timestamps.scan_failures + 1
    return replace(
        state, timestamps=replace(state.timestamps, scan_started_at=None, scan_failures=failures)
    )


def apply_write_result(
    state: State, write: Write, outcome: Outcome | SspError, now: Monotonic
) -> State:
    """Apply the result of a started write. After an error its effect is unknown."""
    match outcome:
        case Done():
            return apply_done(state, write, outcome, now)
        case Conflict():
            return apply_conflict(state, write, outcome, now)
    return apply_failure(state, write, outcome, now)


def start_shutdown(state: State, now: Monotonic) -> State:
    """Record the exit of the reader: write its committed progress, release all leases, take none.
    Writes that failed before are retried at once."""
    reported = replace(state.reported, reader_exited=True, reading=frozenset())
    return replace(state, reported=reported, retry_at={})


# --- Steps ---------------------------------------------------------------------------------------


def next_steps(state: State, now: Monotonic, draw: float) -> Steps:
    """Return the steps that are due. `draw`, uniform in [0, 1), spreads workers that start
    together."""
    scan_at = _scan_at(state)
    metrics_at = _metrics_at(state)
    scan = state.timestamps.scan_started_at is None and scan_at <= now
    metrics = metrics_at is not None and metrics_at <= now
    wakes = [scan_at] if state.timestamps.scan_started_at is None else []
    wakes += [] if metrics_at is None else [metrics_at]
    if state.timestamps.scanned_at is None:
        return Steps(writes=(), scan=scan, metrics=metrics, wake_at=_after(wakes, now, state))
    by = leader_throughput(state)
    dues = {
        key: plan_write(state, key, now, by)
        for key in sorted(state.held)
        if state.may_write(key, now)
    }
    wakes += [one.at for one in dues.values()]
    wakes += [at for key, at in state.retry_at.items() if key not in state.in_flight]
    free_at = None if state.leaving else next_expiry(state, now)
    wakes += [] if free_at is None else [free_at]
    writes = [
        *_urgent_first([one.write for one in dues.values() if one.write is not None]),
        *claim_unheld(state, now, by),
        *_creates(state, now),
        *plan_takes(state, now, draw),
        *plan_deletes(state, now),
    ]
    return Steps(
        writes=tuple({write.lease.key: write for write in reversed(writes)}.values())[::-1],
        scan=scan,
        metrics=metrics,
        wake_at=_after(wakes, now, state),
    )


def _urgent_first(writes: list[Write]) -> list[Write]:
    """Return the writes that keep a lease before those that give one away."""
    return sorted(writes, key=lambda write: isinstance(write, Assign | Evict | SetChildren))


def _creates(state: State, now: Monotonic) -> list[Write]:
    wanted = state.is_view_fresh(now) and not state.leaving
    rows = dict(state.reported.create) if wanted else {}
    rows |= {write.lease.key: write.lease for write in children_to_create(state, now)}
    return [Create(lease=rows[key]) for key in sorted(rows) if state.may_write(key, now)]


def _after(wakes: list[Monotonic], now: Monotonic, state: State) -> Monotonic:
    """Return the earliest later wake-up; steps that are due run now or wait for an answer."""
    return min((at for at in wakes if at > now), default=now + state.settings.failover_ms)


def _scan_at(state: State) -> Monotonic:
    timestamps, failover = state.timestamps, state.settings.failover_ms
    if timestamps.scan_tried_at is None:
        return 0
    if timestamps.scan_failures:
        return timestamps.scan_tried_at + retry_after_ms(failover)
    waiting = (
        timestamps.handoff_requested_at is not None
        and timestamps.scan_tried_at - timestamps.handoff_requested_at < 2 * failover
    )
    if waiting and not state.leaving and _is_awaited(state):
        return timestamps.scan_tried_at + failover // 10
    return timestamps.scan_tried_at + failover // 2


def _is_awaited(state: State) -> bool:
    worker = state.settings.worker
    return any(
        row.lease.owner == worker and row.lease.holder != worker for row in state.observed.values()
    )


def _metrics_at(state: State) -> Monotonic | None:
    if state.kcl_workers.leader is None or state.leaving:
        return None
    last = state.timestamps.metrics_written_at
    return 0 if last is None else last + METRICS_EVERY_MS


def mark_started(state: State, steps: Steps, now: Monotonic) -> State:
    """Record that the steps are about to run. `now` is a time before the first request is sent. No
    other write of a row is planned until `apply_write_result`, and no other scan until `apply_scan`
    or `apply_scan_failure`, so `next_steps` may be called while steps are in flight."""
    for write in steps.writes:
        state = record_steal(state, write, now)
    sent = {write.lease.key: InFlightWrite(write=write, sent_at=now) for write in steps.writes}
    timestamps = replace(state.timestamps, rebalanced=True)
    if steps.scan:
        timestamps = replace(timestamps, scan_started_at=now, scan_tried_at=now)
    if steps.metrics:
        timestamps = replace(timestamps, metrics_written_at=now)
    if any(isinstance(write, Delete) for write in steps.writes):
        timestamps = replace(timestamps, cleaned_at=now)
    return replace(state, in_flight={**state.in_flight, **sent}, timestamps=timestamps)


# --- Status --------------------------------------------------------------------------------------


def is_finished(state: State) -> bool:
    """Return whether, after `start_shutdown` or a report with `leave`, nothing is held or in
    flight. This stays false while the table cannot be written to, so callers need a deadline."""
    if not state.leaving or state.held or state.in_flight:
        return False
    worker = state.settings.worker
    return not any(
        worker in (row.lease.owner, row.lease.checkpoint_owner)
        and not row.lease.has_ended
        and key not in state.duplicate_owners
        for key, row in state.observed.items()
    )


def build_status(state: State, now: Monotonic) -> Status:
    """Return the status for the reader."""
    leases = {
        key: state.observed[key].lease
        for key in sorted(state.held)
        if key not in state.reported.ended
    }
    safe = {key: lease for key, lease in leases.items() if not is_overdue(state, key, now)}
    outage = outage_since(state)
    return Status(
        held=safe,
        asked_for=frozenset(key for key in safe if is_handoff_requested(state, key)),
        overdue=frozenset(leases) - frozenset(safe),
        rows={key: row.lease for key, row in sorted(state.observed.items())},
        outage_ms=0 if outage is None else max(1, now - outage),
        unreadable=frozenset(state.unreadable),
        stale=_stale(state, now) if outage is None and state.is_view_fresh(now) else None,
        released=is_finished(state),
        problem=state.scan_problem or state.write_problem or _unreadable(state),
    )


def _stale(state: State, now: Monotonic) -> frozenset[LeaseKey]:
    failover = state.settings.failover_ms
    return frozenset(
        key
        for key, row in state.observed.items()
        if is_expired(row, now, failover)
        and key not in state.held
        and is_readable(row.lease, state)
    )


def _unreadable(state: State) -> SspError | None:
    """Return the error of a malformed row whose lease was held or whose shard is being read, if
    any."""
    own = state.unreadable.keys() & (state.unreadable_held | state.reported.reading)
    return state.unreadable[min(own)] if own else None


# --- Deletions -----------------------------------------------------------------------------------
#
# The rule for leases of ended shards whose children are being read is the KCL's
# (`LeaseCleanupManager`): each child's checkpoint is beyond TRIM_HORIZON and AT_TIMESTAMP, and the
# rows of the shard's own parents are deleted. No worker can then mistake a child for a shard that
# must wait for its parent, and a lineage is deleted from its oldest shard on.
#
# The row of an ended shard that ListShards no longer returns is deleted too, if it existed before
# the list was reported. Rows of shards that have not ended are kept: the reader decides whether
# their records are lost.


def _is_due(state: State, now: Monotonic) -> bool:
    """Return whether the interval between two clean-ups has passed."""
    last = state.timestamps.cleaned_at
    return (
        not state.leaving and last is not None and now - last >= state.settings.clean_up_interval_ms
    )


def plan_deletes(state: State, now: Monotonic) -> list[Delete]:
    """Return the deletions of rows that are no longer needed and that this worker is to delete."""
    if not _is_due(state, now):
        return []
    return [
        Delete(lease=row.lease)
        for key, row in sorted(state.observed.items())
        if row.lease.has_ended
        and state.may_write(key, now)
        and (_is_done(state, row.lease) or _is_unlisted(state, key, row))
        and _is_ours_to_delete(state, row.lease)
    ]


def _children(state: State, lease: Lease) -> list[ObservedLease | None]:
    return [state.observed.get(lease_key(child, lease.stream)) for child in lease.children]


def _is_done(state: State, lease: Lease) -> bool:
    begun = [
        child is not None
        and not isinstance(child.lease.progress, StartAtTrimHorizon | StartAtTimestamp)
        for child in _children(state, lease)
    ]
    orphaned = not any(state.has_row(key) for key in parent_keys(lease))
    return bool(begun) and all(begun) and orphaned


def _is_unlisted(state: State, key: LeaseKey, row: ObservedLease) -> bool:
    """Return whether ListShards no longer returns the shard. The list covers only the streams of
    this reader. During a long batch it may be old, and the shard may be newer."""
    reported = state.reported
    if (
        reported.listed is None
        or reported.listed_at is None
        or row.first_seen_at > reported.listed_at
    ):
        return False
    return key not in reported.listed and state.reads_stream_of(key)


def _is_ours_to_delete(state: State, lease: Lease) -> bool:
    """Return whether this worker deletes the row: the owner of the ended lease, or of its first
    child."""
    if lease.owner == state.settings.worker:
        return True
    children = _children(state, lease)
    if not children or children[0] is None:
        return True
    return children[0].lease.holder == state.settings.worker
