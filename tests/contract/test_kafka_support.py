"""The tests' own broker: it keeps what was put through a stop and through a crash."""

from __future__ import annotations

from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_topics import KafkaTopics, Record


def test_records_outlive_a_stop_and_a_kill() -> None:
    with (
        KafkaBroker() as broker,
        KafkaTopics({"bootstrap.servers": broker.bootstrap_servers}) as topics,
    ):
        topic = topics.create(2)
        first = topics.put(topic, [Record(key=b"a", value=b"1"), Record(key=b"a", value=b"2")])
        broker.stop()
        broker.start_again()
        second = topics.put(topic, [Record(key=b"a", value=b"3")])
        broker.kill()
        broker.start_again()
        third = topics.put(topic, [Record(key=b"a", value=b"4")])
        topics.expand(topic, 4)

    assert [put.offset for put in (*first, *second, *third)] == [0, 1, 2, 3]
    assert len({put.partition for put in (*first, *second, *third)}) == 1
