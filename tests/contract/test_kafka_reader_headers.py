"""Headers of records, by both consumers; names that are no UTF-8, as C clients may write them."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator

import confluent_kafka.cimpl
import pyarrow as pa
import pytest

from kafka_source.consumer import PROCESS_WIDE, ConsumerKey, ConsumerPool
from kafka_source.native_consumer import NativeConsumer
from kafka_source.partition_consumer import PartitionConsumer
from ssp_common.errors import InvalidRequestError
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_reading import (
    TaskReading,
    open_messages,
    open_native,
    options_for,
    part,
    task,
)
from tests.support.kafka_topics import KafkaTopics, Record

Open = Callable[[ConsumerKey], PartitionConsumer]


@pytest.fixture
def readings(kafka_broker: KafkaBroker) -> Iterator[dict[Open, TaskReading]]:
    found: dict[Open, TaskReading] = {
        make: TaskReading(kafka_broker.options, ConsumerPool(make=make))
        for make in (open_native, open_messages)
    }
    yield found
    for reading in found.values():
        reading.pool.close()


@pytest.mark.parametrize("opened", [open_native, open_messages], ids=["native", "messages"])
def test_headers_as_they_were_produced(
    readings: dict[Open, TaskReading], topics: KafkaTopics, opened: Open
) -> None:
    topic = topics.create()
    given: list[tuple[tuple[str, bytes | None], ...]] = [
        (),
        (("a", b"1"),),
        (("a", b"1"), ("b", None), ("a", b"\xff"), ("", b"")),
    ]
    topics.put(topic, [Record(key=None, value=b"v", headers=headers) for headers in given])
    rows = readings[opened].rows(part(topic, 0, 0, 3), includeHeaders="true")
    assert [row["headers"] for row in rows] == [
        None,
        [{"key": "a", "value": b"1"}],
        [
            {"key": "a", "value": b"1"},
            {"key": "b", "value": None},
            {"key": "a", "value": b"\xff"},
            {"key": "", "value": b""},
        ],
    ]


def test_both_consumers_read_the_same(
    readings: dict[Open, TaskReading], topics: KafkaTopics
) -> None:
    chance = random.Random(5)

    def some() -> tuple[str, bytes | None]:
        size = chance.choice([None, 0, 1, 500])
        value = None if size is None else chance.randbytes(size)
        return chance.choice("ab€") * chance.randrange(4), value

    topic = topics.create()
    records = [
        Record(value=b"v", headers=tuple(some() for _ in range(chance.randrange(4))))
        for _ in range(2_000)
    ]
    topics.put(topic, records, compression_type="lz4")
    tables = [
        pa.Table.from_batches(
            readings[make].batches(task(part(topic, 0, 7, 1_990)), includeHeaders="true")
        )
        for make in (open_native, open_messages)
    ]
    for table in tables:
        table.validate(full=True)
        assert table.num_rows == 1_983
    assert tables[0].equals(tables[1])


def test_a_name_that_is_no_utf_8_is_read_as_java_does(
    readings: dict[Open, TaskReading], kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create()
    topics.put(topic, [Record(value=b"v", headers=(("a", b"1"),))] * 100)
    _put_with_header(kafka_broker, topic, b"caf\xe9", b"latin")
    ranges = part(topic, 0, 0, 101)

    rows = readings[open_native].rows(ranges, includeHeaders="true")
    assert [row["headers"] for row in rows] == [
        *[[{"key": "a", "value": b"1"}]] * 100,
        [{"key": "caf\N{REPLACEMENT CHARACTER}", "value": b"latin"}],
    ]
    # confluent-kafka cannot, but what it says is an error of this project.
    with pytest.raises(InvalidRequestError) as caught:
        readings[open_messages].rows(ranges, includeHeaders="true")
    assert caught.value.subject == f"the record at offset 100 of partition {topic}-0"
    assert "includeHeaders" in caught.value.next_step
    assert len(readings[open_messages].rows(ranges)) == 101


def test_tasks_read_headers_with_the_consumer_that_can_read_any(kafka_broker: KafkaBroker) -> None:
    client = options_for(kafka_broker.options).client
    with PROCESS_WIDE.lend(ConsumerKey(client=client, group_id="g", headers=True)) as consumer:
        assert isinstance(consumer, NativeConsumer)
    PROCESS_WIDE.close()


# --- A producer that says the name as it is -------------------------------------------------------


class _Header(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p), ("size", ctypes.c_ssize_t))


class _Memory(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Value(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("number", ctypes.c_int),
        ("memory", _Memory),
        ("header", _Header),
        ("_pad", ctypes.c_char * 64),
    )


class _Argument(ctypes.Structure):
    """rd_kafka_vu_t."""

    _fields_ = (("kind", ctypes.c_int), ("value", _Value))


def _put_with_header(broker: KafkaBroker, topic: str, name: bytes, value: bytes) -> None:
    """One record, by the library's own producer: that of confluent-kafka takes text alone."""
    library, pointer = ctypes.CDLL(confluent_kafka.cimpl.__file__), ctypes.c_void_p
    for function in ("conf_new", "new", "produceva"):
        getattr(library, f"rd_kafka_{function}").restype = pointer
    text = ctypes.create_string_buffer(512)
    conf = pointer(library.rd_kafka_conf_new())
    servers = broker.bootstrap_servers.encode()
    size = ctypes.c_size_t(512)
    assert library.rd_kafka_conf_set(conf, b"bootstrap.servers", servers, text, size) == 0
    producer = pointer(library.rd_kafka_new(0, conf, text, size))
    arguments = (_Argument * 4)(
        _Argument(1, _Value(text=topic.encode())),
        _Argument(4, _Value(memory=_Memory(b"v", 1))),
        _Argument(7, _Value(number=2)),  # the value is copied
        _Argument(9, _Value(header=_Header(name, value, len(value)))),
    )
    assert not library.rd_kafka_produceva(producer, arguments, ctypes.c_size_t(4))
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)
