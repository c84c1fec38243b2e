"""One streaming query run by Spark's own Kafka source and by ours, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp.kafka_source.model.topic import kafka_name
from spark_ssp.kafka_source.planning.spark_checkpoint import decode_any
from tests.support.parity.comparison import (
    OURS,
    SPARKS,
    PartitionName,
    RowValues,
    by_partition,
    row_difference,
)
from tests.support.spark.queries import (
    await_end,
    failure_of,
    planned_offsets,
    running,
    start,
    wait_for_rows,
)

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
