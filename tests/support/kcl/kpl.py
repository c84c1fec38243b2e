"""Aggregated records as the Kinesis Producer Library makes them, also by hand, and a reference for
their splitting. The wire format is written out here, so that the tests of the splitting do not only
compare the protobuf library with itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange
from spark_ssp.kinesis_source.model import kpl_proto
from spark_ssp.kinesis_source.model.deaggregation import MAGIC, KeyFilter, last_sub, split

GOLDEN = bytes.fromhex(
    "f3899ac2"
    "0a0161"  # partition_key_table: "a"
    "0a026262"  # partition_key_table: "bb"
    "120137"  # explicit_hash_key_table: "7"
    "1a0608001a026869"  # record: key 0, data "hi"
    "1a06080110001a00"  # record: key 1, explicit hash key 0, no data
    "1a0508001a0121"  # record: key 0, data "!"
    "20a4824dbd15f024d5b43ec166310fb0"  # MD5 of the message
)
"""Two records of key "a", one of "bb" with an explicit hash key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A user record as it was put."""

    partition_key: str
    data: bytes
    explicit_hash_key: str | None = None


def aggregate(records: Sequence[Put]) -> bytes:
    """Return the data of a Kinesis record with `records`; its table contains each key once."""
    message = new_message()
    partition_keys: dict[str, int] = {}
    explicit_hash_keys: dict[str, int] = {}
    for record in records:
        explicit = record.explicit_hash_key
        message.records.add(
            partition_key_index=partition_keys.setdefault(
                record.partition_key, len(partition_keys)
            ),
            data=record.data,
            explicit_hash_key_index=None
            if explicit is None
            else explicit_hash_keys.setdefault(explicit, len(explicit_hash_keys)),
        )
    for partition_key in partition_keys:
        message.partition_key_table.append(partition_key)
    for explicit_hash_key in explicit_hash_keys:
        message.explicit_hash_key_table.append(explicit_hash_key)
    return seal(message.SerializeToString())


def new_message() -> Any:
    """An empty aggregate of protobuf."""
    return kpl_proto._AGGREGATED_RECORD()


def seal(message: bytes) -> bytes:
    """`message` between the magic number and its checksum."""
    return MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()


WHOLE = HashRange(first=0, last=MAX_HASH_KEY)
LOWER = HashRange(first=0, last=(1 << 127) - 1)
UPPER = HashRange(first=1 << 127, last=MAX_HASH_KEY)

# MD5 of "a" is 0cc1…, of "b" 92eb…: the two are in different halves of the hash space.
IN_LOWER, IN_UPPER = "a", "b"


def hash_of(partition_key: str) -> int:
    return int(hashlib.md5(partition_key.encode()).hexdigest(), 16)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(0x80 | (value & 0x7F))
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def chunk(field: int, payload: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def user_record(key_index: int, data: bytes, explicit_index: int | None = None) -> bytes:
    explicit = b"" if explicit_index is None else number(2, explicit_index)
    return chunk(3, number(1, key_index) + explicit + chunk(3, data))


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def payloads(message: bytes) -> list[bytes]:
    """Return the data of each record of a message that consists of chunks: a second, naive
    parser."""
    found: list[bytes] = []
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        size, at = read_varint(message, at)
        body, at = message[at : at + size], at + size
        if tag == 3 << 3 | 2:
            data = b""
            inner = 0
            while inner < len(body):
                inner_tag, inner = read_varint(body, inner)
                value, inner = read_varint(body, inner)
                if inner_tag & 7 == 2:
                    if inner_tag == 3 << 3 | 2:
                        data = body[inner : inner + value]
                    inner += value
            found.append(data)
    return found


def child(own: HashRange) -> KeyFilter:
    """The keys of a shard that a split made of one with all hash keys."""
    return KeyFilter(own=own, family=WHOLE)


def expect_whole(data: bytes) -> None:
    """Check that `data` is delivered whole in any shard."""
    assert [split(data, keys) for keys in (None, child(LOWER), child(UPPER))] == [None] * 3
    assert last_sub(data) == 0
