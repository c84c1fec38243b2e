"""Checks Arrow batches against the limits of Kinesis, and cuts them into parts to encode. Columns
come as Spark passes them to a writer: by position, text or bytes. The checks are made over columns,
and before any record of the batch is sent. Errors name a column and a row, never content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ssp.common.columns import not_utf8
from spark_ssp.common.errors import InvalidRowsError
from spark_ssp.grouping.identifiers import MAX_HASH_KEY

MAX_KEY_CHARACTERS: Final = 256
"""Kinesis API reference, PutRecordsRequestEntry."""
_STREAM_NAME: Final = r"^[a-zA-Z0-9_.-]{1,128}$"
"""Kinesis API reference, PutRecords."""
_HASH_KEY: Final = r"^(?:0|[1-9][0-9]{0,38})$"
_HASH_KEY_RULE: Final = f"a decimal number from 0 to {MAX_HASH_KEY}, without leading zeros"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkColumns:
    """The index of the column of each part of a record. None: there is no such column; for
    `stream`, an option names the stream."""

    data: int
    partition_key: int
    explicit_hash_key: int | None = None
    stream: int | None = None

    def indices(self) -> frozenset[int]:
        """Return the indices of the columns that are written."""
        every = (self.data, self.partition_key, self.explicit_hash_key, self.stream)
        return frozenset(index for index in every if index is not None)


class RecordTooLargeError(InvalidRowsError):
    """A row is larger than the stream's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """The rules of a stream for its records. `max_bytes` counts data and key."""

    max_bytes: int
    needs_key: bool = True


def split_by_stream(
    batch: pa.RecordBatch, columns: SinkColumns, first_row: int
) -> Mapping[str | None, tuple[pa.RecordBatch, Iterable[int]]]:
    """Return the rows of each stream with their numbers in the task; the name None if an option
    names the stream. `first_row` is the number of the first row of the batch. Raises
    InvalidRowsError for a row whose stream is null, or text that cannot be the name of one."""
    if columns.stream is None:
        return {None: (batch, range(first_row, first_row + batch.num_rows))}
    names = batch.column(columns.stream)
    numbers = range(first_row, first_row + len(names))
    _check_no_nulls("stream", names, numbers)
    _check_is_text("stream", names, numbers)
    _check(
        "stream",
        pc.invert(pc.match_substring_regex(names, _STREAM_NAME)),
        numbers,
        found=lambda _: "text that is not the name of a stream",
        expected="1 to 128 letters, digits, dots, hyphens and underscores",
        next_step="correct the column, or filter such rows out",
    )
    split = {}
    for name in pc.unique(names).to_pylist():
        rows = pc.indices_nonzero(pc.equal(names, name))
        split[name] = (batch.take(rows), pc.add(rows, first_row).to_pylist())
    return split


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that are checked: Arrow arrays of binary data and of text, and a NumPy array of sizes,
    in bytes of data and partition key."""

    data: Any
    keys: Any
    hash_keys: Any
    """None: no row has an explicit hash key."""
    sizes: Any

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, places: Any) -> Rows:
        """Return the rows at these places, a NumPy array of integers, in its order."""
        indices = pa.array(places)
        hash_keys = None if self.hash_keys is None else self.hash_keys.take(indices)
        return Rows(self.data.take(indices), self.keys.take(indices), hash_keys, self.sizes[places])

    def parts(self, most: int, size: int) -> Iterator[Rows]:
        """Yield parts of at most `most` rows and `size` bytes, or one larger row."""
        ends, begin = np.cumsum(self.sizes), 0
        while begin < len(self):
            limit = size + (int(ends[begin - 1]) if begin else 0)
            fitting = int(np.searchsorted(ends, limit, side="right"))
            end = min(begin + most, max(begin + 1, fitting))
            part = slice(begin, end)
            hash_keys = None if self.hash_keys is None else self.hash_keys[part]
            yield Rows(self.data[part], self.keys[part], hash_keys, self.sizes[part])
            begin = end


def checked_rows(
    batch: pa.RecordBatch, columns: SinkColumns, limits: RecordLimits, rows: Iterable[int]
) -> Rows:
    """Return the rows of a batch. `rows` are their numbers in the task. Raises InvalidRowsError if
    one cannot be a record of the stream, RecordTooLargeError for its size."""
    data = batch.column(columns.data)
    keys = batch.column(columns.partition_key)
    _check_no_nulls("data", data, rows)
    if limits.needs_key:
        _check_no_nulls("partitionKey", keys, rows)
    _check_is_text("partitionKey", keys, rows)
    key_sizes = _sizes(keys)
    # A key has at most as many characters as bytes; a null one has none.
    if key_sizes.max(initial=0) > MAX_KEY_CHARACTERS or key_sizes.min(initial=1) == 0:
        _check_key_lengths(keys, rows)
    sizes = _sizes(data) + key_sizes
    if sizes.max(initial=0) > limits.max_bytes:
        _check(
            "data",
            pa.array(sizes > limits.max_bytes),
            rows,
            found=lambda row: f"{sizes[row]} bytes of data and partition key",
            expected=f"at most {limits.max_bytes} bytes, the MaxRecordSizeInKiB of the stream",
            next_step="write smaller records, or raise the limit of the stream "
            "(UpdateMaxRecordSize)",
            error=RecordTooLargeError,
        )
    hash_keys = None
    if columns.explicit_hash_key is not None:
        hash_keys = batch.column(columns.explicit_hash_key)
        _check_hash_keys(hash_keys, rows)
    return Rows(_binary(data), keys, hash_keys, sizes)


def _sizes(column: Any) -> Any:
    """Return the number of bytes of each value as a NumPy array, 0 of null."""
    sizes = pc.binary_length(column)
    if column.null_count:
        sizes = pc.fill_null(sizes, 0)
    return sizes.to_numpy().astype(np.int64)


def _binary(column: Any) -> Any:
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def _check_key_lengths(keys: Any, rows: Iterable[int]) -> None:
    lengths = pc.utf8_length(keys)
    _check(
        "partitionKey",
        pc.or_(pc.greater(lengths, MAX_KEY_CHARACTERS), pc.equal(lengths, 0)),
        rows,
        found=lambda row: f"a key of {lengths[row].as_py()} characters",
        expected=f"a key of 1 to {MAX_KEY_CHARACTERS} characters",
        next_step="use a shorter key, for example its hash: sha2(key, 256)",
    )


def _check_no_nulls(name: str, column: Any, rows: Iterable[int]) -> None:
    if not column.null_count:
        return
    _check(
        name,
        pc.is_null(column),
        rows,
        found=lambda _: "null",
        expected="a value in every row",
        next_step="fill it, or filter such rows out",
    )


def _check_is_text(name: str, column: Any, rows: Iterable[int]) -> None:
    wrong = not_utf8(column)
    if any(wrong):
        _check(
            name,
            pa.array(wrong),
            rows,
            found=lambda _: "bytes that are not UTF-8",
            expected="text",
            next_step=f"encode the bytes, for example by base64({name}) AS {name}",
        )


def _check_hash_keys(column: Any, rows: Iterable[int]) -> None:
    valid = pc.match_substring_regex(column, _HASH_KEY)
    in_range = pa.array(
        [text is None or len(text) < 39 or int(text) <= MAX_HASH_KEY for text in column.to_pylist()]
        if pc.all(pc.fill_null(valid, True)).as_py()
        else [True] * len(column),
        pa.bool_(),
    )
    _check(
        "explicitHashKey",
        pc.or_(pc.invert(pc.fill_null(valid, True)), pc.invert(in_range)),
        rows,
        found=lambda _: "text that is not a hash key",
        expected=_HASH_KEY_RULE,
        next_step="correct the column, or leave it out to place records by partitionKey",
    )


def _check(
    name: str,
    wrong: Any,
    rows: Iterable[int],
    *,
    found: Any,
    expected: str,
    next_step: str,
    error: type[InvalidRowsError] = InvalidRowsError,
) -> None:
    """Raise the error for the first row that is wrong, and name the number of them."""
    if not pc.any(wrong).as_py():  # nulls are not wrong
        return
    wrong = pc.fill_null(wrong, False)
    count = pc.sum(wrong).as_py()
    place = pc.index(wrong, True).as_py()
    row = list(rows)[place]
    others = f", and {count - 1} more rows of its batch" if count > 1 else ""
    raise error(
        f"column {name}",
        found=f"{found(place)} in row {row} of the task{others}",
        expected=expected,
        next_step=next_step,
    )
