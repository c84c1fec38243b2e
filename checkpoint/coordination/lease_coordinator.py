"""Decides which leases this worker takes, renews, hands over and releases: a pure state machine.

It uses no clock, random numbers or I/O. A loop around it executes `next_steps` and applies the
results:

    state = initial_state(Settings(worker=worker))
    while not is_finished(state):
        steps = next_steps(state, now(), random())
        state = mark_started(state, steps, now())
        ...   # writes -> apply_write_results, a scan -> apply_scan or apply_scan_failure,
              # reports of the reader -> apply_report, its exit -> start_shutdown

All functions return a new state. `now` is this process's monotonic clock in milliseconds.

The cost of a step is that of the changes since the last one: `State.due` and `State.others_due`
contain the times before which a lease, or all leases that are not held, need not be planned again.
Whatever may change a plan removes them: a scan all of them, a report those of the leases that it
changes, the result of a write that of its lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_ssp.checkpoint.coordination.lease_renewer import (
    NOMINAL_KBPS,
    children_to_create,
    claim_unheld,
    is_handoff_requested,
    leader_throughput,
    plan_write,
    unwritten_progress,
)
from spark_ssp.checkpoint.coordination.lease_taker import next_change, plan_takes
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
    MAX_IN_FLIGHT,
    METRICS_EVERY_MS,
    InFlightWrite,
    Monotonic,
    ObservedLease,
    ReportedByReader,
    Settings,
    State,
    Steps,
    changed,
    drafted,
    settle,
    stream_of,
    without,
)
from spark_ssp.checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Conflict,
    Create,
    Delete,
    Done,
    Evict,
    Outcome,
    Renew,
    RequestHandoff,
    SetChildren,
    Take,
    Write,
)
from spark_ssp.checkpoint.leases.lease import (
    Lease,
    LeaseKey,
    Progress,
    StartAtTimestamp,
    StartAtTrimHorizon,
    advanced,
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
    return replace(
        state,
        reported=reported,
        due=_due_after(state, reported),
        others_due=state.others_due if _is_same_for_others(state.reported, reported) else 0,
    )


def _beyond_limit(state: State) -> frozenset[LeaseKey]:
    """Return the readable leases of this worker beyond its maximum, without those in a
    handoff."""
    worker, cap = state.settings.worker, state.settings.max_leases
    own = sorted(
        key
        for key, row in state.observed.items()
        if row.lease.holder == worker
        and not row.lease.is_in_handoff
        and state.reads_stream_of(key)
        and is_readable(row.lease, state)
    )
    return frozenset() if cap is None else frozenset(own[cap:])


def _due_after(state: State, reported: ReportedByReader) -> Mapping[LeaseKey, Monotonic]:
    """Return the times of `State.due` that a report leaves valid."""
    before = state.reported
    if reported.leaving != before.leaving:
        return {}
    moved = (reported.reading ^ before.reading) | (reported.withheld ^ before.withheld)
    moved |= reported.ended.keys() | before.ended.keys()
    return {
        key: at
        for key, at in state.due.items()
        if key not in moved
        and (
            reported.progress.get(key) is before.progress.get(key)
            or unwritten_progress(state, key) is not None
        )
    }


def _is_same_for_others(before: ReportedByReader, after: ReportedByReader) -> bool:
    return (
        before.create == after.create
        and before.ended == after.ended
        and before.listed == after.listed
        and before.leaving == after.leaving
    )


def _listed_at(reported: ReportedByReader, report: Report, now: Monotonic) -> Monotonic | None:
    return reported.listed_at if report.listed is None or report.listed_before else now


def _is_own(state: State, key: LeaseKey) -> bool:
    """Return whether a lease is held, or its row names this worker, from an earlier process."""
    row = state.observed.get(key)
    return key in state.held or (row is not None and row.lease.holder == state.settings.worker)


def _is_news(state: State, key: LeaseKey, progress: Progress) -> bool:
    known = state.reported.progress.get(key, state.observed[key].lease.progress)
    return advanced(known, progress) is not None


def apply_scan(state: State, rows: Rows, kcl_workers: KclWorkers, now: Monotonic) -> State:
    """Apply a scan of the table. `now` is the time of the answer."""
    begun = now if state.timestamps.scan_started_at is None else state.timestamps.scan_started_at
    state = observe_scan(state, rows, begun, now)
    if state.timestamps.scanned_at is None and kcl_workers.leader is None:
        state = replace(state, surplus=_beyond_limit(state))
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
        state,
        reported=reported,
        timestamps=timestamps,
        kcl_workers=kcl_workers,
        scan_problem=None,
        due={},
        others_due=0,
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


def apply_write_results(
    state: State, results: Iterable[tuple[Write, Outcome | SspError, Monotonic]]
) -> State:
    """Apply the results of started writes in their order, each with its time. After an error the
    effect of a write is unknown."""
    state = drafted(state)
    for write, outcome, now in results:
        before = state
        match outcome:
            case Done():
                state = apply_done(state, write, outcome, now)
            case Conflict():
                state = apply_conflict(state, write, outcome, now)
            case _:
                state = apply_failure(state, write, outcome, now)
        state = _to_replan(state, before, write, outcome)
    settle(state)
    return state


def _to_replan(state: State, before: State, write: Write, outcome: Outcome | SspError) -> State:
    """Return the state in which everything is planned again that a result may affect: only the
    lease itself after the usual writes of a held one, and otherwise also the ends of shards, whose
    children may have a row now, and all leases that are not held."""
    key = write.lease.key
    due = without(state.due, key)
    usual = isinstance(write, Renew | Take | Checkpoint)
    ends = before.reported.ended
    if usual and isinstance(outcome, Done) and not (outcome.lease.has_ended or key in ends):
        return changed(state, due={} if _has_measured(write, outcome) else due)
    if key in state.held and not isinstance(outcome, Done | Conflict):
        return changed(state, due=due)
    for end in ends:
        due = without(due, end)
    return changed(state, due=due, others_due=0)


def _has_measured(write: Write, outcome: Done) -> bool:
    """Return whether the result changes the average throughput, which every renewal may write."""
    found = outcome.lease.throughput_kbps
    return found not in (None, NOMINAL_KBPS, write.lease.throughput_kbps)


def start_shutdown(state: State) -> State:
    """Record the exit of the reader: write its committed progress, release all leases, take none.
    Writes that failed before are retried at once."""
    reported = replace(state.reported, reader_exited=True, reading=frozenset())
    return replace(state, reported=reported, retry_at={}, due={}, others_due=0)


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
    held, others = _plan_held(state, now), _plan_others(state, now, draw)
    limited_now = sum(
        not isinstance(flight.write, RequestHandoff) for flight in state.in_flight.values()
    )
    room = max(0, MAX_IN_FLIGHT - limited_now)
    planned = {write.lease.key: write for write in reversed((*held.writes, *others.writes))}
    requests = [w for w in reversed(planned.values()) if isinstance(w, RequestHandoff)]
    limited = [w for w in reversed(planned.values()) if not isinstance(w, RequestHandoff)]
    all_fit = len(limited) <= room
    wakes += [at for key, at in state.retry_at.items() if key not in state.in_flight]
    wakes += [at for plan in (held, others) if (at := plan.next_at) is not None]
    return Steps(
        writes=(*limited[:room], *requests),
        scan=scan,
        metrics=metrics,
        wake_at=_after(wakes, now, state),
        due=held.due,
        others_due=others.next_at if all_fit else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Writes, the most urgent first, and the next time to plan."""

    writes: tuple[Write, ...] = ()
    due: Mapping[LeaseKey, Monotonic] = field(default_factory=dict)
    next_at: Monotonic | None = None


def _plan_held(state: State, now: Monotonic) -> _Plan:
    """Return the writes of the held leases that may be due, the longest unrenewed first."""
    due = state.due
    keys = [
        key
        for key in state.held
        if (key not in due or due[key] <= now) and state.may_write(key, now)
    ]
    times = [at for at in due.values() if at > now]
    if not keys:
        return _Plan(next_at=min(times, default=None))
    by = leader_throughput(state)
    keys.sort(key=lambda key: (state.held[key].renewed_at, key))
    planned = {key: plan_write(state, key, now, by) for key in keys}
    later = {key: one.at for key, one in planned.items() if one.write is None and one.at > now}
    return _Plan(
        writes=tuple(
            _urgent_first([one.write for one in planned.values() if one.write is not None])
        ),
        due=later,
        next_at=min((*times, *later.values()), default=None),
    )


def _plan_others(state: State, now: Monotonic, draw: float) -> _Plan:
    """Return the writes of leases that are not held."""
    if state.others_due > now:
        return _Plan(next_at=state.others_due)
    times = [at for key, at in state.retry_at.items() if key not in state.held and at > now]
    times += [] if state.leaving or (at := next_change(state, now)) is None else [at]
    cleaned = state.timestamps.cleaned_at
    times += [] if cleaned is None else [cleaned + state.settings.clean_up_interval_ms]
    return _Plan(
        writes=(
            *claim_unheld(state, now, leader_throughput(state)),
            *_creates(state, now),
            *plan_takes(state, now, draw),
            *plan_deletes(state, now),
        ),
        next_at=min((now + state.settings.failover_ms, *(at for at in times if at > now))),
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
    other write of a row is planned until `apply_write_results`, and no other scan until
    `apply_scan` or `apply_scan_failure`, so `next_steps` may be called while steps are in
    flight."""
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
    return replace(
        state,
        in_flight={**state.in_flight, **sent},
        timestamps=timestamps,
        due={**state.due, **steps.due} if steps.due else state.due,
        others_due=state.others_due if steps.others_due is None else steps.others_due,
    )


# --- Status --------------------------------------------------------------------------------------


def is_finished(state: State) -> bool:
    """Return whether, after `start_shutdown` or a report with `leave`, nothing is held or in
    flight. This stays false while the table cannot be written to, so callers need a deadline."""
    if not state.leaving or state.held or state.in_flight:
        return False
    worker = state.settings.worker
    return not any(
        worker in (row.lease.owner, row.lease.holder)
        and not row.lease.has_ended
        and key not in state.duplicate_owners
        for key, row in state.observed.items()
    )


def is_outage(state: State) -> bool:
    """Return whether reads or writes of the table fail at present."""
    return outage_since(state) is not None


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
