"""The outputs: a scrape over HTTP, the SDK of OpenTelemetry, lines for CloudWatch."""

from __future__ import annotations

import errno
import io
import json
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from opentelemetry.environment_variables import OTEL_PYTHON_METER_PROVIDER
from opentelemetry.metrics._internal import _ProxyMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from spark_ssp.common import __version__
from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.operations.metrics import cloudwatch, opentelemetry
from spark_ssp.operations.metrics.catalogue import METRICS
from spark_ssp.operations.metrics.cloudwatch import CloudWatchOutput
from spark_ssp.operations.metrics.opentelemetry import OpenTelemetryOutput
from spark_ssp.operations.metrics.prometheus import RegistryOutput, ScrapeEndpoint
from spark_ssp.operations.metrics.readings import MetricsPublisher, QueryStates
from spark_ssp.operations.observed_queries import ObservedQueries
from spark_ssp.operations.snapshot import QuerySnapshot, query_snapshot
from tests.support.kinesis.planning import shard_id
from tests.support.operations.reports import end_offset, report, status


def trigger(batch: int = 7, *, shards: int = 2, name: str | None = "etl") -> QuerySnapshot:
    lag = {n: 10 * n for n in range(shards)}
    return query_snapshot(report(end_offset(shards), status(lag), batch=batch, name=name))


def without_leases(snapshot: QuerySnapshot) -> QuerySnapshot:
    """The same query, which shares its shards with no other and so misses none."""
    (source,) = snapshot.sources
    streams = tuple(replace(stream, leases=None) for stream in source.streams)
    return replace(snapshot, sources=(replace(source, streams=streams),))


# --- Prometheus -----------------------------------------------------------------------------------


def get(url: str, host: str | None = None) -> tuple[int, str]:
    """The answer of an endpoint, by another name of it."""
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
    connection.request("GET", address.path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def scrape(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The values by name and by labels, in the order of the labels' names."""
    _, text = get(url)
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
        assert found["ssp_shard_delay_seconds"] == {
            ("etl", shard_id(0), "orders"): 0,
            ("etl", shard_id(1), "orders"): 0.01,
        }
        assert found["ssp_retries"] == {("etl",): 3}
        assert found["ssp_rows_dropped_by_watermark"] == {("etl",): 5}
        states.remove("run-1")
        assert scrape(endpoint.url) == {"ssp_running_queries": {(): 0}}
    finally:
        endpoint.close()


def test_the_endpoint_of_this_machine_answers_to_no_other_name() -> None:
    endpoint = ScrapeEndpoint(QueryStates(series=10), "127.0.0.1", 0)
    try:
        for name in ("localhost:1", "127.0.0.1", "[::1]:9464"):
            assert get(endpoint.url, name)[0] == 200
        for name in ("example.org", "example.org:9464", "[::1", ""):
            status, text = get(endpoint.url, name)
            assert (status, "ssp_" in text) == (400, False)
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


def test_opentelemetry_observes_the_last_values_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    states, reads = QueryStates(series=10), Mock()
    reads.side_effect = states.readings
    monkeypatch.setattr(states, "readings", reads)
    output = OpenTelemetryOutput(states, provider)
    scopes: set[tuple[str, str | None]] = set()
    units: dict[str, str | None] = {}

    def observed() -> dict[str, list[Any]]:
        data = reader.get_metrics_data()
        if data is None:
            return {}
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                scopes.add((scope.scope.name, scope.scope.version))
                units.update({metric.name: metric.unit for metric in scope.metrics})
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    observed()
    states.update(trigger())
    found = observed()
    assert scopes == {("spark_ssp", __version__)}
    assert units["ssp_rows"] == "{row}"
    assert units["ssp_shard_delay"] == "s"
    delay = {one.attributes["shard"]: one.value for one in found["ssp_shard_delay"]}
    assert delay == {shard_id(0): 0, shard_id(1): 0.01}
    assert [one.value for one in found["ssp_rows"]] == [40]
    assert [one.value for one in found["ssp_rows_dropped_by_watermark"]] == [5]
    shards = {one.attributes["mode"]: one.value for one in found["ssp_fan_out_shards"]}
    assert shards == {"pushed": 3, "polled": 1}
    assert found.keys() <= {metric.base_name for metric in METRICS}
    assert reads.call_count == 2  # one for each collection, the first one empty
    # A second call publishes too, and after both have stopped, a third.
    others = QueryStates(series=10)
    other = OpenTelemetryOutput(others, provider)
    others.update(trigger(name="other"))
    assert {one.attributes["query"] for one in observed()["ssp_rows"]} == {"etl", "other"}
    running = ObservedQueries()
    running.publish(trigger())
    states.attach(running)
    assert [one.value for one in observed()["ssp_running_queries"]] == [1]  # of all sessions
    states.attach(ObservedQueries())
    output.close()
    output.close()
    assert {one.attributes["query"] for one in observed()["ssp_rows"]} == {"other"}
    other.close()
    assert observed() == {}
    third = OpenTelemetryOutput(states, provider)
    assert {one.attributes["query"] for one in observed()["ssp_rows"]} == {"etl"}
    third.close()
    provider.shutdown()


@pytest.mark.parametrize("is_set_first", [False, True])
@pytest.mark.parametrize("first_is_named", [False, True])
def test_the_global_provider_has_the_instruments_once(
    monkeypatch: pytest.MonkeyPatch, *, first_is_named: bool, is_set_first: bool
) -> None:
    """The program may set it after the first call, which then has a proxy."""
    reader, proxy = InMemoryMetricReader(), _ProxyMeterProvider()
    real = MeterProvider([reader])
    current: list[Any] = [real if is_set_first else proxy]
    monkeypatch.setattr(opentelemetry, "get_meter_provider", lambda: current[0])
    monkeypatch.setattr(opentelemetry, "_global", None)
    states = QueryStates(series=10)
    states.update(trigger())
    first = OpenTelemetryOutput(states, current[0] if first_is_named else None)
    if not is_set_first:
        proxy.on_set_meter_provider(real)
        current[0] = real
    first.close()
    assert reader.get_metrics_data() is None
    second = OpenTelemetryOutput(states, None if first_is_named else real)
    assert reader.get_metrics_data() is not None
    second.close()
    real.shutdown()


def test_a_named_provider_leaves_the_global_one_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API would create that of the environment, and the program could then not set its own."""
    asked = Mock()
    monkeypatch.setenv(OTEL_PYTHON_METER_PROVIDER, "sdk_meter_provider")
    monkeypatch.setattr(opentelemetry, "get_meter_provider", asked)
    provider = MeterProvider()
    OpenTelemetryOutput(QueryStates(series=10), provider).close()
    provider.shutdown()
    asked.assert_not_called()


# --- CloudWatch -----------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def writing(
    target: io.StringIO | Path, states: QueryStates, clock: Clock, *, series: int = 10
) -> CloudWatchOutput:
    return CloudWatchOutput(
        target,
        states,
        namespace="orders-etl",
        series=series,
        monotonic=clock,
        now_ms=lambda: 1,
    )


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
    output = writing(stream, states, clock)
    output.publish(trigger(), states.update(trigger()))
    found = lines(stream.getvalue())
    assert found["ApplicationTracker",] == {"MillisBehindLatest": [10, 0]}
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
    output = writing(stream, states, clock, series=0)
    for batch in (1, 2, 3):
        output.publish(trigger(batch), states.update(trigger(batch)))
    assert lines(stream.getvalue())["etl",]["Rows"] == 40
    clock.now += cloudwatch.PERIOD_S
    stream.truncate(0)
    output.publish(trigger(4), states.update(trigger(4)))
    assert lines(stream.getvalue().lstrip("\0"))["etl",]["Rows"] == 120
    assert lines(stream.getvalue().lstrip("\0"))["etl",]["Retries"] == 0


def test_every_row_is_counted_once_after_long_silence_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    states = QueryStates(series=10)
    output = writing(stream, states, clock, series=0)
    for batch in (1, 2, 3):
        output.publish(trigger(batch), states.update(trigger(batch)))
        clock.now += 3600 * (batch == 1)
    output.end("run-1")
    output.end("run-1")
    output.close()
    found = [json.loads(one) for one in stream.getvalue().splitlines()]
    assert [one["Rows"] for one in found if "Rows" in one] == [40, 40, 40]


class FullDisk(io.StringIO):
    """A stream, of which a method fails for some time. What it has taken, it keeps."""

    def __init__(self, failing: str) -> None:
        super().__init__()
        self._failing = failing
        self.is_full = False

    def write(self, text: str) -> int:
        self._check("write")
        return super().write(text)

    def flush(self) -> None:
        self._check("flush")

    def _check(self, method: str) -> None:
        if self.is_full and method == self._failing:
            raise OSError(errno.ENOSPC, "no space")


@pytest.mark.parametrize("failing", ["write", "flush"])
def test_every_row_is_counted_once_after_writes_that_failed(failing: str) -> None:
    stream, clock, states = FullDisk(failing), Clock(), QueryStates(series=10)
    publisher = MetricsPublisher(states, {"cloudwatch": writing(stream, states, clock, series=0)})
    for batch in range(6):
        stream.is_full = batch in (1, 2, 3)
        publisher.publish(trigger(batch))
        clock.now += cloudwatch.PERIOD_S
    publisher.close()
    found = [json.loads(one) for one in stream.getvalue().splitlines()]
    assert sum(one.get("Rows", 0) for one in found) == 6 * 40


def test_a_file_that_is_full_takes_later_lines_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write that fills a disk is short, and no error."""
    full = cloudwatch._opened(Path("/dev/full"))
    with pytest.raises(OSError, match="space"):
        full.write("{}\n")
    full.close()

    class Raw(io.BytesIO):
        left = 5

        def write(self, data: Any) -> int:
            if not self.left:
                raise OSError(errno.ENOSPC, "no space")
            taken = bytes(data[: self.left])
            self.left -= len(taken)
            return super().write(taken)

    file = cloudwatch._opened(tmp_path / "metrics.log")
    file.close()
    raw = Raw()
    monkeypatch.setattr(file, "_raw", raw)
    for _ in range(2):
        with pytest.raises(OSError, match="space"):
            file.write('{"a": 1}\n')
    raw.left = 1_000
    file.write('{"b": 2}\n')
    file.write('{"c": 3}\n')
    assert raw.getvalue().decode().splitlines() == ['{"a":', '{"b": 2}', '{"c": 3}']


@pytest.mark.parametrize("is_ended", [True, False])
def test_the_last_lines_of_two_queries_are_apart(*, is_ended: bool) -> None:
    stream, states = io.StringIO(), QueryStates(series=10)
    output = writing(stream, states, Clock())
    for batch in (7, 8):
        for name in ("etl", "other"):
            one = replace(trigger(batch, name=name), run_id=name)
            output.publish(one, states.update(one))
    stream.truncate(0)
    if is_ended:
        output.end("other")
    else:
        output.close()
    found = lines(stream.getvalue().lstrip("\0"))
    ended = {"other"} if is_ended else {"etl", "other"}
    assert {one[1:] for one in found if one[0] == "ApplicationTracker"} == {(n,) for n in ended}


def test_the_metrics_of_two_queries_are_apart() -> None:
    stream, states = io.StringIO(), QueryStates(series=10)
    output = writing(stream, states, Clock())
    first, second = trigger(), replace(trigger(name="other"), run_id="run-2")
    output.publish(first, states.update(first))
    output.publish(second, states.update(second))
    found = lines(stream.getvalue())
    assert found["ApplicationTracker",] == found["ApplicationTracker", "other"]
    assert ("ApplicationTracker",) in found
    assert ("ProcessTask", "other", shard_id(1)) in found


def test_a_query_that_hangs_has_lines_about_its_health() -> None:
    stream, clock, queries = io.StringIO(), Clock(), ObservedQueries()
    states = QueryStates(series=10, now_ms=lambda: trigger().time_ms + round(1000 * clock.now))
    states.attach(queries)
    output = writing(stream, states, clock)
    healthy = without_leases(trigger())
    queries.publish(healthy)
    output.publish(healthy, states.update(healthy))
    assert lines(stream.getvalue())["etl",]["Healthy"] == 1
    stream.truncate(0)
    for _ in range(100):
        clock.now += 10
        output.tick()
    found = [json.loads(one) for one in stream.getvalue().lstrip("\0").splitlines()]
    assert [one["CommittedDelay"] for one in found][:2] == [60_010, 120_010]
    assert [one["Healthy"] for one in found] == [1] * 9 + [0] * 7
    queries.ended("run-1", None, 0)
    stream.truncate(0)
    clock.now += 1000
    output.tick()
    assert stream.getvalue() == ""


def test_the_limits_of_the_format_are_kept(tmp_path: Path) -> None:
    states = QueryStates(series=1000)
    path = tmp_path / "metrics.log"
    output = writing(path, states, Clock(), series=1000)
    snapshot = trigger(shards=300, name=":sch\u00f6n\n\x7f")
    output.publish(snapshot, states.update(snapshot))
    output.close()
    found = lines(path.read_text())
    assert len(found["ApplicationTracker",]["MillisBehindLatest"]) == 100
    assert max(found["ApplicationTracker",]["MillisBehindLatest"]) == 2990
    assert ("_:sch\\xf6n\\n\\x7f",) in found
    with pytest.raises(InvalidOptionsError, match=r"no-such-folder/metrics\.log"):
        writing(tmp_path / "no-such-folder" / "metrics.log", states, Clock())
