"""Encodes rows as the JSON entries of PutRecords, a whole Arrow batch at a time.

Kinesis takes data as base64 within JSON. The text of all rows is made by column, in the order of
their shards, with the offset of each record: a Python object for each would cost more than sending
it. Keys that are needed later, for a closed shard or for the order, are decoded from the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pybase64

from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.sink.aggregation import ShardMap
from spark_ssp.kinesis_source.sink.columns import Rows

if TYPE_CHECKING:
    from spark_ssp.kinesis_source.sink.aggregation import PackedRecord

T = TypeVar("T")

_PADDING: Final = pa.array([b"", b"\0\0", b"\0"], pa.binary())
"""Zeros that make a length a multiple of three, by its remainder."""
_NOTHING: Final = pa.scalar(b"", pa.binary())
_BEFORE_DATA: Final = pa.scalar(b'{"Data":"', pa.binary())
_CHUNK: Final = 5_000
"""The rows that are encoded at a time: fewer make more calls, and more do not fit into the cache of
a processor."""
_MEMORY: Final = pa.system_memory_pool()
"""The memory pool of the text. Arrow's default pool returns freed memory to the kernel within
milliseconds; between two parts of batches more time passes, and the page faults would cost a tenth
of a task's processor time."""


class Keys(msgspec.Struct, gc=False, rename="pascal"):
    """The keys of an entry."""

    partition_key: str | None = None
    explicit_hash_key: str | None = None


class _Entry(msgspec.Struct, gc=False, rename="pascal"):
    data: bytes


_KEYS: Final = msgspec.json.Decoder(list[Keys])
_ENTRY: Final = msgspec.json.Decoder(_Entry)


@dataclass(slots=True, eq=False)
class RecordRun:
    """One or more records in order, encoded; never changed. It keeps the memory of the run that it
    is a part of. Not frozen, since these are made often, and that takes four times as long."""

    text: bytes | memoryview
    """Entries, each with a comma after it: those of the run, and maybe others."""
    offsets: Any
    """A NumPy array: the beginning of each record in `text`, and the end of the last."""
    sizes: Any
    """A NumPy array: running totals of bytes of data and keys, before each record and after the
    last."""
    count: int
    """The number of records."""
    size: int
    """The bytes that the service counts: data and partition keys."""
    aggregated: int | None = None
    """The number of rows of the only record, if it is an aggregate; else each record is a row."""

    @property
    def entries(self) -> memoryview:
        """The text of its entries."""
        return memoryview(self.text)[int(self.offsets[0]) : int(self.offsets[-1])]

    @property
    def keys(self) -> Sequence[Keys]:
        """The keys of each record, decoded."""
        return _KEYS.decode(b"".join((b"[", self.entries[:-1], b"]")))

    @property
    def data(self) -> bytes:
        """The data of the only record, decoded."""
        return _ENTRY.decode(self.entries[:-1]).data

    def part(self, begin: int, end: int) -> RecordRun:
        """Return some of its records; there is one or more."""
        count = end - begin
        if count == self.count:
            return self
        sizes = self.sizes[begin : end + 1]
        size = int(sizes[-1] - sizes[0])
        return RecordRun(self.text, self.offsets[begin : end + 1], sizes, count, size)

    def fitting(self, count: int, size: int) -> int:
        """Return how many of the first records, up to `count`, have at most `size` bytes."""
        if count >= self.count:
            count = self.count
            if self.size <= size:
                return count
        limit = self.sizes[0] + size
        if self.sizes[count] <= limit:
            return count
        return max(0, int(self.sizes.searchsorted(limit, side="right")) - 1)

    def split(self, values: Sequence[T]) -> Iterator[tuple[T, RecordRun]]:
        """Yield the records that follow each other with an equal value, of one for each record, and
        that value."""
        begin = 0
        for value, equal in groupby(values):
            end = begin + sum(1 for _ in equal)
            yield value, self.part(begin, end).detached()
            begin = end

    def detached(self) -> RecordRun:
        """Return its records without the memory of others."""
        entries = self.entries
        if len(entries) == len(self.text):
            return self
        offsets, sizes = self.offsets - self.offsets[0], self.sizes - self.sizes[0]
        return RecordRun(bytes(entries), offsets, sizes, self.count, self.size, self.aggregated)


def encode_entry(record: PackedRecord) -> RecordRun:
    """Return a run of one record that is packed."""
    fields = {"Data": record.data, "PartitionKey": record.partition_key}
    if record.explicit_hash_key is not None:
        fields["ExplicitHashKey"] = record.explicit_hash_key
    text = msgspec.json.encode(fields) + b","
    aggregated = len(record.rows) if record.is_aggregate else None
    return RecordRun(
        text, np.array([0, len(text)]), np.array([0, record.size]), 1, record.size, aggregated
    )


def encode_rows(rows: Rows) -> RecordRun:
    """Return rows as one run, in their order. There is one or more, with less than 1 GiB."""
    keys, codes = _distinct_keys(rows)
    return _encode(rows.data, rows.hash_keys, _key_texts(keys).take(codes), rows.sizes)


def encode_by_shard(rows: Rows, shard_map: ShardMap) -> Iterator[tuple[ShardId, RecordRun]]:
    """Yield the rows of each predicted shard as runs, in their order, which share memory. They have
    less than 1 GiB."""
    if not len(rows):
        return
    keys, codes = _distinct_keys(rows)
    if rows.hash_keys is None:
        places = shard_map.place(keys.to_pylist())[codes.to_numpy()]
    else:
        places = shard_map.place(rows.keys.to_pylist(), rows.hash_keys.to_pylist())
    texts, shards = _key_texts(keys), shard_map.shards
    order = np.argsort(places, kind="stable")
    places = places[order]
    for begin in range(0, len(order), _CHUNK):
        chunk = pa.array(order[begin : begin + _CHUNK])
        hash_keys = None if rows.hash_keys is None else rows.hash_keys.take(chunk)
        run = _encode(
            pc.take(rows.data, chunk, memory_pool=_MEMORY),
            hash_keys,
            pc.take(texts, codes.take(chunk), memory_pool=_MEMORY),
            rows.sizes[order[begin : begin + _CHUNK]],
        )
        values = places[begin : begin + _CHUNK]
        ends = np.flatnonzero(np.append(values[1:] != values[:-1], True)) + 1
        first = 0
        for place, end in zip(values[ends - 1].tolist(), ends.tolist(), strict=True):
            yield shards[place], run.part(first, end)
            first = end


def _distinct_keys(rows: Rows) -> tuple[Any, Any]:
    """Return the distinct partition keys, and the place of each row's key among them."""
    encoded = rows.keys.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.cast(pa.string()), encoded.indices


def _key_texts(keys: Any) -> Any:
    """Return the text of an entry after its data, for each of these partition keys."""
    characters = np.frombuffer(_content(keys), np.uint8)
    # JSON escapes control characters, quotes and backslashes (RFC 8259, section 7).
    if not ((characters < 0x20) | (characters == 0x22) | (characters == 0x5C)).any():
        texts = pc.binary_join_element_wise('","PartitionKey":"', keys, '"},', "")
        return pc.fill_null(texts, '"},').cast(pa.binary())
    return pa.array(
        [
            b'"},' if key is None else b'","PartitionKey":%b},' % orjson.dumps(key)
            for key in keys.to_pylist()
        ],
        pa.binary(),
    )


def _encode(data: Any, hash_keys: Any, key_texts: Any, sizes: Any) -> RecordRun:
    """Return rows as one run, from arrays of their parts; `hash_keys` may be None."""
    encoded, rest = _base64(data)
    parts = [_BEFORE_DATA, encoded]
    if hash_keys is not None:
        texts = pc.binary_join_element_wise(
            '","ExplicitHashKey":"', hash_keys.cast(pa.string()), ""
        )
        parts.append(pc.fill_null(texts, "").cast(pa.binary()))
    text = pc.binary_join_element_wise(*parts, key_texts, _NOTHING, memory_pool=_MEMORY)
    offsets, ends = _offsets(text), np.cumsum(sizes, dtype=np.int64)
    # Not read-only: nothing else refers to the result of this function.
    characters = np.frombuffer(text.buffers()[2], np.uint8, int(offsets[-1]))
    last = offsets[:-1] + (len(_BEFORE_DATA.as_py()) - 1) + np.diff(_offsets(encoded))
    characters[last[rest != 0]] = characters[last[rest == 1] - 1] = ord("=")
    return RecordRun(
        memoryview(_content(text)),
        offsets,
        np.concatenate(([0], ends)),
        len(ends),
        int(ends[-1]),
    )


def _base64(data: Any) -> tuple[Any, Any]:
    """Return the data of each row as base64, and its length modulo three. All are encoded at once,
    each filled up with zeros to a multiple of three bytes. Their last characters must then be
    replaced by padding: two for a remainder of 1, one for 2."""
    data = data.cast(pa.binary())
    rest = pc.binary_length(data).to_numpy() % 3
    padding = _PADDING.take(pa.array(rest))
    filled = pc.binary_join_element_wise(data, padding, _NOTHING, memory_pool=_MEMORY)
    offsets = _offsets(filled) // 3 * 4
    text = pybase64.b64encode(_content(filled))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.binary(), len(data), buffers), rest


def _offsets(text: Any) -> Any:
    """Return the offsets of a binary array that begins with its buffer."""
    return np.frombuffer(text.buffers()[1], np.int32, len(text) + 1)


def _content(text: Any) -> Any:
    return text.buffers()[2].slice(0, int(_offsets(text)[-1]))
