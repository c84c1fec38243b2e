"""Passes the progress reports of queries to metrics and live page, without blocking or failing a
query.

A session has one listener, whatever consumes the reports: each listener reads a report from the
JVM, and converts it.

A classic session calls the listener from a thread of the JVM's event bus, and Spark Connect from a
thread of the client. Neither is a query's own thread, but events queue up behind a slow listener:
so it does no more than compute values.
"""

from __future__ import annotations

import threading
from collections import deque
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

from spark_ssp.common.spark.progress_offsets import lacks_status, status_in
from spark_ssp.common.spark.query_lag import source_statuses
from spark_ssp.operations.model.from_progress import query_snapshot
from spark_ssp.operations.model.snapshot import QuerySnapshot
from spark_ssp.operations.progress.failures import FailureGuard
from spark_ssp.operations.progress.status_poller import Statuses, StatusPoller

_REMEMBERED_RUNS: Final = 1000


class Consumer(Protocol):
    """A consumer of snapshots. Called by one thread at a time."""

    def publish(self, snapshot: QuerySnapshot) -> None:
        """Take a query's state after a trigger; again with the same trigger if its status was
        missing."""

    def end(self, run_id: str, *, failed: bool) -> None:
        """Take the end of a query's run."""


class ProgressListener(StreamingQueryListener):
    """The listener of one session."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._consumers: list[tuple[str, Consumer]] = []
        """With their names for warnings."""
        self._guard = FailureGuard()
        self._poller = StatusPoller(self._read_statuses, self._publish_later)
        self._lock = threading.RLock()
        self._reports: dict[str, Any] = {}
        """The last report of each run that lacks a status."""
        self._ended: deque[str] = deque(maxlen=_REMEMBERED_RUNS)

    def add(self, name: str, consumer: Consumer) -> None:
        """Add a consumer, for the reports from now on."""
        with self._lock:
            self._consumers.append((name, consumer))

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
                from spark_ssp.operations.progress.jvm_reports import json_listener

                self._jlistenerobj = json_listener(self, self)
        return super()._jlistener

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query without a progress report has no snapshot."""

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
        run_id, failed = str(event.runId), event.exception is not None
        self._poller.forget(run_id)
        with self._lock:
            self._ended.append(run_id)
            self._reports.pop(run_id, None)
            for name, consumer in self._consumers:
                self._guard.run(name, lambda: consumer.end(run_id, failed=failed))  # noqa: B023

    # --- Publishing -------------------------------------------------------------------------------

    def publish(self, progress: Any) -> None:
        """Publish a progress report."""
        run_id = str(progress["runId"])
        found: Statuses = [status_in(source) for source in progress["sources"]]
        if any(map(lacks_status, progress["sources"])):
            with self._lock:
                self._reports[run_id] = progress
            found = self._poller.request(run_id, lambda: progress) or found
        self._publish(progress, found)

    def _publish(self, progress: Any, statuses: Statuses) -> None:
        snapshot = query_snapshot(progress, statuses)
        with self._lock:
            for name, consumer in self._consumers:
                self._guard.run(name, lambda: consumer.publish(snapshot))  # noqa: B023

    def _read_report(self, query_id: str) -> Any:
        query = self._session.streams.get(query_id)
        return None if query is None else query.lastProgress

    def _read_statuses(self, progress: Any) -> Statuses:
        found = source_statuses(self._session, progress)
        return [one[0] if one else None for one in found]

    def _publish_later(self, run_id: str, progress: Any, statuses: Statuses) -> None:
        """Publish a report with the statuses that were read, or a later report that waits for
        them."""
        with self._lock:
            if run_id in self._ended or str(progress["runId"]) != run_id:
                return
            waiting = self._reports.get(run_id, progress)
            newest = max(progress, waiting, key=lambda one: str(one["timestamp"]))
            self._guard.run("a status", lambda: self._publish(newest, statuses))


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
            with suppress(Exception):  # the session may have been stopped before
                self._session.streams.removeListener(listener)
            listener.close()


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
