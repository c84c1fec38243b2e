"""A topic that brokers hide from a running query for a while, and show again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.parity.comparison import Twin, Twins
from tests.support.servers.kafka_security import PASSWORD, USER, SecureKafka
from tests.support.spark.queries import wait_for_idle_reports

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture
def topics(secure: SecureKafka) -> Iterator[KafkaTopics]:
    with KafkaTopics({"bootstrap.servers": secure.broker.bootstrap_servers}) as found:
        yield found


def _put(topics: KafkaTopics, topic: str, count: int) -> None:
    topics.put(topic, [Record(value=b"%d" % n, partition=n % 2) for n in range(count)])


def _repeated(twin: Twin) -> int:
    """How many rows came again."""
    return sum(len(rows) - len(set(rows)) for rows in twin.sink.all_rows().values())


def test_a_topic_that_is_denied_for_a_while_continues_where_it_was(
    spark: SparkSession, secure: SecureKafka, topics: KafkaTopics, tmp_path: Path
) -> None:
    """With a pattern a denied topic is just not listed; the other topics are read meanwhile."""
    hidden, other = topics.create(2), topics.create(2)
    options = {
        "kafka.bootstrap.servers": secure.broker.address("SASL_PLAINTEXT"),
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{PLAIN} required username="{USER}" password="{PASSWORD}";',
        "subscribePattern": f"{hidden}|{other}",
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
        "partitionDiscoveryInterval": "500ms",
        "kafka.fetch.max.wait.ms": "10",
    }
    twins = Twins(spark, options, tmp_path)
    _put(topics, hidden, 20)
    with twins.running() as queries:
        twins.wait_for_rows(queries, 20)
        for query in queries:
            wait_for_idle_reports(query, 1)
        secure.deny(USER, hidden)
        _put(topics, hidden, 10)
        for count in (5, 10):
            _put(topics, other, 5)
            twins.wait_for_rows(queries, 20 + count)
        secure.show(USER, hidden)
        _put(topics, hidden, 5)
        twins.wait_for_rows(queries, 45)
        for query in queries:
            wait_for_idle_reports(query, 2)
    assert _repeated(twins.ours) == 0
    assert twins.ours.sink.count == 45
    assert list(twins.ours.ends()[-1].values()) == list(twins.sparks.ends()[-1].values())
    assert _repeated(twins.sparks) == 20  # It forgets the topic, and begins again at its start.
