"""`serve_live_page`: the one call that starts the live page of a session."""

from __future__ import annotations

import logging
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from spark_ssp.common import now_ms
from spark_ssp.common.spark.requirement import missing_extra
from spark_ssp.operations.health import limits_of
from spark_ssp.operations.live_page.page import page
from spark_ssp.operations.progress import Subscription, subscribe

if TYPE_CHECKING:
    from spark_ssp.operations.live_page.server import PageServer, Timelines

_log = logging.getLogger(__name__)


class LivePage:
    """The live page of a session, until `stop()`."""

    def __init__(
        self, subscription: Subscription, timelines: Timelines, server: PageServer
    ) -> None:
        self._subscription = subscription
        self._timelines = timelines
        self._server = server
        self._stopped_ms: int | None = None

    @property
    def url(self) -> str:
        """The address of the page, with its token if it has one."""
        return self._server.url

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page as it is to a file, without scripts; after `stop()`, as it was then."""
        content = self._timelines.render(self._stopped_ms or now_ms())
        Path(path).write_text(page(content), encoding="utf-8")

    def stop(self) -> None:
        """Stop serving the page. Queries continue. Has no effect the second time."""
        self._stopped_ms = self._stopped_ms or now_ms()
        self._subscription.close()
        self._server.stop()


def serve_live_page(
    spark: SparkSession,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    max_delay: str = "10m",
    stuck_after: str = "15m",
) -> LivePage:
    """Serve a page that shows the streaming queries of a session while they run: their health, the
    shards and partitions of each task over time with their delays, and the batches.

    `port`: 0 for any free one; `LivePage.url` has the address. A `host` that other machines can
    reach needs a `token`, by which the page is opened; without one, a random token is generated.

    `max_delay`: a query whose oldest uncommitted record is older is BEHIND. `stuck_after`: one
    that commits nothing for longer although records wait is STALLED; longer than the interval of
    the trigger, and than the longest usual batch.

    Works through Spark Connect too, where the client serves the page. Raises UnsupportedError if
    the packages of the extra `live` are missing, InvalidOptionsError for an address that cannot be
    used, or a duration that is not one.
    """
    try:
        from spark_ssp.operations.live_page.server import Timelines, start_server
    except ModuleNotFoundError as error:
        raise missing_extra("serve_live_page", "live", error.name) from error
    timelines = Timelines(limits_of("the live page", max_delay=max_delay, stuck_after=stuck_after))
    server = start_server(timelines, host=host, port=port, token=token)
    try:
        subscription = subscribe(spark, "the live page", timelines)
    except BaseException:
        server.stop()
        raise
    _log.info("live page: %s", server.url.partition("?")[0])
    return LivePage(subscription, timelines, server)
