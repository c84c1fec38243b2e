"""`serve_live_page`: the one call that starts the live page of a session."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from operations.live_page.page import body, page
from operations.live_page.timeline import QueryTimeline
from operations.metrics.catalogue import Metric
from operations.metrics.listener import MetricsListener
from operations.metrics.query_states import QueryStates
from operations.model.snapshot import QuerySnapshot
from ssp_common.errors import InvalidOptionsError, OptionProblem, UnsupportedError
from ssp_common.options.endpoints import is_loopback

if TYPE_CHECKING:
    from operations.live_page.server import PageServer

_log = logging.getLogger(f"spark_ssp.{__name__}")

_MAX_QUERIES: Final = 50
"""Beyond it, the queries that ended first are removed."""


class LivePage:
    """The live page of a session, until `stop()`."""

    def __init__(
        self,
        spark: SparkSession,
        listener: MetricsListener,
        timelines: Timelines,
        server: PageServer,
    ) -> None:
        self._spark = spark
        self._listener: MetricsListener | None = listener
        self._timelines = timelines
        self._server = server

    @property
    def url(self) -> str:
        """The address of the page, with its token if it has one."""
        return self._server.url

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page as it is now to a file, without scripts. Possible after `stop()` too."""
        Path(path).write_text(page(self._timelines.render()), encoding="utf-8")

    def stop(self) -> None:
        """Stop serving the page. Queries continue. Has no effect the second time."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with suppress(Exception):  # the session may have been stopped before
            self._spark.streams.removeListener(listener)
        listener.close()


class Timelines:
    """The timelines of a session's queries, an output of `MetricsListener`. Thread-safe."""

    def __init__(self) -> None:
        self.version = 0
        """Increases with each change."""
        self.server: PageServer | None = None
        self._lock = threading.Lock()
        self._queries: dict[str, QueryTimeline] = {}
        """By run, in the order of their first reports."""

    def publish(self, snapshot: QuerySnapshot, counts: Mapping[Metric, int]) -> None:
        """Add the snapshot of a trigger."""
        with self._lock:
            query = self._queries.setdefault(snapshot.run_id, QueryTimeline(snapshot.label))
            query.add(snapshot)
            ended = [run for run, each in self._queries.items() if not each.is_running]
            for run in ended[: max(0, len(self._queries) - _MAX_QUERIES)]:
                del self._queries[run]
            self.version += 1

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

    def close(self) -> None:
        """Stop the server."""
        if self.server is not None:
            self.server.stop()


class _PageListener(MetricsListener):
    """Marks queries as ended as well."""

    def __init__(self, session: SparkSession, timelines: Timelines) -> None:
        super().__init__(session, QueryStates(series=0), {"the live page": timelines})
        self._timelines = timelines

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Mark a query as ended."""
        super().onQueryTerminated(event)
        self._timelines.end(str(event.runId))


def serve_live_page(
    spark: SparkSession, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> LivePage:
    """Serve a page that shows the streaming queries of a session while they run: the shards and
    partitions of each task over time, their lag and owners, and the batches.

    `port`: 0 for any free one; `LivePage.url` has the address. A `host` that other machines can
    reach needs a `token`, by which the page is opened; without one, a random token is generated.

    Works through Spark Connect too, where the client serves the page. Raises UnsupportedError if
    the packages of the extra `live` are missing, InvalidOptionsError for an address that cannot be
    used.
    """
    try:
        from operations.live_page.server import PageServer
    except ModuleNotFoundError as error:
        raise _missing_extra(error) from error
    if token is None and not is_loopback(f"http://{f'[{host}]' if ':' in host else host}"):
        token = secrets.token_urlsafe(24)
    timelines = Timelines()
    try:
        server = PageServer(
            timelines.render, lambda: timelines.version, host=host, port=port, token=token
        )
    except (OSError, OverflowError) as error:
        raise _unusable_address(host, port, error) from error
    timelines.server = server
    listener = _PageListener(spark, timelines)
    try:
        server.start()
        spark.streams.addListener(listener)
    except BaseException:
        listener.close()
        raise
    _log.info("live page: %s", server.url.partition("?")[0])
    return LivePage(spark, listener, timelines, server)


def _missing_extra(error: ModuleNotFoundError) -> UnsupportedError:
    return UnsupportedError(
        "serve_live_page",
        found=f"no package {(error.name or '').partition('.')[0]} in this Python environment",
        expected="the packages of the extra live, where this program runs",
        next_step="pip install 'spark-ssp[live]'",
    )


def _unusable_address(host: str, port: int, error: Exception) -> InvalidOptionsError:
    problem = OptionProblem(
        option="host, port",
        found=f"{host}:{port}, which cannot be bound: {error}",
        expected="an address of this machine with a free port, such as port=0",
        next_step="correct the arguments",
    )
    return InvalidOptionsError("serve_live_page", [problem])
