"""A service that throttles, falters, drops connections and goes away: ridden out, exactly once."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from embedded_kinesis import EmbeddedKinesis, Limits
from embedded_kinesis.faults import (
    DropConnection,
    EmptyPage,
    ExpiredIterator,
    Fault,
    InternalFailure,
    LostReply,
    Throttle,
)
from tests.support.feeds import Feed
from tests.support.queries import (
    Sink,
    check_exactly_once,
    failure_of,
    load,
    planned_offsets,
    running,
    wait_for_rows,
    wait_until,
)

# Retries follow one another quickly, so that a test need not wait for them.
_QUICK = {"retry.maxBackoff": "200ms", "retry.maxAttempts": "12"}


class Outage:
    """The service is away as long as the block lasts; in its place, every connection is closed at
    once. `visits` counts them: so often it was asked in vain."""

    def __init__(self, kinesis: EmbeddedKinesis) -> None:
        self._kinesis = kinesis
        self.visits = 0

    def __enter__(self) -> Self:
        address = urlsplit(self._kinesis.endpoint_url)
        self._kinesis.stop()
        self._listening = socket.create_server(("127.0.0.1", address.port or 0))
        self._thread = threading.Thread(target=self._turn_away, name="outage")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._listening.close()
        self._kinesis.start()

    def _turn_away(self) -> None:
        while True:
            try:
                visitor, _ = self._listening.accept()
            except OSError:  # shut down
                return
            visitor.close()
            self.visits += 1


def test_faults_of_every_kind_in_every_call(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    """Every fifth call of the query fails in one way or another, on the driver as in tasks."""
    feed.create("orders", shards=3)
    feed.put("orders", 120)
    faults: list[Fault] = [
        Throttle(),
        InternalFailure(status=500),
        ExpiredIterator(),
        DropConnection(),
        InternalFailure(status=503),
        EmptyPage(),
        LostReply(),
    ]
    injected = [
        kinesis.faults.add(fault, operation="GetRecords", nth=2 + 5 * turn)
        for turn, fault in enumerate(faults * 5)
    ] + [
        kinesis.faults.add(fault, operation=operation, nth=1 + turn)
        for operation in ("DescribeStreamSummary", "ListShards", "GetShardIterator")
        for turn, fault in enumerate(faults[:2])
    ]
    sink = Sink()
    fetch_few = {"maxRecordsPerFetch": "7"}
    with running(load(spark, options | _QUICK | fetch_few), sink, tmp_path) as query:
        wait_for_rows(query, sink, 120)
        feed.split_first("orders")
        feed.put("orders", 60)
        wait_for_rows(query, sink, 180)
        wait_until(lambda: all(i.hits for i in injected), "every fault", query)
        feed.put("orders", 20)
        wait_for_rows(query, sink, 200)
    check_exactly_once(sink, feed.records)


def test_the_limits_of_the_real_service(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    """Five calls a second and shard for driver and tasks together."""
    feed.create("orders", shards=2)
    feed.put("orders", 200)
    kinesis.state.set_limits(Limits.strict())
    sink = Sink()
    with running(load(spark, options), sink, tmp_path) as query:
        wait_for_rows(query, sink, 200)
        for _ in range(3):
            feed.put("orders", 20)
            wait_for_rows(query, sink, len(feed.records))
    check_exactly_once(sink, feed.records)


def test_a_service_that_goes_away_for_a_while(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    """The query waits for it, and reads on when it is back. The task of a batch waits as well."""
    feed.create("orders", shards=2)
    feed.put("orders", 40)
    patient = {"retry.maxBackoff": "500ms", "retry.maxAttempts": "100"}
    sink = Sink()
    with running(load(spark, options | patient), sink, tmp_path) as query:
        wait_for_rows(query, sink, 40)
        with Outage(kinesis) as outage:
            feed.put("orders", 40)
            wait_until(lambda: outage.visits >= 8, "calls during the outage", query)
        wait_for_rows(query, sink, 80)
        # Now between the plan of a batch and its reading.
        plans = len(planned_offsets(tmp_path))
        fault = kinesis.faults.add(
            DropConnection(),
            operation="GetRecords",
            count=None,
            when=lambda _: len(planned_offsets(tmp_path)) > plans,
        )
        feed.put("orders", 40)
        wait_until(lambda: fault.hits >= 3, "tasks that met the fault", query)
        with Outage(kinesis) as outage:
            kinesis.faults.clear()
            wait_until(lambda: outage.visits >= 4, "calls of the tasks", query)
        wait_for_rows(query, sink, 120)
    check_exactly_once(sink, feed.records)


def test_a_service_that_stays_away_ends_the_query(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    feed.create("orders")
    feed.put("orders", 40)
    few = {"retry.maxBackoff": "200ms", "retry.maxAttempts": "3"}
    sink = Sink()
    with running(load(spark, options | few), sink, tmp_path) as query:
        wait_for_rows(query, sink, 40)
        endpoint = kinesis.endpoint_url
        kinesis.stop()
        text = failure_of(query)
    assert "[service-unavailable] stream orders" in text
    assert endpoint in text
    assert "3 times" in text
    # And it goes on where it was once the service is back.
    feed.put("orders", 40)
    kinesis.start()
    with running(load(spark, options | few), sink, tmp_path) as query:
        wait_for_rows(query, sink, 80)
    check_exactly_once(sink, feed.records)
