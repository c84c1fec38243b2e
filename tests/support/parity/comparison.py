"""Compares a query read by Spark's own Kafka source and by this one.

Rows are compared partition by partition in the order in which they came, all columns, together with
the schema: so the same rows, in the same order within each partition, each once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

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
