"""`kill -9` for the driver and its JVM, again and again, while records come and a topic expands."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.drivers import Driver, files_per_batch
from tests.support.effort import AMOUNT
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_feed import KafkaFeed, kafka_traffic, query_options
from tests.support.kafka_queries import check_read_once, check_tasks, kafka_rows_in, run_into_files
from tests.support.kafka_topics import KafkaTopics
from tests.support.queries import wait_until

MOST_PARTITIONS = 16


@pytest.mark.timeout(600 + 120 * AMOUNT.kills)
def test_killed_at_random_moments(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    chance = random.Random(AMOUNT.kills)
    orders = topics.create(2)
    feed = KafkaFeed(topics)
    feed.put(orders, 48)
    query = query_options(kafka_broker.options, orders)
    folder = tmp_path / "driver"
    checkpoint, output = folder / "checkpoint-0", folder / "output-0"
    partitions = 2
    due = 1

    def batches() -> int:
        return len([path for path in (checkpoint / "offsets").glob("*") if path.name.isdigit()])

    def expand() -> None:
        """Now and then, so that the query can follow."""
        nonlocal partitions, due
        if batches() >= due and partitions < MOST_PARTITIONS:
            partitions *= 2
            topics.expand(orders, partitions)
            due = batches() + 4

    with kafka_traffic(feed, orders, meanwhile=expand):
        for _ in range(AMOUNT.kills):
            with Driver(
                folder, [query], source="kafka-ssp", trigger="as fast as possible"
            ) as driver:
                enough = batches() + chance.randint(1, 5)
                wait_until(
                    lambda: batches() >= enough or not driver.alive,  # noqa: B023
                    f"the plan of batch {enough}",
                )
                # Somewhere between this plan and the next ones.
                threading.Event().wait(chance.uniform(0, 1.5))
                assert driver.alive, driver.log[-4000:]
                assert "java" in driver.kill()
        assert partitions > 2
    run_into_files(spark.readStream.format("kafka-ssp").options(**query).load(), folder)
    rows = kafka_rows_in(spark, output)
    check_read_once(rows, feed.records)
    check_tasks(rows)
    assert {row.task for row in rows} == {"Partition 0", "Partition 1"}
    assert {row.partition for row in rows} > {0, 1}
    assert max(files_per_batch(output).values()) <= 2
