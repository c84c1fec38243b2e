"""Of a real topic that had a count which no batch saw: what the times of its records tell."""

from __future__ import annotations

import pytest

from spark_ssp.kafka_source.model.topic import IsolationLevel
from spark_ssp.kafka_source.options.parse import parse_options
from tests.support.kafka.driving import FakeQuery
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.servers.kafka_clusters import BrokerCluster


@pytest.mark.parametrize(("counts", "lines"), [((4, 6, 8), 1), ((2, 4, 8), 0)])
def test_a_count_that_is_no_multiple_is_warned_of(
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    caplog: pytest.LogCaptureFixture,
    counts: tuple[int, ...],
    lines: int,
) -> None:
    cluster = BrokerCluster(kafka_broker.bootstrap_servers, topics)
    first, *later = counts
    topic = cluster.create(first)
    options = {
        **kafka_broker.options,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeTask": "true",
    }
    query = FakeQuery(cluster.service(IsolationLevel.READ_UNCOMMITTED), parse_options(options))
    records = [Record(key=b"key-%d" % number, value=b"") for number in range(200)]
    cluster.put(topic, records)
    assert sum(query.counts()) == 200
    for count in later:
        cluster.expand(topic, count)
        cluster.put(topic, records)
    query.restart()
    assert sum(query.counts()) == 400
    told = [line for line in caplog.messages if "in between" in line]
    assert len(told) == lines
    assert all(f"topic {topic} grew from 4 to 8 partitions" in line for line in told)
