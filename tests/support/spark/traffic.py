"""A stream and a topic with records, which reshard and expand beside the queries of a
`drivers.Driver` that read them into files."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.kafka.feed import KafkaFeed
from tests.support.kafka.queries import check_read_once, check_tasks, kafka_rows_in
from tests.support.kafka.topics import KafkaTopics
from tests.support.kinesis.feeds import Feed
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.drivers import files_per_batch, records_in

SLOTS = 2
MOST_PARTITIONS = 16


def planned_batches(folder: Path, query: int = 0) -> int:
    """Return the number of planned batches of a query of a `drivers.Driver` with this folder."""
    planned = (folder / f"checkpoint-{query}" / "offsets").glob("*")
    return max((int(path.name) + 1 for path in planned if path.name.isdigit()), default=0)


class Shards:
    """Puts records, and splits or merges now and then: whenever `batches`, which counts those of a
    query, has gone up by three, so that it can follow."""

    def __init__(
        self,
        feed: Feed,
        stream: str,
        chance: random.Random,
        batches: Callable[[], int],
        *,
        fewest: int = 1,
    ) -> None:
        """`fewest`: open shards remain."""
        self._feed = feed
        self._stream = stream
        self._chance = chance
        self._batches = batches
        self._due = 1
        self._fewest = fewest
        self.reshards = 0

    def put(self) -> None:
        self._feed.put(self._stream, 5)
        if self._batches() >= self._due:
            self.reshard()
            self._due = self._batches() + 3

    def reshard(self) -> None:
        self.reshards += 1
        if len(self._feed.open_shards(self._stream)) < self._chance.randint(self._fewest + 1, 4):
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

    def __init__(self, topics: KafkaTopics, batches: Callable[[], int]) -> None:
        self.may_expand = threading.Lock()
        """Held while a broker is away, and by an expansion."""
        self._topics = topics
        self._batches = batches
        self._partitions = 2
        self._due = 1
        self.topic = topics.create(self._partitions)
        self.feed = KafkaFeed(topics)
        self.feed.put(self.topic, 48)

    def expand(self) -> None:
        if self._batches() >= self._due and self._partitions < MOST_PARTITIONS:
            if not self.may_expand.acquire(blocking=False):
                return
            try:
                self._topics.expand(self.topic, 2 * self._partitions)
            finally:
                self.may_expand.release()
            self._partitions *= 2
            self._due = self._batches() + 4

    def restart(self, broker: KafkaBroker) -> None:
        """Kill it, and start it again over its files. Whoever puts records waits for it."""
        with self.may_expand:
            broker.kill()
            broker.start_again()

    def check(self, spark: SparkSession, output: Path) -> None:
        """That each record is there once, and each key in one of the two tasks that there were."""
        assert self._partitions > 2
        rows = kafka_rows_in(spark, output)
        check_read_once(rows, self.feed.records)
        check_tasks(rows)
        assert {row.task for row in rows} == {"Partition 0", "Partition 1"}
        assert {row.partition for row in rows} > {0, 1}
        assert max(files_per_batch(output).values()) <= 2
