"""Builds Arrow record batches from chunks of one shard's rows.

A chunk contains the rows of one page. Batches are built from many chunks at once, column
by column; values that are constant over a chunk (stream, shard) are stored once for it. No
statement runs per record, except to split a chunk that is too big for a batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import Final, TypeVar, cast

import numpy as np
import pyarrow as pa

from spark_ssp.common.columns import Column
from spark_ssp.grouping.identifiers import ShardKey, SlotId
from spark_ssp.kinesis_source.model.shard import RecordPage

T = TypeVar("T")

REPEAT_KEY: Final = "repeatKey"
"""The column of `includeRepeatKeys`."""

MAX_BATCH_ROWS = 65_536
MAX_BATCH_BYTES = 16 << 20
"""A batch above one of these is split, unless it is a single row. Far below Arrow's limit of 2 GiB
for a column of `string` or `binary`, and small enough for the JVM to hold several."""

ROW_OVERHEAD_BYTES = 256
"""The memory of a record beside its key and data: five Python objects and their pointers."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one shard."""

    shard: ShardKey
    rows: RecordPage
    memory_bytes: int
    """The memory of the rows, as `memory_bytes` counts it."""

    def __len__(self) -> int:
        return len(self.rows)


def memory_bytes(rows: RecordPage) -> int:
    """Estimate the memory of rows: keys, data and a fixed overhead each."""
    keys = sum(map(len, filter(None, rows.partition_keys)))
    keys += sum(map(len, rows.repeat_keys or ()))
    return keys + sum(map(len, rows.data)) + ROW_OVERHEAD_BYTES * len(rows)


def to_batches(
    chunks: Iterable[Chunk], slot: SlotId, columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Yield `chunks` in order as batches of these columns, of at most MAX_BATCH_ROWS and, with all
    columns, MAX_BATCH_BYTES. Empty chunks are dropped. Only a single row that is bigger than
    MAX_BATCH_BYTES exceeds it. Raises InvalidRequestError for data that is requested as text and is
    not UTF-8."""
    gathered: list[Chunk] = []
    rows = memory_bytes = 0
    for chunk in chain.from_iterable(map(_split, chunks)):
        if gathered and (
            rows + len(chunk) > MAX_BATCH_ROWS
            or memory_bytes + chunk.memory_bytes > MAX_BATCH_BYTES
        ):
            yield _build(_Rows(gathered, slot), columns)
            gathered, rows, memory_bytes = [], 0, 0
        gathered.append(chunk)
        rows += len(chunk)
        memory_bytes += chunk.memory_bytes
    if gathered:
        yield _build(_Rows(gathered, slot), columns)


def _split(chunk: Chunk) -> Iterator[Chunk]:
    """Yield the chunk itself if it fits a batch, else pieces that do."""
    if len(chunk) <= MAX_BATCH_ROWS and chunk.memory_bytes <= MAX_BATCH_BYTES:
        if len(chunk):
            yield chunk
        return
    rows = chunk.rows
    weights = [
        len(key or "") + len(data) + len(repeat_key) + ROW_OVERHEAD_BYTES
        for key, data, repeat_key in zip(
            rows.partition_keys,
            rows.data,
            repeat("", len(rows)) if rows.repeat_keys is None else rows.repeat_keys,
            strict=True,
        )
    ]
    begin = memory_bytes = 0
    for index, row_weight in enumerate(weights):
        if index > begin and (
            index - begin >= MAX_BATCH_ROWS or memory_bytes + row_weight > MAX_BATCH_BYTES
        ):
            yield Chunk(chunk.shard, rows.part(begin, index), memory_bytes)
            begin, memory_bytes = index, 0
        memory_bytes += row_weight
    yield Chunk(chunk.shard, rows.part(begin, len(rows)), memory_bytes)


def _build(rows: _Rows, columns: Sequence[Column]) -> pa.RecordBatch:
    arrays = [column.typed(_COLUMNS[column.name](rows), rows.record_name) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


class _Rows:
    """The rows of one batch."""

    def __init__(self, chunks: Sequence[Chunk], slot: SlotId) -> None:
        self.chunks = chunks
        self.slot = slot

    def gather(self, column: Callable[[RecordPage], Iterable[T]]) -> list[T]:
        return list(chain.from_iterable(column(chunk.rows) for chunk in self.chunks))

    def constant(self, value: Callable[[Chunk], str]) -> pa.Array:
        return _text(list(map(value, self.chunks))).take(_fixed(pa.int32(), self._places))

    @cached_property
    def _places(self) -> array[int]:
        """The index of each row's chunk."""
        places = array("i")
        for place, chunk in enumerate(self.chunks):
            places.extend(array("i", [place]) * len(chunk))
        return places

    @property
    def sub_sequence_numbers(self) -> array[int]:
        subs = array("q")
        for chunk in self.chunks:
            known = chunk.rows.sub_sequence_numbers
            subs.extend(array("q", [0]) * len(chunk) if known is None else array("q", known))
        return subs

    def record_name(self, row: int) -> str:
        chunk = self.chunks[self._places[row]]
        number = self.gather(lambda rows: rows.sequence_numbers)[row]
        sub = self.sub_sequence_numbers[row]
        return f"record {number}, sub-sequence number {sub}, of shard {chunk.shard}"


def _arrivals(rows: _Rows) -> pa.Array:
    millis = array("q", rows.gather(lambda page: page.arrival_ms))
    return _fixed(pa.timestamp("ms", tz="UTC"), millis).cast(pa.timestamp("us", tz="UTC"))


_COLUMNS: Final[Mapping[str, Callable[[_Rows], pa.Array]]] = {
    "partitionKey": lambda rows: _optional_text(rows.gather(lambda page: page.partition_keys)),
    "data": lambda rows: _bytes(pa.binary(), rows.gather(lambda page: page.data)),
    "stream": lambda rows: rows.constant(lambda chunk: chunk.shard.stream),
    "shardId": lambda rows: rows.constant(lambda chunk: chunk.shard.shard),
    "sequenceNumber": lambda rows: _text(rows.gather(lambda page: page.sequence_numbers)),
    "subSequenceNumber": lambda rows: _fixed(pa.int64(), rows.sub_sequence_numbers),
    "approximateArrivalTimestamp": _arrivals,
    "ssp": lambda rows: _fixed(pa.int32(), array("i", [rows.slot]) * sum(map(len, rows.chunks))),
    REPEAT_KEY: lambda rows: _text(rows.gather(lambda page: page.repeat_keys or ())),
}
"""The builder of each column of `schema.spark_schema`; a test compares them."""


def all_columns(*, include_repeat_keys: bool) -> tuple[Column, ...]:
    """Return the columns of the option `includeRepeatKeys`, in the order of the schema."""
    return tuple(Column(name) for name in _COLUMNS if include_repeat_keys or name != REPEAT_KEY)


# Columns are laid out here rather than by `pa.array` and similar functions, which import pandas on
# first use: a second for each new worker process, and more for every later garbage collection, of
# which PySpark runs one per task.


def _fixed(kind: pa.DataType, values: array[int]) -> pa.Array:
    """Return a column of integers of the same width as `kind`."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _text(values: Sequence[str]) -> pa.Array:
    together = "".join(values)
    if together.isascii():
        return _variable(pa.string(), values, together.encode())
    return _bytes(pa.string(), [value.encode() for value in values])


def _optional_text(values: Sequence[str | None]) -> pa.Array:
    """Return a column like `_text`, with a null for each None."""
    if None not in values:
        return _text(cast("Sequence[str]", values))
    given = np.fromiter((value is not None for value in values), np.bool_, len(values))
    validity = pa.py_buffer(np.packbits(given, bitorder="little"))
    _, offsets, text = _text([value or "" for value in values]).buffers()
    return pa.Array.from_buffers(pa.string(), len(values), [validity, offsets, text])


def _bytes(kind: pa.DataType, values: Sequence[bytes]) -> pa.Array:
    return _variable(kind, values, b"".join(values))


def _variable(kind: pa.DataType, values: Sequence[Sized], together: bytes) -> pa.Array:
    """Return a column of values of these lengths, which `together` contains one after the other."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(together)]
    return pa.Array.from_buffers(kind, len(values), buffers)
