"""The timelines of several queries, shared by the thread that adds snapshots and the server.
Imports nothing of the extra `live`."""

from __future__ import annotations

import threading
from typing import Protocol

from spark_ssp.operations.health import Limits
from spark_ssp.operations.live_page.page import Assessed, Content, Parts, content, query_parts
from spark_ssp.operations.live_page.svg import axis_of
from spark_ssp.operations.live_page.timeline import QueryTimeline
from spark_ssp.operations.observed_queries import MAX_ENDED, ObservedQueries, ObservedQuery
from spark_ssp.operations.snapshot import QuerySnapshot


class Observed(Protocol):
    """The observed queries, with their health."""

    version: int
    """Increases with each change."""

    def get(self, run_id: str) -> ObservedQuery | None:
        """Return a run; None if it is not known."""

    def assessed(self, limits: Limits, now_ms: int) -> list[Assessed]:
        """Return the queries with their health, the newest run of each."""


class Timelines:
    """The timelines of a session's queries, a consumer of snapshots. Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._observed: Observed = ObservedQueries()
        self._version = 0
        self._queries: dict[str, QueryTimeline] = {}
        """By query id, in the order of their first reports."""
        self._numbered = 0
        self._drawn: dict[int, tuple[tuple[object, ...], Parts]] = {}
        """The parts by the number of their timeline, after the version and times of that."""

    @property
    def version(self) -> int:
        """Increases with each change, except for that of the time."""
        return self._version + self._observed.version

    def attach(self, queries: Observed) -> None:
        """Take the queries of the session, for their health."""
        self._observed = queries

    def publish(self, snapshot: QuerySnapshot) -> None:
        """Add the snapshot of a trigger."""
        query = self._observed.get(snapshot.run_id)
        delays = {} if query is None else query.delays
        with self._lock:
            timeline = self._timeline(snapshot.query_id, snapshot.run_id)
            timeline.add(snapshot, delays, self._limits.max_delay_ms)
            self._version += 1

    def tick(self) -> None:
        """Do nothing: the page is rendered when it is asked for."""

    def end(self, run_id: str) -> None:
        """Note the end of a run, and forget the queries that ended first."""
        query = self._observed.get(run_id)
        with self._lock:
            for timeline in self._queries.values():
                if timeline.run_id == run_id and query is not None and query.ended_ms is not None:
                    failed = query.failure is not None
                    timeline.note(query.ended_ms, f"failed: {query.failure}" if failed else "ended")
            self._forget()
            self._version += 1

    def _timeline(self, query_id: str, run_id: str) -> QueryTimeline:
        found = self._queries.get(query_id)
        if found is None:
            self._numbered += 1
            found = self._queries[query_id] = QueryTimeline(self._numbered, run_id)
        return found

    def _forget(self) -> None:
        if len(self._queries) > MAX_ENDED:
            self._queries = {
                query_id: timeline
                for query_id, timeline in self._queries.items()
                if self._observed.get(timeline.run_id) is not None
            }
            numbers = {each.number for each in self._queries.values()}
            self._drawn = {n: drawn for n, drawn in self._drawn.items() if n in numbers}

    def render(self, now_ms: int) -> Content:
        """Return the content of the page."""
        queries = self._observed.assessed(self._limits, now_ms)
        with self._lock:
            found = [
                (query, health, self._timeline(query.query_id, query.run_id))
                for query, health in queries
            ]
            return content(found, self._limits, now_ms, draw_parts=self._query_parts)

    def _query_parts(self, query: QueryTimeline, limits: Limits, now_ms: int | None) -> Parts:
        """Draw a query, unless neither it nor the time that is shown has changed."""
        ends = [axis_of(source, now_ms).end_ms for source in query.sources if source.batches]
        drawn_for = query.version, now_ms is None, *ends
        known = self._drawn.get(query.number)
        if known is None or known[0] != drawn_for:
            known = self._drawn[query.number] = drawn_for, query_parts(query, limits, now_ms)
        return known[1]
