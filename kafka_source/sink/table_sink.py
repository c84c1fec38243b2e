"""The sink that Spark drives: `write` and `writeStream` of the format `kafka-ssp`.

Spark creates a writer on the driver for each batch, pickles it for the executors, which call
`write`, and creates another one to call `commit` or `abort`. Unless the option deliveryGuarantee is
exactly-once, nothing is committed: the records of a task are visible at once, and after a failure
Spark writes the batch again (at least once).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from spark_ssp.common import now_ms
from spark_ssp.common.errors import UnsupportedError
from spark_ssp.common.logs import show_logs
from spark_ssp.common.options.shared import BATCH_WRITE_ID
from spark_ssp.common.spark.batch_plan import (
    TaskWrite,
    micro_batch_of_task,
    require_fixed_division,
    run_of_task,
    task_of_batch_write,
    task_of_query,
)
from spark_ssp.common.spark.pyspark_api import RecordBatchStreamWriter
from spark_ssp.common.spark.schema_check import RecordColumn, find_columns, is_text, of_types
from spark_ssp.kafka_source.dedup.dedup_headers import (
    Header,
    RowCounter,
    WriteId,
    record_hash,
)
from spark_ssp.kafka_source.sink.columns import Rows, SinkColumns, rows_of
from spark_ssp.kafka_source.sink.markers import CompletedBatch, Write
from spark_ssp.kafka_source.sink.options import (
    DELIVERY_GUARANTEE,
    INCLUDE_REPEAT_HEADERS,
    SinkOptions,
)
from spark_ssp.kafka_source.sink.producer import RecordProducer, acquire_producer, release_producer
from spark_ssp.kafka_source.sink.transactions import (
    TransactionalTask,
    check_properties,
    record_completed,
)


@dataclass(frozen=True)
class WriteResult(WriterCommitMessage):
    """The result of one task: its rows, and the sink and batch of its marker, if it has one."""

    rows: int
    sink: str | None = None
    batch: int = 0


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query."""

    def __init__(self, raw_options: Mapping[str, str], schema: StructType) -> None:
        """Raises InvalidOptionsError or InvalidRowsError, before there is any data."""
        self._options, self._columns = _prepare(raw_options, schema)
        self._source, self._batch = self._options.batch_write or (str(uuid.uuid4()), 0)
        self._attempt_ms = now_ms()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Raises SspError if one of them cannot be written, and
        UnsupportedError if a batch that runs again would be taken for another one."""
        task = partial(task_of_batch_write, self._source, self._batch)
        if self._options.is_exactly_once:
            if self._options.batch_write is not None:
                require_fixed_division(DELIVERY_GUARANTEE, by_batch_writes=True)
            elif micro_batch_of_task() is not None:
                raise _unidentified()
        return _write(iterator, self._columns, self._options, task, self._attempt_ms, has_gaps=True)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Record that all tasks have written their records. Raises SspError."""
        _complete(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: records cannot be removed."""


class KafkaStreamWriter(RecordBatchStreamWriter):
    """Writes the rows of one batch of a streaming query."""

    def __init__(self, raw_options: Mapping[str, str], schema: StructType) -> None:
        """Raises InvalidOptionsError or InvalidRowsError, before there is any data."""
        self._options, self._columns = _prepare(raw_options, schema)
        super().__init__(schema, self._columns.indices())
        if self._options.batch_write is not None:
            from spark_ssp.common.options.shared import batch_write_in_stream_error

            raise batch_write_in_stream_error("kafka-ssp")
        self._attempt_ms = now_ms()

    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Raises SspError if one of them cannot be written."""
        needed_by = DELIVERY_GUARANTEE if self._options.is_exactly_once else INCLUDE_REPEAT_HEADERS
        task = partial(task_of_query, needed_by)
        if self._options.is_exactly_once:
            require_fixed_division(DELIVERY_GUARANTEE, by_batch_writes=False)
        return _write(batches, self._columns, self._options, task, self._attempt_ms, has_gaps=False)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Record that all tasks have written their records. Raises SspError."""
        _complete(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: records cannot be removed; Spark reports the error of the batch."""


def _prepare(raw_options: Mapping[str, str], schema: StructType) -> tuple[SinkOptions, SinkColumns]:
    from spark_ssp.kafka_source.sink.parse import parse_sink_options  # not loaded by executors

    show_logs()
    options = parse_sink_options(raw_options)
    columns = resolve_columns(schema, topic_given=options.topic is not None)
    # Creating a producer, which connects later, validates the properties.
    if options.is_exactly_once:
        check_properties(options.client)
    else:
        release_producer(options.client, acquire_producer(options.client))
    return options, columns


def _unidentified() -> UnsupportedError:
    return UnsupportedError(
        DELIVERY_GUARANTEE,
        found=f"a write in foreachBatch without {BATCH_WRITE_ID}: a batch that runs again would be "
        "written twice",
        expected=f"{BATCH_WRITE_ID}, by which a batch that runs again is recognized",
        next_step=f'in the function, add .option("{BATCH_WRITE_ID}", f"{{query_id}}:{{batch}}"), '
        "with an id that only this streaming query has, and the number of the batch",
    )


def _write(
    batches: Iterator[pa.RecordBatch],
    columns: SinkColumns,
    options: SinkOptions,
    task_of: Callable[[], TaskWrite],
    attempt_ms: int,
    *,
    has_gaps: bool,
) -> WriteResult:
    show_logs()
    if options.is_exactly_once:
        current = task_of()
        name = options.transaction_name or current.source
        if has_gaps and options.batch_write is None and options.transaction_name is not None:
            name = f"{name}/{current.source}"  # Another write of this name is no repeat of this.
        write_once = Write(
            sink=f"{name}/{marker_topic(options)}",
            task=current.task,
            batch=current.batch,
            first=options.exactly_once_from,
            has_gaps=has_gaps,
        )
        rows = write_in_transaction(batches, columns, options, write_once, run_of_task())
        return WriteResult(rows, sink=write_once.sink, batch=write_once.batch)
    write = None
    if options.include_repeat_headers:
        task = task_of()
        write = WriteId(source=task.source, batch=task.batch, attempt_ms=attempt_ms, task=task.task)
    return WriteResult(write_rows(batches, columns, options, write))


def _complete(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    results = [one for one in messages if isinstance(one, WriteResult) and one.sink is not None]
    if not results:
        return
    (sink, batch) = {(one.sink, one.batch) for one in results}.pop()
    assert sink is not None
    record_completed(
        options.client,
        sink,
        marker_topic(options),
        CompletedBatch(batch=batch, tasks=len(results)),
    )


# --- Columns --------------------------------------------------------------------------------------

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def resolve_columns(schema: StructType, *, topic_given: bool) -> SinkColumns:
    """Return the columns of the parts of a record. `topic_given`: the option `topic` is set, so a
    column `topic` is ignored. The rules are those of Spark's Kafka sink
    (`KafkaWriter.validateQuery`). Raises InvalidRowsError with all problems."""
    columns = _COLUMNS if topic_given else (_TOPIC, *_COLUMNS)
    places = find_columns(schema, columns)
    return SinkColumns(
        value=places["value"],
        key=places.get("key"),
        headers=places.get("headers"),
        partition=places.get("partition"),
        topic=places.get("topic"),
    )


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    found = [(field.name.lower(), type(field.dataType)) for field in kind.elementType.fields]
    return found == [("key", StringType), ("value", BinaryType)]


def _cast_to(type_text: str, name: str) -> str:
    return f"CAST it: CAST({name} AS {type_text.upper()})"


_BYTES: Final = RecordColumn(
    name="key", fits=of_types(StringType, BinaryType), type_text="string or binary"
)

_TOPIC: Final = RecordColumn(
    name="topic",
    fits=is_text,
    type_text="string",
    if_missing=(
        "neither a column topic nor the option topic",
        "one of them",
        'name the topic: .option("topic", ...)',
    ),
)

_COLUMNS: Final = (
    _BYTES,
    replace(
        _BYTES,
        name="value",
        if_missing=(
            "no column value",
            "a column value",
            "select the content of the records AS value",
        ),
    ),
    RecordColumn(
        name="headers",
        fits=_is_headers,
        type_text=HEADERS_TYPE,
        advice=lambda name, _: _cast_to(HEADERS_TYPE, name),
    ),
    RecordColumn(
        name="partition",
        fits=of_types(IntegerType),
        type_text="int",
        advice=lambda name, _: _cast_to("int", name),
    ),
)


# --- The rows of a task ---------------------------------------------------------------------------

_ROWS_PER_POLL: Final = 1_000
"""Rows between two polls for delivery errors."""


def write_in_transaction(
    batches: Iterable[pa.RecordBatch],
    columns: SinkColumns,
    options: SinkOptions,
    write: Write,
    run: str | None,
) -> int:
    """Write the rows in one transaction, unless they are committed already, and return their
    number. `run` is that of the query, None if unknown.

    Raises SspError with topic and partition, never with the content of a row; then no row is
    visible to readers of committed records, unless the outcome of the commit is unknown, which the
    next attempt finds out.
    """
    with TransactionalTask(options.client, write, marker_topic(options), run) as task:
        task.begin()
        for batch in batches:
            rows = rows_of(batch, columns, options.topic)
            task.add(rows)
            if task.writes:
                _send(task.producer, rows, task.producer.send)
        return task.commit()


def marker_topic(options: SinkOptions) -> str:
    """Return the topic that the markers of exactly-once delivery name."""
    found = options.topic or options.marker_topic
    assert found is not None, "parse_sink_options requires one"
    return found


def write_rows(
    batches: Iterable[pa.RecordBatch],
    columns: SinkColumns,
    options: SinkOptions,
    write: WriteId | None,
) -> int:
    """Write the rows and return their number, once all in-sync replicas have acknowledged them.
    `write` is set if the option `includeRepeatHeaders` is.

    Memory is bounded by the largest batch and kafka.buffer.memory; with `write`, `RowCounter` adds
    memory for each row. Raises SspError with topic and partition, never with the content of a row;
    then some rows may be written, and Spark writes the rows of the task again.
    """
    producer = acquire_producer(options.client)
    try:
        written = 0
        send = producer.send if write is None else _DedupHeaderWriter(producer, write).send
        for batch in batches:
            rows = rows_of(batch, columns, options.topic)
            _send(producer, rows, send)
            written += rows.count
        producer.flush()
    except BaseException:
        producer.purge()
        raise
    release_producer(options.client, producer)
    return written


def _send(producer: RecordProducer, rows: Rows, send: Callable[..., None]) -> None:
    if not rows.count:
        return
    for topic in {rows.topics} if isinstance(rows.topics, str) else sorted(set(rows.topics)):
        producer.check_topic(topic)
    for number, row in enumerate(rows):
        send(*row)
        if number % _ROWS_PER_POLL == 0:
            producer.poll()


class _DedupHeaderWriter:
    """Adds the two headers to rows, and a partition to rows with neither a key nor a partition. The
    partition is the same in every attempt while the topic has the same number of partitions."""

    def __init__(self, producer: RecordProducer, write: WriteId) -> None:
        self._producer = producer
        self._counter = RowCounter(write)
        self._counts: dict[str, int] = {}

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: Sequence[Header],
    ) -> None:
        """Queue one row, as `RecordProducer.send`."""
        digest = record_hash(topic, key, value, partition, headers)
        more, spread = self._counter.headers(topic, digest)
        if key is None and partition is None:
            partition = spread % self._count(topic)
        self._producer.send(topic, key, value, partition, [*headers, *more])

    def _count(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._producer.partition_count(topic)
        return count
