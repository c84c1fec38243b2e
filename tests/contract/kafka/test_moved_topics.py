"""A topic that was deleted and restored with the same records: the id that a user accepts."""

from __future__ import annotations

import pytest

from spark_ssp.common.errors import DataLossError
from spark_ssp.kafka_source.model.ranges import TaskRange
from spark_ssp.kafka_source.model.topic import IsolationLevel
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.reading.task_reader import read_task
from tests.support.kafka.driving import FakeQuery
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.servers.kafka_clusters import BrokerCluster


def values(ranges: tuple[TaskRange, ...], options: dict[str, str]) -> list[int]:
    """What tasks read."""
    parsed = parse_options(options)
    return sorted(
        int(value.as_py())
        for range_ in ranges
        for batch in read_task(range_, parsed, "moved")
        for value in batch.column("value")
    )


def test_a_restored_topic_is_read_on_where_the_query_was(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    cluster = BrokerCluster(kafka_broker.bootstrap_servers, topics)
    topic = cluster.create(2)
    records = [Record(key=b"k", value=b"%d" % n, partition=n % 2) for n in range(20)]
    cluster.put(topic, records[:12])
    options = {
        **kafka_broker.options,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "fetchOffset.retryIntervalMs": "50",
    }
    query = FakeQuery(cluster.service(IsolationLevel.READ_UNCOMMITTED), parse_options(options))
    before = query.offset
    query.batch()
    planned = query.offset
    assert values(query.planner.ranges(before, planned), options) == list(range(12))

    cluster.delete(topic)
    cluster.create(2, name=topic)
    cluster.put(topic, records)
    query.restart()
    with pytest.raises(DataLossError, match="deleted and created again") as caught:
        query.batch()
    _, _, accepted = caught.value.next_step.partition("set acceptTopicIds to ")
    options["acceptTopicIds"] = accepted
    query.restart(parse_options(options))
    # The batch that was planned before, as if it had not been finished, and the next one.
    assert values(query.planner.ranges(before, planned), options) == list(range(12))
    end = query.planner.next_offset(planned, None)
    assert end is not None
    assert values(query.planner.ranges(planned, end), options) == list(range(12, 20))
