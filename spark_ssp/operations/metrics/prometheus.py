"""Metrics for Prometheus: a collector in a registry, and a scrape endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Final
from wsgiref.simple_server import WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family

from spark_ssp.common.options.values import HOST_REFUSAL, base_url, is_local, names_this_machine
from spark_ssp.operations.metrics.catalogue import METRICS, Kind, Metric
from spark_ssp.operations.metrics.readings import Output, QueryStates, invalid_argument

STOP_TIMEOUT_S: Final = 5.0


class StatesCollector:
    """Collects the current values at each scrape."""

    def __init__(self, states: QueryStates) -> None:
        self._states = states

    def describe(self) -> Iterator[Family]:
        """Yield the metrics without values, by which a registry detects duplicates."""
        for metric in METRICS:
            yield _family(metric)

    def collect(self) -> Iterator[Family]:
        """Yield the metrics that have values."""
        families: dict[Metric, GaugeMetricFamily | CounterMetricFamily] = {}
        for metric, labels, value in self._states.readings():
            if metric not in families:
                families[metric] = _family(metric)
            families[metric].add_metric(labels, value)
        yield from families.values()


def _family(metric: Metric) -> GaugeMetricFamily | CounterMetricFamily:
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return make(metric.name, metric.help, labels=metric.labels)


class RegistryOutput(Output):
    """Metrics in a registry of the user's."""

    def __init__(self, states: QueryStates, registry: CollectorRegistry) -> None:
        """Raises InvalidOptionsError if the registry has these metrics already."""
        self._registry = registry
        self._collector = StatesCollector(states)
        try:
            registry.register(self._collector)
        except ValueError:
            raise invalid_argument(
                "prometheus",
                found="a registry that has the metrics of another publish_metrics()",
                expected="one publish_metrics() for each registry",
                next_step="stop the other one, or pass another CollectorRegistry",
            ) from None

    def close(self) -> None:
        """Remove the metrics from the registry."""
        self._registry.unregister(self._collector)


def _application(server: WSGIServer) -> WSGIApplication:
    application = server.get_app()
    assert application is not None
    return application


def _for_this_machine(application: WSGIApplication) -> WSGIApplication:
    """Refuse requests for other hosts."""

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if names_this_machine(environment.get("HTTP_HOST")):
            return application(environment, start)
        start("400 Bad Request", [("Content-Type", "text/plain; charset=utf-8")])
        return [HOST_REFUSAL.encode()]

    return answer


class ScrapeEndpoint(Output):
    """An HTTP endpoint with the metrics, and no others."""

    def __init__(self, states: QueryStates, host: str, port: int) -> None:
        """`port`: 0 for any free one. Raises InvalidOptionsError if the address cannot be bound."""
        registry = CollectorRegistry()
        registry.register(StatesCollector(states))
        try:
            started = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise invalid_argument(
                "prometheus",
                found=f"the address {host}:{port}, which cannot be bound ({error.strerror})",
                expected="a free port of this machine",
                next_step="choose another port, or 0 for any free one",
            ) from error
        self._server: WSGIServer = started[0]
        self._thread: threading.Thread = started[1]
        if is_local(host):
            self._server.set_app(_for_this_machine(_application(self._server)))
        self.url = f"{base_url(host)}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(STOP_TIMEOUT_S)
