"""A topic's partitions multiply under a running query: `python -m examples.kafka_expansion`.

The departures of New York's airports in January 2013 go into a topic of two partitions, by tail
number. A query keeps the running count of each plane's departures, by task: the kind of state that
goes wrong when a key moves to another task. The topic is expanded to four partitions while
the query runs, and to eight while it is stopped. The table shows the tasks that read each
partition. In the end every plane must have been in exactly one task, its departures in order, and
its count right.

Needed: pip install '.[demo]' in a checkout. Kafka itself is fetched the first time, 43 MB.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from examples.flights.data import departures, partition_keys
from spark_ssp import LocalKafka

TOPIC: Final = "departures"
DEPARTURES: Final = 27_004
"""All of January."""
PATIENCE_SECONDS: Final = 180.0

Departure = tuple[str, int]
"""A plane's tail number, and the place of its departure in the year."""


@dataclass(slots=True)
class Seen:
    """The rows and counts of the query, batch by batch."""

    tasks: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By plane, the tasks that read its departures."""
    partitions: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    """By task and partition, the number of departures."""
    read: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By plane, its departures in the order in which they were read."""
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """By task and plane, the query's running count."""

    @property
    def total(self) -> int:
        return sum(self.partitions.values())


class Stage:
    """Spark, Kafka and the folder of the example."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, folder: Path) -> None:
        self._spark = spark
        self._kafka = kafka
        self._folder = folder
        self._console = Console(width=100)
        self.seen = Seen()

    def produce(self, part: list[Departure]) -> None:
        """Put departures by a new producer, which fetches the number of partitions again."""
        producer = Producer(
            {
                "bootstrap.servers": self._kafka.bootstrap_servers,
                "enable.idempotence": True,
                # As Java's producer, and this project's sink, map a key to a partition.
                "partitioner": "murmur2_random",
            }
        )
        for plane, index in part:
            producer.produce(TOPIC, key=plane, value=str(index))
            producer.poll(0)
        producer.flush()

    def start(self) -> list[StreamingQuery]:
        """Two queries on checkpoints that stay: one looks at order, one keeps counts by task."""
        return [
            self._rows().writeStream.foreachBatch(self._look)
            .option("checkpointLocation", str(self._folder / "rows"))
            .start(),
            self._rows().groupBy("task", "plane").count()
            .writeStream.outputMode("update").foreachBatch(self._count)
            .option("checkpointLocation", str(self._folder / "counts"))
            .start(),
        ]  # fmt: skip

    def _rows(self) -> DataFrame:
        return (
            self._spark.readStream.format("kafka-ssp")
            .options(**self._kafka.options)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("includeTask", "true")
            .option("partitionDiscoveryInterval", "1s")
            .load()
            .select(
                "task",
                "partition",
                F.col("key").cast("string").alias("plane"),
                F.col("value").cast("string").cast("long").alias("departure"),
            )
        )

    def _look(self, frame: DataFrame, batch: int) -> None:
        for row in frame.collect():
            self.seen.tasks[row["plane"]].add(row["task"])
            self.seen.partitions[row["task"], row["partition"]] += 1
            self.seen.read[row["plane"]].append(row["departure"])

    def _count(self, frame: DataFrame, batch: int) -> None:
        for row in frame.collect():
            self.seen.counts[row["task"], row["plane"]] = row["count"]

    def read_all(self, queries: list[StreamingQuery], total: int) -> None:
        """Wait until both queries have come so far."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.seen.total < total or sum(self.seen.counts.values()) < total:
            for query in queries:
                error = query.exception()
                if error is not None:
                    raise error
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.seen.total:,} of {total:,} departures were read")
            time.sleep(0.2)

    def show(self, what: str) -> None:
        """Show the partitions that each task has read."""
        table = Table(title=what, title_justify="left")
        for name in ("task", "partition", "departures", "planes of the task"):
            table.add_column(name, justify="left" if name == "task" else "right")
        before = None
        for (task, partition), number in sorted(self.seen.partitions.items()):
            planes = sum(task in tasks for tasks in self.seen.tasks.values())
            first = task != before
            table.add_row(
                task if first else "", str(partition), f"{number:,}", f"{planes:,}" if first else ""
            )
            before = task
        self._console.print(table)


def verdict(seen: Seen, put: list[Departure]) -> list[str]:
    """Return the broken promises, as sentences."""
    expected: dict[str, list[int]] = defaultdict(list)
    for plane, index in put:
        expected[plane].append(index)
    moved = [plane for plane, tasks in seen.tasks.items() if len(tasks) > 1]
    disordered = [plane for plane, read in seen.read.items() if read != expected[plane]]
    wrong = {
        plane: number
        for (_, plane), number in seen.counts.items()
        if number != len(expected[plane])
    }
    tasks = {task for task, _ in seen.partitions}
    found = []
    if len(tasks) != 2:
        found.append(f"{len(tasks)} tasks instead of 2: {sorted(tasks)}")
    if moved:
        found.append(f"{len(moved)} planes were read by more than one task")
    if disordered or seen.read.keys() != expected.keys():
        found.append(f"{len(disordered)} planes lack departures, or have them twice or in disorder")
    if wrong or len(seen.counts) != len(expected):
        found.append(f"{len(wrong)} planes were counted wrong")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.kafka_expansion")
    parser.add_argument("--departures", type=int, default=DEPARTURES, help=f"({DEPARTURES:,})")
    table = departures(parser.parse_args().departures)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    put = list(zip(partition_keys(table).to_pylist(), table["index"].to_pylist(), strict=True))
    third = len(put) // 3
    with tempfile.TemporaryDirectory(prefix="kafka-expansion-") as folder, LocalKafka() as kafka:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.python.unix.domain.socket.dir", folder)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        kafka.create_topic(TOPIC, partitions=2)
        stage = Stage(spark, kafka, Path(folder))
        queries = stage.start()
        stage.produce(put[:third])
        stage.read_all(queries, third)
        stage.show("Two partitions")

        kafka.add_partitions(TOPIC, 4)
        stage.produce(put[third : 2 * third])
        stage.read_all(queries, 2 * third)
        stage.show("Four partitions, expanded while the queries ran")

        for query in queries:
            query.stop()
        kafka.add_partitions(TOPIC, 8)
        stage.produce(put[2 * third :])
        queries = stage.start()
        stage.read_all(queries, len(put))
        stage.show("Eight partitions, expanded while the queries were stopped")
        for query in queries:
            query.stop()
        spark.stop()
    problems = verdict(stage.seen, put)
    for problem in problems:
        print(f"WRONG: {problem}")
    if not problems:
        planes = len(stage.seen.tasks)
        print(
            f"{len(put):,} departures of {planes:,} planes: each plane in one task, in order, "
            "counted right; 2 tasks throughout"
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
