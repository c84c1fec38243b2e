"""The timelines of several queries, shared by the thread that adds snapshots and the server.
Imports nothing of the extra `live`."""

from __future__ import annotations

import threading
from typing import Final

from spark_ssp.operations.live_page.page import body
from spark_ssp.operations.live_page.timeline import QueryTimeline
from spark_ssp.operations.observed_queries import ObservedQueries
from spark_ssp.operations.snapshot import QuerySnapshot

_MAX_QUERIES: Final = 50
"""Beyond it, the queries that ended first are removed."""


class Timelines:
    """The timelines of a session's queries, a consumer of snapshots. Thread-safe."""

    def __init__(self) -> None:
        self.version = 0
        """Increases with each change."""
        self._lock = threading.Lock()
        self._observed: ObservedQueries | None = None
        self._queries: dict[str, QueryTimeline] = {}
        """By run, in the order of their first reports."""

    def attach(self, queries: ObservedQueries) -> None:
        """Take the queries of the session, for their health."""
        self._observed = queries

    def publish(self, snapshot: QuerySnapshot) -> None:
        """Add the snapshot of a trigger."""
        with self._lock:
            query = self._queries.setdefault(snapshot.run_id, QueryTimeline(snapshot.label))
            query.add(snapshot)
            ended = [run for run, each in self._queries.items() if not each.is_running]
            for run in ended[: max(0, len(self._queries) - _MAX_QUERIES)]:
                del self._queries[run]
            self.version += 1

    def tick(self) -> None:
        """Do nothing: the page is rendered when it is asked for."""

    def end(self, run_id: str) -> None:
        """Mark a query as ended."""
        with self._lock:
            if run_id in self._queries:
                self._queries[run_id].is_running = False
                self.version += 1

    def render(self) -> str:
        """Return the body of the page."""
        with self._lock:
            return body(list(self._queries.values()))
