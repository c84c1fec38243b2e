"""The lag of queries as Kafka's own tool shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka.group_tool import GroupLine, committed_offsets, describe_group
from tests.support.kafka.queries import KafkaSink
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import run_to_end, running, wait_for_rows, wait_until


@pytest.mark.long
def test_kafka_consumer_groups_shows_the_lag_through_an_expansion(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    topic, idle = topics.create(2), topics.create(1)
    group = f"lag-{topic}"
    servers = kafka_broker.bootstrap_servers
    frame = (
        spark.readStream.format("kafka-ssp")
        .options(
            **kafka_broker.options,
            subscribe=f"{topic},{idle}",
            startingOffsets="earliest",
            includeTask="true",
            partitionDiscoveryInterval="200ms",
            commitOffsetsToGroup=group,
        )
        .load()
    )

    def put(each: int, partitions: int) -> None:
        records = [Record(value=b"v", partition=n) for n in range(partitions) for _ in range(each)]
        topics.put(topic, records)

    def has_committed(*offsets: int) -> bool:
        wanted = {(topic, n): at for n, at in enumerate(offsets)} | {(idle, 0): 0}
        return committed_offsets(servers, group, wanted) == wanted

    def await_offsets(*offsets: int) -> None:
        wait_until(lambda: has_committed(*offsets), f"the offsets {offsets}")

    sink = KafkaSink()
    put(10, 2)
    with running(frame, sink, tmp_path) as query:
        wait_for_rows(query, sink, 20)
        await_offsets(10, 10)
        topics.expand(topic, 4)
        put(5, 4)
        wait_for_rows(query, sink, 40)
        await_offsets(15, 15, 5, 5)
        assert set(describe_group(servers, group).values()) == {
            GroupLine(at, at, 0) for at in (0, 5, 15)
        }
    put(2, 4)
    lines = describe_group(servers, group)
    assert lines.pop((idle, 0)).lag == 0
    assert [lines[topic, n] for n in range(4)] == [(15, 17, 2)] * 2 + [(5, 7, 2)] * 2
    run_to_end(frame, sink, tmp_path)
    assert has_committed(17, 17, 7, 7)  # its last batch, too
