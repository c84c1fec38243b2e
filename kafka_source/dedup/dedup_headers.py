"""Two headers by which a reader detects duplicates.

A sink that is at least once writes rows again when Spark runs a batch again, or a task. Each record
written with `includeRepeatHeaders` identifies its batch and its row:

* `ssp-source`: the writer and the topic, `<id>/<topic>`. The id is the streaming query's, which
  survives restarts, or is created for a batch write. The topic makes the headers invalid in records
  that another program copies to another topic.
* `ssp-position`: `<batch>:<made>:<task>:<hash>:<n>`. `made` is the time when the driver began
  this attempt of the batch, in milliseconds since 1970 by its clock; `task` is the number of the
  partition of the rows; `hash` covers the whole record; `n` counts equal records of the task from
  0, to distinguish rows that are equal on purpose.

A position does not depend on the order of rows within a task, which Spark does not guarantee when
it reads a shuffle again. It depends on the task and on the content of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

SOURCE_HEADER: Final = "ssp-source"
POSITION_HEADER: Final = "ssp-position"
DEDUP_HEADERS: Final = frozenset({SOURCE_HEADER, POSITION_HEADER})

HASH_BYTES: Final = 16

Header = tuple[str, bytes | None]

NUMBER_PATTERN: Final = r"\d{1,18}"
ROW_PATTERN: Final = r"\d{1,9}:[0-9a-f]{32}:\d{1,9}"
POSITION_PATTERN: Final = f"{NUMBER_PATTERN}:{NUMBER_PATTERN}:{ROW_PATTERN}"
"""The form of a position, as a regular expression for Java, Python and RE2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteId:
    """One attempt of one task to write one batch."""

    source: str
    """The id of the streaming query or of the batch write."""
    batch: int
    attempt_ms: int
    task: int


class RowCounter:
    """Assigns positions to the rows of one task. Remembers each distinct record by its hash: about
    130 MB for a million rows."""

    def __init__(self, write: WriteId) -> None:
        self._start = f"{write.batch}:{write.attempt_ms}:{write.task}:"
        self._source = write.source
        self._sources: dict[str, bytes] = {}
        self._seen: dict[bytes, int] = {}

    def headers(self, topic: str, digest: bytes) -> tuple[list[Header], int]:
        """Return the two headers of the next record with this hash, and a number that is the same
        in every attempt, evenly distributed and independent of the order of rows."""
        count = self._seen.get(digest, 0)
        self._seen[digest] = count + 1
        source = self._sources.get(topic)
        if source is None:
            source = self._sources[topic] = source_header(self._source, topic)
        position = f"{self._start}{digest.hex()}:{count}".encode()
        spread = int.from_bytes(digest[:7]) + count
        return [(SOURCE_HEADER, source), (POSITION_HEADER, position)], spread


def source_header(source: str, topic: str) -> bytes:
    """Return the value of `ssp-source`."""
    return f"{source}/{topic}".encode()


def record_hash(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    partition: int | None,
    headers: Sequence[Header],
) -> bytes:
    """Return a hash of all parts of a record, 16 bytes."""
    parts: list[bytes | None] = [topic.encode(), key, value]
    for name, content in headers:
        parts.append(name.encode())
        parts.append(content)
    # The lengths come first: parts that are cut at another place must not have the same hash.
    lengths = ",".join(["-" if part is None else str(len(part)) for part in parts])
    hasher = blake2b(f"{lengths};{partition};".encode(), digest_size=HASH_BYTES)
    for part in parts:
        if part is not None:
            hasher.update(part)
    return hasher.digest()
