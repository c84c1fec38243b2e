"""The planner against a broker: a topic restored with the same records, and one that had a count
which no batch saw."""

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
