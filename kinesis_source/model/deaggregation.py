"""Splits records that the Kinesis Producer Library (KPL) has aggregated, and identifies those of
their user records that were written twice, by repeat keys.

The format is that of `aggregation-format.md` in awslabs/amazon-kinesis-producer: four magic bytes,
a protobuf message, the message's MD5. The rules for reading it are those of the Kinesis Client
Library's `AggregatorUtil`:

* A record's effective hash key is its explicit hash key, else the MD5 of its partition key.
* A user record whose effective hash key is outside the shard's range is dropped if it is a
  straggler: one that a KPL put into an aggregate for the parent shard before it detected a split,
  and puts again. The other user records are delivered; the KCL drops them too. If nothing proves
  that the aggregate was placed by its keys, every user record is delivered
  (`docs/design/kpl-aggregates.md`).
* User records are numbered from 0 in the order of the message.

This module differs from the KCL in order to lose no records and to log no data. Any fault in a user
record makes the whole Kinesis record pass through unchanged; the KCL delivers the user records
before an index that is out of its table, logs the data and drops the rest. So does one with a key
that the service would refuse, or with more rows or bytes than an honest aggregate can hold: user
records share keys, so that a record of 1 MiB could become gigabytes. A faultless aggregate without
user records and unknown fields gives no row, as in the KCL. Faults do not depend on the shard, so
that `split` and `last_sub` always agree.

A sink that is at least once writes rows again when Spark runs a task or a batch again. Kinesis has
no headers, but a user record of an aggregate has tags, which the KPL, the KCL and other libraries
skip. Two of them identify a row (`docs/design/kpl-aggregates.md`):

* `ssp-write` of the first user record holds for the whole aggregate:
  `<source>/<stream>:<batch>:<task>`. The stream makes the tags invalid in aggregates that another
  program copies to another stream.
* `ssp-count` counts equal rows of the task from 0, to distinguish rows that are equal on purpose.
  A user record without the tag has 0, as nearly all have.

A reader derives the hash of a row from the user record. So the identity of a row depends on the
task and on the row's content, and not on the order of rows, which Spark does not guarantee when it
reads a shuffle again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange, StreamName, hash_of

if TYPE_CHECKING:
    from spark_ssp.kinesis_source.model.kpl_proto import AggregatedRecord, Record

_T = TypeVar("_T")

MAGIC: Final = b"\xf3\x89\x9a\xc2"
"""The first bytes of an aggregated record."""

_DIGEST_BYTES: Final = 16
_ENVELOPE_BYTES: Final = len(MAGIC) + _DIGEST_BYTES
_MAX_HASH_KEY_DIGITS: Final = len(str(MAX_HASH_KEY))

MAX_KEY_CHARACTERS: Final = 256
"""The longest partition key (Kinesis API reference, PutRecord)."""
MAX_USER_RECORDS: Final = 1 << 18
"""More than fit into 1 MiB, the KPL's largest aggregate: a user record takes six bytes or more."""
WHOLE_RECORD: Final = MAX_USER_RECORDS
"""The number of a user record after the last one of any record."""
MAX_USER_BYTES: Final = 64 << 20
"""The most bytes of keys and data of one aggregate's user records. User records share keys, so they
can be larger than the aggregate: 1 MiB of them with one key of 256 ASCII characters is 43 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """One of the records that were put into an aggregate. `sub` is its number, from 0."""

    partition_key: str = field(repr=False)
    data: bytes = field(repr=False)
    sub: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Aggregate:
    """A faultless aggregate's user records, by column."""

    message: AggregatedRecord
    partition_keys: list[str]
    explicit_hash_keys: list[int | None]
    data: list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """The hash keys of a shard, and those of its family: of the shard and its ancestors."""

    own: HashRange
    family: HashRange


def has_aggregate_magic(data: bytes) -> bool:
    """Return whether `data` may be an aggregate. Cheap; false for nearly every plain record."""
    return data.startswith(MAGIC) and len(data) > _ENVELOPE_BYTES


def sealed_message(data: bytes) -> bytes | None:
    """Return the message of an aggregate; None if `data` has no magic, or another digest."""
    if not has_aggregate_magic(data):
        return None
    message = data[len(MAGIC) : -_DIGEST_BYTES]
    digest = hashlib.md5(message, usedforsecurity=False).digest()
    return message if digest == data[-_DIGEST_BYTES:] else None


def split(data: bytes, stragglers: KeyFilter | None = None) -> tuple[UserRecord, ...] | None:
    """Return the user records in the Kinesis record `data`, without those that are `stragglers`.
    Return None if `data` is not an aggregate, or a faulty one, and must be delivered whole. An
    empty tuple means that it has no user records, or only stragglers."""
    aggregate = open_aggregate(data)
    return None if aggregate is None else user_records(aggregate, stragglers)


def user_records(
    aggregate: Aggregate, stragglers: KeyFilter | None = None
) -> tuple[UserRecord, ...]:
    """Return the user records of an aggregate, without those that are `stragglers`."""
    dropped = _stragglers(aggregate, stragglers) if stragglers is not None else frozenset()
    return tuple(
        UserRecord(partition_key=key, data=payload, sub=sub)
        for sub, (key, payload) in enumerate(
            zip(aggregate.partition_keys, aggregate.data, strict=True)
        )
        if sub not in dropped
    )


def last_sub(data: bytes) -> int:
    """Return the number of the last user record in `data`, straggler or not. 0 for a record that is
    not an aggregate, or a faulty one: it contains the one user record 0. 0 for an aggregate without
    user records, too: a position after user record 0 is after the record."""
    if not data.startswith(MAGIC):  # nearly always: this runs for each record that planning sees
        return 0
    aggregate = open_aggregate(data)
    return 0 if aggregate is None else max(0, len(aggregate.data) - 1)


def open_aggregate(data: bytes) -> Aggregate | None:
    """Parse the aggregate in `data`; return None for a record that must be delivered whole."""
    message = sealed_message(data)
    if message is None:
        return None
    # Imported here, since most streams have no aggregates and protobuf is slow to import.
    from spark_ssp.kinesis_source.model import kpl_proto

    parsed = kpl_proto.parse(message)
    # Of no records that are known, the unknown fields may be the data.
    if parsed is None or (not parsed.records and kpl_proto.has_unknown_fields(parsed)):
        return None
    return _resolve(parsed)


def _resolve(message: AggregatedRecord) -> Aggregate | None:
    """Look up the keys of the user records; return None if one is faulty."""
    tables = (message.partition_key_table, message.explicit_hash_key_table)
    if max(len(message.records), *map(len, tables)) > MAX_USER_RECORDS:
        return None
    key_table, explicit_texts = map(_texts, tables)
    if key_table is None or explicit_texts is None:
        return None
    if any(len(key) > MAX_KEY_CHARACTERS for key in key_table):
        return None
    key_bytes = [len(key.encode()) for key in key_table]
    hash_key_table = [_parse_hash_key(text) for text in explicit_texts]
    aggregate = Aggregate(message=message, partition_keys=[], explicit_hash_keys=[], data=[])
    total = 0
    for record in message.records:
        key = _look_up(key_table, record.partition_key_index)
        if key is None:
            return None
        explicit: int | None = None
        if record.HasField("explicit_hash_key_index"):
            explicit = _look_up(hash_key_table, record.explicit_hash_key_index)
            if explicit is None:
                return None
        total += key_bytes[record.partition_key_index] + len(record.data)
        if total > MAX_USER_BYTES:
            return None
        aggregate.partition_keys.append(key)
        aggregate.explicit_hash_keys.append(explicit)
        aggregate.data.append(record.data)
    return aggregate


def _look_up(table: list[_T], index: int) -> _T | None:
    return table[index] if index < len(table) else None


def _texts(table: Sequence[str | bytes]) -> list[str] | None:
    """Return the table's keys; None if one is not UTF-8 (bytes in some protobuf versions)."""
    texts = [key for key in table if isinstance(key, str)]
    return texts if len(texts) == len(table) else None


def _parse_hash_key(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_HASH_KEY_DIGITS):
        return None
    value = int(text)
    return value if value <= MAX_HASH_KEY else None


def _stragglers(aggregate: Aggregate, keys: KeyFilter) -> frozenset[int]:
    """Return the numbers of the user records outside the shard's hash keys; empty if one is outside
    the family's. A KPL makes an aggregate for one shard. If that was this shard or an ancestor, all
    of its user records are within the family, so any other aggregate was not placed by its keys."""
    hashed: dict[str, int] = {}  # many user records often share a few keys
    outside: set[int] = set()
    for sub, (key, explicit) in enumerate(
        zip(aggregate.partition_keys, aggregate.explicit_hash_keys, strict=True)
    ):
        if explicit is None:
            if key not in hashed:
                hashed[key] = hash_of(key)
            explicit = hashed[key]
        if explicit not in keys.family:
            return frozenset()
        if explicit not in keys.own:
            outside.add(sub)
    return frozenset(outside)


# --- Repeat keys ----------------------------------------------------------------------------------

WRITE_TAG: Final = "ssp-write"
COUNT_TAG: Final = "ssp-count"

_WRITE: Final = re.compile(r"[A-Za-z0-9-]{1,64}/([A-Za-z0-9_.-]{1,128}):\d{1,18}:\d{1,9}", re.ASCII)
_COUNT: Final = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
_ROW_HASH_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteId:
    """One task that writes one batch to a stream: the same in every attempt."""

    source: str
    """The id of the streaming query or of the batch write."""
    stream: StreamName
    batch: int
    task: int

    def __str__(self) -> str:
        return f"{self.source}/{self.stream}:{self.batch}:{self.task}"


class RowCounter:
    """Counts equal rows of one task. Remembers each distinct row by its hash: about 130 MB for a
    million rows."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def count(self, partition_key: str, explicit_hash_key: str | None, data: bytes) -> int:
        """Return the number of equal rows before this one."""
        explicit = None if explicit_hash_key is None else int(explicit_hash_key)
        digest = _hash_of_row(partition_key, explicit, data)
        count = self._seen.get(digest, 0)
        self._seen[digest] = count + 1
        return count


def repeat_keys(aggregate: Aggregate, stream: StreamName) -> Sequence[str] | None:
    """Return the repeat key of each user record of an aggregate in `stream`, by its number:
    `<source>/<stream>:<batch>:<task>:<hash>:<count>`. None if the aggregate has no valid repeat
    keys, or those of another stream."""
    if not aggregate.message.records:
        return ()
    first, *others = (tags_of(record) for record in aggregate.message.records)
    write = _WRITE.fullmatch(first.get(WRITE_TAG, ""))
    counts = [tags.get(COUNT_TAG, "0") for tags in (first, *others)]
    if write is None or write[1] != stream or not all(map(_COUNT.fullmatch, counts)):
        return None
    rows = zip(
        aggregate.partition_keys, aggregate.explicit_hash_keys, aggregate.data, counts, strict=True
    )
    return [
        f"{write[0]}:{_hash_of_row(key, explicit, data).hex()}:{count}"
        for key, explicit, data, count in rows
    ]


def tags_of(record: Record) -> dict[str, str]:
    """Return the tags of a user record that are text: some protobuf versions return others as
    bytes."""
    return {
        tag.key: tag.value
        for tag in record.tags
        if isinstance(tag.key, str) and isinstance(tag.value, str)
    }


def _hash_of_row(partition_key: str, explicit_hash_key: int | None, data: bytes) -> bytes:
    key = partition_key.encode()
    explicit = "-" if explicit_hash_key is None else explicit_hash_key
    # The length comes first: rows that are cut at another place must not have the same hash.
    hasher = hashlib.blake2b(f"{len(key)};{explicit};".encode(), digest_size=_ROW_HASH_BYTES)
    hasher.update(key)
    hasher.update(data)
    return hasher.digest()
