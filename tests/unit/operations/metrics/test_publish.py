"""`publish_metrics` and its listener, without Spark: arguments, failures, statuses that follow."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyspark.sql.connect.proto as pb2
import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql.connect.streaming.query import StreamingQueryListenerBus
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from spark_ssp import InvalidOptionsError, UnsupportedError, publish_metrics, serve_live_page
from spark_ssp.common.spark.reader_status import ReaderStatus
from spark_ssp.operations.metrics.catalogue import Metric
from spark_ssp.operations.metrics.readings import MetricsPublisher, Output, QueryStates
from spark_ssp.operations.progress import ProgressListener, Statuses, StatusPoller
from spark_ssp.operations.snapshot import QuerySnapshot, query_snapshot
from tests.support.operations.reports import end_offset, report, status
from tests.support.waiting import until

RUN = "8d1c0c3a-0000-4000-8000-000000000000"


class Session:
    """A session that keeps its listeners."""

    def __init__(self) -> None:
        self.listeners: list[StreamingQueryListener] = []
        self.streams = SimpleNamespace(
            addListener=self.listeners.append, removeListener=self.listeners.remove, active=[]
        )

    def as_spark(self) -> SparkSession:
        return cast("SparkSession", self)


def progress_event(progress: dict[str, Any]) -> QueryProgressEvent:
    return QueryProgressEvent(cast("StreamingQueryProgress", progress))


def listening(session: Session, publisher: MetricsPublisher) -> ProgressListener:
    listener = ProgressListener(session.as_spark())
    listener.add("metrics", publisher)
    return listener


def ended(run: str, error: str | None = None) -> QueryTerminatedEvent:
    return QueryTerminatedEvent(uuid.uuid4(), uuid.UUID(run), error, None)


# --- Arguments ------------------------------------------------------------------------------------

OUTPUTS = ("prometheus", "opentelemetry", "cloudwatch")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        *(
            (dict.fromkeys(OUTPUTS, off), "prometheus, opentelemetry, cloudwatch: found no output")
            for off in (None, False)
        ),
        ({}, "prometheus, opentelemetry, cloudwatch: found no output"),
        ({"prometheus": True}, "prometheus: found True"),
        ({"prometheus": 70_000}, "prometheus: found 70000"),
        ({"prometheus": "example.org"}, "prometheus: found 'example.org'"),
        ({"prometheus": CollectorRegistry(), "series": -1}, "series: found -1"),
        ({"prometheus": CollectorRegistry(), "max_delay": "soon"}, "max_delay: found 'soon'"),
        ({"prometheus": CollectorRegistry(), "stuck_after": "5x"}, "stuck_after: found '5x'"),
        ({"prometheus": CollectorRegistry(), "stuck_after": "0s"}, "stuck_after: found '0s'"),
        ({"cloudwatch": True, "cloudwatch_namespace": "AWS/Mine"}, "cloudwatch_namespace: found"),
    ],
)
def test_arguments_that_cannot_be_used_are_errors(arguments: dict[str, Any], text: str) -> None:
    session = Session()
    with pytest.raises(InvalidOptionsError, match=text):
        publish_metrics(session.as_spark(), **arguments)
    assert session.listeners == []


@pytest.mark.parametrize(
    ("output", "package"),
    [({"prometheus": 0}, "prometheus_client"), ({"opentelemetry": True}, "opentelemetry")],
)
def test_a_missing_extra_is_one_clear_error(
    output: dict[str, Any], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (
        "spark_ssp.operations.metrics.prometheus",
        "spark_ssp.operations.metrics.opentelemetry",
    ):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [one for one in sys.modules if one.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, match=r"pip install .*prometheus-client"):
        publish_metrics(Session().as_spark(), **output)


def test_metrics_are_published_until_they_are_stopped() -> None:
    session, registry, stream = Session(), CollectorRegistry(), io.StringIO()
    published = publish_metrics(session.as_spark(), prometheus=registry, cloudwatch=stream)
    (listener,) = session.listeners
    listener.onQueryProgress(progress_event(report(end_offset(1), status({0: 7}), run=RUN)))
    labels = {"query": "etl", "stream": "orders"}
    assert registry.get_sample_value("ssp_planned_delay_seconds", labels) == 0.007
    assert '"MillisBehindLatest": [7]' in stream.getvalue()
    listener.onQueryTerminated(ended(RUN, "an error"))
    assert registry.get_sample_value("ssp_planned_delay_seconds", labels) is None
    assert registry.get_sample_value("ssp_query_failures_total", {"query": "etl"}) == 1
    published.stop()
    published.stop()
    assert session.listeners == []
    assert list(registry.collect()) == []


def test_metrics_and_live_page_share_a_listener(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    converted: list[str] = []

    def convert(progress: Mapping[str, Any], statuses: Statuses) -> QuerySnapshot:
        converted.append(str(progress["runId"]))
        return query_snapshot(progress, statuses)

    monkeypatch.setattr("spark_ssp.operations.progress.query_snapshot", convert)
    session, registry = Session(), CollectorRegistry()
    published = publish_metrics(session.as_spark(), prometheus=registry)
    page = serve_live_page(session.as_spark())
    try:
        (listener,) = session.listeners
        listener.onQueryProgress(progress_event(report(end_offset(1), status({0: 7}), run=RUN)))
        labels = {"query": "etl", "stream": "orders"}
        assert registry.get_sample_value("ssp_planned_delay_seconds", labels) == 0.007
        published.stop()
        listener.onQueryProgress(progress_event(report(end_offset(1), status({0: 9}), run=RUN)))
        assert converted == [RUN, RUN]
        assert session.listeners == [listener]
        page.save(tmp_path / "page.html")
    finally:
        page.stop()
    assert "lag 9 ms" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert session.listeners == []


def test_a_session_whose_server_does_not_answer_delays_no_other() -> None:
    answers, asked = threading.Event(), threading.Event()

    def remove(_: StreamingQueryListener) -> None:
        asked.set()
        answers.wait(60)

    silent, other = Session(), Session()
    silent.streams.removeListener = remove
    first = publish_metrics(silent.as_spark(), prometheus=CollectorRegistry())
    stopping = threading.Thread(target=first.stop)
    stopping.start()
    assert asked.wait(60)
    second = threading.Thread(
        target=lambda: publish_metrics(other.as_spark(), prometheus=CollectorRegistry()).stop(),
        daemon=True,
    )
    second.start()
    second.join(10)
    is_done = not second.is_alive()
    answers.set()
    stopping.join()
    assert is_done


def test_an_event_during_the_removal_from_spark_connect_does_not_hold_it_up() -> None:
    """PySpark's bus of listeners would wait for the event, and this for the bus."""
    removed = threading.Event()

    def results() -> Iterator[dict[str, Any]]:
        yield _events(listener_bus_listener_added=True)
        assert removed.wait(60)
        event = pb2.StreamingQueryListenerEvent(
            event_type=pb2.StreamingQueryEventType.QUERY_TERMINATED_EVENT,
            event_json=json.dumps(
                {"id": RUN, "runId": RUN, "exception": None, "errorClassOnException": None}
            ),
        )
        yield _events(events=[event])

    client = SimpleNamespace(
        execute_command=lambda _: removed.set(), execute_command_as_iterator=lambda _: results()
    )
    bus = StreamingQueryListenerBus(
        cast("Any", SimpleNamespace(_session=SimpleNamespace(client=client)))
    )
    session = Session()
    session.streams = SimpleNamespace(
        _sqlb=bus, addListener=bus.append, removeListener=bus.remove, active=[]
    )
    published = publish_metrics(session.as_spark(), prometheus=CollectorRegistry())
    stopping = threading.Thread(target=published.stop, daemon=True)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()
    assert bus._listener_bus == []
    assert "post_to_all" not in vars(bus)


def _events(**parts: Any) -> dict[str, Any]:
    result = pb2.StreamingQueryListenerEventsResult(**parts)
    return {"streaming_query_listener_events_result": result}


# --- The listener ---------------------------------------------------------------------------------


class Broken(Output):
    """An output that fails."""

    def publish(self, snapshot: QuerySnapshot, counts: Mapping[Metric, int]) -> None:
        raise OSError("the disk is full")

    def close(self) -> None:
        raise OSError("the disk is full")


def test_a_failing_output_warns_once_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = QueryStates(series=1)
    publisher = MetricsPublisher(states, {"cloudwatch": Broken()})
    listener = listening(Session(), publisher)
    with caplog.at_level(logging.WARNING):
        for batch in (1, 2):
            listener.onQueryProgress(
                progress_event(report(end_offset(1), status({0: 7}), batch=batch))
            )
        unreadable = report({"v": 99, "slots": 1, "streams": {}, "ssp": {}}, None)
        for _ in range(2):
            listener.onQueryProgress(progress_event(unreadable))
        publisher.close()
    assert [record.message.split(" could")[0] for record in caplog.records] == [
        "metrics for cloudwatch",
        "a progress report",
    ]
    rows = [one.value for one in states.readings() if one.metric.name == "ssp_rows_total"]
    assert rows == [80]


def test_before_pyspark_4_2_the_status_follows_from_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A report then repeats the end offset; the status comes by a read that Spark plans. The batch
    that runs has been planned meanwhile: its records are not committed."""
    end = end_offset(1)
    fetched = threading.Event()

    def statuses(session: object, progress: dict[str, Any]) -> list[list[ReaderStatus]]:
        assert json.loads(progress["sources"][0]["endOffset"]) == end
        assert threading.current_thread() is not threading.main_thread()
        return [[ReaderStatus(newest=status({0: 0}), at_end=status({0: 9}))]]

    monkeypatch.setattr("spark_ssp.operations.progress.source_statuses", statuses)
    states = QueryStates(series=1)

    class Watching(Broken):
        def publish(self, snapshot: QuerySnapshot, counts: Mapping[Metric, int]) -> None:
            if snapshot.sources[0].streams[0].max_lag == 9:
                fetched.set()

        def close(self) -> None:
            pass

    listener = listening(Session(), MetricsPublisher(states, {"watching": Watching()}))
    listener.onQueryProgress(progress_event(report(end, end, run=RUN)))
    assert fetched.wait(60)
    # The next report has the status until a newer one is fetched.
    listener.onQueryProgress(progress_event(report(end, end, batch=8, run=RUN)))
    found = {one.metric.name: one.value for one in states.readings()}
    assert found["ssp_planned_delay_seconds"] == 0.009
    assert found["ssp_rows_total"] == 80
    listener.onQueryTerminated(ended(RUN))
    listener.close()


@pytest.mark.parametrize(
    ("batch", "time", "is_newer"),
    [
        (7, "19:00:00", True),  # the clock was set back
        (7, "19:59:59", False),
        (7, "20:00:09", True),
        (6, "20:00:09", False),
    ],
)
def test_the_newer_of_two_reports_gets_a_status(batch: int, time: str, *, is_newer: bool) -> None:
    """One that Spark renewed, or one that came meanwhile and waits for its status."""
    end = end_offset(1)
    states = QueryStates(series=1)
    listener = listening(Session(), MetricsPublisher(states, {}))
    listener._poller.close()
    waiting = report(end, end, run=RUN, rows=1) | {"timestamp": "2026-11-23T20:00:00.000Z"}
    listener.onQueryProgress(progress_event(waiting))
    read = report(end, end, batch=batch, run=RUN, rows=2)
    read["timestamp"] = f"2026-11-23T{time}.000Z"
    listener._publish_later(RUN, read, [status({0: 60_000})])
    query = listener.queries.get(RUN)
    assert query is not None
    assert query.snapshot is not None
    assert query.snapshot.rows == 1 + is_newer
    assert query.snapshot.sources[0].streams[0].max_lag == 60_000


def test_an_idle_query_is_read_again() -> None:
    """Spark sends an event without content, and renews the last report of the query."""
    session, published = Session(), threading.Event()
    states = QueryStates(series=1)

    class Watching(Broken):
        def publish(self, snapshot: QuerySnapshot, counts: Mapping[Metric, int]) -> None:
            if snapshot.batch_id == 9:
                published.set()

    query = SimpleNamespace(
        lastProgress=report(end_offset(1), status({0: 60_000}), batch=9, run=RUN, rows=0)
    )
    session.streams.get = {"query-1": query}.get
    listener = listening(session, MetricsPublisher(states, {"watching": Watching()}))
    listener.onQueryProgress(progress_event(report(end_offset(1), status({0: 0}), run=RUN)))
    idle = QueryIdleEvent(cast("uuid.UUID", "query-1"), uuid.UUID(RUN), "")
    listener.onQueryIdle(idle)
    assert published.wait(60)
    found = {one.metric.name: one.value for one in states.readings()}
    assert found["ssp_planned_delay_seconds"] == 60
    assert found["ssp_rows_total"] == 40
    listener.onQueryTerminated(ended(RUN))
    listener._publish_later(RUN, query.lastProgress, [None])
    assert "ssp_rows_total" not in {one.metric.name for one in states.readings()}
    listener._poller.close()


def test_a_report_that_is_older_than_the_last_is_not_counted_again() -> None:
    states = QueryStates(series=1)
    listener = listening(Session(), MetricsPublisher(states, {}))
    for batch in (1, 2, 1):
        listener.onQueryProgress(progress_event(report(end_offset(1), status({0: 7}), batch=batch)))
    assert [one.value for one in states.readings() if one.metric.name == "ssp_rows_total"] == [80]
    listener.close()


def test_a_query_that_ends_while_phases_are_read_does_not_run_again() -> None:
    """Spark lists it among those that run before its end is reported, and is asked after it."""

    class Ending:
        runId, id, name = RUN, "query-1", "etl"

        @property
        def status(self) -> dict[str, str]:
            raise ConnectionError("the query is gone")

    class Waiting(Ending):
        runId, id = "another run", "query-2"
        status = {"message": "Waiting for next trigger"}  # noqa: RUF012

    session = Session()
    listener = listening(session, MetricsPublisher(QueryStates(series=1), {}))
    listener._poller.close()
    listener.onQueryProgress(progress_event(report(end_offset(1), status({0: 7}), run=RUN)))
    listener.onQueryTerminated(ended(RUN))
    session.streams.active = [Ending(), Waiting()]
    assert listener._observe()
    assert listener.queries.running() == ["another run"]


def test_a_status_that_cannot_be_read_is_missing_and_not_old(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome: Statuses | None = [{"known": 1}]

    def fetch(progress: object) -> Statuses:
        if outcome is None:
            raise ConnectionError("the session was stopped")
        return outcome

    poller = StatusPoller(fetch, lambda *_: None, period_s=0.001)
    try:
        _wait_for(poller, [{"known": 1}])
        outcome = None
        _wait_for(poller, None)
        outcome = [{"known": 2}]
        _wait_for(poller, [{"known": 2}])
    finally:
        poller.close()
    assert len([one for one in caplog.records if "could not be read" in one.message]) == 1


def _wait_for(poller: StatusPoller, expected: Statuses | None) -> None:
    until(lambda: poller.request("run", dict) == expected, "the status is read", poll_s=0.001)
