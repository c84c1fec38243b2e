"""Reads in a thread what Spark does not pass to a listener.

* Before PySpark 4.2 a report has no status. It comes by a batch read that Spark plans on the driver
  (`query_lag`), which takes longer than a listener may.
* An idle query sends no report, only an event without content, but its lag may grow: if probes of
  its shards fail, it plans no batch. Its last report, which Spark renews, is requested instead.

All queries together are read at most once in `PERIOD_S`. The thread starts when it is first needed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from spark_ssp.common.spark.progress_offsets import Status

PERIOD_S: Final = 5.0

Statuses = Sequence[Status | None]
ReadReport = Callable[[], Any]
"""Returns the last report of a query; None if it has ended. May raise any exception."""
ReadStatuses = Callable[[Any], Statuses]
"""Returns the statuses of the sources of a report. May raise any exception."""
Changed = Callable[[str, Any, Statuses], None]
"""Takes the run of a query, its report and its statuses."""

_log = logging.getLogger(__name__)


class StatusPoller:
    """The last statuses of running queries, by run. Shared by threads."""

    def __init__(
        self, read_statuses: ReadStatuses, changed: Changed, *, period_s: float = PERIOD_S
    ) -> None:
        """`changed` is called from the thread."""
        self._read_statuses = read_statuses
        self._changed = changed
        self._period_s = period_s
        self._lock = threading.Lock()
        self._requested: dict[str, ReadReport] = {}
        self._statuses: dict[str, Statuses] = {}
        self._asked = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = False

    def request(self, run_id: str, read_report: ReadReport) -> Statuses | None:
        """Request the statuses of a run, and return those that were read before."""
        with self._lock:
            self._requested[run_id] = read_report
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="spark-ssp status", daemon=True
                )
                self._thread.start()
            found = self._statuses.get(run_id)
        self._asked.set()
        return found

    def forget(self, run_id: str) -> None:
        """Drop the statuses of a run that has ended."""
        with self._lock:
            self._requested.pop(run_id, None)
            self._statuses.pop(run_id, None)

    def close(self) -> None:
        """Stop the thread, without waiting for a read."""
        self._stopped.set()
        self._asked.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._asked.wait()
            self._asked.clear()
            with self._lock:
                requested, self._requested = self._requested, {}
            for run_id, read_report in requested.items():
                if self._stopped.is_set():
                    return
                self._refresh(run_id, read_report)
            self._stopped.wait(self._period_s)

    def _refresh(self, run_id: str, read_report: ReadReport) -> None:
        try:
            report = read_report()
            found = None if report is None else self._read_statuses(report)
        except Exception as error:  # noqa: BLE001 - Spark may raise any exception
            with self._lock:
                self._statuses.pop(run_id, None)
            if not self._warned and not self._stopped.is_set():
                self._warned = True
                _log.warning(
                    "the status of a query could not be read (%s); its lag is missing or "
                    "old until it can",
                    type(error).__name__,
                )
            return
        if found is not None:
            with self._lock:
                self._statuses[run_id] = found
            self._changed(run_id, report, found)
