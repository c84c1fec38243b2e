"""`serve_live_page`: the one call that starts the live page of a session."""

from __future__ import annotations

import logging
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from operations.live_page.page import page
from operations.live_page.timelines import Timelines
from operations.metrics.listener import MetricsListener
from operations.metrics.query_states import QueryStates
from ssp_common.errors import UnsupportedError

if TYPE_CHECKING:
    from operations.live_page.server import PageServer

_log = logging.getLogger(f"spark_ssp.{__name__}")


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
        from operations.live_page.server import start_server
    except ModuleNotFoundError as error:
        raise _missing_extra(error) from error
    timelines = Timelines()
    server = start_server(timelines, host=host, port=port, token=token)
    timelines.stop_server = server.stop
    listener = _PageListener(spark, timelines)
    try:
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
