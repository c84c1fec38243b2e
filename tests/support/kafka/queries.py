"""Queries that read Kafka: a sink that keeps rows with their tasks, and the verdict."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from tests.support.kafka.topics import Put
from tests.support.spark.queries import KeptBatches, await_end, start_patiently


class KafkaRow(NamedTuple):
    """One row, of a query with `includeTask`."""

    task: str
    ssp: int
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class BlockExpansion:
    """A class for `partitionExpansionAlgorithm`: the example of docs/guide/fixed-tasks.md."""

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        if current < initial_count:
            return current
        return (current - initial_count) // (current_count // initial_count - 1)


class KafkaSink(KeptBatches[KafkaRow]):
    """As `queries.Sink`: a batch that was there before is a replay, which must have the same
    rows."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = _rows_of(frame)
        before = self.batches.setdefault(batch, rows)
        assert sorted(before, key=_place) == sorted(rows, key=_place), f"batch {batch} differs"
        if self.meanwhile is not None:
            self.meanwhile(batch)


def run_into_files(frame: DataFrame, folder: Path, number: int = 0) -> None:
    """Read all there is into the file sink that the query `number` of a `drivers.Driver` with this
    folder has, from its checkpoint. A PySpark that does not pass limits runs one batch: the query
    is started until a run has none."""
    writer = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / f"checkpoint-{number}"))
        .option("path", str(folder / f"output-{number}"))
        .trigger(availableNow=True)
    )
    while True:
        query = await_end(start_patiently(writer.start))
        if PASSES_LIMITS or not any(
            "addBatch" in one["durationMs"] for one in query.recentProgress
        ):
            break


def kafka_rows_in(spark: SparkSession, output: Path) -> tuple[KafkaRow, ...]:
    """Read the contents of a file sink, by its own log of the batches."""
    return _rows_of(spark.read.parquet(str(output)))


def _rows_of(frame: DataFrame) -> tuple[KafkaRow, ...]:
    return tuple(
        KafkaRow(*row[:5], *(None if one is None else bytes(one) for one in row[5:]))
        for row in frame.select(*KafkaRow._fields).collect()
    )


def _place(row: KafkaRow) -> tuple[str, int, int]:
    return row.topic, row.partition, row.offset


def check_read_once(rows: Iterable[KafkaRow], put: Iterable[Put]) -> None:
    """Each record once, none else."""
    wanted = Counter(
        (one.topic, one.partition, one.offset, one.record.key, one.record.value) for one in put
    )
    found = Counter((row.topic, row.partition, row.offset, row.key, row.value) for row in rows)
    assert found - wanted == Counter(), "rows that were not to come, or twice"
    assert wanted - found == Counter(), "records that did not come"


def tasks_of(rows: Iterable[KafkaRow]) -> dict[tuple[str, bytes | None], set[str]]:
    """By topic and key."""
    tasks: dict[tuple[str, bytes | None], set[str]] = defaultdict(set)
    for row in rows:
        tasks[row.topic, row.key].add(row.task)
    return dict(tasks)


def check_tasks(rows: Iterable[KafkaRow]) -> None:
    """Each key in one task."""
    for key, own in tasks_of(rows).items():
        assert len(own) == 1, f"{key} is in {sorted(own)}"


def check_keys(rows: Iterable[KafkaRow]) -> None:
    """Each key in one task, and its values, which are numbers, in order."""
    rows = list(rows)
    check_tasks(rows)
    numbers: dict[tuple[str, bytes | None], list[int]] = defaultdict(list)
    for row in rows:
        assert row.value is not None
        numbers[row.topic, row.key].append(int(row.value))
    for key, found in numbers.items():
        assert found == sorted(found), f"{key} is out of order"
