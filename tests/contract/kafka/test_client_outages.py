"""Brokers that are away for a while, that were never there, and a name that nobody knows."""

from __future__ import annotations

import gc
import logging
import threading
import time

import pytest

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.client.admin_client import KafkaAdminClient, connect
from spark_ssp.kafka_source.client.admin_connection import AdminConnection
from spark_ssp.kafka_source.model.topic import (
    LogicalOffset,
    Subscribe,
    SubscribePattern,
    partition_of,
)
from spark_ssp.kafka_source.options.parse import parse_options
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.waiting import until

ANY = Subscribe(topics=(StreamName("any"),))


def service(servers: str, **more: str) -> KafkaAdminClient:
    options = {"kafka.bootstrap.servers": servers, "subscribe": "any"}
    given = {name.replace("_", "."): value for name, value in more.items()}
    return connect(parse_options(options | given))


def listeners() -> int:
    return sum(thread.name == "kafka-admin-poller" for thread in threading.enumerate())


@pytest.mark.timeout(400)
def test_a_broker_that_dies_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    # A broker that would make up topics that somebody asks for.
    with (
        KafkaBroker(settings={"auto.create.topics.enable": "true"}) as broker,
        KafkaTopics({"bootstrap.servers": broker.bootstrap_servers}) as topics,
    ):
        topic = StreamName(topics.create(2))
        place = partition_of(topic, 0)
        topics.put(topic, [Record(value=b"x", partition=0)] * 3)
        kafka = service(broker.bootstrap_servers, fetchOffset_numRetries="10")
        before = kafka.describe(Subscribe(topics=(topic,)))
        assert kafka.list_offsets([place], LogicalOffset.LATEST) == {place: 3}

        with caplog.at_level(logging.INFO, "spark_ssp"):
            broker.kill()
            back = threading.Thread(target=broker.start_again)
            back.start()
            # Begun while nobody answers, and answered by whoever came back.
            assert kafka.list_offsets([place], LogicalOffset.LATEST) == {place: 3}
            assert kafka.describe(Subscribe(topics=(topic,))) == before
            back.join()

        # Leaders' epochs are later by now than those of a topic that is created again.
        topics.delete(topic)
        topics.create(2, name=topic)
        topics.put(topic, [Record(value=b"x", partition=0)])
        begun = time.monotonic()
        assert kafka.list_offsets([place], LogicalOffset.LATEST) == {place: 1}
        assert kafka.list_offsets([place], LogicalOffset.EARLIEST) == {place: 0}
        assert time.monotonic() - begun < 20, "within one attempt"
        assert kafka.describe(Subscribe(topics=(topic,))) != before
        gc.collect()
        until(lambda: listeners() == 1, "the client before is gone")

        assert kafka.describe(ANY) == {}
        assert kafka.list_offsets([partition_of(StreamName("any"), 0)], LogicalOffset.LATEST) == {}
        assert kafka.describe(SubscribePattern(pattern="^any$")) == {}
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert any("Connection refused" in line for line in warnings)
    assert not [one for one in caplog.records if one.levelno > logging.WARNING]
    # Ten connections a second are tried; a line for each would be hundreds.
    assert len(warnings) < 20


@pytest.mark.parametrize(
    ("servers", "found"),
    [("127.0.0.1:1", "Connection refused"), ("nowhere.invalid:9092", "_RESOLVE")],
)
def test_nobody_there(servers: str, found: str) -> None:
    kafka = service(servers, kafka_request_timeout_ms="1000")
    place = partition_of(StreamName("any"), 0)
    for ask in (
        lambda: kafka.describe(ANY),
        lambda: kafka.describe(SubscribePattern(pattern="any")),
        lambda: kafka.list_offsets([place], LogicalOffset.LATEST),
    ):
        with pytest.raises(ServiceUnavailableError) as caught:
            ask()
        assert caught.value.subject == f"kafka.bootstrap.servers={servers}"
        assert found in caught.value.found
        assert "in 1 s" in caught.value.found
        assert "kafka.request.timeout.ms" in caught.value.next_step


def test_connections_are_shared_and_go_with_the_last_service() -> None:
    gc.collect()
    until(lambda: listeners() == 0, "earlier connections are gone")
    first = service("127.0.0.1:1")
    second = service("127.0.0.1:1", fetchOffset_numRetries="7")
    assert listeners() == 1
    other = service("127.0.0.1:1", kafka_client_id="other")
    assert listeners() == 2

    del first, other
    until(lambda: listeners() == 1, "the other connection is gone")
    del second
    until(lambda: listeners() == 0, "the connection is gone")


def test_a_connection_stays_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = AdminConnection(
        parse_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "any"}).client
    )
    kafka = KafkaAdminClient(connection)
    with pytest.raises(TypeError, match="call connect"):
        connection.__reduce__()
    monkeypatch.setattr("spark_ssp.kafka_source.client.admin_connection.os.getpid", lambda: 1)
    with pytest.raises(RuntimeError, match="after a fork"):
        kafka.describe(ANY)
    connection.close()
