"""Partitions multiply, and keys stay with their tasks, whatever the query does meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.kafka.feed import KafkaFeed, kafka_traffic, query_options
from tests.support.kafka.queries import (
    KafkaSink,
    check_keys,
    check_read_once,
    check_tasks,
    tasks_of,
)
from tests.support.kafka.topics import KafkaTopics
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import failure_of, run_to_end, running, wait_for_rows, wait_until

TWO = {("Partition 0", 0), ("Partition 1", 1)}


def frame(spark: SparkSession, options: Mapping[str, str], **changed: str) -> DataFrame:
    return spark.readStream.format("kafka-ssp").options(**options, **changed).load()


@pytest.mark.core("Kafka expansion")
def test_topics_expand_one_after_the_other_while_records_come(
    spark: SparkSession,
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    feed: KafkaFeed,
    tmp_path: Path,
) -> None:
    orders, returns = topics.create(2), topics.create(2)
    options = query_options(kafka_broker.options, orders, returns)
    store = {"assignmentStore": (tmp_path / "assignments").as_uri()}
    sink = KafkaSink()

    def read(topic: str, partitions: range) -> bool:
        return any(row.topic == topic and row.partition in partitions for row in sink.rows)

    with kafka_traffic(feed, orders, returns):
        with running(frame(spark, options, **store), sink, tmp_path / "first") as query:
            wait_for_rows(query, sink, 50)
            for before, after in ((2, 4), (4, 8)):
                topics.expand(orders, after)
                new = range(before, after)
                wait_until(lambda: read(orders, new), f"records of {new}", query)  # noqa: B023
        seen = sink.count
        topics.expand(returns, 4)
        wait_until(lambda: len(feed.records) > seen + 400, "more than the query has read")
    batches = len(sink.sizes())
    by_time = store | {"trigger": "processingTime"}
    limited = frame(spark, options, **by_time, maxOffsetsPerTrigger="150")
    with running(limited, sink, tmp_path / "first") as query:
        wait_for_rows(query, sink, len(feed.records))
    assert len(sink.sizes()) - batches > 2
    assert read(returns, range(2, 4))
    check_read_once(sink.rows, feed.records)
    check_keys(sink.rows)
    assert {(row.task, row.ssp) for row in sink.rows} == TWO

    # A new query takes the tasks from the store, and with them what came when; without it, it
    # has as many as there are partitions, and keys have moved between them.
    second, alone = KafkaSink(), KafkaSink()
    third = str(len(feed.records) // 3)
    again = frame(spark, options, **by_time, maxOffsetsPerTrigger=third)
    with running(again, second, tmp_path / "second") as query:
        wait_for_rows(query, second, len(feed.records))
    assert len(second.sizes()) > 2
    check_read_once(second.rows, feed.records)
    check_keys(second.rows)
    assert tasks_of(second.rows) == tasks_of(sink.rows)
    run_to_end(frame(spark, options), alone, tmp_path / "alone")
    check_read_once(alone.rows, feed.records)
    assert {row.ssp for row in alone.rows} == set(range(8))
    assert max(map(len, tasks_of(alone.rows).values())) > 1


def test_a_count_that_is_no_multiple(
    spark: SparkSession,
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    feed: KafkaFeed,
    tmp_path: Path,
) -> None:
    orders = topics.create(2)
    options = query_options(kafka_broker.options, orders)
    sink = KafkaSink()
    feed.put(orders, 48)
    with running(frame(spark, options), sink, tmp_path / "kept") as query:
        wait_for_rows(query, sink, 48)
        topics.expand(orders, 3)
        text = failure_of(query)
    assert f"stream kafka/{orders}: found 3 partitions, 2 before; expected a multiple of 2" in text
    assert "set onPartitionCountChange to regroup" in text
    assert "copy the stream by key into a new one" in text
    feed.put(orders, 48)

    shutil.copytree(tmp_path / "kept", tmp_path / "regrouped")
    regrouped = KafkaSink(batches=dict(sink.batches))
    regroup = frame(spark, options, onPartitionCountChange="regroup")
    run_to_end(regroup, regrouped, tmp_path / "regrouped")
    check_read_once(regrouped.rows, feed.records)
    later = regrouped.rows[48:]
    assert {(row.task, row.partition) for row in later} == {
        (f"Partition {number}", number) for number in range(3)
    }

    # The other way out: in the new topic all records of a key are in one partition.
    assert max(map(len, tasks_of(regrouped.rows).values())) > 1
    copied = topics.create(3)
    everything = spark.read.format("kafka-ssp").options(**kafka_broker.options, subscribe=orders)
    writer = everything.load().select("key", "value").write.format("kafka-ssp").mode("append")
    writer.options(**kafka_broker.options, topic=copied).save()
    afresh = KafkaSink()
    run_to_end(
        frame(spark, query_options(kafka_broker.options, copied)), afresh, tmp_path / "afresh"
    )
    assert sorted(int(row.value or 0) for row in afresh.rows) == list(range(96))
    check_tasks(afresh.rows)
    assert {row.ssp for row in afresh.rows} == set(range(3))
