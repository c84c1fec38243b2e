"""`publish_metrics`: the one call that switches metrics on."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pyspark.sql import SparkSession

from spark_ssp.common import now_ms
from spark_ssp.common.spark.requirement import missing_extra
from spark_ssp.operations.health import limits_of
from spark_ssp.operations.metrics.cloudwatch import CloudWatchOutput
from spark_ssp.operations.metrics.readings import (
    MetricsPublisher,
    Output,
    QueryStates,
    invalid_argument,
)
from spark_ssp.operations.progress import Subscription, subscribe

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client import CollectorRegistry


class PublishedMetrics:
    """The metrics of a session, until `stop()`."""

    def __init__(
        self, subscription: Subscription, publisher: MetricsPublisher, url: str | None
    ) -> None:
        self._subscription = subscription
        self._publisher: MetricsPublisher | None = publisher
        self.url = url
        """The scrape endpoint of Prometheus, if there is one."""

    def stop(self) -> None:
        """Stop publishing. Queries continue. Has no effect the second time."""
        publisher, self._publisher = self._publisher, None
        if publisher is None:
            return
        self._subscription.close()
        publisher.close()


def publish_metrics(
    spark: SparkSession,
    *,
    prometheus: int | str | CollectorRegistry | None = None,
    opentelemetry: bool | MeterProvider | None = None,
    cloudwatch: bool | str | PathLike[str] | TextIO | None = None,
    cloudwatch_namespace: str = "spark-ssp",
    series: int = 100,
    max_delay: str = "10m",
    stuck_after: str = "15m",
) -> PublishedMetrics:
    """Publish the metrics of all streaming queries of a session, those that run already included.

    `prometheus`: the port of a scrape endpoint on 127.0.0.1 (0: any free one), `"host:port"` for
    another address, or a `CollectorRegistry` to add the metrics to. `opentelemetry`: True for the
    global meter provider, or another one. `cloudwatch`: lines in the Embedded Metric Format, True
    for the standard output, else a file to append to or an open stream; `cloudwatch_namespace`:
    their namespace, for alarms of the Kinesis Client Library the application name. None and False
    switch an output off; at least one of the three is needed.

    `series`: a stream of at most so many shards or partitions has series of each; a larger one has
    totals only. `max_delay`, `stuck_after`: the limits of a healthy query, as of `spark-ssp
    status`: a query whose results are older is BEHIND, and one that commits nothing for longer,
    with records to read, is STALLED.

    Works through Spark Connect too, where the metrics are published by the client. A failing output
    is logged once and never harms a query. Raises UnsupportedError if the packages of the extra
    `metrics` are missing, InvalidOptionsError for an argument that cannot be used.
    """
    if series < 0:
        raise invalid_argument("series", found=str(series), expected="0 or more")
    limits = limits_of("publish_metrics", max_delay=max_delay, stuck_after=stuck_after)
    states = QueryStates(series=series, limits=limits)
    outputs: dict[str, Output] = {}
    try:
        url = _add_prometheus(outputs, states, prometheus)
        _add_opentelemetry(outputs, states, opentelemetry)
        _add_cloudwatch(outputs, states, cloudwatch, cloudwatch_namespace, series)
        if not outputs:
            raise invalid_argument(
                "prometheus, opentelemetry, cloudwatch",
                found="no output",
                expected="at least one, such as prometheus=9464",
            )
        publisher = MetricsPublisher(states, outputs)
        subscription = subscribe(spark, "metrics", publisher)
    except BaseException:
        _close(outputs)
        raise
    return PublishedMetrics(subscription, publisher, url)


def _add_prometheus(
    outputs: dict[str, Output], states: QueryStates, target: int | str | CollectorRegistry | None
) -> str | None:
    """Add the output for Prometheus; return the URL of its endpoint, if it has one."""
    if target is None or target is False:
        return None
    try:
        from spark_ssp.operations.metrics.prometheus import RegistryOutput, ScrapeEndpoint
    except ModuleNotFoundError as error:
        raise missing_extra("publish_metrics", "metrics", error.name) from error
    if not isinstance(target, int | str):
        outputs["prometheus"] = RegistryOutput(states, target)
        return None
    host, port = _address(target)
    endpoint = ScrapeEndpoint(states, host, port)
    outputs["prometheus"] = endpoint
    return endpoint.url


def _address(target: int | str) -> tuple[str, int]:
    host, _, port = target.rpartition(":") if isinstance(target, str) else ("", "", str(target))
    if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise invalid_argument(
            "prometheus",
            found=repr(target),
            expected="a port from 0 to 65535, host:port, or a CollectorRegistry",
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _add_opentelemetry(
    outputs: dict[str, Output], states: QueryStates, target: bool | MeterProvider | None
) -> None:
    if target is None or target is False:
        return
    try:
        from spark_ssp.operations.metrics.opentelemetry import OpenTelemetryOutput
    except ModuleNotFoundError as error:
        raise missing_extra("publish_metrics", "metrics", error.name) from error
    outputs["opentelemetry"] = OpenTelemetryOutput(states, None if target is True else target)


def _add_cloudwatch(
    outputs: dict[str, Output],
    states: QueryStates,
    target: bool | str | PathLike[str] | TextIO | None,
    namespace: str,
    series: int,
) -> None:
    if target is None or target is False:
        return
    if not namespace or namespace.startswith((":", "AWS/")):
        raise invalid_argument(
            "cloudwatch_namespace",
            found=repr(namespace),
            expected="a namespace outside AWS/, such as the name of the application",
        )
    if target is True:
        target = sys.stdout
    stream = Path(target) if isinstance(target, str | PathLike) else target
    outputs["cloudwatch"] = CloudWatchOutput(
        stream,
        states,
        namespace=namespace,
        series=series,
        monotonic=time.monotonic,
        now_ms=now_ms,
    )


def _close(outputs: Mapping[str, Output]) -> None:
    for output in outputs.values():
        output.close()
