"""Compares a query read by Spark's own Kafka source and by this one. Rows are compared partition by
partition in the order in which they came, all columns, together with the schema: so the same rows,
in the same order within each partition, each once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp.kafka_source.model.topic import kafka_name
from spark_ssp.kafka_source.planning.spark_checkpoint import decode_any
from tests.support.spark.queries import (
    await_end,
    failure_of,
    planned_offsets,
    running,
    start,
    wait_for_rows,
)

SPARKS: Final = "kafka"
OURS: Final = "kafka-ssp"

IN_HASTE: Final = {
    "fetchOffset.numRetries": "1",
    "fetchOffset.retryIntervalMs": "10",
    # A task of Spark's waits for so long at the end of a partition.
    "kafka.fetch.max.wait.ms": "10",
}
"""Options that save time and change nothing else."""

RowValues = tuple[Any, ...]
PartitionName = tuple[str, int]
"""Topic and number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The result of a batch query: the schema as JSON, and each partition's rows in their order."""

    schema: str
    rows: Mapping[PartitionName, tuple[RowValues, ...]]

    @property
    def count(self) -> int:
        return sum(map(len, self.rows.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The message of a query that failed, in any step."""

    message: str


def read(spark: SparkSession, source: str, options: Mapping[str, str]) -> Read | Failed:
    """Run a batch query."""
    try:
        frame = spark.read.format(source).options(**options).load()
        return Read(schema=frame.schema.json(), rows=by_partition(frame, frame.collect()))
    except (PySparkException, Py4JError) as error:
        return Failed(message=str(error))


def by_partition(
    frame: DataFrame, rows: Iterable[Row]
) -> dict[PartitionName, tuple[RowValues, ...]]:
    """Return the rows of each partition, in their order, as values that compare equal by
    content."""
    topic, partition = frame.columns.index("topic"), frame.columns.index("partition")
    found: dict[PartitionName, list[RowValues]] = defaultdict(list)
    for row in rows:
        values = tuple(_plain(value) for value in row)
        found[values[topic], values[partition]].append(values)
    return {name: tuple(found[name]) for name in sorted(found)}


def tasks_of(frame: DataFrame) -> list[tuple[PartitionName, int, int]]:
    """Return the partition, the first and the last offset of the rows of each task that has some,
    sorted. Fails if a task has rows of several partitions."""
    task = spark_partition_id().alias("task")
    found: dict[int, list[Row]] = defaultdict(list)
    for row in frame.select(task, "topic", "partition", "offset").collect():
        found[row.task].append(row)
    tasks = []
    for rows in found.values():
        ((topic, partition),) = {(row.topic, row.partition) for row in rows}
        offsets = [row.offset for row in rows]
        tasks.append(((topic, partition), min(offsets), max(offsets)))
    return sorted(tasks)


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list | Row):
        return tuple(_plain(part) for part in value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same query's outcomes."""

    sparks: Read | Failed
    ours: Read | Failed


def read_both(spark: SparkSession, queries: Mapping[str, Mapping[str, str]]) -> dict[str, Pair]:
    """Run every batch query, by its name, with both sources."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        running = {
            name: [pool.submit(read, spark, source, options) for source in (SPARKS, OURS)]
            for name, options in queries.items()
        }
        return {
            name: Pair(sparks=sparks.result(), ours=ours.result())
            for name, (sparks, ours) in running.items()
        }


def difference(pair: Pair) -> str | None:
    """Return how our result differs from that of Spark's source; None if both have read the
    same."""
    sparks, ours = pair.sparks, pair.ours
    if isinstance(sparks, Failed):
        return f"Spark's fails: {sparks.message[:600]}"
    if isinstance(ours, Failed):
        return f"ours fails: {ours.message[:2000]}"
    if sparks.schema != ours.schema:
        return f"Spark's schema is {sparks.schema}, ours {ours.schema}"
    return row_difference(sparks.rows, ours.rows)


def row_difference(
    sparks: Mapping[PartitionName, tuple[RowValues, ...]],
    ours: Mapping[PartitionName, tuple[RowValues, ...]],
) -> str | None:
    """The first of the rows that is another, partition by partition."""
    for name in sorted(sparks.keys() | ours.keys()):
        theirs, own = sparks.get(name, ()), ours.get(name, ())
        for index, (one, other) in enumerate(zip(theirs, own, strict=False)):
            if one != other:
                return f"row {index} of {name}: Spark's is {one}, ours {other}"
        if len(theirs) != len(own):
            return f"{name} has {len(theirs)} rows in Spark's, {len(own)} in ours"
    return None


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
Rows = dict[PartitionName, tuple[RowValues, ...]]


@dataclass(kw_only=True)
class RowSink:
    """Keeps the rows of each batch by partition. A batch that comes again replaces itself."""

    batches: dict[int, Rows] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = by_partition(frame, frame.collect())

    @property
    def count(self) -> int:
        return sum(self.sizes())

    def all_rows(self) -> Rows:
        """Of all batches, one behind the other."""
        found: Rows = {}
        for batch in sorted(self.batches):
            for name, rows in self.batches[batch].items():
                found[name] = found.get(name, ()) + rows
        return found

    def sizes(self) -> list[int]:
        """Return the number of rows of each batch."""
        return [sum(map(len, self.batches[batch].values())) for batch in sorted(self.batches)]


@dataclass(kw_only=True)
class Twin:
    """The query of one source."""

    source: str
    checkpoint: Path
    sink: RowSink = field(default_factory=RowSink)

    def ends(self) -> list[dict[str, int]]:
        """Of each batch planned so far, the end of every partition (`orders-0`)."""
        offsets = [decode_any(document) for document in planned_offsets(self.checkpoint)]
        return [
            {kafka_name(ssp): offset.positions[ssp] for ssp in sorted(offset.positions)}
            for offset in offsets
        ]


class Twins:
    """The query of both sources, each with a checkpoint in `folder`."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
        self._spark = spark
        self._options = dict(options)
        self.sparks = Twin(source=SPARKS, checkpoint=folder / "sparks")
        self.ours = Twin(source=OURS, checkpoint=folder / "ours")

    def run_to_end(self, changed: Mapping[str, str] = _NOTHING) -> None:
        """Both with Trigger.AvailableNow, side by side."""
        queries = [
            start(self._frame(twin, changed), twin.sink, twin.checkpoint, "available now")
            for twin in (self.sparks, self.ours)
        ]
        for query in queries:
            await_end(query)

    @contextmanager
    def running(self) -> Iterator[tuple[StreamingQuery, StreamingQuery]]:
        """Both, Spark's first, until the block ends."""
        with ExitStack() as stack:
            first, second = (
                stack.enter_context(
                    running(self._frame(twin, _NOTHING), twin.sink, twin.checkpoint)
                )
                for twin in (self.sparks, self.ours)
            )
            yield first, second

    def wait_for_rows(self, queries: tuple[StreamingQuery, StreamingQuery], count: int) -> None:
        """Wait until each has this many rows, or more, which the comparison will find."""
        for query, twin in zip(queries, (self.sparks, self.ours), strict=True):
            wait_for_rows(query, twin.sink, count)

    def failures(self, changed: Mapping[str, str] = _NOTHING) -> tuple[str, str]:
        """The messages with which both fail, Spark's first."""
        return self.failure(self.sparks, changed), self.failure(self.ours, changed)

    def failure(self, twin: Twin, changed: Mapping[str, str] = _NOTHING) -> str:
        """The message with which one fails, in `load` or later."""
        try:
            frame = self._frame(twin, changed)
        except PySparkException as error:
            return str(error)
        return failure_of(start(frame, twin.sink, twin.checkpoint, "available now"))

    def run_one(self, twin: Twin, changed: Mapping[str, str] = _NOTHING) -> None:
        """One of the two with Trigger.AvailableNow."""
        frame = self._frame(twin, changed)
        await_end(start(frame, twin.sink, twin.checkpoint, "available now"))

    def check(self) -> None:
        """The same batches: how many, where each ends, and which rows in which order."""
        sparks, ours = self.sparks, self.ours
        assert sparks.ends() == ours.ends()
        assert sparks.sink.sizes() == ours.sink.sizes()
        for batch, rows in sparks.sink.batches.items():
            found = row_difference(rows, ours.sink.batches[batch])
            assert found is None, f"batch {batch}: {found}"

    def check_rows(self) -> None:
        """The same rows in the same order, however they fell into batches."""
        found = row_difference(self.sparks.sink.all_rows(), self.ours.sink.all_rows())
        assert found is None, found

    def _frame(self, twin: Twin, changed: Mapping[str, str]) -> DataFrame:
        options = {**self._options, **changed}
        return self._spark.readStream.format(twin.source).options(**options).load()
