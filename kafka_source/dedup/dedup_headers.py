"""Two headers by which a reader knows a record that was written again. Pure.

A sink that is at least once writes rows again when Spark runs a batch again, or a task. Each record
of `includeRepeatHeaders` says which row of which batch it is:

* `ssp-source`: who wrote it and where to, `<id>/<topic>`. The id is the streaming query's, which
  outlives restarts, or one made for a batch write. The topic is there so that headers which some
  other program copied into another topic, along with records, mean nothing there.
* `ssp-position`: `<batch>:<made>:<task>:<hash>:<n>`. `made` is when the driver began with this try
  of the batch, in milliseconds since 1970 by its clock; `task` is the number of the partition of
  the rows; `hash` covers the whole record; `n` counts equal records of the task from 0, so that
  rows that are equal, and meant to be, stay apart.

So a position does not depend on the order of rows within a task, which Spark does not promise when
it reads a shuffle again. It does depend on a row's task and on its content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

SOURCE_HEADER: Final = "ssp-source"
POSITION_HEADER: Final = "ssp-position"
DEDUP_HEADERS: Final = frozenset({SOURCE_HEADER, POSITION_HEADER})

HASH_BYTES: Final = 16

Header = tuple[str, bytes | None]

POSITION_PATTERN: Final = r"\d{1,18}:\d{1,18}:\d{1,9}:[0-9a-f]{32}:\d{1,9}"
"""What a position looks like; for Java's regular expressions as well as for Python's."""
_POSITION: Final = re.compile(POSITION_PATTERN, re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteId:
    """One try at one batch, by one task."""

    source: str
    """The query's id, or that of a batch write."""
    batch: int
    attempt_ms: int
    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What the header `ssp-position` says."""

    batch: int
    attempt_ms: int
    row: str
    """`<task>:<hash>:<n>`: which row of the batch; the same in every try."""


class RowCounter:
    """Positions of the rows of one task. Remembers each different record by its hash: some 130 MB
    for a million rows."""

    def __init__(self, write: WriteId) -> None:
        self._start = f"{write.batch}:{write.attempt_ms}:{write.task}:"
        self._source = write.source
        self._sources: dict[str, bytes] = {}
        self._seen: dict[bytes, int] = {}

    def headers(self, topic: str, digest: bytes) -> tuple[list[Header], int]:
        """The two headers of the next record with this hash, and a number that is the same in every
        try, evenly spread and independent of the order of rows."""
        count = self._seen.get(digest, 0)
        self._seen[digest] = count + 1
        source = self._sources.get(topic)
        if source is None:
            source = self._sources[topic] = source_header(self._source, topic)
        position = f"{self._start}{digest.hex()}:{count}".encode()
        spread = int.from_bytes(digest[:7]) + count
        return [(SOURCE_HEADER, source), (POSITION_HEADER, position)], spread


def source_header(source: str, topic: str) -> bytes:
    """The value of `ssp-source`."""
    return f"{source}/{topic}".encode()


def parse_position(text: str) -> Position | None:
    """None when it is none of this version."""
    if _POSITION.fullmatch(text) is None:
        return None
    batch, attempt_ms, row = text.split(":", 2)
    return Position(batch=int(batch), attempt_ms=int(attempt_ms), row=row)


def record_hash(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    partition: int | None,
    headers: Sequence[Header],
) -> bytes:
    """Of everything that a record is made from, 16 bytes."""
    parts: list[bytes | None] = [topic.encode(), key, value]
    for name, content in headers:
        parts.append(name.encode())
        parts.append(content)
    # The lengths first, so that nothing can pass for something else by where it is cut.
    lengths = ",".join(["-" if part is None else str(len(part)) for part in parts])
    hasher = blake2b(f"{lengths};{partition};".encode(), digest_size=HASH_BYTES)
    for part in parts:
        if part is not None:
            hasher.update(part)
    return hasher.digest()
