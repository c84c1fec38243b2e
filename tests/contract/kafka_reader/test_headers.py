"""Headers of records, by both consumers; names that are no UTF-8, as C clients may write them."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator

import confluent_kafka.cimpl
import pyarrow as pa
import pytest

from spark_ssp.common.errors import InvalidRequestError
from spark_ssp.kafka_source.model.ranges import TaskRange
from spark_ssp.kafka_source.reading.consumer_api import PartitionConsumer
from spark_ssp.kafka_source.reading.librdkafka import MessageHeaders, Words
from spark_ssp.kafka_source.reading.native_consumer import NativeConsumer
from spark_ssp.kafka_source.reading.pool import PROCESS_POOL, ConsumerKey, ConsumerPool
from spark_ssp.kafka_source.reading.task_reader import BATCH_BYTES, POLL_BYTES, read_task
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

Open = Callable[[ConsumerKey], PartitionConsumer]


@pytest.fixture
def readings(kafka_broker: KafkaBroker) -> Iterator[dict[Open, TaskReading]]:
    found: dict[Open, TaskReading] = {
        make: TaskReading(kafka_broker.options, ConsumerPool(create=make))
        for make in (open_native, open_messages)
    }
    yield found
    for reading in found.values():
        reading.pool.close()


@pytest.mark.parametrize("opened", [open_native, open_messages], ids=["native", "messages"])
def test_large_headers_make_no_larger_batches(
    readings: dict[Open, TaskReading], topics: KafkaTopics, opened: Open
) -> None:
    topic = topics.create()
    large = (("h", bytes(20_000)),)
    topics.put(topic, [Record(key=None, value=None, headers=large) for _ in range(1_500)])
    reading = readings[opened]
    options = options_for(reading.settings, includeHeaders="true")
    batches = list(read_task(task(part(topic, 0, 0, 1_500)), options, "test", pool=reading.pool))
    assert sum(batch.num_rows for batch in batches) == 1_500
    # What was taken last comes on top.
    assert max(batch.nbytes for batch in batches) < BATCH_BYTES + 1.1 * POLL_BYTES


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
    assert "without includeHeaders, or start after this record" in caught.value.next_step
    assert len(readings[open_messages].rows(ranges)) == 101
    topics.put(topic, [Record(value=b"behind")])
    (row,) = readings[open_messages].rows(part(topic, 0, 101, 102), includeHeaders="true")
    assert (row["value"], row["headers"]) == (b"behind", None)


# --- Where they lie, and asked for ----------------------------------------------------------------


def _odd_records() -> list[Record]:
    """Of every kind in which a record's headers may come, and enough that the way is trusted."""
    kinds: list[tuple[tuple[str, bytes | None], ...]] = [
        (),
        (("a", b"1"),),
        (("", None),),
        (("", b""), ("a", b""), ("a", b""), ("a", None)),
        (("é€", b"\xff\xfe"), ("é€", b"\0")),
        tuple((f"name-{number}", b"v" * number) for number in range(300)),
        (("x" * 5_000, b"y" * 70_000),),
    ]
    bodies: list[tuple[bytes | None, bytes | None]] = [
        (key, value) for key in (None, b"", b"key") for value in (None, b"", b"v", b"v" * 3_000)
    ]
    return [
        Record(key=key, value=value, headers=headers) for headers in kinds for key, value in bodies
    ]


def _never(*_: object) -> None:
    raise AssertionError("asked, header by header")


def test_headers_are_read_alike_where_they_lie_and_by_asking(
    readings: dict[Open, TaskReading], topics: KafkaTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, messages = readings[open_native], readings[open_messages]
    topic = topics.create()
    plain = [Record(value=b"v", headers=(("a", b"1"),))] * 100
    put = topics.put(topic, [*plain, *_odd_records()], compression_type="zstd")
    whole, odd = task(part(topic, 0, 0, len(put))), task(part(topic, 0, 100, len(put)))
    expected = _table(messages, whole)
    monkeypatch.setattr(MessageHeaders, "_agreed", 0)
    monkeypatch.setattr(MessageHeaders, "_mismatch", False)
    assert _table(native, whole) == expected
    assert MessageHeaders.is_verified()
    with monkeypatch.context() as patch:
        patch.setattr(MessageHeaders, "read_by_api", _never)
        assert _table(native, whole) == expected
        assert _table(native, odd) == expected.slice(100)
        assert _table(native, task(part(topic, 0, 100, 101))) == expected.slice(100, 1)
    monkeypatch.setattr(MessageHeaders, "_mismatch", True)
    monkeypatch.setattr(MessageHeaders, "read_memory", _never)
    assert _table(native, whole) == expected


def test_odd_records_that_come_first_are_compared_as_well(
    readings: dict[Open, TaskReading], topics: KafkaTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()
    put = topics.put(topic, _odd_records())
    whole = task(part(topic, 0, 0, len(put)))
    expected = _table(readings[open_messages], whole)
    monkeypatch.setattr(MessageHeaders, "_agreed", 0)
    monkeypatch.setattr(MessageHeaders, "_mismatch", False)
    for _ in range(3):
        assert _table(readings[open_native], whole) == expected
    # Of those without key and value nothing is taken for granted.
    assert MessageHeaders._agreed >= 48
    assert not MessageHeaders._mismatch


@pytest.mark.parametrize("wrong", ["elsewhere", "shorter", "longer", "none"])
def test_a_library_in_which_headers_lie_elsewhere_is_found_out(
    readings: dict[Open, TaskReading],
    topics: KafkaTopics,
    monkeypatch: pytest.MonkeyPatch,
    wrong: str,
) -> None:
    topic = topics.create()
    put = topics.put(topic, [Record(value=b"v", headers=(("a", b"1"),))] * 200)
    whole = task(part(topic, 0, 0, len(put)))
    monkeypatch.setattr(MessageHeaders, "_agreed", 0)
    monkeypatch.setattr(MessageHeaders, "_mismatch", False)
    right = MessageHeaders._bytes
    if wrong == "elsewhere":
        monkeypatch.setattr("spark_ssp.kafka_source.reading.librdkafka._HEADER_BYTES_OFFSET", 80)
    else:
        change = {"shorter": (1, -1), "longer": (1, 1), "none": (0, 0)}[wrong]

        def other(self: MessageHeaders, addresses: Words) -> tuple[Words, Words]:
            lengths, begins = right(self, addresses)
            return lengths * change[0] + change[1], begins

        monkeypatch.setattr(MessageHeaders, "_bytes", other)
    found = _table(readings[open_native], whole)
    assert not MessageHeaders.is_verified()
    assert MessageHeaders._mismatch
    assert found == _table(readings[open_messages], whole)


def test_a_name_is_whole_whoever_reads_it(
    readings: dict[Open, TaskReading],
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A zero byte is part of it, as in Java, also while both ways are compared."""
    topic = topics.create()
    _put_with_header(kafka_broker, topic, b"one\0two", b"1")
    topics.put(topic, [Record(value=b"v", headers=(("a", b"1"),))] * 100)
    monkeypatch.setattr(MessageHeaders, "_agreed", 0)
    monkeypatch.setattr(MessageHeaders, "_mismatch", False)
    is_verified = []
    for end in (1, 101, 101):
        rows = readings[open_native].rows(part(topic, 0, 0, end), includeHeaders="true")
        assert rows[0]["headers"] == [{"key": "one\0two", "value": b"1"}]
        is_verified.append(MessageHeaders.is_verified())
    assert is_verified == [False, True, True]


def _table(reading: TaskReading, range_: TaskRange) -> pa.Table:
    table = pa.Table.from_batches(reading.batches(range_, includeHeaders="true"))
    table.validate(full=True)
    return table.combine_chunks()


def test_tasks_read_headers_with_the_consumer_that_can_read_any(kafka_broker: KafkaBroker) -> None:
    client = options_for(kafka_broker.options).client
    with PROCESS_POOL.acquire(ConsumerKey(client=client, group_id="g"), {}) as consumer:
        assert isinstance(consumer, NativeConsumer)
    PROCESS_POOL.close()


# --- A producer that says the name as it is -------------------------------------------------------


class _Memory(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Value(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("number", ctypes.c_int),
        ("memory", _Memory),
        ("headers", ctypes.c_void_p),
        ("_pad", ctypes.c_char * 64),
    )


class _Argument(ctypes.Structure):
    """rd_kafka_vu_t."""

    _fields_ = (("kind", ctypes.c_int), ("value", _Value))


def _put_with_header(broker: KafkaBroker, topic: str, name: bytes, value: bytes) -> None:
    """One record, by the library's own producer: that of confluent-kafka takes text alone."""
    library, pointer = ctypes.CDLL(confluent_kafka.cimpl.__file__), ctypes.c_void_p
    for function in ("conf_new", "new", "produceva", "headers_new"):
        getattr(library, f"rd_kafka_{function}").restype = pointer
    text = ctypes.create_string_buffer(512)
    conf = pointer(library.rd_kafka_conf_new())
    servers = broker.bootstrap_servers.encode()
    size = ctypes.c_size_t(512)
    assert library.rd_kafka_conf_set(conf, b"bootstrap.servers", servers, text, size) == 0
    producer = pointer(library.rd_kafka_new(0, conf, text, size))
    headers = pointer(library.rd_kafka_headers_new(1))
    sizes = ctypes.c_ssize_t(len(name)), ctypes.c_ssize_t(len(value))
    assert library.rd_kafka_header_add(headers, name, sizes[0], value, sizes[1]) == 0
    arguments = (_Argument * 4)(
        _Argument(1, _Value(text=topic.encode())),
        _Argument(4, _Value(memory=_Memory(b"v", 1))),
        _Argument(7, _Value(number=2)),  # the value is copied
        _Argument(10, _Value(headers=headers)),
    )
    assert not library.rd_kafka_produceva(producer, arguments, ctypes.c_size_t(4))
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)
