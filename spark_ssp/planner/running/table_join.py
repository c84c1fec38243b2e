"""Joins rows with a table: Spark's `transformWithState` over the table's changes and the rows.

Every stage that joins with a table keeps its own copy of it, in the state of its query: the latest
row of each key. Spark checkpoints state and offsets together, so a restart restores the table at
the end of the last finished batch. Within a batch all changes are applied first, then rows are
joined: a row sees every change that its batch has read. Changes of one line apply in the order in
which they were read; if several lines fill a table, those of later lines apply later.

Python receives JSON text, written and read by Spark, so types are preserved, and a table may gain
columns while its state stays readable. The rows of one key in one batch are kept in memory until
the batch's changes of the key are known.

A change whose columns except the key's are all null removes the row: a tombstone of a compacted
topic becomes such a change when its null value is parsed. A key that is or contains null never
matches: such changes are dropped, and such rows find no row.

Spark identifies states by their position in a query, so the table's name is stored with each row:
a batch that would read the state of another table fails.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.common.spark.pyspark_api import transform_with_state
from spark_ssp.planner.graph.operators import JoinHow, TableName
from spark_ssp.planner.running.row_serde import column, columns_of, key_text, value_of

_OUTPUT: Final = {"line": "string", "held": "string"}


def join_table(
    line: DataFrame,
    changes: DataFrame,
    *,
    table: TableName,
    key: Sequence[str],
    on: Sequence[str],
    how: JoinHow,
) -> DataFrame:
    """Return each row of `line` with the other columns of its key's row in `table`.

    `changes` has the table's columns, including `key`; `on` are the columns of `line` that contain
    the key, in the same order. No other column may be in both. A watermark must be declared on the
    result, since this operator does not preserve one. Raises UnsupportedError over Spark Connect
    before PySpark 4.1.
    """
    others = [name for name in changes.columns if name not in key]
    both = _changes(changes, key, others).unionByName(_rows(line, on))
    processor = LatestRow(table=table, outer=how == "left")
    joined = transform_with_state(both.groupBy("key"), processor, _OUTPUT)
    row = columns_of(F.col("line"), line.schema).alias("line")
    held = columns_of(F.col("held"), changes.select(*map(column, others)).schema).alias("held")
    parts = [row, held] if others else [row]
    named = [F.col("line").getField(name).alias(name) for name in line.columns]
    named += [F.col("held").getField(name).alias(name) for name in others]
    return joined.select(*parts).select(*named)


def _changes(changes: DataFrame, key: Sequence[str], others: Sequence[str]) -> DataFrame:
    rest = changes.select(*map(column, others)).schema
    value = value_of(rest) if others else F.lit("{}")
    if others:
        gone = reduce(Column.__and__, (column(name).isNull() for name in others))
        value = F.when(~gone, value)
    whole = reduce(Column.__and__, (column(name).isNotNull() for name in key))
    found = changes.where(whole).select(
        key_text(changes.schema, key).alias("key"), value.alias("value")
    )
    # A shuffle does not preserve order, and Spark's row numbers do not support streams.
    counted = found.mapInArrow(numbered, "key string, value string, number bigint")
    return counted.select("key", F.lit(True).alias("changes"), "number", "value")


def _rows(line: DataFrame, on: Sequence[str]) -> DataFrame:
    return line.select(
        key_text(line.schema, on).alias("key"),
        F.lit(False).alias("changes"),
        F.lit(0).cast("bigint").alias("number"),
        value_of(line.schema).alias("value"),
    )


def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Append a column `number` that increases along the rows of a task, in reading order, and from
    task to task. Called by Spark in each task."""
    context = TaskContext.get()
    first = (context.partitionId() if context else 0) << 40
    for batch in batches:
        # From a buffer: to infer the type of a list, pyarrow would import pandas.
        count = array("q", range(first, first + batch.num_rows))
        numbers = pa.Array.from_buffers(pa.int64(), len(count), [None, pa.py_buffer(count)])
        first += batch.num_rows
        names = [*batch.schema.names, "number"]
        yield pa.RecordBatch.from_arrays([*batch.columns, numbers], names=names)


class LatestRow(StatefulProcessor):
    """Keeps the table's row of each key as JSON text, and joins rows with it."""

    def __init__(self, *, table: str, outer: bool) -> None:
        """Create it; if `outer`, rows without a match are emitted too."""
        self._table = table
        self._outer = outer
        self._held: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state. Called by Spark."""
        self._held = handle.getValueState("row", "value string, owner string")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,
    ) -> Iterator[Row]:
        """Apply the changes and join the rows of one key in a batch, in any order. Called by
        Spark."""
        latest: Row | None = None
        waiting: list[str] = []
        for row in rows:
            if not row.changes:
                waiting.append(row.value)
            elif latest is None or row.number > latest.number:
                latest = row
        if latest is not None:
            self._take(latest.value)
        if waiting:
            held = self._value()
            if held is not None or self._outer:
                for line in waiting:
                    yield Row(line=line, held=held)

    def _value(self) -> str | None:
        if not self._held.exists():
            return None
        value, owner = self._held.get()
        if owner != self._table:
            raise IncompatibleStateError(
                f"state of table {self._table}",
                found=f"rows of table {owner}",
                expected="a query that joins with the same tables in the same order as when its "
                "checkpoint was created",
                next_step="join with the tables as before, or start the pipeline under a new "
                "checkpoint root and with other intermediate streams",
            )
        return str(value)

    def _take(self, value: str | None) -> None:
        if value is None:
            self._held.clear()
        else:
            self._held.update((value, self._table))

    def close(self) -> None:
        """Do nothing: there is nothing to release. Called by Spark."""
