"""The sink that Spark drives: `write` and `writeStream` of the format `kafka-ssp`.

Spark creates a writer on the driver for each batch, pickles it for the executors, which call
`write`, and creates another one to call `commit` or `abort`. Nothing is committed: the records of a
task are visible at once, and after a failure Spark writes the batch again (at least once).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kafka_source.dedup.dedup_headers import WriteId
from kafka_source.sink.columns import SinkColumns
from kafka_source.sink.producer import acquire_producer, release_producer
from kafka_source.sink.schema import resolve_columns
from kafka_source.sink.values import SinkOptions
from kafka_source.sink.writer import write_rows
from ssp_common.errors import UnsupportedError
from ssp_common.logs import show_logs
from ssp_common.spark.pyspark_api import RecordBatchStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class WriteResult(WriterCommitMessage):
    """The result of one task."""

    rows: int


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query."""

    def __init__(self, raw_options: Mapping[str, str], schema: StructType) -> None:
        """Raises InvalidOptionsError or InvalidRowsError, before there is any data."""
        self._options, self._columns = _prepare(raw_options, schema)
        self._source, self._batch = self._options.batch_write or (str(uuid.uuid4()), 0)
        self._attempt_ms = _now_ms()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Raises SspError if one of them cannot be written."""
        show_logs()
        write = None
        if self._options.include_repeat_headers:
            task = _task().partitionId()
            write = WriteId(
                source=self._source, batch=self._batch, attempt_ms=self._attempt_ms, task=task
            )
        return WriteResult(write_rows(iterator, self._columns, self._options, write))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: all records are written already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: records cannot be removed."""


class KafkaStreamWriter(RecordBatchStreamWriter):
    """Writes the rows of one batch of a streaming query."""

    def __init__(self, raw_options: Mapping[str, str], schema: StructType) -> None:
        """Raises InvalidOptionsError or InvalidRowsError, before there is any data."""
        self._options, self._columns = _prepare(raw_options, schema)
        super().__init__(schema, self._columns.indices())
        if self._options.batch_write is not None:
            from kafka_source.sink.parse import batch_write_id_in_stream_error

            raise batch_write_id_in_stream_error()
        self._attempt_ms = _now_ms()

    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Raises SspError if one of them cannot be written."""
        show_logs()
        write = self._write_id() if self._options.include_repeat_headers else None
        return WriteResult(write_rows(batches, self._columns, self._options, write))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: all records are written already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: records cannot be removed; Spark reports the error of the batch."""

    def _write_id(self) -> WriteId:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise UnsupportedError(
                "includeRepeatHeaders",
                found=f"a task without the properties {_QUERY} and {_BATCH}",
                expected="a task of a streaming query, with the id of the query and of the batch",
                next_step="leave the option out",
            )
        return WriteId(
            source=query, batch=int(batch), attempt_ms=self._attempt_ms, task=task.partitionId()
        )


def _prepare(raw_options: Mapping[str, str], schema: StructType) -> tuple[SinkOptions, SinkColumns]:
    from kafka_source.sink.parse import parse_sink_options  # not loaded by executors

    show_logs()
    options = parse_sink_options(raw_options)
    columns = resolve_columns(schema, topic_given=options.topic is not None)
    # Creating a producer, which connects later, validates the properties.
    release_producer(options.client, acquire_producer(options.client))
    return options, columns


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows are written only in a task of Spark")
    return task
