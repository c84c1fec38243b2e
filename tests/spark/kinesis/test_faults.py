"""A service that throttles, falters, drops connections and goes away: ridden out, exactly once."""

from __future__ import annotations

import socket
import threading
from typing import Self
from urllib.parse import urlsplit

from spark_ssp.testing.kinesis import EmbeddedKinesis, Limits
from spark_ssp.testing.kinesis.state.faults import (
    DropConnection,
    EmptyPage,
    ExpiredIterator,
    Fault,
    InternalFailure,
    LostReply,
    Throttle,
)
from tests.support.spark.queries import Trial, failure_of, planned_offsets, wait_until

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

    def __exit__(self, *_: object) -> None:
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


def test_faults_of_every_kind_in_every_call(trial: Trial, kinesis: EmbeddedKinesis) -> None:
    """Every fifth call of the query fails in one way or another, on the driver as in tasks."""
    trial.create(120, shards=3)
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
    fetch_few = {"maxRecordsPerFetch": "7"}
    with trial.running(_QUICK | fetch_few) as query:
        trial.wait_for_all(query)
        trial.feed.split_first("orders")
        trial.put(60)
        trial.wait_for_all(query)
        wait_until(lambda: all(i.hits for i in injected), "every fault", query)
        trial.put(20)
        trial.wait_for_all(query)
    trial.check()


def test_the_limits_of_the_real_service(trial: Trial, kinesis: EmbeddedKinesis) -> None:
    """Five calls a second and shard for driver and tasks together."""
    trial.create(200, shards=2)
    kinesis.state.set_limits(Limits.strict())
    with trial.running() as query:
        trial.wait_for_all(query)
        for _ in range(3):
            trial.put(20)
            trial.wait_for_all(query)
    trial.check()


def test_a_service_that_goes_away_for_a_while(trial: Trial, kinesis: EmbeddedKinesis) -> None:
    """The query waits for it, and reads on when it is back. The task of a batch waits as well."""
    trial.create(40, shards=2)
    patient = {"retry.maxBackoff": "500ms", "retry.maxAttempts": "100"}
    with trial.running(patient) as query:
        trial.wait_for_all(query)
        with Outage(kinesis) as outage:
            trial.put(40)
            wait_until(lambda: outage.visits >= 8, "calls during the outage", query)
        trial.wait_for_all(query)
        # Now between the plan of a batch and its reading.
        plans = len(planned_offsets(trial.checkpoint))
        fault = kinesis.faults.add(
            DropConnection(),
            operation="GetRecords",
            count=None,
            when=lambda _: len(planned_offsets(trial.checkpoint)) > plans,
        )
        trial.put(40)
        wait_until(lambda: fault.hits >= 3, "tasks that met the fault", query)
        with Outage(kinesis) as outage:
            kinesis.faults.clear()
            wait_until(lambda: outage.visits >= 4, "calls of the tasks", query)
        trial.wait_for_all(query)
    trial.check()


def test_a_service_that_stays_away_ends_the_query(trial: Trial, kinesis: EmbeddedKinesis) -> None:
    trial.create(40)
    few = {"retry.maxBackoff": "200ms", "retry.maxAttempts": "3"}
    with trial.running(few) as query:
        trial.wait_for_all(query)
        endpoint = kinesis.endpoint_url
        kinesis.stop()
        text = failure_of(query)
    assert "[service-unavailable] stream orders" in text
    assert endpoint in text
    assert "3 times" in text
    # And it resumes at its position once the service is back.
    trial.put(40)
    kinesis.start()
    with trial.running(few) as query:
        trial.wait_for_all(query)
    trial.check()
