"""Asks for the status of readers in a thread, where progress reports do not contain it.

Before PySpark 4.2 a status comes by a batch read that Spark plans on the driver (`query_lag`). That
takes longer than a listener may, so a thread does it, for all queries together at most once in
`PERIOD_S`. The thread starts when the first report lacks a status.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from ssp_common.spark.progress_offsets import Status

PERIOD_S: Final = 5.0

Statuses = Sequence[Status | None]
Fetch = Callable[[Any], Statuses]
"""Returns the statuses of the sources of a progress report; may raise any exception."""

_log = logging.getLogger(f"spark_ssp.{__name__}")


class StatusPoller:
    """The last statuses of running queries, by run. Shared by threads."""

    def __init__(
        self, fetch: Fetch, changed: Callable[[str, Statuses], None], *, period_s: float = PERIOD_S
    ) -> None:
        """`changed` is called from the thread with a run and its new statuses."""
        self._fetch = fetch
        self._changed = changed
        self._period_s = period_s
        self._lock = threading.Lock()
        self._requested: dict[str, Any] = {}
        self._statuses: dict[str, Statuses] = {}
        self._asked = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = False

    def request(self, run_id: str, progress: Any) -> Statuses | None:
        """Request the statuses of a run, by its last report, and return those fetched before."""
        with self._lock:
            self._requested[run_id] = progress
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="spark-ssp metrics", daemon=True
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
        """Stop the thread, without waiting for a read that is being planned."""
        self._stopped.set()
        self._asked.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._asked.wait()
            self._asked.clear()
            with self._lock:
                requested, self._requested = self._requested, {}
            for run_id, progress in requested.items():
                if self._stopped.is_set():
                    return
                self._refresh(run_id, progress)
            self._stopped.wait(self._period_s)

    def _refresh(self, run_id: str, progress: Any) -> None:
        try:
            found = self._fetch(progress)
        except Exception as error:  # noqa: BLE001 - Spark may raise any exception
            with self._lock:
                self._statuses.pop(run_id, None)
            if not self._warned and not self._stopped.is_set():
                self._warned = True
                _log.warning(
                    "metrics: the status of a query could not be read (%s); its lag is missing "
                    "until it can",
                    type(error).__name__,
                )
            return
        with self._lock:
            self._statuses[run_id] = found
        self._changed(run_id, found)
