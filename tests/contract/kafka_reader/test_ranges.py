"""Reading exact ranges from a real broker, by both consumers: gaps, odd records, transactions."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from spark_ssp.common.errors import InvalidRequestError, ServiceUnavailableError
from spark_ssp.kafka_source.reading.pool import ConsumerPool
from tests.support.kafka.reading import TaskReading, open_messages, open_native, part, task
from tests.support.kafka.topics import KafkaTopics, Record, produce
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.waiting import until


@pytest.fixture(scope="module", params=[open_native, open_messages], ids=["native", "messages"])
def reading(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[TaskReading]:
    """Reads with the same consumer in all tests of this file, as a worker process does."""
    pool = ConsumerPool(create=request.param)
    yield TaskReading(kafka_broker.options, pool)
    pool.close()


def _records(count: int, partition: int = 0) -> list[Record]:
    return [
        Record(key=b"k%d" % (n % 3), value=b"v%d" % n, partition=partition) for n in range(count)
    ]


def _transactional(broker: KafkaBroker, name: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(30)
    return producer


# --- Ranges ---------------------------------------------------------------------------------------


def test_reads_exactly_the_given_ranges(reading: TaskReading, topics: KafkaTopics) -> None:
    topic = topics.create(3)
    topics.put(topic, [record for n in range(3) for record in _records(1000 * n + 5, n)])

    for parts in (
        [(0, 0, 5)],
        [(0, 2, 4)],
        [(0, 4, 5), (1, 0, 1), (2, 2004, 2005)],
        [(2, 1990, 2005), (1, 3, 900), (0, 1, 1)],
        [(1, 7, 7)],
        [],
    ):
        ranges = [part(topic, *one) for one in parts]
        found = reading.offsets(*ranges)
        assert sorted(found) == sorted((p, n) for p, start, end in parts for n in range(start, end))
        for partition in range(3):
            mine = [offset for number, offset in found if number == partition]
            assert mine == sorted(mine)
        assert sorted(reading.offsets(*ranges)) == sorted(found)


def test_a_large_range_comes_in_batches_that_are_alike_when_read_again(
    reading: TaskReading, topics: KafkaTopics
) -> None:
    topic = topics.create()
    topics.put(topic, (Record(key=None, value=b"%0100d" % n) for n in range(60_000)))
    batches = reading.batches(task(part(topic, 0, 100, 59_990)))
    assert 3 <= len(batches) <= 30
    offsets = [offset for batch in batches for offset in batch["offset"].to_pylist()]
    assert offsets == list(range(100, 59_990))
    values = [value for batch in batches for value in batch["value"].to_pylist()]
    assert values == [b"%0100d" % n for n in offsets]


def test_older_generations_come_first(reading: TaskReading, topics: KafkaTopics) -> None:
    topic = topics.create(4)
    topics.put(topic, [record for n in range(4) for record in _records(500, n)])
    found = reading.offsets(
        part(topic, 2, 0, 500),
        part(topic, 0, 0, 500, generation=1),
        part(topic, 1, 0, 500, generation=1),
        part(topic, 3, 0, 500, generation=2),
    )
    order = [partition for partition, _ in found]
    assert order[:500] == [2] * 500
    assert sorted(order[500:1500]) == [0] * 500 + [1] * 500
    assert order[1500:] == [3] * 500


def test_many_partitions_of_several_topics(reading: TaskReading, topics: KafkaTopics) -> None:
    first, second = topics.create(40), topics.create(40)
    for topic in (first, second):
        topics.put(topic, [Record(key=None, value=b"x", partition=n % 40) for n in range(400)])
    rows = reading.rows(*(part(topic, n, 1, 9) for topic in (first, second) for n in range(40)))
    assert sorted((row["topic"], row["partition"], row["offset"]) for row in rows) == sorted(
        (topic, n, offset) for topic in (first, second) for n in range(40) for offset in range(1, 9)
    )


# --- Records --------------------------------------------------------------------------------------


def test_rows_have_what_was_produced(reading: TaskReading, topics: KafkaTopics) -> None:
    topic = topics.create(config={"retention.ms": "-1"})
    pairs = [
        (b"k", b"v"),
        (None, b"v"),
        (b"k", None),
        (None, None),
        (b"", b""),
        (b"\xff\x00", b"\xfe"),
    ]
    topics.put(
        topic, [Record(key=key, value=value, time_ms=1_700_000_000_123) for key, value in pairs]
    )
    rows = reading.rows(part(topic, 0, 0, len(pairs)))
    assert [(row["key"], row["value"]) for row in rows] == pairs
    assert {row["timestamp"] for row in rows} == {
        datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    }
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {
        (topic, 0, 0)
    }
    alone = reading.rows(part(topic, 0, 3, 4))
    assert [(row["key"], row["value"]) for row in alone] == [(None, None)]


def test_times_of_the_broker(reading: TaskReading, topics: KafkaTopics) -> None:
    topic = topics.create(config={"message.timestamp.type": "LogAppendTime"})
    before = time.time()
    topics.put(topic, [Record(key=None, value=b"v", time_ms=1)])
    (row,) = reading.rows(part(topic, 0, 0, 1))
    assert row["timestampType"] == 1
    assert before - 1 <= row["timestamp"].timestamp() <= time.time() + 1


def test_a_time_that_spark_cannot_hold_and_the_record_behind_it(
    reading: TaskReading, topics: KafkaTopics
) -> None:
    """The error advises to start after that record."""
    topic = topics.create(config={"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    topics.put(topic, [Record(value=b"nanoseconds", time_ms=1_700_000_000_123_000_000)])
    topics.put(topic, [Record(value=b"v")])
    with pytest.raises(InvalidRequestError, match="start after this record") as caught:
        reading.rows(part(topic, 0, 0, 2))
    assert caught.value.subject == f"the record at offset 0 of partition {topic}-0"
    assert [row["value"] for row in reading.rows(part(topic, 0, 1, 2))] == [b"v"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed(reading: TaskReading, topics: KafkaTopics, codec: str) -> None:
    topic = topics.create()
    topics.put(topic, _records(3000), compression_type=codec)
    rows = reading.rows(part(topic, 0, 10, 2990))
    assert [row["value"] for row in rows] == [b"v%d" % n for n in range(10, 2990)]


def test_records_larger_than_a_fetch(reading: TaskReading, topics: KafkaTopics) -> None:
    topic = topics.create(config={"max.message.bytes": "8000000"})
    values = [bytes([n]) * 5_000_000 for n in range(4)]
    topics.put(
        topic, [Record(key=None, value=value) for value in values], message_max_bytes="8000000"
    )
    assert [row["value"] for row in reading.rows(part(topic, 0, 0, 4))] == values


def test_a_record_batch_of_more_bytes_than_librdkafka_receives_by_default(
    reading: TaskReading, topics: KafkaTopics
) -> None:
    """Its limit of 100,000,000 bytes holds for a decompressed record batch too."""
    topic = topics.create(config={"max.message.bytes": "200000000"})
    value = bytes(120_000_000)
    put = {"message_max_bytes": "200000000", "compression_type": "zstd"}
    topics.put(topic, [Record(key=None, value=each) for each in (value, b"after")], **put)
    assert [row["value"] == value for row in reading.rows(part(topic, 0, 0, 1))] == [True]
    assert [row["value"] for row in reading.rows(part(topic, 0, 1, 2))] == [b"after"]


def test_a_limit_that_no_response_keeps_is_named(reading: TaskReading, topics: KafkaTopics) -> None:
    topic = topics.create(config={"max.message.bytes": "8000000"})
    values = [random.Random(1).randbytes(3_000_000)]
    topics.put(topic, [Record(key=None, value=v) for v in values], message_max_bytes="8000000")
    limit = {"kafka.receive.message.max.bytes": "2000000"}
    with pytest.raises((InvalidRequestError, ServiceUnavailableError)) as raised:
        reading.rows(part(topic, 0, 0, 1), pollTimeout="5s", **limit)
    assert "kafka.receive.message.max.bytes" in raised.value.next_step


@pytest.mark.long
def test_a_response_of_more_bytes_than_librdkafka_receives_by_default(
    reading: TaskReading, topics: KafkaTopics
) -> None:
    """A broker takes requests of up to 104,857,600 bytes."""
    topic = topics.create(config={"max.message.bytes": "200000000"})
    values = [random.Random(1).randbytes(104_000_000), b"after"]
    records = [Record(key=None, value=value) for value in values]
    topics.put(topic, records, message_max_bytes="200000000", linger_ms="0")
    assert [row["value"] for row in reading.rows(part(topic, 0, 0, 2))] == values


def test_task_and_ssp(reading: TaskReading, topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.put(topic, _records(2))
    (batch,) = reading.batches(task(part(topic, 0, 0, 2), number=7), includeTask="true")
    assert batch["task"].to_pylist() == ["Partition 7"] * 2
    assert batch["ssp"].to_pylist() == [7, 7]


# --- Gaps -----------------------------------------------------------------------------------------


def test_compacted_gaps_wherever_they_lie(reading: TaskReading, topics: KafkaTopics) -> None:
    topic = topics.create(
        config={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.001",
            "max.compaction.lag.ms": "100",
        }
    )
    topics.put(topic, _records(50))
    end = 50

    def compacted() -> bool:
        """The segment that is written to is never cleaned: a record now and then closes it."""
        nonlocal end
        end = topics.put(topic, [Record(key=b"other", value=b"v")])[0].offset + 1
        return len(reading.offsets(part(topic, 0, 0, 50))) <= 3

    until(compacted, "the cleaner has run", within_s=30, poll_s=0)
    left = [offset for _, offset in reading.offsets(part(topic, 0, 0, 50))]
    assert left == [47, 48, 49]
    assert reading.offsets(part(topic, 0, 5, 40)) == []
    assert reading.offsets(part(topic, 0, 5, 48)) == [(0, 47)]
    assert reading.offsets(part(topic, 0, 0, end))[:4][:3] == [(0, 47), (0, 48), (0, 49)]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions(
    reading: TaskReading, kafka_broker: KafkaBroker, topics: KafkaTopics, level: str
) -> None:
    topic = topics.create()
    producer = _transactional(kafka_broker, topic)
    for number, commits in enumerate((True, False, True, False)):
        producer.begin_transaction()
        produce(producer, topic, [Record(key=None, value=b"%d" % number)] * 3)
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    # Offsets 3, 7, 11 and 15 are control records.
    aborted = {4, 5, 6, 12, 13, 14} if level == "read_committed" else set()
    there = set(range(16)) - {3, 7, 11, 15} - aborted

    for start, end in [
        (0, 16),
        (0, 4),
        (3, 4),
        (4, 8),
        (0, 7),
        (5, 6),
        (11, 16),
        (15, 16),
        (12, 15),
    ]:
        found = reading.offsets(part(topic, 0, start, end), kafka__isolation__level=level)
        assert [offset for _, offset in found] == sorted(there & set(range(start, end)))


def test_an_open_transaction(
    reading: TaskReading, kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create()
    topics.put(topic, _records(2))
    producer = _transactional(kafka_broker, topic)
    producer.begin_transaction()
    produce(producer, topic, _records(3))
    topics.put(topic, _records(1))
    everything = reading.offsets(part(topic, 0, 0, 6))
    stable = reading.offsets(part(topic, 0, 0, 2), kafka__isolation__level="read_committed")
    producer.abort_transaction(30)
    assert everything == [(0, n) for n in range(6)]
    assert stable == [(0, 0), (0, 1)]
