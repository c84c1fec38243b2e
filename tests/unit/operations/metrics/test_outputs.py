"""The outputs: a scrape over HTTP, the SDK of OpenTelemetry, lines for CloudWatch."""

from __future__ import annotations

import io
import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.operations.metrics import cloudwatch
from spark_ssp.operations.metrics.catalogue import METRICS
from spark_ssp.operations.metrics.cloudwatch import CloudWatchOutput
from spark_ssp.operations.metrics.opentelemetry import OpenTelemetryOutput
from spark_ssp.operations.metrics.prometheus import RegistryOutput, ScrapeEndpoint
from spark_ssp.operations.metrics.readings import QueryStates
from spark_ssp.operations.snapshot import QuerySnapshot, query_snapshot
from tests.support.kinesis.planning import shard_id
from tests.support.operations.reports import end_offset, report, status


def trigger(batch: int = 7, *, shards: int = 2, name: str | None = "etl") -> QuerySnapshot:
    lag = {n: 10 * n for n in range(shards)}
    return query_snapshot(report(end_offset(shards), status(lag), batch=batch, name=name))


# --- Prometheus -----------------------------------------------------------------------------------


def scrape(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The values by name and by labels, in the order of the labels' names."""
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
    connection.request("GET", address.path)
    text = connection.getresponse().read().decode()
    connection.close()
    return {
        family.name: {
            tuple(one.labels[name] for name in sorted(one.labels)): one.value
            for one in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


def test_a_scrape_has_the_last_values() -> None:
    states = QueryStates(series=10)
    endpoint = ScrapeEndpoint(states, "127.0.0.1", 0)
    try:
        states.update(trigger())
        found = scrape(endpoint.url)
        assert found["ssp_millis_behind_latest"] == {
            ("etl", shard_id(0), "orders"): 0,
            ("etl", shard_id(1), "orders"): 10,
        }
        assert found["ssp_retries"] == {("etl",): 3}
        assert found["ssp_rows_dropped_by_watermark"] == {("etl",): 5}
        states.remove("run-1", failed=False)
        assert scrape(endpoint.url) == {"ssp_query_failures": {(): 0}}
    finally:
        endpoint.close()


def test_a_port_in_use_is_an_error_with_the_address() -> None:
    states = QueryStates(series=10)
    endpoint = ScrapeEndpoint(states, "127.0.0.1", 0)
    try:
        port = int(endpoint.url.split(":")[2].split("/")[0])
        with pytest.raises(InvalidOptionsError, match=f"127.0.0.1:{port}"):
            ScrapeEndpoint(states, "127.0.0.1", port)
    finally:
        endpoint.close()


def test_a_registry_of_the_user_has_the_metrics_until_they_are_stopped() -> None:
    states, registry = QueryStates(series=10), CollectorRegistry()
    output = RegistryOutput(states, registry)
    states.update(trigger())
    labels = {"query": "etl", "stream": "orders", "state": "open"}
    assert registry.get_sample_value("ssp_shards", labels) == 2
    with pytest.raises(InvalidOptionsError, match="another publish_metrics"):
        RegistryOutput(states, registry)
    output.close()
    assert list(registry.collect()) == []


# --- OpenTelemetry --------------------------------------------------------------------------------


def test_opentelemetry_observes_the_last_values_until_it_is_closed() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    states = QueryStates(series=10)
    output = OpenTelemetryOutput(states, provider)

    def observed() -> dict[str, list[Any]]:
        data = reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    states.update(trigger())
    found = observed()
    lag = {one.attributes["shard"]: one.value for one in found["ssp_millis_behind_latest"]}
    assert lag == {shard_id(0): 0, shard_id(1): 10}
    assert [one.value for one in found["ssp_rows"]] == [40]
    assert [one.value for one in found["ssp_rows_dropped_by_watermark"]] == [5]
    shards = {one.attributes["mode"]: one.value for one in found["ssp_fan_out_shards"]}
    assert shards == {"pushed": 3, "polled": 1}
    names = {metric.name.removesuffix("_total") for metric in METRICS}
    assert found.keys() <= names
    output.close()
    assert observed() == {}
    provider.shutdown()


# --- CloudWatch -----------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(text: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """The documents by the values of their dimensions, each with its metrics."""
    found = {}
    for line in text.splitlines():
        document = json.loads(line)
        (directive,) = document["_aws"]["CloudWatchMetrics"]
        (dimensions,) = directive["Dimensions"]
        names = [metric["Name"] for metric in directive["Metrics"]]
        assert document.keys() == {"_aws", *dimensions, *names}
        assert directive["Namespace"] == "orders-etl"
        found[tuple(document[name] for name in dimensions)] = {n: document[n] for n in names}
    return found


def test_cloudwatch_gets_the_metrics_of_the_kcl_and_of_the_query() -> None:
    stream, clock = io.StringIO(), Clock()
    states = QueryStates(series=10)
    output = CloudWatchOutput(stream, namespace="orders-etl", series=10, monotonic=clock)
    output.publish(trigger(), states.update(trigger()))
    found = lines(stream.getvalue())
    assert found["ApplicationTracker",] == {"MillisBehindLatest": [0, 10]}
    assert found["ProcessTask", shard_id(1)] == {"MillisBehindLatest": 10}
    assert found["RenewAllLeases", "anne"] == {"CurrentLeases": 2}
    assert found["etl",]["Rows"] == 40
    assert found["etl",]["RowsDroppedByWatermark"] == 5
    assert found["etl",]["ArrivalSpread"] == 90_500
    assert found["etl",]["Slots"] == 4
    assert found["etl", "orders"]["Shards.open"] == 2
    assert found["etl", "orders"]["Shards.pushed"] == 3
    assert found["etl", "orders"]["Shards.leftBehind"] == 1


def test_counters_are_increases_and_lines_are_rare() -> None:
    stream, clock = io.StringIO(), Clock()
    states = QueryStates(series=10)
    output = CloudWatchOutput(stream, namespace="orders-etl", series=0, monotonic=clock)
    for batch in (1, 2, 3):
        output.publish(trigger(batch), states.update(trigger(batch)))
    assert lines(stream.getvalue())["etl",]["Rows"] == 40
    clock.now += cloudwatch.PERIOD_S
    stream.truncate(0)
    output.publish(trigger(4), states.update(trigger(4)))
    assert lines(stream.getvalue().lstrip("\0"))["etl",]["Rows"] == 120
    assert lines(stream.getvalue().lstrip("\0"))["etl",]["Retries"] == 0


def test_the_limits_of_the_format_are_kept(tmp_path: Path) -> None:
    states = QueryStates(series=1000)
    path = tmp_path / "metrics.log"
    output = CloudWatchOutput(path, namespace="orders-etl", series=1000, monotonic=Clock())
    snapshot = trigger(shards=300, name=":sch\u00f6n")
    output.publish(snapshot, states.update(snapshot))
    output.close()
    found = lines(path.read_text())
    assert len(found["ApplicationTracker",]["MillisBehindLatest"]) == 100
    assert max(found["ApplicationTracker",]["MillisBehindLatest"]) == 2990
    assert ("_:sch\\xf6n",) in found
    with pytest.raises(InvalidOptionsError, match=r"no-such-folder/metrics\.log"):
        CloudWatchOutput(
            tmp_path / "no-such-folder" / "metrics.log",
            namespace="x",
            series=1,
            monotonic=Clock(),
        )
