"""The sink that Spark drives: `write` and `writeStream` of the format `kinesis-ssp`.

Spark creates a writer on the driver for each batch, and pickles it for the executors, which call
`write`. For a streaming query it creates another one to call `commit` or `abort`, which makes no
calls: none may fail a batch whose rows are stored, or delay an error. Nothing is committed: the
records of a task can be read at once, and after a failure Spark writes the batch again (at least
once).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_ssp.common.logs import abbreviate, show_logs
from spark_ssp.common.spark.batch_plan import (
    TaskWrite,
    least_tasks,
    task_of_batch_write,
    task_of_query,
)
from spark_ssp.common.spark.pyspark_api import RecordBatchStreamWriter, is_for_commit
from spark_ssp.common.spark.schema_check import RecordColumn, find_columns, is_text, of_types
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.client.api import KinesisWriter
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.model.deaggregation import WriteId
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.sink.columns import SinkColumns
from spark_ssp.kinesis_source.sink.delivery import DeliveryMetrics
from spark_ssp.kinesis_source.sink.options import SinkOptions, parse_sink_options
from spark_ssp.kinesis_source.sink.pacing import first_share
from spark_ssp.kinesis_source.sink.writer import LEARNED_RATES, TARGETS, RecordWriter, Target

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WriteResult(WriterCommitMessage):
    """The result of one task: the counts of each stream."""

    streams: Mapping[StreamName, DeliveryMetrics]


class KinesisBatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query."""

    def __init__(self, raw_options: Mapping[str, str], schema: StructType) -> None:
        """Raises InvalidOptionsError, InvalidRowsError or, for a stream that an option names, the
        errors of its description, before there is any data."""
        self._options, self._columns = _prepare(raw_options, schema)
        self._target = _given_target(self._options)
        self._source, self._batch = self._options.batch_write or (str(uuid.uuid4()), 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Raises SspError if one of them cannot be written."""
        task = None
        if self._options.include_repeat_keys:
            task = task_of_batch_write(self._source, self._batch)
        return _write(iterator, self._options, self._columns, self._target, task)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the counts: all records are written already."""
        _log_counts(messages, "the batch query")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: records cannot be removed."""


class KinesisStreamWriter(RecordBatchStreamWriter):
    """Writes the rows of one batch of a streaming query."""

    def __init__(self, raw_options: Mapping[str, str], schema: StructType) -> None:
        """Raises the errors of `KinesisBatchWriter`."""
        self._options, self._columns = _prepare(raw_options, schema)
        super().__init__(schema, self._columns.indices())
        if self._options.batch_write is not None:
            from spark_ssp.common.options.shared import batch_write_in_stream_error

            raise batch_write_in_stream_error("kinesis-ssp")
        # Not when it is pickled: PySpark would replace the errors.
        self._target = None if is_for_commit() else _given_target(self._options)

    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Raises SspError if one of them cannot be written."""
        task = task_of_query("includeRepeatKeys") if self._options.include_repeat_keys else None
        return _write(batches, self._options, self._columns, self._target, task)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the counts: all records are written already."""
        _log_counts(messages, f"batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: records cannot be removed; Spark reports the error of the batch."""


def _prepare(raw_options: Mapping[str, str], schema: StructType) -> tuple[SinkOptions, SinkColumns]:
    show_logs()
    options = parse_sink_options(raw_options)
    return options, resolve_columns(schema, stream_given=options.stream is not None)


def _given_target(options: SinkOptions) -> Target | None:
    """Return the stream that an option names, if one does, with its current shards: the tasks need
    not describe it, nor each notice a reshard."""
    if options.stream is None:
        return None
    service = connect(options.connection)
    target = _target(options.stream, options, service, with_current_shards=True)
    if options.is_aggregating:
        target.check_aggregation()
    return target


def _target(
    stream: StreamRef, options: SinkOptions, service: KinesisWriter, *, with_current_shards: bool
) -> Target:
    return TARGETS.get(
        stream,
        options.connection,
        service,
        with_current_shards=with_current_shards,
        needs_shards=options.is_aggregating,
        within=options.delivery_timeout_ms / 1000,
    )


def _write(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    columns: SinkColumns,
    target: Target | None,
    task: TaskWrite | None,
) -> WriteResult:
    show_logs()
    service = connect(options.connection)
    writer = RecordWriter(
        service=service,
        target_of=lambda stream: (
            target or _target(stream, options, service, with_current_shards=options.is_aggregating)
        ),
        columns=columns,
        options=options,
        write_id=None if task is None else partial(_write_id, task),
        learned=LEARNED_RATES,
        share=first_share(least_tasks()),
    )
    return WriteResult(writer.write(batches))


def _write_id(task: TaskWrite, stream: StreamName) -> WriteId:
    return WriteId(source=task.source, stream=stream, batch=task.batch, task=task.task)


def _log_counts(messages: Sequence[WriterCommitMessage | None], batch: str) -> None:
    totals: dict[StreamName, DeliveryMetrics] = {}
    for message in messages:
        if isinstance(message, WriteResult):
            for stream, counts in message.streams.items():
                totals.setdefault(stream, DeliveryMetrics()).add(counts)
    if totals:
        lines = [f"stream {stream}: {total}" for stream, total in sorted(totals.items())]
        _log.info("%s wrote %s", batch, abbreviate(lines))


_COLUMNS: Final = (
    RecordColumn(
        name="data",
        fits=of_types(StringType, BinaryType),
        type_text="string or binary",
        if_missing=(
            "no column data",
            "a column data",
            "select the content of the records AS data",
        ),
    ),
    RecordColumn(
        name="partitionKey",
        fits=is_text,
        type_text="string",
        if_missing=(
            "no column partitionKey",
            "a column partitionKey, whose hash decides the shard of a record",
            "select a key AS partitionKey, for example uuid() to spread records evenly",
        ),
    ),
    RecordColumn(name="explicitHashKey", fits=is_text, type_text="string"),
)

_STREAM: Final = RecordColumn(
    name="stream",
    fits=is_text,
    type_text="string",
    if_missing=(
        "neither a column stream nor the option streamName or streamARN",
        "one of them",
        'name the stream: .option("streamName", ...)',
    ),
)


def resolve_columns(schema: StructType, *, stream_given: bool) -> SinkColumns:
    """Return the columns of the parts of a record. `stream_given`: an option names the stream, so a
    column `stream` is ignored. Raises InvalidRowsError with all problems."""
    places = find_columns(schema, _COLUMNS if stream_given else (_STREAM, *_COLUMNS))
    return SinkColumns(
        data=places["data"],
        partition_key=places["partitionKey"],
        explicit_hash_key=places.get("explicitHashKey"),
        stream=places.get("stream"),
    )
