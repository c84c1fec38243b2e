"""The rows of Arrow batches, as the parts of Kafka's records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_ssp.common.columns import not_utf8
from spark_ssp.common.errors import InvalidRowsError
from spark_ssp.kafka_source.dedup.dedup_headers import DEDUP_HEADERS, Header

NO_HEADERS: Final[tuple[Header, ...]] = ()

Row = tuple[str, bytes | None, bytes | None, int | None, Sequence[Header]]
"""Topic, key, value, partition (None: by the key), headers."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a batch, by column, each with an entry for each row. None: the rows do not have
    it. `topics` as text: all rows have that one."""

    count: int
    topics: str | Sequence[str]
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    partitions: Sequence[int | None] | None
    headers: Sequence[Sequence[Header]] | None

    def __iter__(self) -> Iterator[Row]:
        return zip(
            repeat(self.topics, self.count) if isinstance(self.topics, str) else self.topics,
            repeat(None) if self.keys is None else self.keys,
            self.values,
            repeat(None) if self.partitions is None else self.partitions,
            repeat(NO_HEADERS) if self.headers is None else self.headers,
            strict=False,
        )


def rows_of(batch: pa.RecordBatch, columns: SinkColumns, topic: str | None) -> Rows:
    """Return the rows of a batch, whose columns are as Spark passes them to a writer: by position,
    `key` and `value` as text or as bytes. `topic` takes precedence over the column. The headers of
    `dedup_headers` are removed: they identify the record that was read, not the one to be written.

    Raises InvalidRowsError if a row cannot be a record.
    """

    def column(place: int | None) -> pa.Array | None:
        return None if place is None else batch.column(place)

    keys, partitions, headers = map(column, (columns.key, columns.partition, columns.headers))
    return Rows(
        count=batch.num_rows,
        topics=_topics(batch.column(columns.topic)) if topic is None else topic,
        keys=None if keys is None else _bytes(keys),
        values=_bytes(batch.column(columns.value)),
        partitions=None if partitions is None else _partitions(partitions),
        headers=None if headers is None else _headers(headers),
    )


def _topics(column: pa.Array) -> Sequence[str]:
    if column.null_count:
        raise InvalidRowsError(
            "column topic",
            found=f"null in {column.null_count} of {len(column)} rows",
            expected="the name of a topic in every row",
            next_step="fill it, filter such rows out, or set the option topic for all rows",
        )
    _check_text("topic", column)
    found: list[str] = column.to_pylist()
    return found


def _check_text(name: str, column: pa.Array) -> None:
    """Raise InvalidRowsError for bytes that are no text, and for text that librdkafka would cut: it
    ends at U+0000."""
    if any(not_utf8(column)):
        found = "bytes that are not UTF-8"
    elif pc.any(pc.match_substring(column, "\0")).as_py():
        found = "a name that contains U+0000"
    else:
        return
    raise InvalidRowsError(
        f"column {name}",
        found=found,
        expected="names of topics and keys of headers that are text without U+0000",
        next_step="correct the column, or filter such rows out",
    )


def _bytes(column: pa.Array) -> Sequence[bytes | None]:
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _partitions(column: pa.Array) -> Sequence[int | None]:
    found: list[int | None] = column.to_pylist()
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


def _headers(column: pa.Array) -> Sequence[Sequence[Header]]:
    ends: list[int] = column.offsets.to_pylist()
    keys, values = column.values[ends[0] : ends[-1]].flatten()
    if keys.null_count:  # a header that is null has a null key
        raise InvalidRowsError(
            "column headers",
            found="a header that is null, or without a key",
            expected="a key in every header; its value may be null",
            next_step="remove such headers, for example by filter(headers, h -> h.key IS NOT NULL)",
        )
    _check_text("headers", keys)
    names: list[str] = keys.to_pylist()
    pairs = list(zip(names, values.to_pylist(), strict=True))
    ends = [end - ends[0] for end in ends]
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
