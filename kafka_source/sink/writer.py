"""Writes the rows of one task as records, on an executor.

At least once: when `write_rows` returns, all in-sync replicas have acknowledged all rows. When it
raises, some rows may be written, and Spark writes the rows of the task again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from spark_ssp.kafka_source.dedup.dedup_headers import RowCounter, WriteId, record_hash
from spark_ssp.kafka_source.sink.columns import Row, SinkColumns, iter_rows
from spark_ssp.kafka_source.sink.producer import RecordProducer, acquire_producer, release_producer
from spark_ssp.kafka_source.sink.values import SinkOptions

_ROWS_PER_POLL: Final = 1_000
"""Rows between two polls for delivery errors."""


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
        rows = 0
        counter = _DedupHeaderWriter(producer, write) if write is not None else None
        for batch in batches:
            rows += _send(producer, batch, columns, options.topic, counter)
        producer.flush()
    except BaseException:
        producer.purge()
        raise
    release_producer(options.client, producer)
    return rows


def _send(
    producer: RecordProducer,
    batch: pa.RecordBatch,
    columns: SinkColumns,
    topic: str | None,
    header_writer: _DedupHeaderWriter | None,
) -> int:
    checked: set[str] = set()
    send = producer.send
    for number, row in enumerate(iter_rows(batch, columns, topic)):
        to, key, value, partition, headers = row
        if to not in checked:
            producer.check_topic(to)
            checked.add(to)
        if header_writer is not None:
            to, key, value, partition, headers = header_writer.add_headers(row)
        send(to, key, value, partition, headers)
        if number % _ROWS_PER_POLL == 0:
            producer.poll()
    rows: int = batch.num_rows
    return rows


class _DedupHeaderWriter:
    """Adds the two headers to rows, and a partition to rows with neither a key nor a partition. The
    partition is the same in every attempt while the topic has the same number of partitions."""

    def __init__(self, producer: RecordProducer, write: WriteId) -> None:
        self._producer = producer
        self._counter = RowCounter(write)
        self._counts: dict[str, int] = {}

    def add_headers(self, row: Row) -> Row:
        topic, key, value, partition, headers = row
        digest = record_hash(topic, key, value, partition, headers)
        more, spread = self._counter.headers(topic, digest)
        if key is None and partition is None:
            partition = spread % self._count(topic)
        return topic, key, value, partition, [*headers, *more]

    def _count(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._producer.partition_count(topic)
        return count
