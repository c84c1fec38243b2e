"""The executor's part of the sink, without Spark, against a real broker."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from spark_ssp.common.errors import (
    AccessError,
    InvalidOptionsError,
    InvalidRequestError,
    InvalidRowsError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.kafka_source.dedup.dedup_headers import (
    POSITION_HEADER,
    SOURCE_HEADER,
    WriteId,
)
from spark_ssp.kafka_source.sink import producer as producing
from spark_ssp.kafka_source.sink.columns import SinkColumns
from spark_ssp.kafka_source.sink.options import SinkOptions
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.kafka_source.sink.producer import RecordProducer
from spark_ssp.kafka_source.sink.table_sink import write_rows
from tests.support.kafka.dedup_memory import parse_position
from tests.support.kafka.topics import KafkaTopics
from tests.support.servers.kafka_broker import KafkaBroker

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.string()),
        ("headers", _HEADERS),
        ("partition", pa.int32()),
    ]
)
_COLUMNS: Final = SinkColumns(topic=0, key=1, value=2, headers=3, partition=4)
_VALUE: Final = SinkColumns(value=0)
_SECRET: Final = "what nobody may read in a log"


def _rows(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=_SCHEMA)


def _values(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def _options(broker: KafkaBroker, topic: str | None = None, **options: str) -> SinkOptions:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return parse_sink_options(broker.options | given | ({"topic": topic} if topic else {}))


def _read(broker: KafkaBroker, topic: str) -> list[Any]:
    """All messages of a topic, partition by partition, each in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": "false",
            "log_level": "0",
        }
    )
    left = {}
    for partition in consumer.list_topics(topic, timeout=10).topics[topic].partitions:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        left[partition] = high
    consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
    found: list[Any] = []
    while len(found) < sum(left.values()):
        messages = consumer.consume(1_000, timeout=1)
        assert [message.error() for message in messages if message.error()] == []
        found.extend(messages)
    found.sort(key=lambda message: (message.partition(), message.offset()))
    consumer.close()
    return found


def _refused(options: SinkOptions, *batches: pa.RecordBatch, columns: SinkColumns) -> SspError:
    with pytest.raises(SspError) as caught:
        write_rows(batches, columns, options, None)
    assert _SECRET not in str(caught.value)
    return caught.value


@pytest.fixture(autouse=True)
def no_producer_is_left() -> Iterator[None]:
    yield
    producing._producers.clear()


# --- What is written ------------------------------------------------------------------------------


def test_all_parts_of_a_record_arrive(kafka_broker: KafkaBroker, topics: KafkaTopics) -> None:
    one, other = topics.create(3), topics.create()
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}]
    batches = [
        _rows(
            {"topic": one, "key": b"k", "value": "v", "headers": headers, "partition": 2},
            {"topic": one, "key": b"", "value": "", "headers": [], "partition": 2},
            {"topic": one, "key": None, "value": None, "headers": None, "partition": 2},
            {"topic": other, "key": b"\x00\xff", "value": "\u00e4\u0000", "partition": None},
        ),
        _rows(),
        _rows({"topic": other, "value": "x" * 900_000}).slice(0, 1),
        _rows(
            {"topic": one, "headers": headers[:1], "partition": 0},
            {"topic": one, "headers": headers[1:], "value": "cut", "partition": 0},
        ).slice(1),
    ]
    assert write_rows(batches, _COLUMNS, _options(kafka_broker), None) == 6
    found = [(m.partition(), m.key(), m.value(), m.headers()) for m in _read(kafka_broker, one)]
    assert found == [
        (0, None, b"cut", [("a", None), ("", b"")]),
        (2, b"k", b"v", [("a", b"1"), ("a", None), ("", b"")]),
        (2, b"", b"", None),
        (2, None, None, None),
    ]
    assert [(m.key(), m.value()) for m in _read(kafka_broker, other)] == [
        (b"\x00\xff", "\u00e4\u0000".encode()),
        (None, b"x" * 900_000),
    ]


def test_the_option_topic_wins_and_only_the_value_is_needed(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create()
    options = _options(kafka_broker, topic)
    assert write_rows([_rows({"topic": "elsewhere", "value": "a"})], _COLUMNS, options, None) == 1
    assert write_rows([_values(b"b", b"c")], _VALUE, options, None) == 2
    assert write_rows([], _VALUE, options, None) == 0
    assert [m.value() for m in _read(kafka_broker, topic)] == [b"a", b"b", b"c"]


def test_keys_lie_where_javas_producer_puts_them(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    """The partitions are Java's `Utils.toPositive(Utils.murmur2(key)) % 7`."""
    topic = topics.create(7)
    keys = [f"key {number}".encode() for number in range(50)] + [b"", b"\xff\x80"]
    rows = [{"topic": topic, "key": key, "value": "v"} for key in keys]
    write_rows([_rows(*rows)], _COLUMNS, _options(kafka_broker), None)
    found = {m.key(): m.partition() for m in _read(kafka_broker, topic)}
    assert found == {key: (_murmur2(key) & 0x7FFFFFFF) % 7 for key in keys}


def _murmur2(data: bytes) -> int:
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) - len(data) % 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = h * m & mask ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


def test_a_full_buffer_is_waited_for(kafka_broker: KafkaBroker, topics: KafkaTopics) -> None:
    topic = topics.create()
    options = _options(kafka_broker, topic, kafka_queue_buffering_max_messages="10")
    values = [str(number).encode() for number in range(500)]
    write_rows([_values(*values)], _VALUE, options, None)
    assert [m.value() for m in _read(kafka_broker, topic)] == values


def test_a_producer_that_is_kept_sees_that_a_topic_was_expanded(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create(2)
    options = _options(kafka_broker)
    keys = [f"key {number}".encode() for number in range(40)]
    keyed = _rows(*({"topic": topic, "key": key, "value": "v"} for key in keys))
    write_rows([keyed], _COLUMNS, options, None)
    topics.expand(topic, 4)
    write_rows([keyed], _COLUMNS, options, None)
    seen = [(m.key(), m.partition()) for m in _read(kafka_broker, topic)]
    for count in (2, 4):
        assert {(key, (_murmur2(key) & 0x7FFFFFFF) % count) for key in keys} <= set(seen)
    assert len(seen) == 2 * len(keys)

    def expanded_in_between() -> Iterator[pa.RecordBatch]:
        yield _rows({"topic": topic, "value": "before", "partition": 3})
        topics.expand(topic, 6)
        yield _rows({"topic": topic, "value": "after", "partition": 5})

    write_rows(expanded_in_between(), _COLUMNS, options, None)
    found = [(m.partition(), m.value()) for m in _read(kafka_broker, topic)]
    assert (3, b"before") in found
    assert (5, b"after") in found


def test_a_producer_is_kept_until_something_fails(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create()
    options = _options(kafka_broker, topic)

    def kept() -> list[RecordProducer]:
        return list(producing._producers.values())

    write_rows([_values(b"a")], _VALUE, options, None)
    (first,) = kept()
    write_rows([_values(b"b")], _VALUE, options, None)
    assert kept() == [first]
    _refused(options, _values(b"x" * 2_000_000), columns=_VALUE)
    assert kept() == []


# --- What cannot be written -----------------------------------------------------------------------


def test_an_unknown_topic_is_reported_at_once(kafka_broker: KafkaBroker) -> None:
    error = _refused(_options(kafka_broker, "no-such-topic"), _values(b"a"), columns=_VALUE)
    assert isinstance(error, StreamNotFoundError)
    assert error.subject == "topic no-such-topic"


def test_rows_that_are_no_records(kafka_broker: KafkaBroker, topics: KafkaTopics) -> None:
    topic = topics.create()
    options = _options(kafka_broker)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"topic": None, "value": _SECRET}, "column topic"),
        ({"topic": topic, "value": _SECRET, "partition": -1}, "column partition"),
        ({"topic": topic, "headers": [None]}, "column headers"),
        ({"topic": topic, "headers": [{"key": None, "value": b""}]}, "column headers"),
    ]
    for row, subject in wrong:
        error = _refused(options, _rows({"topic": topic}, row), columns=_COLUMNS)
        assert isinstance(error, InvalidRowsError)
        assert error.subject == subject
    error = _refused(options, _rows({"topic": topic, "partition": 1}), columns=_COLUMNS)
    assert isinstance(error, StreamNotFoundError)
    assert error.subject == f"topic {topic}, partition 1"
    assert "column partition" in error.next_step


def test_a_record_that_is_too_large_for_the_client_for_the_topic_and_for_the_buffer(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    small = topics.create(config={"max.message.bytes": "10000"})
    large = _values(_SECRET.encode() * 500)
    by_broker = _refused(_options(kafka_broker, small), large, columns=_VALUE)
    assert by_broker.subject == f"topic {small}, partition 0"
    by_client = _refused(
        _options(kafka_broker, small, kafka_max_request_size="5000"), large, columns=_VALUE
    )
    assert by_client.subject == f"topic {small}"
    assert f"{len(_SECRET) * 500} bytes" in by_client.found
    for error in (by_broker, by_client):
        assert isinstance(error, InvalidRequestError)
        assert "kafka.max.request.size" in error.next_step
        assert "max.message.bytes" in error.next_step
    by_buffer = _refused(
        _options(kafka_broker, small, kafka_buffer_memory="1024"), large, columns=_VALUE
    )
    assert "raise kafka.buffer.memory" in by_buffer.next_step
    # Once that is followed, the record is written.
    roomy = topics.create()
    for more in ({"kafka_max_request_size": "2000000"}, {"kafka_buffer_memory": "64000"}):
        assert write_rows([large], _VALUE, _options(kafka_broker, roomy, **more), None) == 1


def test_batches_that_are_too_large_for_a_topic_are_cut_as_the_advice_says(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    small = topics.create(config={"max.message.bytes": "10000"})
    many = _values(*[bytes(1_000)] * 40)
    at_once = {"kafka_linger_ms": "1000"}
    error = _refused(_options(kafka_broker, small, **at_once), many, columns=_VALUE)
    assert "set kafka.batch.size to at most max.message.bytes" in error.next_step
    options = _options(kafka_broker, small, kafka_batch_size="10000", **at_once)
    assert write_rows([many], _VALUE, options, None) == 40


def test_a_topic_that_is_deleted_in_the_middle(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create()

    def batches() -> Iterator[pa.RecordBatch]:
        yield _values(b"a")
        topics.delete(topic)
        yield _values(*[_SECRET.encode()] * 10)

    options = _options(kafka_broker, topic, kafka_delivery_timeout_ms="5000")
    with pytest.raises(SspError) as caught:
        write_rows(batches(), _VALUE, options, None)
    assert caught.value.subject.startswith(f"topic {topic}")
    assert _SECRET not in str(caught.value)


def test_a_broker_that_refuses_goes_away_and_comes_back() -> None:
    listeners, login = ("SASL_PLAINTEXT",), "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        login: "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=right;",
    }
    with (
        KafkaBroker(listeners=listeners, settings=settings) as broker,
        KafkaTopics({"bootstrap.servers": broker.bootstrap_servers}) as topics,
    ):
        topic = topics.create()
        stranger = _options(
            broker,
            topic,
            kafka_bootstrap_servers=broker.address("SASL_PLAINTEXT"),
            kafka_security_protocol="SASL_PLAINTEXT",
            kafka_sasl_mechanism="PLAIN",
            kafka_sasl_username="alice",
            kafka_sasl_password=_SECRET,
        )
        assert isinstance(_refused(stranger, _values(b"a"), columns=_VALUE), AccessError)
        patient = _options(broker, topic, kafka_reconnect_backoff_max_ms="200")
        write_rows([_values(b"a")], _VALUE, patient, None)
        broker.stop()
        hasty = _options(broker, topic, kafka_delivery_timeout_ms="500", kafka_linger_ms="0")
        error = _refused(hasty, _values(_SECRET.encode()), columns=_VALUE)
        assert isinstance(error, ServiceUnavailableError)
        assert topic in error.subject
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(write_rows, [_values(b"b")], _VALUE, patient, None)
            broker.start_again()
            assert waiting.result(60) == 1
        assert [m.value() for m in _read(broker, topic)] == [b"a", b"b"]


def test_what_librdkafka_refuses_names_the_option(kafka_broker: KafkaBroker) -> None:
    options = _options(kafka_broker, "orders", kafka_retries="-7")
    with pytest.raises(InvalidOptionsError, match=r"kafka\.retries"):
        producing.acquire_producer(options.client)


# --- The headers that tell repeats ----------------------------------------------------------------


def test_a_batch_that_is_written_again_says_the_same(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create(3)
    old = [{"key": SOURCE_HEADER, "value": b"x"}, {"key": "mine", "value": b"1"}]
    rows: list[dict[str, Any]] = [
        {"topic": topic, "key": b"k", "value": "a"},
        {"topic": topic, "value": "same", "headers": old},
        {"topic": topic, "value": "same", "headers": old},
        {"topic": topic, "value": "same", "headers": [old[1]], "partition": 1},
        *({"topic": topic, "value": str(number)} for number in range(30)),
    ]
    options = _options(kafka_broker, includeRepeatHeaders="true")
    for attempt_ms, order in ((1, rows), (2, rows[::-1])):
        write = WriteId(source="query", batch=7, attempt_ms=attempt_ms, task=4)
        write_rows([_rows(*order[:2]), _rows(*order[2:])], _COLUMNS, options, write)
    found = _read(kafka_broker, topic)
    counts: Counter[tuple[object, ...]] = Counter()
    for message in found:
        headers = message.headers()
        assert [name for name, _ in headers][-2:] == [SOURCE_HEADER, POSITION_HEADER]
        assert headers[:-2] == ([("mine", b"1")] if message.value() == b"same" else [])
        position = parse_position(headers[-1][1].decode())
        assert position is not None
        assert position.batch == 7
        assert position.row.startswith("4:")
        assert headers[-2][1] == f"query/{topic}".encode()
        counts[position.row, message.partition(), message.key(), message.value()] += 1
    assert set(counts.values()) == {2}
    assert len(counts) == len(rows)
    assert {m.partition() for m in found if m.key() is None} == {0, 1, 2}


def test_records_without_a_key_follow_the_number_of_partitions(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create(1)
    options = _options(kafka_broker, topic, includeRepeatHeaders="true")
    values = [str(number).encode() for number in range(50)]
    write = WriteId(source="query", batch=0, attempt_ms=0, task=0)
    write_rows([_values(*values)], _VALUE, options, write)
    topics.expand(topic, 4)
    write_rows([_values(*values)], _VALUE, options, write)
    found = _read(kafka_broker, topic)
    assert {m.partition() for m in found} == {0, 1, 2, 3}
    assert {m.value() for m in found} == set(values)
