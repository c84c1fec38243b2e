"""Repeat keys: tags in an aggregate by which a reader identifies user records written twice.

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

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from spark_ssp.grouping.identifiers import StreamName

if TYPE_CHECKING:
    from spark_ssp.kinesis_source.model.deaggregation import Aggregate
    from spark_ssp.kinesis_source.model.kpl_proto import Record

WRITE_TAG: Final = "ssp-write"
COUNT_TAG: Final = "ssp-count"

_WRITE: Final = re.compile(r"[A-Za-z0-9-]{1,64}/([A-Za-z0-9_.-]{1,128}):\d{1,18}:\d{1,9}", re.ASCII)
_COUNT: Final = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
_HASH_BYTES: Final = 16


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
    first, *others = (_tags(record) for record in aggregate.message.records)
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


def _tags(record: Record) -> dict[str, str]:
    """Return the tags that are text: some protobuf versions return others as bytes."""
    return {
        tag.key: tag.value
        for tag in record.tags
        if isinstance(tag.key, str) and isinstance(tag.value, str)
    }


def _hash_of_row(partition_key: str, explicit_hash_key: int | None, data: bytes) -> bytes:
    key = partition_key.encode()
    explicit = "-" if explicit_hash_key is None else explicit_hash_key
    # The length comes first: rows that are cut at another place must not have the same hash.
    hasher = blake2b(f"{len(key)};{explicit};".encode(), digest_size=_HASH_BYTES)
    hasher.update(key)
    hasher.update(data)
    return hasher.digest()
