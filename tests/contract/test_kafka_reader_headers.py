"""Headers of records, which only confluent-kafka's own consumer reads."""

from __future__ import annotations

from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_reading import TaskReading, part
from tests.support.kafka_topics import KafkaTopics, Record


def test_headers_as_they_were_produced(kafka_broker: KafkaBroker, topics: KafkaTopics) -> None:
    topic = topics.create()
    given: list[tuple[tuple[str, bytes | None], ...]] = [
        (),
        (("a", b"1"),),
        (("a", b"1"), ("b", None), ("a", b"\xff"), ("", b"")),
    ]
    topics.put(topic, [Record(key=None, value=b"v", headers=headers) for headers in given])
    reading = TaskReading(kafka_broker.options)
    rows = reading.rows(part(topic, 0, 0, 3), includeHeaders="true")
    reading.pool.close()
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
