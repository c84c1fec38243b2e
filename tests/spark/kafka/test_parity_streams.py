"""Streaming queries: the same batches as with Spark's own Kafka source."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.parity.comparison import IN_HASTE, PartitionName, RowSink, Twins, tasks_of
from tests.support.parity.topics import (
    FIRST_MS,
    ParityTopics,
    by_partition_json,
    trim,
)
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import wait_for_idle_reports


@pytest.fixture
def options(kafka_broker: KafkaBroker) -> dict[str, str]:
    return {**kafka_broker.options, **IN_HASTE, "startingOffsets": "earliest"}


@dataclass(kw_only=True)
class TaskSink(RowSink):
    """Also keeps the range that each task of a batch has read."""

    tasks: dict[int, list[tuple[PartitionName, int, int]]] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        super().__call__(frame, batch)
        self.tasks[batch] = tasks_of(frame)


def _put(topics: KafkaTopics, topic: str, *counts: int) -> None:
    """So many records into the partitions 0, 1, 2 ..."""
    topics.put(
        topic,
        [
            Record(key=b"%d" % partition, value=b"%d" % number, partition=partition)
            for partition, count in enumerate(counts)
            for number in range(count)
        ],
        enable_idempotence="false",
    )


def test_limited_batches(
    spark: SparkSession, options: dict[str, str], prepared: ParityTopics, tmp_path: Path
) -> None:
    mixed, stamped = prepared.mixed, prepared.stamped
    starts = {mixed: {"0": 3, "1": -2, "2": 11}, stamped: {"0": 0, "1": -1}}
    several = Twins(
        spark,
        options
        | {
            "subscribe": f"{mixed},{stamped}",
            "includeHeaders": "true",
            "startingOffsets": json.dumps(starts),
            "maxOffsetsPerTrigger": "19",
        },
        tmp_path / "several",
    )
    several.run_to_end()
    several.check()
    assert several.ours.sink.sizes()[:2] == [17, 18]
    assert several.ours.sink.count == 17 + 20 + 9 + 5
    committed = Twins(
        spark,
        options
        | {
            "subscribePattern": f"{prepared.transactions}|{prepared.compacted}|{prepared.trimmed}",
            "kafka.isolation.level": "read_committed",
            "startingTimestamp": str(FIRST_MS + 120_000),
            "startingOffsetsByTimestampStrategy": "latest",
            "maxOffsetsPerTrigger": "30",
        },
        tmp_path / "committed",
    )
    committed.run_to_end()
    committed.check()
    assert committed.ours.sink.count == 22 + 5 + 6


def test_more_tasks_than_partitions(
    spark: SparkSession, options: dict[str, str], topics: KafkaTopics, tmp_path: Path
) -> None:
    topic = topics.create(2)
    _put(topics, topic, 50, 10)
    least = {"subscribe": topic, "minPartitions": "5", "maxOffsetsPerTrigger": "30"}
    twins = Twins(spark, options | least, tmp_path)
    sparks, ours = twins.sparks.sink, twins.ours.sink = TaskSink(), TaskSink()
    twins.run_to_end()
    _put(topics, topic, 50, 10)
    twins.run_to_end({"minPartitions": "3", "maxRecordsPerPartition": "4"})
    twins.check()
    assert ours.tasks == sparks.tasks
    assert [len(tasks) for tasks in ours.tasks.values()][:1] == [5]


def test_restarts_after_expansion_and_expiry(
    spark: SparkSession,
    options: dict[str, str],
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    tmp_path: Path,
) -> None:
    topic = topics.create(2)
    twins = Twins(spark, options | {"subscribe": topic}, tmp_path)
    _put(topics, topic, 6, 6)
    twins.run_to_end()
    topics.expand(topic, 5)  # No multiple: tasks follow in both.
    _put(topics, topic, 6, 3, 4, 1, 1)
    twins.run_to_end()
    _put(topics, topic, 5, 1, 1)
    trim(kafka_broker.bootstrap_servers, topic, {0: 14, 2: 5})
    lost, ours = twins.failures()
    assert "Some data may have been lost" in lost
    assert f"[data-loss] partition {topic}-0" in ours
    twins.run_to_end({"failOnDataLoss": "false"})
    twins.check()
    assert twins.ours.sink.sizes() == [12, 15, 4]

    # Spark's source takes no notice; ours does not lose the new topic's records in silence.
    topics.delete(topic)
    topics.create(5, name=topic)
    _put(topics, topic, 20, 12, 12, 11, 1)
    twins.run_one(twins.sparks)
    assert twins.sparks.sink.sizes()[3:] == [3 + 2 + 7 + 10]
    found = twins.failure(twins.ours)
    assert f"[data-loss] topic {topic}" in found
    assert "deleted and created again" in found


def test_waiting_for_enough(
    spark: SparkSession, options: dict[str, str], topics: KafkaTopics, tmp_path: Path
) -> None:
    topic = topics.create(2)
    _put(topics, topic, 5, 5)
    options["subscribe"] = topic
    enough = {
        "startingOffsets": by_partition_json(topic, -1, -2),
        "minOffsetsPerTrigger": "12",
    }
    patient = Twins(spark, options | enough, tmp_path / "patient")
    del options["startingOffsets"]
    delay = {"minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1s"}
    latest = Twins(spark, options | delay, tmp_path / "latest")
    with patient.running() as queries, latest.running() as late:
        patient.wait_for_rows(queries, 5)
        for query in late:
            wait_for_idle_reports(query, 1)
        _put(topics, topic, 3, 1)
        latest.wait_for_rows(late, 4)
        for query in queries:
            wait_for_idle_reports(query, 2)
        _put(topics, topic, 2, 6)
        patient.wait_for_rows(queries, 5 + 12)
        latest.wait_for_rows(late, 12)
    patient.check()
    assert patient.ours.sink.sizes() == [5, 12]
    latest.check_rows()

    # With Trigger.AvailableNow Spark's source leaves a rest behind; ours reads what is available.
    _put(topics, topic, 8, 7)
    patient.run_to_end({"maxOffsetsPerTrigger": "12"})
    assert patient.sparks.sink.sizes()[2:] == [11]
    assert patient.ours.sink.sizes()[2:] == [11, 4]


def test_ends_and_added_topics(
    spark: SparkSession, options: dict[str, str], prepared: ParityTopics, tmp_path: Path
) -> None:
    twins = Twins(spark, options | {"subscribe": prepared.stamped}, tmp_path)
    sparks, ours = twins.failures({"endingOffsets": "latest"})
    assert "ending offset not valid in streaming queries" in sparks
    assert "[invalid-options] endingOffsets: found an end in a streaming query" in ours

    # Spark's source reads on behind this one; ours would, and so refuses it.
    end = {"endingTimestamp": str(FIRST_MS)}
    twins.run_one(twins.sparks, end)
    assert twins.sparks.sink.sizes() == [10]
    found = twins.failure(twins.ours, end)
    assert "[invalid-options] endingTimestamp: found an end in a streaming query" in found

    # Nothing of a topic that is new to a query was to be read before; to Spark's source its oldest
    # records are lost.
    twins.run_one(twins.ours)
    more = {"subscribe": f"{prepared.stamped},{prepared.trimmed}"}
    found = twins.failure(twins.sparks, more)
    assert f"Added partition {prepared.trimmed}-" in found
    assert "instead of 0" in found
    twins.run_one(twins.ours, more)
    assert twins.ours.sink.sizes() == [10, 6]
