"""The file system of the checkpoints runs full while records arrive and shards split: with more
space the queries continue, and deliver each record once. Needs Linux and root, to mount it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka.feed import kafka_traffic, query_options
from tests.support.kafka.topics import KafkaTopics
from tests.support.kinesis.feeds import Feed
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.drivers import Driver
from tests.support.spark.small_disk import small_disk
from tests.support.spark.traffic import SLOTS, Partitions, Shards, planned_batches
from tests.support.waiting import Background


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_disk_of_the_checkpoints_fills_up(
    spark: SparkSession,
    feed: Feed,
    options: dict[str, str],
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "driver"
    checkpoints = [folder / "checkpoint-0", folder / "checkpoint-1"]
    feed.create("orders", shards=2)
    feed.put("orders", 50)
    shards = Shards(feed, "orders", random.Random(17), lambda: planned_batches(folder, 0))
    partitions = Partitions(topics, lambda: planned_batches(folder, 1))
    queries = [
        options | {"slots": str(SLOTS)},
        query_options(kafka_broker.options, partitions.topic),
    ]

    def run(trigger: str) -> list[str | None]:
        formats = ("kinesis-ssp", "kafka-ssp")
        with Driver(folder, queries, sources=formats, trigger=trigger) as driver:
            return [result["failure"] for result in driver.results()]

    with small_disk(checkpoints[0], 256) as of_kinesis, small_disk(checkpoints[1], 256) as of_kafka:
        disks = (of_kinesis, of_kafka)
        with (
            Background(shards.put, pause_s=0.05),
            kafka_traffic(partitions.feed, partitions.topic, meanwhile=partitions.expand),
        ):
            # The driver ends with the first query that runs out of space.
            for _ in range(3):
                (failure,) = run("as fast as possible")
                assert failure is not None
                assert "No space left on device" in failure
                full = [disk for disk in disks if disk.is_full]
                assert full, failure
                for disk in full:
                    disk.grow(2)
        for disk in disks:
            disk.grow(64)
        assert run("available now") == [None, None]
        shards.check(spark, folder / "output-0")
        partitions.check(spark, folder / "output-1")
