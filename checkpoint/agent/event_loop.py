"""The keeper's loop, without its clock, its threads and its pipes.

It carries what happens to the coordination and does what that says: writes and scans are handed to
`Ports.write` and `Ports.read` as jobs, and come back as events. Everything in here runs in one
thread.

    keeper = Keeper(settings, ports)
    while (wake_at := keeper.advance()) is not None:
        keeper.handle(...)      # an event, or none came until `wake_at`
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from checkpoint.agent.settings import KeeperSettings
from checkpoint.coordination import lease_coordinator as coordination
from checkpoint.coordination.protocol import Report, Status
from checkpoint.coordination.state import METRICS_EVERY_MS, Monotonic, State
from checkpoint.leases.checkpoint_position import ShardEnded
from checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Conflict,
    Evict,
    Outcome,
    Renew,
    Take,
    Write,
)
from checkpoint.leases.kcl_tables import KclTables
from checkpoint.leases.lease import LeaseKey
from checkpoint.leases.lease_store import LeaseStore, Rows
from checkpoint.leases.worker_metrics import Home, KclRows, Watch, watched
from ssp_common.errors import SspError
from ssp_common.logs import some_of
from task_grouping.identifiers import WorkerId

_log = logging.getLogger(f"spark_ssp.{__name__}")

SETTLE_MS: Final = 1_000
"""An answer waits at most so long for what its report has set off."""
FIRST_SETTLE_MS: Final = 5_000
"""The same for the first one, which tells what a query's first batch can have."""
CLOSING_MS: Final = 5_000
"""Giving everything back may take so long once the reader has gone."""
_IDLE_MS: Final = 1_000

# --- Events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The reader has sent a report and waits for an answer."""

    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderGone:
    """Nobody will ask any more."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The table can be used, and has been read."""

    store: LeaseStore
    kcl: KclTables
    rows: Rows
    kcl_rows: KclRows


@dataclass(frozen=True, slots=True, kw_only=True)
class NotOpened:
    """The table cannot be used."""

    error: SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """The table was read."""

    rows: Rows
    kcl_rows: KclRows | None
    """None: what KCL 3's workers say could not be read this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFailed:
    """The table could not be read."""

    error: SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of a write."""

    write: Write
    outcome: Outcome | SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettled:
    """Our metric row was written, removed, or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A job has met what it should not: the keeper cannot go on."""

    error: Exception


Event = (
    Told
    | ReaderGone
    | Opened
    | NotOpened
    | Scanned
    | ScanFailed
    | Settled
    | MetricsSettled
    | Broken
)
Job = Callable[[], Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The world, as the loop sees it."""

    open: Callable[[], Opened]
    """Prepares the table and reads it, patiently. Raises SspError. Run as a job."""
    write: Callable[[Job], None]
    """Have a job done soon; its event comes back by `handle`. Many are done side by side."""
    read: Callable[[Job], None]
    """The same, beside the writes, so that neither waits for the other."""
    answer: Callable[[Status | SspError], None]
    """Answer the reader. Does not wait."""
    monotonic: Callable[[], Monotonic]
    wall: Callable[[], int]
    """Seconds since the epoch."""
    random: Callable[[], float]


class Keeper:
    """See the module."""

    def __init__(self, settings: KeeperSettings, ports: Ports) -> None:
        self._settings = settings
        self._worker = settings.coordination.worker
        self._ports = ports
        self._state: State = coordination.initial(settings.coordination)
        self._opened: Opened | None = None
        self._failure: SspError | None = None
        self._watch = Watch()
        self._homes: set[Home] = set()
        self._shown_at: Monotonic = 0
        self._awaited: set[LeaseKey] = set()
        self._news: dict[tuple[int, str], list[LeaseKey]] = {}
        self._metrics_under_way = 0
        self._first = True
        self._asked: tuple[Report, Monotonic] | None = None
        self._gone_at: Monotonic | None = None
        ports.read(lambda: _opening(ports))

    @property
    def writes_under_way(self) -> int:
        """How many writes have been handed out whose outcome has not come back."""
        return len(self._state.under_way)

    # --- What has happened -----------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Take note of it. Raises what a job has met unexpectedly."""
        now = self._ports.monotonic()
        match event:
            case Told(report=report):
                self._asked = (report, now)
                if self._opened is not None:
                    self._state = coordination.reported(self._state, report, now)
            case ReaderGone(why=why):
                self._leave(why, now)
            case Opened():
                self._open(event, now)
            case NotOpened(error=error):
                self._failure = error
            case Scanned(rows=rows, kcl_rows=kcl_rows):
                self._scanned(rows, kcl_rows, now)
            case ScanFailed(error=error):
                self._state = coordination.scan_failed(self._state, error, now)
            case Settled(write=write, outcome=outcome):
                self._settled(write, outcome, now)
            case MetricsSettled():
                self._metrics_under_way -= 1
            case Broken(error=error):
                raise error

    def _open(self, opened: Opened, now: Monotonic) -> None:
        self._opened = opened
        self._scanned(opened.rows, opened.kcl_rows, now)
        if self._asked is not None:
            report, _ = self._asked
            self._asked = (report, now)
            self._state = coordination.reported(self._state, report, now)

    def _scanned(self, rows: Rows, kcl_rows: KclRows | None, now: Monotonic) -> None:
        if kcl_rows is not None:
            self._watch = watched(self._watch, kcl_rows, now, self._ports.wall())
            self._show_ourselves(now)
        known, shared = self._state.unreadable.keys(), self._state.shares_its_name(now)
        self._state = coordination.scanned(self._state, rows, self._watch.co_workers, now)
        if self._state.shares_its_name(now) and not shared:
            _log.warning(
                "another worker renews the leases of %s under the same workerId: records are read "
                "twice; give each query a workerId of its own",
                self._worker,
            )
        spoilt = self._state.unreadable
        if new := sorted(spoilt.keys() - known):
            _log.warning(
                "rows of the lease table that cannot be read (%d); their shards and what comes "
                "after them wait: %s; the first: %s",
                len(new),
                some_of(new),
                spoilt[new[0]],
            )

    def _settled(self, write: Write, outcome: Outcome | SspError, now: Monotonic) -> None:
        self._awaited.discard(write.lease.key)  # at most one write of a row is under way
        news = _news(self._worker, write, outcome)
        if news is not None:
            self._news.setdefault(news, []).append(write.lease.key)
        self._state = coordination.written(self._state, write, outcome, now)

    def _leave(self, why: str, now: Monotonic) -> None:
        if self._gone_at is None:
            _log.info("giving the leases of %s back: %s", self._worker, why)
            self._gone_at = now
            self._asked = None
            self._state = coordination.closing(self._state, now)

    # --- What is to be done ----------------------------------------------------------------------

    def advance(self) -> Monotonic | None:
        """Do what is due. When to come again at the latest; None: it is over."""
        now = self._ports.monotonic()
        if self._opened is None:
            return self._waiting_for_the_table(now)
        self._hide_if_leaving()
        over = self._gone_at is not None and self._is_over(self._gone_at, now)
        if over or not self._awaited:
            self._tell()
        if over:
            return None
        steps = coordination.next_steps(self._state, now, self._ports.random())
        self._state = coordination.started(self._state, steps, now)
        for write in steps.writes:
            if self._first or _is_awaited(write):
                self._awaited.add(write.lease.key)
            self._ports.write(_writing(self._opened.store, write))
        if steps.scan:
            self._ports.read(_scanning(self._opened))
        if steps.metrics:
            self._show_ourselves(now)
        return min(steps.wake_at, self._answer(now), self._deadline(now))

    def _tell(self) -> None:
        """One line for what has happened to many leases."""
        for (level, what), keys in sorted(self._news.items()):
            _log.log(level, "%s (%d): %s", what, len(keys), some_of(sorted(keys)))
        self._news = {}

    def _waiting_for_the_table(self, now: Monotonic) -> Monotonic | None:
        if self._gone_at is not None:
            return None
        if self._failure is not None and self._asked is not None:
            self._asked = None
            self._ports.answer(self._failure)  # the reader raises it and closes the pipe
        return now + _IDLE_MS

    def _answer(self, now: Monotonic) -> Monotonic:
        """Answer a report, once what it has set off is done; when to try again."""
        if self._asked is None:
            return now + _IDLE_MS
        status = coordination.status(self._state, now)
        latest = self._asked[1] + (FIRST_SETTLE_MS if self._first else SETTLE_MS)
        if self._awaited and now < latest and not status.outage_ms:
            return latest
        self._asked = None
        self._first = False
        self._ports.answer(status)
        return now + _IDLE_MS

    def _deadline(self, now: Monotonic) -> Monotonic:
        return now + _IDLE_MS if self._gone_at is None else self._gone_at + CLOSING_MS

    def _is_over(self, gone_at: Monotonic, now: Monotonic) -> bool:
        late = now >= gone_at + CLOSING_MS
        if coordination.finished(self._state):
            return late or not self._metrics_under_way
        if late:
            held = sorted(self._state.holdings)
            _log.warning(
                "%d leases were not given back within %d s and will expire by themselves: %s",
                len(held),
                CLOSING_MS // 1000,
                some_of(held),
            )
        return late

    # --- Our metric row --------------------------------------------------------------------------

    def _show_ourselves(self, now: Monotonic) -> None:
        """Write our row where KCL 3 workers have theirs, every 30 s. Not only when one of them
        leads: a fleet that moves from KCL 2 to 3 waits until all owners of leases have one."""
        home = self._watch.home
        if home is None or self._opened is None or self._state.leaving:
            return
        if home in self._homes and now - self._shown_at < METRICS_EVERY_MS:
            return
        self._shown_at = now
        kcl = self._opened.kcl
        for old in sorted(self._homes - {home}):
            self._do_metrics(partial(kcl.remove_own, self._worker, old))
        self._homes = {home}
        self._do_metrics(partial(kcl.write_own, self._worker, home, self._ports.wall()))

    def _hide_if_leaving(self) -> None:
        """A leader must not assign more to who gives all back: it would only come back as well."""
        if self._opened is None or not self._state.leaving or self._metrics_under_way:
            return  # a row that is just being written would come back
        kcl = self._opened.kcl
        for home in sorted(self._homes):
            self._do_metrics(partial(kcl.remove_own, self._worker, home))
        self._homes = set()

    def _do_metrics(self, action: Callable[[], None]) -> None:
        self._metrics_under_way += 1
        self._ports.read(lambda: _metrics(action))


# --- Jobs ----------------------------------------------------------------------------------------


def _opening(ports: Ports) -> Event:
    try:
        return ports.open()
    except SspError as error:
        return NotOpened(error=error)


def _writing(store: LeaseStore, write: Write) -> Job:
    def job() -> Event:
        try:
            return Settled(write=write, outcome=store.write(write))
        except SspError as error:
            return Settled(write=write, outcome=error)

    return job


def _scanning(opened: Opened) -> Job:
    def job() -> Event:
        try:
            rows = opened.store.scan()
        except SspError as error:
            return ScanFailed(error=error)
        try:
            return Scanned(rows=rows, kcl_rows=opened.kcl.look(rows))
        except SspError as error:
            _log.warning("what KCL 3's workers say cannot be read: %s", error)
            return Scanned(rows=rows, kcl_rows=None)

    return job


def _metrics(action: Callable[[], None]) -> Event:
    try:
        action()
    except SspError as error:
        _log.warning("the metric row beside those of KCL 3's workers: %s", error)
    return MetricsSettled()


def guarded(job: Job) -> Event:
    """The job's event; `Broken` when it raises."""
    try:
        return job()
    except Exception as error:  # noqa: BLE001  raised again by the loop
        return Broken(error=error)


# --- Words ---------------------------------------------------------------------------------------


def _is_awaited(write: Write) -> bool:
    """Whether an answer waits for it. Renewals and progress change nothing that the reader acts
    on, and with many leases some are always under way. Only the first answer waits for them, since
    after a restart of the keeper they tell which leases are still held."""
    match write:
        case Renew():
            return False
        case Checkpoint(progress=progress):
            return isinstance(progress, ShardEnded)
    return True


def _news(worker: WorkerId, write: Write, outcome: Outcome | SspError) -> tuple[int, str] | None:
    """What to log of a write, and how loud; None: nothing."""
    match write, outcome:
        case (Renew() | Checkpoint(), Conflict(found=found)):
            holder = None if found is None else found.holder
            if holder == worker:  # a hand-over was asked for
                return None
            return logging.WARNING, f"lost leases, now of {holder or 'nobody'}"
        case (_, SspError() | Conflict()):
            return None  # told by the store, or someone else was faster
        case (Take(owner=owner), _):
            return logging.INFO, f"{owner} took leases"
        case (Assign(owner=owner), _):
            return logging.INFO, f"handed leases over to {owner}"
        case (Evict(), _):
            return logging.INFO, "gave leases back"
    return None
