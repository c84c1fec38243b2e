"""Writes the rows of one task as records, on an executor.

At least once: when `write_rows` returns, all in-sync replicas have acknowledged all rows. When it
raises, some rows may be written, and Spark writes the rows of the task again. Exactly once:
`write_in_transaction`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import pyarrow as pa

from spark_ssp.kafka_source.dedup.dedup_headers import (
    Header,
    RowCounter,
    WriteId,
    record_hash,
)
from spark_ssp.kafka_source.sink.columns import Rows, SinkColumns, rows_of
from spark_ssp.kafka_source.sink.markers import Write
from spark_ssp.kafka_source.sink.options import SinkOptions
from spark_ssp.kafka_source.sink.producer import RecordProducer, acquire_producer, release_producer
from spark_ssp.kafka_source.sink.transactions import TransactionalTask

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
    """Write the rows and return their number. `write` is set if the option `includeRepeatHeaders`
    is.

    Memory is bounded by the largest batch and kafka.buffer.memory; with `write`, `RowCounter` adds
    memory for each row. Raises SspError with topic and partition, never with the content of a row.
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
