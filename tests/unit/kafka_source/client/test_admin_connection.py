"""What a client says aside is kept until brokers answer."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_ssp.common.errors import AccessError, ServiceUnavailableError
from spark_ssp.grouping.identifiers import EpochMillis, StreamName
from spark_ssp.kafka_source.client.admin_client import KafkaAdminClient
from spark_ssp.kafka_source.client.admin_connection import (
    AdminClient,
    AdminConnection,
    ClientErrors,
    run_in_thread,
)
from spark_ssp.kafka_source.client.retry import RetryPolicy, SendLimits
from spark_ssp.kafka_source.model.topic import AtTime, Subscribe, partition_of
from spark_ssp.kafka_source.options.client_properties import ClientProperties

REFUSED = KafkaError(KafkaError._TRANSPORT, "Connection refused")
WRONG = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error")


def test_nothing_is_heard_at_first() -> None:
    errors = ClientErrors()
    assert errors.access_error() is None
    assert errors.connection_error() is None


def test_the_last_of_each_kind_is_kept_until_brokers_answer() -> None:
    errors = ClientErrors()
    errors.record(KafkaError(KafkaError._RESOLVE))
    errors.record(REFUSED)
    errors.record(WRONG)
    # It sums up the others, and would hide them.
    errors.record(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert errors.connection_error() is REFUSED
    assert errors.access_error() is WRONG

    errors.clear()
    assert errors.connection_error() is None
    assert errors.access_error() is None

    errors.record(REFUSED)
    assert errors.connection_error() is REFUSED
    assert errors.access_error() is None


def test_a_refusal_counts_for_the_calls_that_it_meets() -> None:
    errors = ClientErrors()
    errors.record(WRONG)
    begun = errors.mark()
    assert errors.access_error(begun) is None
    assert errors.access_error() is WRONG
    errors.record(WRONG)
    assert errors.access_error(begun) is WRONG


@dataclass
class SlowAdmin:
    """Answers when it was looked for several times, and reports `meanwhile` before."""

    errors: ClientErrors
    meanwhile: KafkaError | None
    now: float = 0.0
    futures: list[Future[Any]] = field(default_factory=list)

    def describe_topics(self, topics: object, request_timeout: float) -> dict[str, Future[Any]]:
        self.futures = [Future()]
        return {"orders": self.futures[0]}

    def monotonic(self) -> float:
        self.now += 0.25
        if self.now > 1 and self.meanwhile is not None:
            self.errors.record(self.meanwhile)
        if self.now > 4 and not self.futures[0].done():
            partition = SimpleNamespace(leader=SimpleNamespace(id=1))
            self.futures[0].set_result(
                SimpleNamespace(
                    name="orders", topic_id="id", is_internal=False, partitions=[partition]
                )
            )
        return self.now


class ConnectionTo(AdminConnection):
    """A connection of a process that has been answered before, whose clients are given."""

    def __init__(self, clients: list[Any], errors: ClientErrors | None = None) -> None:
        self._clients = iter(clients)
        super().__init__(ClientProperties())
        self.errors = errors or ClientErrors()
        self.has_responded = True

    def _open(self) -> None:
        self.admin = next(self._clients)
        self._finalizer = weakref.finalize(self, lambda: None)


@pytest.mark.parametrize("meanwhile", [None, WRONG])
def test_a_slow_call_is_not_ended_by_a_refusal_from_before(meanwhile: KafkaError | None) -> None:
    errors = ClientErrors()
    errors.record(WRONG)
    admin = SlowAdmin(errors, meanwhile)
    connection = ConnectionTo([admin], errors)
    kafka = KafkaAdminClient(
        connection,
        monotonic=admin.monotonic,
        sleep=lambda _: None,
    )
    topics = Subscribe(topics=(StreamName("orders"),))
    if meanwhile is None:
        assert kafka.describe(topics).keys() == {"orders"}
    else:
        with pytest.raises(AccessError):
            kafka.describe(topics)


@dataclass
class DeadAdmin:
    """A client that waits for a broker that is gone: it gives no answer, or says so by itself."""

    clock: Clock
    errors: ClientErrors | None = None
    ends: bool = False
    asked: int = 0

    def describe_topics(self, topics: object, request_timeout: float) -> dict[str, Future[Any]]:
        self.asked += 1
        future: Future[Any] = Future()
        if self.ends:
            self.clock.now += request_timeout
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        elif self.errors is not None:
            self.errors.record(REFUSED)
        return {"orders": future}


class LiveAdmin(DeadAdmin):
    def describe_topics(self, topics: object, request_timeout: float) -> dict[str, Future[Any]]:
        self.asked += 1
        future: Future[Any] = Future()
        found = SimpleNamespace(topic_id="id", is_internal=False, partitions=[object()])
        future.set_result(found)
        return {"orders": future}


@dataclass
class Clock:
    """Ticks each time that it is read, as time passes in a wait."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 0.2
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("way", ["silent", "refused", "ended"])
def test_a_request_that_waits_for_a_dead_broker_is_sent_by_a_new_client(way: str) -> None:
    """And whatever is asked next is asked of that one."""
    clock, errors = Clock(), ClientErrors()
    dead = DeadAdmin(clock, errors=errors if way == "refused" else None, ends=way == "ended")
    live = LiveAdmin(clock)
    kafka = KafkaAdminClient(ConnectionTo([dead, live], errors), monotonic=clock, sleep=clock.sleep)
    topics = Subscribe(topics=(StreamName("orders"),))
    assert kafka.describe(topics).keys() == {"orders"}
    assert clock.now < (3 if way == "refused" else 10)
    assert kafka.describe(topics).keys() == {"orders"}
    assert (dead.asked, live.asked) == (1, 2)
    assert kafka.retries() == 1


@pytest.mark.parametrize("has_responded", [False, True])
def test_attempts_are_a_remedy_only_after_the_first_answer(has_responded: bool) -> None:
    """Before it there is one, whatever the option says."""
    clock = Clock()
    connection = ConnectionTo([DeadAdmin(clock, ends=True)] * 100)
    connection.has_responded = has_responded
    policy = RetryPolicy(attempts=2, timeout_s=5.0)
    kafka = KafkaAdminClient(connection, policy=policy, monotonic=clock, sleep=clock.sleep)
    with pytest.raises(ServiceUnavailableError) as caught:
        kafka.describe(Subscribe(topics=(StreamName("orders"),)))
    assert ("2 times" in caught.value.found) is has_responded
    assert ("fetchOffset.numRetries" in caught.value.next_step) is has_responded


def test_an_offset_that_no_leader_has_returned_is_not_an_answer() -> None:
    """librdkafka keeps -1001 for the partitions of a leader without an answer, and no error."""

    @dataclass
    class Leaders:
        offsets: list[int]

        def list_offsets(self, wanted: dict[Any, Any], **_: object) -> dict[Any, Future[Any]]:
            futures = {place: Future[Any]() for place in wanted}
            for future, offset in zip(futures.values(), self.offsets, strict=True):
                future.set_result(SimpleNamespace(offset=offset, timestamp=-1))
            return futures

    clock = Clock()
    kafka = KafkaAdminClient(
        ConnectionTo([Leaders([5, -1001, -1]), Leaders([7])]), monotonic=clock, sleep=clock.sleep
    )
    places = [partition_of(StreamName("orders"), number) for number in range(3)]
    found = kafka.list_offsets(places, AtTime(time_ms=EpochMillis(1)))
    assert list(found.values()) == [5, 7, None]


def test_a_client_is_replaced_once_for_all_that_wait_for_it() -> None:
    clock = Clock()
    dead, live = DeadAdmin(clock), LiveAdmin(clock)
    connection = ConnectionTo([dead, live])
    limits = SendLimits(timeout_s=30.0, after_failed_connect_s=30.0)
    client, asked = connection.admin, threading.Event()

    def send(admin: AdminClient) -> dict[str, Future[Any]]:
        asked.set()
        return {"orders": Future()}

    waiting = run_in_thread(lambda: connection.request(send, limits))
    assert asked.wait(10)
    connection.renew(client)
    connection.renew(client)
    assert waiting.result(10) is None, "the answer of a client that is gone is not awaited"
    assert connection.admin is live  # type: ignore[comparison-overlap]


def test_a_blocking_call_is_a_future() -> None:
    assert run_in_thread(lambda: 5).result(10) == 5
    error = run_in_thread(lambda: 1 // 0).exception(10)
    assert isinstance(error, ZeroDivisionError)


_COLLECT_IN_ITS_OWN_THREAD = """
import gc, threading, time
from spark_ssp.kafka_source.client.admin_connection import AdminClient

gc.disable()
collected = threading.Event()
hand_over = AdminClient.__del__

def hand_over_slowly(client):
    hand_over(client)
    time.sleep(0.5)  # another thread runs before the collector continues

AdminClient.__del__ = hand_over_slowly

class Holder:
    def __init__(self):
        self.itself, self.admin = self, AdminClient({"bootstrap.servers": "127.0.0.1:1"})

def collect(future):
    gc.collect()
    collected.set()

Holder().admin.describe_cluster(request_timeout=0.2).add_done_callback(collect)
assert collected.wait(30)
"""


def test_a_client_that_is_collected_in_its_own_thread_does_not_abort_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _COLLECT_IN_ITS_OWN_THREAD],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
