"""Passes the progress reports of queries to metrics and live page, without blocking or failing a
query.

A session has one listener, whatever consumes the reports: each listener reads a report from the
JVM, and converts it.

A classic session calls the listener from a thread of the JVM's event bus, and Spark Connect from a
thread of the client. Neither is a query's own thread, but events queue up behind a slow listener:
so it does no more than compute values. A second thread reads what Spark does not pass to a
listener: a missing status, and the phase of each query (`StatusPoller`).
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp.common import now_ms
from spark_ssp.common.spark.reader_status import Status, lacks_status, source_statuses, status_in
from spark_ssp.operations.observed_queries import ObservedQueries, is_older, phase_of
from spark_ssp.operations.snapshot import QuerySnapshot, query_snapshot

_REMEMBERED_RUNS: Final = 1000
_OWN_ERROR: Final = re.compile(r"\bspark_ssp\.[\w.]+: \[(?P<kind>[a-z-]+)\]")
_log = logging.getLogger(__name__)


class Consumer(Protocol):
    """A consumer of snapshots. Called by one thread at a time."""

    def attach(self, queries: ObservedQueries) -> None:
        """Take the queries of the session, before the first snapshot."""

    def publish(self, snapshot: QuerySnapshot) -> None:
        """Take a query's state after a trigger; again with the same trigger if its status was
        missing."""

    def tick(self) -> None:
        """Take that some seconds have passed, in which a query may have sent no report."""

    def end(self, run_id: str) -> None:
        """Take the end of a query's run."""


class ProgressListener(StreamingQueryListener):
    """The listener of one session."""

    def __init__(self, session: SparkSession, *, now_ms: Callable[[], int] = now_ms) -> None:
        self._session = session
        self._now_ms = now_ms
        self.queries = ObservedQueries()
        self._consumers: list[tuple[str, Consumer]] = []
        """With their names for warnings."""
        self._guard = FailureGuard()
        self._poller = StatusPoller(self._read_statuses, self._publish_later, observe=self._observe)
        self._lock = threading.RLock()
        self._reports: dict[str, Any] = {}
        """The last report of each run that lacks a status."""
        self._ended: deque[str] = deque(maxlen=_REMEMBERED_RUNS)

    def add(self, name: str, consumer: Consumer) -> None:
        """Add a consumer, for the reports from now on."""
        consumer.attach(self.queries)
        with self._lock:
            self._consumers.append((name, consumer))
        self._poller.start()

    def remove(self, consumer: Consumer) -> bool:
        """Remove a consumer, which is not called again. Return whether there are others."""
        with self._lock:
            self._consumers = [each for each in self._consumers if each[1] is not consumer]
            return bool(self._consumers)

    def close(self) -> None:
        """Stop the thread."""
        self._poller.close()

    # --- Called by Spark --------------------------------------------------------------------------

    @property
    def _jlistener(self) -> Any:
        """Return the listener in the JVM, for a classic session: one that passes reports as JSON,
        if this PySpark can."""
        if not hasattr(self, "_jlistenerobj"):
            with suppress(Exception):
                from spark_ssp.operations.jvm_reports import json_listener

                self._jlistenerobj = json_listener(self, self.take_report)
        return super()._jlistener

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Note the query, which has no snapshot before its first report."""
        self.queries.started(str(event.runId), str(event.id), event.name, self._now_ms())
        self._poller.start()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Publish a trigger."""
        self.take_report(event.progress)

    def take_report(self, report: Any) -> None:
        """Publish a trigger from its report, a document or PySpark's object."""
        self._guard.run("a progress report", lambda: self.publish(report))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Request the last report, which the event does not contain."""
        query_id = str(event.id)
        self._poller.request(str(event.runId), lambda: self._read_report(query_id))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Report the end of a query's run."""
        run_id, error = str(event.runId), event.exception
        failure = None if error is None else failure_kind(error, event.errorClassOnException)
        self.queries.ended(run_id, failure, self._now_ms())
        self._poller.forget(run_id)
        with self._lock:
            self._ended.append(run_id)
            self._reports.pop(run_id, None)
            for name, consumer in self._consumers:
                self._guard.run(name, lambda: consumer.end(run_id))  # noqa: B023

    # --- Publishing -------------------------------------------------------------------------------

    def publish(self, progress: Any) -> None:
        """Publish a progress report."""
        run_id = str(progress["runId"])
        found: Statuses = [status_in(source) for source in progress["sources"]]
        if any(map(lacks_status, progress["sources"])):
            with self._lock:
                self._reports[run_id] = progress
            found = self._poller.request(run_id, lambda: progress) or found
        self._publish(query_snapshot(progress, found))

    def _publish(self, snapshot: QuerySnapshot) -> None:
        if not self.queries.publish(snapshot):
            return
        with self._lock:
            for name, consumer in self._consumers:
                self._guard.run(name, lambda: consumer.publish(snapshot))  # noqa: B023

    def _observe(self) -> bool:
        """Note the phase of each query; return whether there is one."""
        active = self._session.streams.active
        for query in active:
            self._guard.run("the phase of a query", lambda: self._observe_query(query))  # noqa: B023
        with self._lock:
            for name, consumer in self._consumers:
                self._guard.run(name, consumer.tick)
        return bool(active)

    def _observe_query(self, query: StreamingQuery) -> None:
        run_id, now = str(query.runId), self._now_ms()
        self.queries.started(run_id, str(query.id), query.name, now)  # before this listener
        self.queries.observe(run_id, phase_of(query.status["message"]), now)

    def _read_report(self, query_id: str) -> Any:
        query = self._session.streams.get(query_id)
        return None if query is None else query.lastProgress

    def _read_statuses(self, progress: Any) -> Statuses:
        found = source_statuses(self._session, progress)
        return [one[0].at_end if one else None for one in found]

    def _publish_later(self, run_id: str, progress: Any, statuses: Statuses) -> None:
        """Publish a report with the statuses that were read, or a later report that waits for
        them."""
        with self._lock:
            if run_id in self._ended or str(progress["runId"]) != run_id:
                return
            waiting = self._reports.get(run_id, progress)
            self._guard.run("a status", lambda: self._publish(_newer(progress, waiting, statuses)))


def _newer(read: Any, waiting: Any, statuses: Statuses) -> QuerySnapshot:
    """Return the snapshot of the newer of two reports of a run: the first, unless it is older."""
    one = query_snapshot(read, statuses)
    if waiting is read:
        return one
    other = query_snapshot(waiting, statuses)
    return other if is_older(one, other) else one


def failure_kind(text: str, error_class: str | None) -> str:
    """Return the kind of an error that ended a query: of this package, else Spark's class of it.
    Its text is in the driver's log: an error of the user's code may contain data."""
    found = _OWN_ERROR.search(text)
    return found["kind"] if found else error_class or "error"


# --- The listener of each session -----------------------------------------------------------------

_lock = threading.Lock()
_listeners: dict[SparkSession, ProgressListener] = {}


class Subscription:
    """A consumer of a session's snapshots, until `close`."""

    def __init__(self, session: SparkSession, consumer: Consumer) -> None:
        self._session = session
        self._consumer = consumer

    def close(self) -> None:
        """Remove the consumer, and with the last one the session's listener. Queries continue. Has
        no effect the second time."""
        with _lock:
            listener = _listeners.get(self._session)
            if listener is None or listener.remove(self._consumer):
                return
            del _listeners[self._session]
        listener.close()
        # Without the lock: a server of Spark Connect that is gone is waited for, for minutes.
        with suppress(Exception):  # the session may have been stopped before
            _remove(self._session, listener)


def _remove(session: SparkSession, listener: StreamingQueryListener) -> None:
    """Remove a listener that takes no more events.

    With Spark Connect, the client waits for its thread of events while it holds the lock that this
    thread takes for an event (`StreamingQueryListenerBus` of PySpark 4.0 to 4.3): an event that
    comes then, such as the end of a query, would let both wait for ever. So the last events of the
    last listener are left out.
    """
    bus = getattr(session.streams, "_sqlb", None)
    if bus is not None and bus._listener_bus == [listener]:
        bus.post_to_all = _leave_out
    try:
        session.streams.removeListener(listener)
    finally:
        if bus is not None:
            vars(bus).pop("post_to_all", None)


def _leave_out(_: object) -> None:
    """Take the place of `post_to_all`."""


def subscribe(session: SparkSession, name: str, consumer: Consumer) -> Subscription:
    """Pass the snapshots of a session's queries to a consumer, those that run already included.
    `name`: for warnings."""
    with _lock:
        listener = _listeners.get(session)
        if listener is None:
            listener = ProgressListener(session)
            session.streams.addListener(listener)
            _listeners[session] = listener
        listener.add(name, consumer)
    return Subscription(session, consumer)


# --- What the listener uses -----------------------------------------------------------------------


class FailureGuard:
    """Runs actions that must not harm a query, such as those of a user's output."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def run(self, name: str, action: Callable[[], None]) -> None:
        """Run an action. Warn of the first failure under each name."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - an output may be the user's
            if name not in self._warned:
                self._warned.add(name)
                _log.warning(
                    "%s could not be published (%s: %s); later failures are not logged",
                    *(name, type(error).__name__, error),
                )


PERIOD_S: Final = 5.0

Statuses = Sequence[Status | None]
ReadReport = Callable[[], Any]
"""Returns the last report of a query; None if it has ended. May raise any exception."""
ReadStatuses = Callable[[Any], Statuses]
"""Returns the statuses of the sources of a report. May raise any exception."""
Changed = Callable[[str, Any, Statuses], None]
"""Takes the run of a query, its report and its statuses."""
Observe = Callable[[], bool]
"""Reads the phase of each query, and returns whether there is one. May raise any exception."""


class StatusPoller:
    """Reads in a thread what Spark does not pass to a listener. Shared by threads.

    * Before PySpark 4.2 a report has no status. It comes by a batch read that Spark plans on the
      driver (`query_lag`), which takes longer than a listener may.
    * An idle query sends no report, only an event without content, but its lag may grow: if probes
      of its shards fail, it plans no batch. Its last report, which Spark renews, is requested
      instead.
    * A batch that hangs sends no report. So the phase of each query is read in every period, as
      long as there is one.

    All queries together are read at most once in `PERIOD_S`. The thread starts when it is first
    needed.
    """

    def __init__(
        self,
        read_statuses: ReadStatuses,
        changed: Changed,
        *,
        observe: Observe = lambda: False,
        period_s: float = PERIOD_S,
    ) -> None:
        """`changed` and `observe` are called from the thread."""
        self._observe = observe
        self._read_statuses = read_statuses
        self._changed = changed
        self._period_s = period_s
        self._lock = threading.Lock()
        self._requested: dict[str, ReadReport] = {}
        self._statuses: dict[str, Statuses] = {}
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = False

    def request(self, run_id: str, read_report: ReadReport) -> Statuses | None:
        """Request the statuses of a run, and return those that were read before."""
        with self._lock:
            self._requested[run_id] = read_report
            found = self._statuses.get(run_id)
        self.start()
        return found

    def start(self) -> None:
        """Start the thread, or wake it: a query may have started."""
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="spark-ssp status", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def forget(self, run_id: str) -> None:
        """Drop the statuses of a run that has ended."""
        with self._lock:
            self._requested.pop(run_id, None)
            self._statuses.pop(run_id, None)

    def close(self) -> None:
        """Stop the thread, without waiting for a read."""
        self._stopped.set()
        self._wake.set()

    def _run(self) -> None:
        has_queries = False
        while not self._stopped.is_set():
            if not has_queries:
                self._wake.wait()
            self._wake.clear()
            with self._lock:
                requested, self._requested = self._requested, {}
            for run_id, read_report in requested.items():
                if self._stopped.is_set():
                    return
                self._refresh(run_id, read_report)
            has_queries = self._has_queries()
            self._stopped.wait(self._period_s)

    def _has_queries(self) -> bool:
        try:
            return self._observe()
        except Exception as error:  # noqa: BLE001 - Spark may raise any exception
            self._warn(error)
            return True  # perhaps: ask again

    def _refresh(self, run_id: str, read_report: ReadReport) -> None:
        try:
            report = read_report()
            found = None if report is None else self._read_statuses(report)
        except Exception as error:  # noqa: BLE001 - Spark may raise any exception
            with self._lock:
                self._statuses.pop(run_id, None)
            self._warn(error)
            return
        if found is not None:
            with self._lock:
                self._statuses[run_id] = found
            self._changed(run_id, report, found)

    def _warn(self, error: Exception) -> None:
        if not self._warned and not self._stopped.is_set():
            self._warned = True
            _log.warning(
                "the status of a query could not be read (%s); its lag is missing or old until it "
                "can",
                type(error).__name__,
            )
