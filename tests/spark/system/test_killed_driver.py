"""`kill -9` for the driver and its JVM, again and again, while records and reshards go on; once for
the broker too."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka.feed import kafka_traffic, query_options
from tests.support.kafka.queries import run_into_files
from tests.support.kafka.topics import KafkaTopics
from tests.support.kinesis.feeds import Feed
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.simulation.effort import AMOUNT
from tests.support.spark.drivers import Driver
from tests.support.spark.queries import load, wait_until
from tests.support.spark.traffic import SLOTS, Partitions, Shards, planned_batches
from tests.support.waiting import Background


def _run_and_kill(
    driver: Driver,
    folder: Path,
    queries: int,
    chance: random.Random,
    *,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Let it plan some batches more of each query, and kill it. `meanwhile` is called between."""

    def plan_more() -> None:
        for query in range(queries):
            enough = planned_batches(folder, query) + chance.randint(1, 5)
            wait_until(
                lambda: planned_batches(folder, query) >= enough or not driver.alive,  # noqa: B023
                f"the plan of batch {enough} of query {query}",
            )

    with driver:
        plan_more()
        if meanwhile is not None:
            meanwhile()
            plan_more()
        # Somewhere between these plans and the next ones.
        threading.Event().wait(chance.uniform(0, 1.5))
        assert driver.alive, f"{driver.output[-2000:]}\n{driver.log[-4000:]}"
        assert "java" in driver.kill()


@pytest.fixture
def brokers() -> Iterator[tuple[KafkaBroker, KafkaTopics]]:
    """A broker of one's own, and topics there."""
    with (
        KafkaBroker() as broker,
        KafkaTopics({"bootstrap.servers": broker.bootstrap_servers}) as topics,
    ):
        yield broker, topics


@pytest.mark.long
@pytest.mark.core("killed driver")
@pytest.mark.timeout(600 + 120 * AMOUNT.kills)
def test_queries_of_both_formats_killed_at_random_moments(
    spark: SparkSession,
    feed: Feed,
    options: dict[str, str],
    brokers: tuple[KafkaBroker, KafkaTopics],
    tmp_path: Path,
) -> None:
    """Once, Kafka's broker is killed under them as well."""
    broker, topics = brokers
    chance = random.Random(AMOUNT.kills)
    feed.create("orders", shards=2)
    feed.put("orders", 50)
    folder = tmp_path / "driver"
    shards = Shards(feed, "orders", chance, lambda: planned_batches(folder, 0))
    partitions = Partitions(topics, lambda: planned_batches(folder, 1))
    of_kinesis = options | {"slots": str(SLOTS)}
    of_kafka = query_options(broker.options, partitions.topic)
    driver = Driver(
        folder,
        [of_kinesis, of_kafka],
        sources=["kinesis-ssp", "kafka-ssp"],
        trigger="as fast as possible",
    )
    with (
        Background(shards.put, pause_s=0.05),
        kafka_traffic(partitions.feed, partitions.topic, meanwhile=partitions.expand),
    ):
        for number in range(AMOUNT.kills):
            at_half = number == AMOUNT.kills // 2
            _run_and_kill(
                driver,
                folder,
                2,
                chance,
                meanwhile=(lambda: partitions.restart(broker)) if at_half else None,
            )
    run_into_files(load(spark, of_kinesis), folder, 0)
    run_into_files(spark.readStream.format("kafka-ssp").options(**of_kafka).load(), folder, 1)
    shards.check(spark, folder / "output-0")
    partitions.check(spark, folder / "output-1")


@pytest.mark.timeout(600 + 120 * AMOUNT.kills)
@pytest.mark.long
@pytest.mark.parametrize("feed", ["kinesis_mock"], indirect=True)
def test_a_query_of_another_kinesis_killed_at_random_moments(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    chance = random.Random(AMOUNT.kills)
    feed.create("orders", shards=2)
    feed.put("orders", 50)
    query = options | {"slots": str(SLOTS)}
    folder = tmp_path / "driver"
    shards = Shards(feed, "orders", chance, lambda: planned_batches(folder, 0))
    driver = Driver(folder, [query], trigger="as fast as possible")
    with Background(shards.put, pause_s=0.05):
        for _ in range(max(1, AMOUNT.kills // 10)):
            _run_and_kill(driver, folder, 1, chance)
    run_into_files(load(spark, query), folder)
    shards.check(spark, folder / "output-0")
