"""Predicts the shards of rows, and packs the rows of one shard into aggregates in the format of the
Kinesis Producer Library (KPL).

A record is stored by the open shard whose hash keys include the record's. An aggregate must have
rows of one shard only: a reader drops user records whose hash keys are outside of the shard that it
reads, and the KCL drops the whole aggregate. So the rows that are packed together are predicted for
one shard, and the aggregate has the hash key of its first row, as the KPL's. After a reshard, an
aggregate that does not fit the shard that stored it has to be put again, by the new shards
(`group_by_shard`).

The message is written as bytes, since protobuf's objects cost more than the rest of the sink.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import numpy as np

from spark_ssp.common.errors import UnsupportedError
from spark_ssp.grouping.identifiers import (
    HASH_BYTES,
    MAX_HASH_KEY,
    HashRange,
    SequenceNumber,
    ShardId,
    digest_of,
    hash_of,
)
from spark_ssp.kinesis_source.model.deaggregation import (
    COUNT_TAG,
    MAGIC,
    WRITE_TAG,
    RowCounter,
    WriteId,
    has_aggregate_magic,
    open_aggregate,
    sealed_message,
    tags_of,
)
from spark_ssp.kinesis_source.model.shard import Shard
from spark_ssp.kinesis_source.sink.columns import RecordTooLargeError, Rows

# --- The shards of rows --------------------------------------------------------------------------


ANY_SHARD: Final = ShardId("")
"""The queue of a stream whose records are placed by the service."""

_MOST_KEYS: Final = 100_000


class KeyRoom:
    """The room for partition keys whose places all shard maps of a task remember, `most` in all. If
    it is full, all are forgotten."""

    def __init__(self, most: int = _MOST_KEYS) -> None:
        self._most = most
        self._taken = 0
        self._filled: list[dict[str | None, int]] = []
        """The places that take up the room."""

    def take(self, places: dict[str | None, int]) -> None:
        """Take the room for one more key in `places`."""
        if self._taken == self._most:
            for each in self._filled:
                each.clear()
            self._filled, self._taken = [], 0
        if not places:
            self._filled.append(places)
        self._taken += 1


class _PlaceByKey(dict[str | None, int]):
    """The places of partition keys, computed when they are looked up first: keys repeat, and a
    lookup costs a tenth of the hash."""

    def __init__(self, first: Sequence[bytes], room: KeyRoom) -> None:
        """`first` has the first hash key of each shard, in order."""
        self._first = first
        self._room = room

    def __missing__(self, key: str | None) -> int:
        self._room.take(self)
        place = self[key] = _place_of(digest_of(cast("str", key)), self._first)
        return place


class ShardMap:
    """The open shards of a stream, by hash key."""

    def __init__(self, shards: Iterable[Shard], room: KeyRoom | None = None) -> None:
        """`room` is shared with the other streams of the task. Raises ValueError if no shard is
        open."""
        listed = sorted(
            (shard for shard in shards if not shard.closed), key=lambda each: each.hash_range.first
        )
        if not listed:
            raise ValueError("a stream without an open shard")
        # Big-endian, so that they compare as the numbers do.
        self._first = [shard.hash_range.first.to_bytes(HASH_BYTES) for shard in listed]
        self._ids = [shard.shard_id for shard in listed]
        self.ranges: Mapping[ShardId, HashRange] = {
            shard.shard_id: shard.hash_range for shard in listed
        }
        """Their hash keys."""
        self._by_key = _PlaceByKey(self._first, KeyRoom() if room is None else room)
        # The smallest integer type: NumPy sorts it many times as fast.
        self._type = np.min_scalar_type(len(listed))

    @property
    def shards(self) -> Sequence[ShardId]:
        """The open shards, in the order of their hash keys."""
        return self._ids

    def place(
        self, keys: Sequence[str | None], hash_keys: Sequence[str | None] | None = None
    ) -> Any:
        """Return the place in `shards` of each record's shard, from the partition keys and explicit
        hash keys, as a NumPy array of integers. Only one shard has records without a partition
        key."""
        if len(self._ids) == 1:
            return np.zeros(len(keys), self._type)
        places: Iterable[int] = map(self._by_key.__getitem__, keys)
        if hash_keys is not None:
            places = (
                self._by_key[key]
                if hash_key is None
                else _place_of(int(hash_key).to_bytes(HASH_BYTES), self._first)
                for key, hash_key in zip(keys, hash_keys, strict=True)
            )
        return np.fromiter(places, self._type, len(keys))


def _place_of(digest: bytes, first: Sequence[bytes]) -> int:
    return max(0, bisect_right(first, digest) - 1)


ANY: Final = ShardMap(
    [
        Shard(
            shard_id=ANY_SHARD,
            hash_range=HashRange(first=0, last=MAX_HASH_KEY),
            first_sequence_number=SequenceNumber("0"),
            closed=False,
        )
    ]
)
"""One queue for all records, whose keys may be missing."""


# --- Aggregates ----------------------------------------------------------------------------------


MAX_ROWS: Final = 50_000
"""The most rows of an aggregate: with keys of 1 KiB and the largest data, it stays below the 64 MiB
above which this project's source delivers an aggregate unsplit."""

_PARTITION_KEY: Final = "a"
"""The partition key of every aggregate, as the KPL's: its hash key is explicit."""
_DIGEST_BYTES: Final = 16
_FIXED_BYTES: Final = len(MAGIC) + _DIGEST_BYTES + len(_PARTITION_KEY)
_MOST_WRAPPING_BYTES: Final = 128
"""An aggregate of one row without repeat keys is larger than the row by less: `_FIXED_BYTES`, up to
41 bytes of an explicit hash key, and up to 17 of tags and lengths."""


class Row(NamedTuple):
    """A row to put. `repeat` is the number of equal rows of the task before this one, for repeat
    keys."""

    partition_key: str
    explicit_hash_key: str | None
    data: bytes
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRecord:
    """A Kinesis record to put: an aggregate of `rows`, or one row unchanged."""

    data: bytes
    partition_key: str
    explicit_hash_key: str | None
    rows: Sequence[Row]
    is_aggregate: bool

    @property
    def size(self) -> int:
        """The bytes that the service counts: data and partition key."""
        return len(self.data) + len(self.partition_key.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateLimits:
    """Limits of a Kinesis record, in bytes of data and partition key."""

    record_bytes: int
    """The limit of the stream."""
    aggregate_bytes: int = 51_200
    """A row that does not fit into it is put unchanged. The default is the KPL's: two units of
    25 KiB, by which provisioned streams are billed."""
    rows: int = MAX_ROWS
    """The most rows of an aggregate: 1 to `MAX_ROWS`."""


def take_record(
    rows: deque[Row], limits: AggregateLimits, write: WriteId | None = None
) -> PackedRecord:
    """Remove the first rows from `rows`, as many as fit, and return the record that holds them.

    There is a row, and all are predicted for one shard. A row is put unchanged if it is the only
    one, or too large to share an aggregate. With `write`, such a row is an aggregate as well, with
    its repeat keys, if the stream's limit allows it. So is a row that begins like an aggregate;
    `check_wrapping` has refused those that readers would split if they were put unchanged.
    """
    message, count = _encode(rows, limits, write)
    most = limits.record_bytes - _FIXED_BYTES
    if write is not None and len(message) > most:
        write = None  # no room for the repeat keys of the only row
        message, _ = _encode([rows[0]], limits, write)
    taken = [rows.popleft() for _ in range(count)]
    first = taken[0]
    is_wrapped = has_aggregate_magic(first.data) and len(message) <= most
    if count == 1 and write is None and not is_wrapped:
        return PackedRecord(
            data=first.data,
            partition_key=first.partition_key,
            explicit_hash_key=first.explicit_hash_key,
            rows=taken,
            is_aggregate=False,
        )
    digest = hashlib.md5(message, usedforsecurity=False).digest()
    return PackedRecord(
        data=MAGIC + message + digest,
        partition_key=_PARTITION_KEY,
        explicit_hash_key=str(hash_of(first.partition_key, first.explicit_hash_key)),
        rows=taken,
        is_aggregate=True,
    )


def check_wrapping(rows: Rows, max_bytes: int, numbers: Iterable[int]) -> None:
    """Raise RecordTooLargeError for a row that is an aggregate and that no other one of at most
    `max_bytes` has room for: readers would split it if it were put unchanged. `numbers` are those
    of the rows in the task."""
    limits = AggregateLimits(record_bytes=max_bytes)
    for place in np.flatnonzero(rows.sizes > max_bytes - _MOST_WRAPPING_BYTES).tolist():
        data = rows.data[place].as_py()
        if sealed_message(data) is None:
            continue
        hash_key = None if rows.hash_keys is None else rows.hash_keys[place].as_py()
        message, _ = _encode([Row(rows.keys[place].as_py(), hash_key, data)], limits, None)
        size = _FIXED_BYTES + len(message)
        if size > max_bytes:
            raise RecordTooLargeError(
                "column data",
                found=f"an aggregate of the KPL in row {list(numbers)[place]} of the task, which "
                f"has {size} bytes as a row of another aggregate",
                expected=f"at most {max_bytes} bytes, the MaxRecordSizeInKiB of the stream",
                next_step="read such records with deaggregate=true, so that their user records are "
                "written, or raise the limit of the stream (UpdateMaxRecordSize)",
            )


def rows_of(aggregate: bytes) -> list[Row]:
    """Return the rows of an aggregate that `take_record` made, with their repeats if it has repeat
    keys. An aggregate that waits is kept only as bytes: the objects of a small row take ten times
    as much memory."""
    opened = open_aggregate(aggregate)
    if opened is None:
        raise AssertionError("a record that is not an aggregate")
    hash_keys = (None if key is None else str(key) for key in opened.explicit_hash_keys)
    repeats = (
        int(tags_of(record).get(COUNT_TAG, "0")) if record.tags else 0
        for record in opened.message.records
    )
    return list(map(Row, opened.partition_keys, hash_keys, opened.data, repeats))


def are_read_from(shard: HashRange, rows: Iterable[Row]) -> bool:
    """Return whether all rows of an aggregate are read from a shard with these hash keys. If not,
    readers drop some or all of them, and all have to be put again."""
    return all(hash_of(row.partition_key, row.explicit_hash_key) in shard for row in rows)


def group_by_shard(rows: Iterable[Row], shard_map: ShardMap) -> dict[ShardId, deque[Row]]:
    """Return the rows of each predicted shard, in order."""
    every = list(rows)
    keys, hash_keys = [row.partition_key for row in every], [row.explicit_hash_key for row in every]
    places = shard_map.place(keys, hash_keys if any(hash_keys) else None)
    groups = defaultdict[ShardId, deque[Row]](deque)
    for row, place in zip(every, places.tolist(), strict=True):
        groups[shard_map.shards[place]].append(row)
    return groups


def unsupported_aggregates(stream: str, found: str) -> UnsupportedError:
    """Return the error for a stream whose keys do not decide the shard of a record: readers could
    not tell the rows of aggregates apart."""
    return UnsupportedError(
        f"stream {stream}",
        found=f"{found}, with aggregation=true",
        expected="a stream whose keys decide the shard of a record: one with the record "
        "distribution strategy AUTO does not support aggregates",
        next_step="leave aggregation out",
    )


class Packing:
    """Packs the rows of a task for one stream. With `write` the aggregates contain repeat keys,
    which a row keeps when it is packed again."""

    def __init__(
        self, shard_map: ShardMap, limits: AggregateLimits, write: WriteId | None = None
    ) -> None:
        self.shard_map = shard_map
        self.limits = limits
        self._write = write
        self._counter = None if write is None else RowCounter()

    def pack(self, rows: Rows) -> list[PackedRecord]:
        """Return records of the rows, one or more for each predicted shard."""
        keys, data = rows.keys.to_pylist(), rows.data.to_pylist()
        hash_keys = [None] * len(rows) if rows.hash_keys is None else rows.hash_keys.to_pylist()
        counts: Iterable[int] = [0] * len(rows)
        if self._counter is not None:
            counts = map(self._counter.count, keys, hash_keys, data)
        return self.repack(map(Row, keys, hash_keys, data, counts))

    def repack(self, rows: Iterable[Row]) -> list[PackedRecord]:
        """Return records of rows that were packed before."""
        packed = []
        for group in group_by_shard(rows, self.shard_map).values():
            while group:
                packed.append(take_record(group, self.limits, self._write))
        return packed


def _encode(
    rows: Iterable[Row], limits: AggregateLimits, write: WriteId | None
) -> tuple[bytes, int]:
    """Return the message of the first rows that fit, at least one, and their number."""
    key_fields: dict[str, bytes] = {}
    hash_key_fields: dict[str | None, bytes] = {None: b""}
    keys: list[bytes] = []
    hash_keys: list[bytes] = []
    records: list[bytes] = []
    tags = b"" if write is None else _tag(WRITE_TAG, str(write))
    room = min(limits.aggregate_bytes, limits.record_bytes) - _FIXED_BYTES
    for key, hash_key, data, repeat in islice(rows, limits.rows):
        key_entry = hash_key_entry = b""
        key_field = key_fields.get(key)
        if key_field is None:
            key_entry = _bytes_field(1, key.encode())
            key_field = b"\x08" + _varint(len(keys))
        hash_key_field = hash_key_fields.get(hash_key)
        if hash_key_field is None:
            hash_key_entry = _bytes_field(2, str(hash_key).encode())
            hash_key_field = b"\x10" + _varint(len(hash_keys))
        if repeat and write is not None:
            tags += _tag(COUNT_TAG, str(repeat))
        head = b"%b%b\x1a%b" % (key_field, hash_key_field, _varint(len(data)))
        record = b"\x1a%b%b%b%b" % (_varint(len(head) + len(data) + len(tags)), head, data, tags)
        room -= len(record) + len(key_entry) + len(hash_key_entry)
        if room < 0 and records:
            break
        if key_entry:
            keys.append(key_entry)
            key_fields[key] = key_field
        if hash_key_entry:
            hash_keys.append(hash_key_entry)
            hash_key_fields[hash_key] = hash_key_field
        records.append(record)
        tags = b""
    return b"".join([*keys, *hash_keys, *records]), len(records)


def _bytes_field(number: int, content: bytes) -> bytes:
    """Encode a field of text, bytes or a message, with a number below 16."""
    return b"%c%b%b" % (number << 3 | 2, _varint(len(content)), content)


def _tag(key: str, value: str) -> bytes:
    return _bytes_field(4, _bytes_field(1, key.encode()) + _bytes_field(2, value.encode()))


@lru_cache(maxsize=1 << 14)
def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    return bytes((value & 0x7F | 0x80,)) + _varint(value >> 7)
