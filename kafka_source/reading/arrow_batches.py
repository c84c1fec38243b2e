"""Builds Arrow record batches from columns of records.

Values that are constant over consecutive records of a partition (topic, partition) are passed once
for all of them. Columns are built by hand instead of by `pa.array`, which imports pandas on first
use: that takes a second for each new worker process, and slows down the garbage collection that
PySpark runs after every task.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_ssp.common.columns import Column
from spark_ssp.common.errors import NEW_CHECKPOINT, InvalidRequestError
from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.model.ranges import TaskRange
from spark_ssp.kafka_source.model.topic import kafka_name

Headers = Sequence[tuple[str, bytes | None]]
"""The headers of a record, in order; names may repeat."""

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))
_MICROS: Final = pa.timestamp("us", tz="UTC")
_INT: Final = np.int32
_MAX_MS: Final = ((1 << 63) - 1) // 1000
"""The largest time whose microseconds fit into 64 bits."""


Runs = Sequence[tuple[SystemStreamPartition, int]]
"""Runs of consecutive records of one partition: the partition and the number of records."""


def rows_within(sizes: npt.NDArray[np.int64], max_bytes: int) -> int:
    """Return the number of leading records that take at most `max_bytes` bytes, at least 1."""
    return max(1, int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right")))


def split_runs(runs: Runs, rows: int) -> tuple[Runs, Runs]:
    """Split runs into those of the first `rows` records and the rest."""
    first: list[tuple[SystemStreamPartition, int]] = []
    rest: list[tuple[SystemStreamPartition, int]] = []
    for ssp, count in runs:
        taken = min(count, rows)
        rows -= taken
        if taken:
            first.append((ssp, taken))
        if count > taken:
            rest.append((ssp, count - taken))
    return first, rest


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Records as columns of the same length: int64, binary, binary, int64, int32, all but the
    offsets None if they are not requested. `runs` contains the partition and the number of
    consecutive records. `times_ms` and `time_types` are -1 for records without a time."""

    runs: Runs
    offsets: pa.Array
    keys: pa.Array | None = None
    values: pa.Array | None = None
    times_ms: pa.Array | None = None
    time_types: pa.Array | None = None
    headers: pa.Array | None = None

    def record_name(self, row: int) -> str:
        """Return the name of a row's record for error messages."""
        return record_name(self.runs, row, self.offsets[row].as_py())


def record_name(runs: Runs, row: int, offset: int) -> str:
    """Return the name of a row's record for error messages."""
    ends = accumulate(count for _, count in runs)
    ssp = next(ssp for (ssp, _), end in zip(runs, ends, strict=True) if row < end)
    return f"the record at offset {offset} of partition {kafka_name(ssp)}"


def record_batch(
    records: RecordColumns, columns: Sequence[Column], task: TaskRange
) -> pa.RecordBatch:
    """Return the records of a task as a batch of these columns. Raises InvalidRequestError for a
    record's time that is out of range for Spark's timestamps, and for a key or value that is
    requested as text and is not UTF-8."""
    arrays = [
        column.typed(_COLUMNS[column.name](records, task), records.record_name)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _topics(records: RecordColumns, _: TaskRange) -> pa.Array:
    lengths = [count for _, count in records.runs]
    return _repeated([ssp.stream for ssp, _ in records.runs], lengths)


def _partitions(records: RecordColumns, _: TaskRange) -> pa.Array:
    lengths = [count for _, count in records.runs]
    numbers = np.array([ssp.partition for ssp, _ in records.runs], _INT)
    return numeric_column(pa.int32(), np.repeat(numbers, lengths))


def _tasks(records: RecordColumns, task: TaskRange) -> pa.Array:
    return _repeated([task.task], [len(records.offsets)])


def _task_numbers(records: RecordColumns, task: TaskRange) -> pa.Array:
    return numeric_column(pa.int32(), np.full(len(records.offsets), task.number, _INT))


def _micros(records: RecordColumns, _: TaskRange) -> pa.Array:
    times_ms = records.times_ms
    if times_ms is None:
        raise AssertionError("times that were not read")
    values = np.frombuffer(times_ms.buffers()[1], np.int64, len(times_ms), 8 * times_ms.offset)
    if len(values) and (values.max() > _MAX_MS or values.min() < -_MAX_MS):
        row = int(np.flatnonzero((values > _MAX_MS) | (values < -_MAX_MS))[0])
        raise InvalidRequestError(
            records.record_name(row),
            found=f"the time {values[row]}, out of range for Spark's timestamps",
            expected="milliseconds since 1970",
            next_step="correct the producer, which may write microseconds or nanoseconds; start "
            f"after this record by startingOffsets, with {NEW_CHECKPOINT}",
        )
    return numeric_column(_MICROS, values * 1000)


_Build = Callable[[RecordColumns, TaskRange], pa.Array | None]

_COLUMNS: Final[Mapping[str, _Build]] = {
    "key": lambda records, _: records.keys,
    "value": lambda records, _: records.values,
    "topic": _topics,
    "partition": _partitions,
    "offset": lambda records, _: records.offsets,
    "timestamp": _micros,
    "timestampType": lambda records, _: records.time_types,
    "headers": lambda records, _: records.headers,
    "task": _tasks,
    "ssp": _task_numbers,
}
"""The builder of each column of `source.spark_schema`; a test compares them."""


def all_columns(*, include_headers: bool, include_task: bool) -> tuple[Column, ...]:
    """Return the columns of these options, in the order of the schema."""
    optional = {"headers": include_headers, "task": include_task, "ssp": include_task}
    return tuple(Column(name) for name in _COLUMNS if optional.get(name, True))


def _repeated(values: Sequence[str], lengths: Sequence[int]) -> pa.Array:
    """Return a column with each value repeated by its length in `lengths`."""
    together = b"".join(
        value.encode() * length for value, length in zip(values, lengths, strict=True)
    )
    sizes = np.repeat(np.array([len(value.encode()) for value in values], _INT), lengths)
    ends = np.zeros(len(sizes) + 1, _INT)
    np.cumsum(sizes, out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(together)]
    return pa.Array.from_buffers(pa.string(), len(sizes), buffers)


def numeric_column(kind: pa.DataType, values: npt.NDArray[Any] | array[int]) -> pa.Array:
    """Return a column over numbers of the same width as `kind`."""
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


# --- Columns from Python's values -----------------------------------------------------------------


def string_column(values: Iterable[str]) -> pa.Array:
    """Return a column of text."""
    return _variable(pa.string(), [value.encode() for value in values], None)


def binary_column(values: Sequence[bytes | None]) -> pa.Array:
    """Return a column of bytes, some of which may be null; 2 GiB at most in total."""
    if None not in values:
        return _variable(pa.binary(), values, None)  # type: ignore[arg-type]
    return _variable(pa.binary(), [value or b"" for value in values], _validity(values))


def headers_column(values: Sequence[Headers | None]) -> pa.Array:
    """Return a column of headers: null if there are none, as in Spark's source."""
    flat = list(chain.from_iterable(headers or () for headers in values))
    pairs = pa.Array.from_buffers(
        _HEADER,
        len(flat),
        [None],
        children=[
            string_column(key for key, _ in flat),
            binary_column([value for _, value in flat]),
        ],
    )
    ends = accumulate(len(headers or ()) for headers in values)
    offsets = array("i", chain((0,), ends))
    present = _validity([headers or None for headers in values])
    return pa.Array.from_buffers(
        _HEADERS, len(values), [present, pa.py_buffer(offsets)], children=[pairs]
    )


def header_bytes(headers: Headers | None) -> int:
    """Return the least bytes that a record's headers take in Kafka's format: two for the sizes of a
    name and its value. So a batch is limited even if headers are empty."""
    return sum(2 + len(name.encode()) + len(value or b"") for name, value in headers or ())


def unreadable_headers(record: str) -> InvalidRequestError:
    """Return the error for a record whose headers cannot be read."""
    return InvalidRequestError(
        record,
        found="headers that the client cannot read",
        expected="headers as Kafka's protocol has them, with names in UTF-8",
        next_step="read without includeHeaders, or start after this record by startingOffsets, "
        f"with {NEW_CHECKPOINT}; correct the producer",
    )


def headers_from_counts(
    counts: npt.NDArray[np.int64], names: pa.Array, values: pa.Array
) -> pa.Array:
    """Return a column of headers, from the number of headers of each record and their consecutive
    names and values. Invalid UTF-8 in names becomes the replacement character."""
    pairs = pa.Array.from_buffers(_HEADER, len(names), [None], children=[_as_texts(names), values])
    offsets = np.zeros(len(counts) + 1, _INT)
    np.cumsum(counts, out=offsets[1:])
    present = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
    return pa.Array.from_buffers(
        _HEADERS, len(counts), [present, pa.py_buffer(offsets)], children=[pairs]
    )


def _as_texts(names: pa.Array) -> pa.Array:
    _, offsets, data = names.buffers()
    content = np.frombuffer(data, np.uint8)
    if content.size and content.max() > 127:
        begins = np.frombuffer(offsets, _INT)[: len(names)]
        # Names that are invalid each may be valid joined: one could begin within a character.
        inside = content[begins[begins < content.size]] & 0xC0 == 0x80
        try:
            valid = not inside.any() and str(data, "utf-8") is not None
        except UnicodeDecodeError:
            valid = False
        if not valid:
            return string_column(name.decode(errors="replace") for name in names.to_pylist())
    return pa.Array.from_buffers(pa.string(), len(names), [None, offsets, data])


def _variable(kind: pa.DataType, values: Sequence[bytes], validity: pa.Buffer | None) -> pa.Array:
    offsets = array("i", chain((0,), accumulate(map(len, values))))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _validity(values: Sequence[object | None]) -> pa.Buffer:
    """Return a bitmap of the values that are not null."""
    flags = pa.py_buffer(bytes(value is not None for value in values))
    return (
        pa.Array.from_buffers(pa.uint8(), len(values), [None, flags]).cast(pa.bool_()).buffers()[1]
    )
