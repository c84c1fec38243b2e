"""`kill -9` for the driver and its JVM, again and again, while records and reshards go on; once for
the broker too."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka.feed import KafkaFeed, kafka_traffic, query_options
from tests.support.kafka.queries import check_read_once, check_tasks, kafka_rows_in, run_into_files
from tests.support.kafka.topics import KafkaTopics
from tests.support.kinesis.feeds import Feed
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.simulation.effort import AMOUNT
from tests.support.spark.drivers import Driver, files_per_batch, records_in
from tests.support.spark.queries import load, wait_until
from tests.support.waiting import Background

SLOTS = 2
MOST_PARTITIONS = 16


def _batches(folder: Path, query: int) -> int:
    """How many batches of a query of a driver were planned. Spark keeps the last hundred."""
    planned = (folder / f"checkpoint-{query}" / "offsets").glob("*")
    return max((int(path.name) + 1 for path in planned if path.name.isdigit()), default=0)


class Shards:
    """Puts records, and splits or merges now and then: whenever `batches`, which counts those of a
    query, has gone up by three, so that it can follow."""

    def __init__(
        self, feed: Feed, stream: str, chance: random.Random, batches: Callable[[], int]
    ) -> None:
        self._feed = feed
        self._stream = stream
        self._chance = chance
        self._batches = batches
        self._due = 1
        self.reshards = 0

    def put(self) -> None:
        self._feed.put(self._stream, 5)
        if self._batches() >= self._due:
            self._reshard()
            self._due = self._batches() + 3

    def _reshard(self) -> None:
        self.reshards += 1
        if len(self._feed.open_shards(self._stream)) < self._chance.randint(2, 4):
            self._feed.split_first(self._stream)
        else:
            self._feed.merge_first(self._stream)

    def check(self, spark: SparkSession, output: Path) -> None:
        """That each record is there once, in files of no more tasks than slots."""
        assert self.reshards > 0
        found, wanted = Counter(records_in(spark, output)), Counter(self._feed.records)
        assert found - wanted == Counter(), "records that came twice"
        assert wanted - found == Counter(), "records that did not come"
        assert max(files_per_batch(output).values()) <= SLOTS


class Partitions:
    """A topic with records, which expands whenever `batches` has gone up by four."""

    def __init__(
        self, broker: KafkaBroker, topics: KafkaTopics, batches: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._broker_is_there = threading.Lock()
        self._topics = topics
        self._batches = batches
        self._partitions = 2
        self._due = 1
        self.topic = topics.create(self._partitions)
        self.feed = KafkaFeed(topics)
        self.feed.put(self.topic, 48)

    def expand(self) -> None:
        if self._batches() >= self._due and self._partitions < MOST_PARTITIONS:
            self._partitions *= 2
            with self._broker_is_there:
                self._topics.expand(self.topic, self._partitions)
            self._due = self._batches() + 4

    def restart_broker(self) -> None:
        """Kill it, and start it again over its files. Whoever puts records waits for it."""
        with self._broker_is_there:
            self._broker.kill()
            self._broker.start_again()

    def check(self, spark: SparkSession, output: Path) -> None:
        """That each record is there once, and each key in one of the two tasks that there were."""
        assert self._partitions > 2
        rows = kafka_rows_in(spark, output)
        check_read_once(rows, self.feed.records)
        check_tasks(rows)
        assert {row.task for row in rows} == {"Partition 0", "Partition 1"}
        assert {row.partition for row in rows} > {0, 1}
        assert max(files_per_batch(output).values()) <= 2


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
            enough = _batches(folder, query) + chance.randint(1, 5)
            wait_until(
                lambda: _batches(folder, query) >= enough or not driver.alive,  # noqa: B023
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
    shards = Shards(feed, "orders", chance, lambda: _batches(folder, 0))
    partitions = Partitions(broker, topics, lambda: _batches(folder, 1))
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
            meanwhile = partitions.restart_broker if at_half else None
            _run_and_kill(driver, folder, 2, chance, meanwhile=meanwhile)
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
    shards = Shards(feed, "orders", chance, lambda: _batches(folder, 0))
    driver = Driver(folder, [query], trigger="as fast as possible")
    with Background(shards.put, pause_s=0.05):
        for _ in range(max(1, AMOUNT.kills // 10)):
            _run_and_kill(driver, folder, 1, chance)
    run_into_files(load(spark, query), folder)
    shards.check(spark, folder / "output-0")
