"""The columns that are built from librdkafka's memory are those of confluent-kafka's messages."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from benchmarks.kafka.memory import Shape, fill, held_by_a_task
from spark_ssp.common.columns import Column
from spark_ssp.common.errors import InvalidRequestError
from spark_ssp.kafka_source.reading.consumer_api import PartitionConsumer, RecordRun
from spark_ssp.kafka_source.reading.librdkafka import MessageTimes
from spark_ssp.kafka_source.reading.pool import ConsumerKey, ConsumerPool
from spark_ssp.kafka_source.reading.task_reader import POLL_BYTES
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


@pytest.fixture
def both(kafka_broker: KafkaBroker) -> Iterator[tuple[TaskReading, TaskReading]]:
    native, messages = (
        TaskReading(kafka_broker.options, ConsumerPool(create=make))
        for make in (open_native, open_messages)
    )
    yield native, messages
    native.pool.close()
    messages.pool.close()


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_random_records(
    both: tuple[TaskReading, TaskReading], topics: KafkaTopics, codec: str
) -> None:
    chance = random.Random(codec)

    def some_bytes() -> bytes | None:
        size = chance.choice([None, 0, 1, 7, 100, 3_000, 70_000])
        return None if size is None else chance.randbytes(size)

    topic = topics.create(3, config={"retention.ms": "-1"})
    records = [
        Record(
            key=some_bytes(),
            value=some_bytes(),
            partition=chance.randrange(3),
            time_ms=chance.randrange(1, 1 << 40),
        )
        for _ in range(3_000)
    ]
    put = topics.put(topic, records, compression_type=codec)
    ends = [sum(one.partition == number for one in put) for number in range(3)]
    ranges = task(*(part(topic, number, 5, end - 5) for number, end in enumerate(ends)))
    tables = [
        pa.Table.from_batches(one.batches(ranges)).sort_by(
            [("partition", "ascending"), ("offset", "ascending")]
        )
        for one in both
    ]
    for table in tables:
        table.validate(full=True)
    assert tables[0].num_rows == sum(ends) - 30
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize("opened", [open_native, open_messages], ids=["native", "messages"])
def test_what_was_gathered_is_weighed_and_taken_in_pieces_by_keys_and_values(
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    opened: Callable[[ConsumerKey], PartitionConsumer],
) -> None:
    topic = topics.create()
    sizes = [(10, 1), (None, 5), (100, None), (0, 0)]
    topics.put(
        topic,
        [
            Record(key=None if key is None else b"k" * key, value=None if v is None else b"v" * v)
            for key, v in sizes
        ],
    )
    client = options_for(kafka_broker.options).client
    consumer = opened(ConsumerKey(client=client, group_id="test"))
    consumer.assign({part(topic, 0, 0, 4).ssp: 0})
    deadline = time.monotonic() + 30
    while consumer.buffered_rows < 4:
        assert time.monotonic() < deadline
        for event in consumer.poll(10, 0.2):
            if isinstance(event, RecordRun):
                consumer.keep(event, slice(0, len(event.offsets)))
    assert consumer.buffered_bytes == 116
    taken: list[int] = []
    while consumer.buffered_rows:
        columns = consumer.take(10, ("key", "value"))
        assert columns.keys is not None
        assert columns.values is not None
        taken += columns.offsets.to_pylist()
        assert columns.runs == [(part(topic, 0, 0, 4).ssp, 1)], "two would take over 10 bytes"
        left = [(key or 0) + (value or 0) for key, value in sizes[len(taken) :]]
        assert (consumer.buffered_rows, consumer.buffered_bytes) == (len(left), sum(left))
        found = [len(one.as_py() or b"") for one in (columns.keys[0], columns.values[0])]
        assert found == [size or 0 for size in sizes[len(taken) - 1]]
        assert (columns.times_ms, columns.time_types, columns.headers) == (None, None, None)
    consumer.close()
    assert taken == [0, 1, 2, 3]


def test_any_column_alone_is_that_of_the_full_read(
    both: tuple[TaskReading, TaskReading], topics: KafkaTopics
) -> None:
    topic = topics.create(config={"retention.ms": "-1"})
    topics.put(
        topic,
        [
            Record(key=key, value=b"v", headers=(("a", key),), time_ms=n + 1)
            for n, key in enumerate([None, b"", b"k"] * 100)
        ],
    )
    include = {"includeHeaders": "true", "includeTask": "true"}
    for reading in both:
        range_ = task(part(topic, 0, 10, 290))
        full = pa.Table.from_batches(reading.batches(range_, **include))
        for name in full.column_names:
            batches = reading.batches(range_, [Column(name)], **include)
            assert pa.Table.from_batches(batches).equals(full.select([name]))


@pytest.mark.parametrize("opened", [open_native, open_messages], ids=["native", "messages"])
def test_what_the_client_refuses_is_an_error_of_this_project(
    opened: Callable[[ConsumerKey], PartitionConsumer],
) -> None:
    client = options_for({"kafka.bootstrap.servers": "127.0.0.1:1"}).client
    consumer = opened(ConsumerKey(client=client, group_id="test"))
    nowhere = part("orders", 0, 0, 1).ssp
    with pytest.raises(InvalidRequestError, match="_INVALID_ARG"):
        consumer.unassign([nowhere])
    with pytest.raises(InvalidRequestError, match="_INVALID_ARG"):
        consumer.seek(nowhere, 0)
    consumer.close()


def test_times_are_read_alike_where_they_lie_and_by_asking(
    both: tuple[TaskReading, TaskReading],
    topics: KafkaTopics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The direct way is in use, and what is done without it gives the same."""
    native, _ = both
    topic = topics.create()
    topics.put(topic, (Record(key=None, value=b"v") for _ in range(200)))
    range_ = task(part(topic, 0, 0, 200))
    first = native.batches(range_)
    assert MessageTimes.is_verified()

    def never(*_: object) -> None:
        raise AssertionError("asked, message by message")

    with monkeypatch.context() as patch:
        patch.setattr(MessageTimes, "read_by_api", never)
        assert pa.Table.from_batches(native.batches(range_)) == pa.Table.from_batches(first)
    monkeypatch.setattr(MessageTimes, "_mismatch", True)
    monkeypatch.setattr(MessageTimes, "read_memory", never)
    assert pa.Table.from_batches(native.batches(range_)) == pa.Table.from_batches(first)


def test_a_library_in_which_times_lie_elsewhere_is_found_out(
    both: tuple[TaskReading, TaskReading],
    topics: KafkaTopics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native, messages = both
    topic = topics.create()
    topics.put(topic, (Record(key=None, value=b"v") for _ in range(200)))
    range_ = task(part(topic, 0, 0, 200))
    monkeypatch.setattr(MessageTimes, "_agreed", 0)
    monkeypatch.setattr(MessageTimes, "_mismatch", False)
    monkeypatch.setattr("spark_ssp.kafka_source.reading.librdkafka._TIME_OFFSET", 8)
    found = pa.Table.from_batches(native.batches(range_))
    assert not MessageTimes.is_verified()
    assert found == pa.Table.from_batches(messages.batches(range_))


# --- Memory ---------------------------------------------------------------------------------------

MEGABYTES = 260
PARTITIONS = 16
MOST = 180_000_000


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_a_task_takes_less_than_what_one_answer_of_the_default_size_unpacks_to(
    kafka_broker: KafkaBroker, topics: KafkaTopics, size: int
) -> None:
    """Compressed, the topic is smaller than librdkafka's default for one answer. The process has
    not read it before, so it does not know the size of a record."""
    topic = topics.create(PARTITIONS)
    shape = Shape(codec="zstd", size=size)
    each = fill(kafka_broker, topic, shape, megabytes=MEGABYTES, partitions=PARTITIONS)
    held = held_by_a_task(
        kafka_broker.options,
        topic,
        partitions=PARTITIONS,
        records=each,
        batches=6,
        pause_s=0.3,
    )
    assert held.largest_batch < POLL_BYTES * 1.1
    assert 0 < held.growth < MOST
