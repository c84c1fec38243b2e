"""Passes the progress reports of queries to the outputs, without blocking or failing a query.

A classic session calls the listener from a thread of the JVM's event bus, and Spark Connect from a
thread of the client. Neither is a query's own thread, but events queue up behind a slow listener:
so it does no more than compute values.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from operations.metrics.output import Output
from operations.metrics.query_states import QueryStates
from operations.metrics.status_poller import Statuses, StatusPoller
from operations.model.from_progress import query_snapshot
from ssp_common.spark.progress_offsets import lacks_status, status_in
from ssp_common.spark.query_lag import source_statuses

_REMEMBERED_RUNS: Final = 1000

_log = logging.getLogger(f"spark_ssp.{__name__}")


class MetricsListener(StreamingQueryListener):
    """The listener of one session."""

    def __init__(
        self, session: SparkSession, states: QueryStates, outputs: Mapping[str, Output]
    ) -> None:
        """`outputs`: by the name for warnings."""
        self._session = session
        self._states = states
        self._outputs = outputs
        self._poller = StatusPoller(self._read_statuses, self._publish_later)
        self._lock = threading.RLock()
        self._reports: dict[str, Any] = {}
        """The last report of each run that lacks a status."""
        self._ended: deque[str] = deque(maxlen=_REMEMBERED_RUNS)
        self._warned: set[str] = set()

    def close(self) -> None:
        """Stop the thread and the outputs."""
        self._poller.close()
        with self._lock:
            for name, output in self._outputs.items():
                self._guarded(name, output.close)

    # --- Called by Spark --------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query without a progress report has no metrics."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Publish a trigger."""
        self._guarded("a progress report", lambda: self.publish(event.progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Request the last report, which the event does not contain."""
        query_id = str(event.id)
        self._poller.request(str(event.runId), lambda: self._read_report(query_id))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Remove a query."""
        run_id = str(event.runId)
        self._poller.forget(run_id)
        with self._lock:
            self._ended.append(run_id)
            self._reports.pop(run_id, None)
            self._states.remove(run_id, failed=event.exception is not None)

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
            counts = self._states.update(snapshot)
            for name, output in self._outputs.items():
                self._guarded(name, lambda: output.publish(snapshot, counts))  # noqa: B023

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
            self._guarded("a status", lambda: self._publish(newest, statuses))

    def _guarded(self, name: str, action: Callable[[], None]) -> None:
        """Run an action, which never harms the query: warn of the first failure of each kind."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - an output may be the user's
            if name not in self._warned:
                self._warned.add(name)
                _log.warning(
                    "metrics: %s could not be published (%s: %s); later failures are not logged",
                    *(name, type(error).__name__, error),
                )
