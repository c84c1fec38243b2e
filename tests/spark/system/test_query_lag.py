"""The lag of running queries by `query_lag`, on any PySpark, of both sources."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_ssp import query_lag
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.kinesis.feeds import Feed
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import start, wait_until

pytestmark = pytest.mark.core("lag")

LIMITED = {"maxRecordsPerTrigger": "10", "trigger": "processingTime"}


def _check_lag(frame: DataFrame, checkpoint: Path, behind: Callable[[Any], int]) -> None:
    """Check the lag of a query that reads 30 records in three batches: while it writes the second
    batch, and once all are read."""
    in_second, go_on = threading.Event(), threading.Event()
    rows: list[int] = []

    def sink(batch_rows: DataFrame, batch: int) -> None:
        rows.append(batch_rows.count())
        if batch == 1:
            in_second.set()
            assert go_on.wait(120)

    query = start(frame, sink, checkpoint)
    try:
        wait_until(in_second.is_set, "the second batch", query)
        wait_until(lambda: query.lastProgress is not None, "a report", query)
        (lag,) = query_lag(query)
        assert behind(lag) > 0
        go_on.set()
        wait_until(lambda: sum(rows) == 30, "all rows", query)
        wait_until(lambda: behind(query_lag(query)[0]) == 0, "no lag", query)
    finally:
        go_on.set()
        query.stop()


def test_the_lag_of_kinesis(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders")
    feed.put("orders", 30)
    frame = spark.readStream.format("kinesis-ssp").options(**options, **LIMITED).load()
    _check_lag(frame, tmp_path, lambda lag: int(lag["orders"]["maxMillisBehindLatest"]))


def test_the_lag_of_kafka(
    spark: SparkSession, topics: KafkaTopics, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.put(topic, [Record(value=b"%d" % n) for n in range(30)])
    options = {
        "kafka.bootstrap.servers": kafka_broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "10",
        "trigger": "processingTime",
    }
    frame = spark.readStream.format("kafka-ssp").options(**options).load()
    _check_lag(frame, tmp_path, lambda lag: int(lag["sumOffsetsBehindLatest"]))


def test_a_source_of_another_package_has_no_lag(spark: SparkSession, tmp_path: Path) -> None:
    query = start(spark.readStream.format("rate").load(), lambda frame, batch: None, tmp_path)
    try:
        assert query_lag(query) in ([], [None])
        wait_until(lambda: query_lag(query) == [None], "a report", query)
    finally:
        query.stop()
