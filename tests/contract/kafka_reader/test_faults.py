"""What goes wrong while a range is read: records gone, topics gone, brokers away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition

from spark_ssp.common.errors import DataLossError, ServiceUnavailableError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.client.admin_client import connect
from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.kafka_source.model.topic import Subscribe
from spark_ssp.kafka_source.reading.pool import ConsumerPool
from spark_ssp.kafka_source.reading.task_reader import TopicIdChecker, read_task
from tests.support.kafka.reading import (
    TaskReading,
    open_messages,
    open_native,
    options_for,
    part,
    task,
)
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker


@pytest.fixture(params=[open_native, open_messages], ids=["native", "messages"])
def reading(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[TaskReading]:
    pool = ConsumerPool(create=request.param)
    yield TaskReading(kafka_broker.options, pool)
    pool.close()


def _records(count: int, size: int = 10, partition: int | None = None) -> list[Record]:
    return [Record(key=None, value=b"%0*d" % (size, n), partition=partition) for n in range(count)]


def _delete_before(broker: KafkaBroker, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(30)


def test_retention_overtook(
    reading: TaskReading,
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = topics.create()
    topics.put(topic, _records(100))
    _delete_before(kafka_broker, topic, 60)

    with pytest.raises(
        DataLossError, match=r"oldest record at 60 while it was read from 10 up to 90"
    ):
        reading.rows(part(topic, 0, 10, 90))
    tolerant = {"failOnDataLoss": "false"}
    with caplog.at_level(logging.WARNING):
        assert reading.offsets(part(topic, 0, 10, 90), **tolerant) == [
            (0, n) for n in range(60, 90)
        ]
    assert f"data loss in partition {topic}-0" in caplog.text
    assert reading.offsets(part(topic, 0, 10, 50), **tolerant) == []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_retention_overtakes_while_reading(
    reading: TaskReading, kafka_broker: KafkaBroker, topics: KafkaTopics, fails: str
) -> None:
    topic = topics.create()
    topics.put(topic, _records(4_000, size=20_000))
    options = options_for(
        reading.settings, failOnDataLoss=fails, kafka__queued__max__messages__kbytes="1000"
    )
    batches = read_task(task(part(topic, 0, 0, 4_000)), options, "test", pool=reading.pool)
    found = next(batches)["offset"].to_pylist()
    _delete_before(kafka_broker, topic, 3_900)
    if fails == "true":
        with pytest.raises(DataLossError, match=f"partition {topic}-0.*oldest record at 3900"):
            list(batches)
        return
    for batch in batches:
        found += batch["offset"].to_pylist()
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-100:] == list(range(3_900, 4_000))
    assert len(found) < 4_000


def _id_of(broker: KafkaBroker, topic: str) -> str | None:
    name = StreamName(topic)
    return connect(options_for(broker.options)).describe(Subscribe(topics=(name,)))[name].topic_id


def test_a_deleted_topic(reading: TaskReading, topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.put(topic, _records(10))
    assert len(reading.rows(part(topic, 0, 0, 5))) == 5
    topics.delete(topic)
    with pytest.raises(DataLossError, match=f"partition {topic}-0.*deleted"):
        reading.rows(part(topic, 0, 5, 10), pollTimeout="2s")
    gone = part(topic, 0, 5, 10)
    assert reading.rows(gone, pollTimeout="2s", failOnDataLoss="false") == []


def test_a_topic_that_was_created_again(
    reading: TaskReading, kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create(2)
    before = _id_of(kafka_broker, topic)
    topics.put(topic, _records(10, partition=0))
    planned = part(topic, 0, 5, 10, topic_id=before)
    assert len(reading.rows(planned)) == 5
    topics.delete(topic)
    topics.create(2, name=topic)
    topics.put(topic, _records(20, partition=0))
    # A process that has not read the topic yet asks for its id; this one has just done so.
    with pytest.raises(DataLossError, match=rf"created again .*{before}"):
        list(
            read_task(task(planned), options_for(reading.settings), "test", topics=TopicIdChecker())
        )
    tolerant = options_for(reading.settings, failOnDataLoss="false")
    assert list(read_task(task(planned), tolerant, "test", topics=TopicIdChecker())) == []
    with pytest.raises(DataLossError, match=rf"created again .*{before}"):
        reading.rows(part(topic, 1, 5, 10, topic_id=before), pollTimeout="5s")


def test_an_end_that_is_not_there(reading: TaskReading, topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.put(topic, _records(10))
    with pytest.raises(DataLossError, match=f"partition {topic}-0.*an end at 10"):
        reading.rows(part(topic, 0, 20, 25))
    with pytest.raises(DataLossError, match=f"partition {topic}-0.*an end at 10"):
        reading.rows(part(topic, 0, 5, 25), pollTimeout="500ms")
    found = reading.offsets(part(topic, 0, 5, 25), pollTimeout="500ms", failOnDataLoss="false")
    assert found == [(0, n) for n in range(5, 10)]


@pytest.mark.long
def test_a_broker_that_is_away() -> None:
    """Both consumers are in the middle of a range when it stops. What they know of leaders then is
    of later epochs than those of a topic that is created again, which is read all the same."""
    with (
        KafkaBroker() as broker,
        KafkaTopics({"bootstrap.servers": broker.bootstrap_servers}) as topics,
    ):
        readings = [
            TaskReading(broker.options, ConsumerPool(create=make))
            for make in (open_native, open_messages)
        ]
        topic = topics.create(2)
        topics.put(topic, _records(6_000, size=20_000, partition=0))
        options = options_for(broker.options, kafka__queued__max__messages__kbytes="1000")
        whole = task(part(topic, 0, 0, 6_000))
        tasks = [read_task(whole, options, "test", pool=one.pool) for one in readings]
        found = [next(batches)["offset"].to_pylist() for batches in tasks]
        broker.stop()
        restart = threading.Thread(target=broker.start_again)
        restart.start()
        for offsets, batches in zip(found, tasks, strict=True):
            for batch in batches:
                offsets += batch["offset"].to_pylist()
        restart.join()
        assert found == [list(range(6_000))] * 2

        broker.stop()
        late = (
            rf"{topic}-0 .and 1 more partitions.: found no record for 300 ms at position 3 of the"
        )
        for reading in readings:
            with pytest.raises(ServiceUnavailableError, match=f"{late} range up to 9"):
                reading.rows(part(topic, 0, 3, 9), part(topic, 1, 1, 2), pollTimeout="300ms")
        broker.start_again()

        for count in (20, 10):
            known = part(topic, 0, 0, count, topic_id=_id_of(broker, topic))
            for reading in readings:
                assert reading.offsets(known) == [(0, n) for n in range(count)]
            topics.delete(topic)
            topics.create(2, name=topic)
            topics.put(topic, _records(10, partition=0))
        for reading in readings:
            reading.pool.close()
