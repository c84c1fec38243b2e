"""Writes the rows of one task as records, on an executor.

At least once: when `write_rows` returns, all in-sync replicas have acknowledged all rows. When it
raises, some rows may be written, and Spark writes the rows of the task again. Exactly once:
`write_in_transaction`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import pyarrow as pa

from spark_ssp.common.errors import InvalidRowsError
from spark_ssp.kafka_source.dedup.dedup_headers import (
    DEDUP_HEADERS,
    Header,
    RowCounter,
    WriteId,
    record_hash,
)
from spark_ssp.kafka_source.sink.markers import Write
from spark_ssp.kafka_source.sink.options import SinkOptions
from spark_ssp.kafka_source.sink.producer import RecordProducer, acquire_producer, release_producer
from spark_ssp.kafka_source.sink.transactions import TransactionalTask

_ROWS_PER_POLL: Final = 1_000
"""Rows between two polls for delivery errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkColumns:
    """The index of the column of each part of a record. None: there is no such column; for `topic`,
    the option `topic` is set."""

    value: int
    key: int | None = None
    headers: int | None = None
    partition: int | None = None
    topic: int | None = None

    def indices(self) -> frozenset[int]:
        """Return the indices of the columns that are written."""
        every = (self.value, self.key, self.headers, self.partition, self.topic)
        return frozenset(index for index in every if index is not None)


def write_in_transaction(
    batches: Iterable[pa.RecordBatch], columns: SinkColumns, options: SinkOptions, write: Write
) -> int:
    """Write the rows in one transaction, unless they are committed already, and return their
    number. Raises SspError with topic and partition, never with the content of a row; then no row
    is visible to readers of committed records, unless the outcome of the commit is unknown, which
    the next attempt finds out."""
    with TransactionalTask(options.client, write, marker_topic(options)) as task:
        task.begin()
        for batch in batches:
            _send(task.producer, batch, columns, options.topic, task.send)
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
        rows = 0
        send = producer.send if write is None else _DedupHeaderWriter(producer, write).send
        for batch in batches:
            rows += _send(producer, batch, columns, options.topic, send)
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
    send: Callable[[str, bytes | None, bytes | None, int | None, Sequence[Header]], None],
) -> int:
    checked: set[str] = set()
    for number, (to, key, value, partition, headers) in enumerate(iter_rows(batch, columns, topic)):
        if to not in checked:
            producer.check_topic(to)
            checked.add(to)
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


# --- Rows of Arrow batches ------------------------------------------------------------------------

NO_HEADERS: Final[tuple[Header, ...]] = ()

Row = tuple[str, bytes | None, bytes | None, int | None, Sequence[Header]]
"""Topic, key, value, partition (None: by the key), headers."""


def iter_rows(batch: pa.RecordBatch, columns: SinkColumns, topic: str | None) -> Iterator[Row]:
    """Return the rows of a batch, whose columns are as Spark passes them to a writer: by position,
    `key` and `value` as text or as bytes. `topic` takes precedence over the column. The headers of
    `dedup_headers` are removed: they identify the record that was read, not the one to be written.

    Raises InvalidRowsError if a row cannot be a record.
    """
    return zip(
        _topics(batch, columns, topic),
        _bytes(batch, columns.key),
        _bytes(batch, columns.value),
        _partitions(batch, columns.partition),
        _headers(batch, columns.headers),
        strict=False,
    )


def _topics(batch: pa.RecordBatch, columns: SinkColumns, topic: str | None) -> Sequence[str]:
    if topic is not None:
        return [topic] * batch.num_rows
    column = batch.column(columns.topic)
    if column.null_count:
        raise InvalidRowsError(
            "column topic",
            found=f"null in {column.null_count} of {len(column)} rows",
            expected="the name of a topic in every row",
            next_step="fill it, filter such rows out, or set the option topic for all rows",
        )
    found: list[str] = column.to_pylist()
    return found


def _bytes(batch: pa.RecordBatch, place: int | None) -> Sequence[bytes | None] | repeat[None]:
    if place is None:
        return repeat(None)
    column = batch.column(place)
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _partitions(batch: pa.RecordBatch, place: int | None) -> Sequence[int | None] | repeat[None]:
    if place is None:
        return repeat(None)
    found: list[int | None] = batch.column(place).to_pylist()
    # To librdkafka, -1 means any partition.
    wrong = next((one for one in found if one is not None and one < 0), None)
    if wrong is not None:
        raise InvalidRowsError(
            "column partition",
            found=str(wrong),
            expected="the number of a partition, or null to choose it by the key",
            next_step="correct the column, or leave it out",
        )
    return found


def _headers(
    batch: pa.RecordBatch, place: int | None
) -> Sequence[Sequence[Header]] | repeat[tuple[Header, ...]]:
    if place is None:
        return repeat(NO_HEADERS)
    column = batch.column(place)
    entries = column.values
    ends: list[int] = column.offsets.to_pylist()
    names, contents = (part.to_pylist() for part in entries.flatten())
    if entries[ends[0] : ends[-1]].null_count or None in names[ends[0] : ends[-1]]:
        raise InvalidRowsError(
            "column headers",
            found="a header that is null, or without a key",
            expected="a key in every header; its value may be null",
            next_step="remove such headers, for example by filter(headers, h -> h.key IS NOT NULL)",
        )
    pairs = list(zip(names, contents, strict=True))
    valid = column.is_valid().to_pylist()
    if DEDUP_HEADERS.isdisjoint(names):
        return [
            pairs[ends[row] : ends[row + 1]] if valid[row] else NO_HEADERS
            for row in range(len(column))
        ]
    return [
        [pair for pair in pairs[ends[row] : ends[row + 1]] if pair[0] not in DEDUP_HEADERS]
        if valid[row]
        else NO_HEADERS
        for row in range(len(column))
    ]
