"""The lease agent's event loop, without clock, threads and pipes.

It applies events to the coordinator's state and executes the steps: writes and scans are passed as
jobs to `Ports.write` and `Ports.read`, and their results return as events. The loop runs in one
thread.

    agent = LeaseAgent(settings, ports)
    while (wake_at := agent.advance()) is not None:
        agent.handle(...)       # an event, unless none arrives before `wake_at`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.protocol import AgentSettings, Report, Status
from spark_ssp.checkpoint.coordination.state import METRICS_EVERY_MS, Monotonic, State
from spark_ssp.checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Conflict,
    Evict,
    Outcome,
    Renew,
    Take,
    Write,
    determines_row,
)
from spark_ssp.checkpoint.leases.kcl_tables import KclTables
from spark_ssp.checkpoint.leases.lease import LeaseKey, ShardEnded
from spark_ssp.checkpoint.leases.lease_store import LeaseStore, Rows
from spark_ssp.checkpoint.leases.worker_metrics import (
    KclObservation,
    KclRows,
    RowLocation,
    observe_kcl,
)
from spark_ssp.common.errors import SspError
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.times import duration_text
from spark_ssp.grouping.identifiers import WorkerId

_log = logging.getLogger(__name__)

ANSWER_WAIT_MS: Final = 1_000
"""The maximum time for which an answer waits for the writes that its report started."""
FIRST_ANSWER_WAIT_MS: Final = 5_000
"""The same for the first answer, which contains the leases for a query's first batch."""
SHUTDOWN_MS: Final = 5_000
"""The maximum time to release all leases after the reader has exited."""
BATCHES_FROM: Final = 16
"""Writes that begin together, from which on batches are used: fewer are sent in parallel."""
_IDLE_MS: Final = 1_000

# --- Events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReceived:
    """The reader has sent a report and waits for the answer."""

    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderExited:
    """The reader sends no more reports."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOpened:
    """The table is ready and was scanned."""

    store: LeaseStore
    kcl: KclTables
    rows: Rows
    kcl_rows: KclRows


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOpenFailed:
    """The table cannot be used."""

    error: SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanCompleted:
    """The table was scanned."""

    rows: Rows
    kcl_rows: KclRows | None
    """None: the rows of KCL 3 workers could not be read this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFailed:
    """The table could not be scanned."""

    error: SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class WritesCompleted:
    """Writes were answered or failed."""

    results: tuple[tuple[Write, Outcome | SspError], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsWriteCompleted:
    """The attempt to write or delete our metric row has finished, successfully or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """A job raised an unexpected exception: the agent must stop."""

    error: Exception


Event = (
    ReportReceived
    | ReaderExited
    | TableOpened
    | TableOpenFailed
    | ScanCompleted
    | ScanFailed
    | WritesCompleted
    | MetricsWriteCompleted
    | JobFailed
)
Job = Callable[[], Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The loop's connections to the outside."""

    open: Callable[[], TableOpened]
    """Prepares the table and scans it, with the user's retry settings. Raises SspError. Runs as a
    job."""
    write: Callable[[Job], None]
    """Runs a job soon, in parallel with others; its event is passed to `handle`."""
    read: Callable[[Job], None]
    """The same on separate threads, so that reads and writes do not wait for each other."""
    answer: Callable[[Status | SspError], None]
    """Sends an answer to the reader without blocking."""
    monotonic: Callable[[], Monotonic]
    wall: Callable[[], int]
    """Seconds since the epoch."""
    random: Callable[[], float]


class LeaseAgent:
    """Runs the coordinator on events; the module's docstring has its use."""

    def __init__(self, settings: AgentSettings, ports: Ports) -> None:
        self._settings = settings
        self._worker = settings.coordination.worker
        self._ports = ports
        self._state: State = lease_coordinator.initial_state(settings.coordination)
        self._opened: TableOpened | None = None
        self._failure: SspError | None = None
        self._kcl = KclObservation()
        self._locations: set[RowLocation] = set()
        self._metrics_written_at: Monotonic = 0
        self._awaited: set[LeaseKey] = set()
        self._results: list[tuple[Write, Outcome | SspError, Monotonic]] = []
        """Those that are not applied yet."""
        self._log_entries: dict[tuple[int, str], list[LeaseKey]] = {}
        self._metrics_in_flight = 0
        self._first = True
        self._pending_report: tuple[Report, Monotonic] | None = None
        self._exited_at: Monotonic | None = None
        ports.read(lambda: _open_table(ports))

    @property
    def writes_in_flight(self) -> int:
        """The number of writes without a result."""
        return len(self._state.in_flight) - len(self._results)

    # --- Events ----------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Apply an event. Raises the exception of a failed job. Results of writes are applied
        together, before the next event of another kind or step."""
        now = self._ports.monotonic()
        if not isinstance(event, WritesCompleted):
            self._apply_results()
        match event:
            case ReportReceived(report=report):
                self._pending_report = (report, now)
                if self._opened is not None:
                    self._state = lease_coordinator.apply_report(self._state, report, now)
            case ReaderExited(why=why):
                self._on_reader_exited(why, now)
            case TableOpened():
                self._on_table_opened(event, now)
            case TableOpenFailed(error=error):
                self._failure = error
            case ScanCompleted(rows=rows, kcl_rows=kcl_rows):
                self._on_scan_completed(rows, kcl_rows, now)
            case ScanFailed(error=error):
                self._state = lease_coordinator.apply_scan_failure(self._state, error, now)
            case WritesCompleted(results=results):
                self._results += [(write, outcome, now) for write, outcome in results]
            case MetricsWriteCompleted():
                self._metrics_in_flight -= 1
            case JobFailed(error=error):
                raise error

    def _on_table_opened(self, opened: TableOpened, now: Monotonic) -> None:
        self._opened = opened
        if self._pending_report is not None:
            # The first scan asks for the streams that are read.
            report, _ = self._pending_report
            listing = Report(listed=report.listed, listed_before=report.listed_before)
            self._state = lease_coordinator.apply_report(self._state, listing, now)
        self._on_scan_completed(opened.rows, opened.kcl_rows, now)
        if self._pending_report is not None:
            report, _ = self._pending_report
            self._pending_report = (report, now)
            self._state = lease_coordinator.apply_report(self._state, report, now)

    def _on_scan_completed(self, rows: Rows, kcl_rows: KclRows | None, now: Monotonic) -> None:
        if kcl_rows is not None:
            self._kcl = observe_kcl(self._kcl, kcl_rows, now, self._ports.wall())
            self._refresh_metrics(now)
        known, shared = self._state.unreadable.keys(), self._state.has_duplicate_worker(now)
        self._state = lease_coordinator.apply_scan(self._state, rows, self._kcl.kcl_workers, now)
        if self._state.has_duplicate_worker(now) and not shared:
            _log.warning(
                "another worker renews the leases of %s under the same workerId: records are read "
                "twice; give each query a different workerId",
                self._worker,
            )
        spoilt = self._state.unreadable
        if new := sorted(spoilt.keys() - known):
            _log.warning(
                "%d malformed lease rows; their shards and descendants are paused: %s (first "
                "error: %s)",
                len(new),
                abbreviate(new),
                spoilt[new[0]],
            )

    def _apply_results(self) -> None:
        results, self._results = self._results, []
        if not results:
            return
        for write, outcome, _ in results:
            self._awaited.discard(write.lease.key)  # at most one write of a row is in flight
            entry = _log_entry(self._worker, write, outcome)
            if entry is not None:
                self._log_entries.setdefault(entry, []).append(write.lease.key)
        self._state = lease_coordinator.apply_write_results(self._state, results)

    def _on_reader_exited(self, why: str, now: Monotonic) -> None:
        if self._exited_at is None:
            _log.info("releasing the leases of %s: %s", self._worker, why)
            self._exited_at = now
            self._pending_report = None
            self._state = lease_coordinator.start_shutdown(self._state)

    # --- Steps -----------------------------------------------------------------------------------

    def advance(self) -> Monotonic | None:
        """Execute the due steps. Return when to call again at the latest, or None after the end."""
        now = self._ports.monotonic()
        self._apply_results()
        if self._opened is None:
            return self._await_table(now)
        self._remove_metrics_if_leaving()
        over = self._exited_at is not None and self._is_done(self._exited_at, now)
        if over or not self._awaited:
            self._flush_log()
        if over:
            return None
        steps = lease_coordinator.next_steps(self._state, now, self._ports.random())
        self._state = lease_coordinator.mark_started(self._state, steps, now)
        for write in steps.writes:
            if self._first or _is_awaited(write):
                self._awaited.add(write.lease.key)
        for job in _write_jobs(self._opened.store, steps.writes):
            self._ports.write(job)
        if steps.scan:
            self._ports.read(_scan_job(self._opened))
        if steps.metrics:
            self._refresh_metrics(now)
        return min(steps.wake_at, self._answer_report(now), self._deadline(now))

    def _flush_log(self) -> None:
        """Log one line for each kind of result, with its leases."""
        for (level, what), keys in sorted(self._log_entries.items()):
            _log.log(level, "%s (%d): %s", what, len(keys), abbreviate(sorted(keys)))
        self._log_entries = {}

    def _await_table(self, now: Monotonic) -> Monotonic | None:
        if self._exited_at is not None:
            return None
        if self._failure is not None and self._pending_report is not None:
            self._pending_report = None
            self._ports.answer(self._failure)  # the reader raises it and closes the pipe
        return now + _IDLE_MS

    def _answer_report(self, now: Monotonic) -> Monotonic:
        """Answer the pending report once its writes are done. Return when to try again."""
        if self._pending_report is None:
            return now + _IDLE_MS
        latest = self._pending_report[1] + (FIRST_ANSWER_WAIT_MS if self._first else ANSWER_WAIT_MS)
        if self._awaited and now < latest and not lease_coordinator.is_outage(self._state):
            return latest
        self._pending_report = None
        self._first = False
        self._ports.answer(lease_coordinator.build_status(self._state, now))
        return now + _IDLE_MS

    def _deadline(self, now: Monotonic) -> Monotonic:
        return now + _IDLE_MS if self._exited_at is None else self._exited_at + SHUTDOWN_MS

    def _is_done(self, exited_at: Monotonic, now: Monotonic) -> bool:
        late = now >= exited_at + SHUTDOWN_MS
        if lease_coordinator.is_finished(self._state):
            return late or not self._metrics_in_flight
        if late:
            held = sorted(self._state.held)
            _log.warning(
                "%d leases could not be released within %s and will expire: %s",
                len(held),
                duration_text(SHUTDOWN_MS),
                abbreviate(held),
            )
        return late

    # --- Our metric row --------------------------------------------------------------------------

    def _refresh_metrics(self, now: Monotonic) -> None:
        """Write our metric row every 30 s where KCL 3 workers write theirs. Even without a leader:
        a fleet that migrates from KCL 2 to 3 waits until all lease owners have one."""
        location = self._kcl.location
        if location is None or self._opened is None or self._state.leaving:
            return
        if location in self._locations and now - self._metrics_written_at < METRICS_EVERY_MS:
            return
        self._metrics_written_at = now
        kcl = self._opened.kcl
        for old in sorted(self._locations - {location}):
            self._run_metrics(partial(kcl.remove_own_metrics, self._worker, old))
        self._locations = {location}
        self._run_metrics(
            partial(kcl.write_own_metrics, self._worker, location, self._ports.wall())
        )

    def _remove_metrics_if_leaving(self) -> None:
        """Delete our metric row, so that a leader assigns no more leases to a worker that releases
        all."""
        if self._opened is None or not self._state.leaving or self._metrics_in_flight:
            return  # a write in flight would create the row again
        kcl = self._opened.kcl
        for location in sorted(self._locations):
            self._run_metrics(partial(kcl.remove_own_metrics, self._worker, location))
        self._locations = set()

    def _run_metrics(self, action: Callable[[], None]) -> None:
        self._metrics_in_flight += 1
        self._ports.read(lambda: _metrics_job(action))


# --- Jobs ----------------------------------------------------------------------------------------


def _open_table(ports: Ports) -> Event:
    try:
        return ports.open()
    except SspError as error:
        return TableOpenFailed(error=error)


def _write_jobs(store: LeaseStore, writes: Sequence[Write]) -> list[Job]:
    """Return jobs that run in parallel: for many writes of the kinds that a store can batch, one
    for each batch of them."""
    size = store.batch_size
    batched = [write for write in writes if size > 1 and determines_row(write)]
    if len(batched) < BATCHES_FROM:
        return [_write_job(store, write) for write in writes]
    chosen = {write.lease.key for write in batched}
    batches = [batched[at : at + size] for at in range(0, len(batched), size)]
    return [
        *(_batch_job(store, batch) for batch in batches),
        *(_write_job(store, write) for write in writes if write.lease.key not in chosen),
    ]


def _write_job(store: LeaseStore, write: Write) -> Job:
    def job() -> Event:
        try:
            return WritesCompleted(results=((write, store.write(write)),))
        except SspError as error:
            return WritesCompleted(results=((write, error),))

    return job


def _batch_job(store: LeaseStore, writes: Sequence[Write]) -> Job:
    def job() -> Event:
        outcomes = store.write_all(writes)
        return WritesCompleted(results=tuple(zip(writes, outcomes, strict=True)))

    return job


def _scan_job(opened: TableOpened) -> Job:
    def job() -> Event:
        try:
            rows = opened.store.scan()
        except SspError as error:
            return ScanFailed(error=error)
        try:
            return ScanCompleted(rows=rows, kcl_rows=opened.kcl.read(rows))
        except SspError as error:
            _log.warning("could not read the rows of KCL 3 workers: %s", error)
            return ScanCompleted(rows=rows, kcl_rows=None)

    return job


def _metrics_job(action: Callable[[], None]) -> Event:
    try:
        action()
    except SspError as error:
        _log.warning("could not write or delete the metric row for KCL 3 workers: %s", error)
    return MetricsWriteCompleted()


def run_guarded(job: Job) -> Event:
    """Return the job's event, or `JobFailed` if it raises."""
    try:
        return job()
    except Exception as error:  # noqa: BLE001  raised again by the loop
        return JobFailed(error=error)


# --- Answers and log lines -----------------------------------------------------------------------


def _is_awaited(write: Write) -> bool:
    """Return whether an answer waits for the write. Not for renewals and progress, which do not
    affect the reader and with many leases are always in flight. Only the first answer waits for
    them, because after a restart of the agent they show which leases are still held."""
    match write:
        case Renew():
            return False
        case Checkpoint(progress=progress):
            return isinstance(progress, ShardEnded)
    return True


def _log_entry(
    worker: WorkerId, write: Write, outcome: Outcome | SspError
) -> tuple[int, str] | None:
    """Return the level and text to log for a result, if any."""
    match write, outcome:
        case (Renew() | Checkpoint(), Conflict(found=found)):
            holder = None if found is None else found.holder
            if holder == worker:  # a handoff was requested
                return None
            return logging.WARNING, f"lost leases, now held by {holder or 'no worker'}"
        case (_, SspError() | Conflict()):
            return None  # logged by the store, or another worker was faster
        case (Take(owner=owner), _):
            return logging.INFO, f"{owner} took leases"
        case (Assign(owner=owner), _):
            return logging.INFO, f"handed leases over to {owner}"
        case (Evict(), _):
            return logging.INFO, "released leases"
    return None
