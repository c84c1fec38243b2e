"""The decisions of exactly-once delivery: whether a task writes its rows, from the markers that
tasks and the driver have committed.

A task writes its rows and a marker, which names the batch and a digest of the rows, in one
transaction. The driver records each batch whose tasks have all committed, with their number. Both
are committed offsets of consumer groups, so they are read and written with the records' own
guarantees. The protocol and its limits: docs/design/kafka-exactly-once.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from typing import Any, Final, cast

from xxhash import xxh3_64_intdigest

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.kafka_source.dedup.dedup_headers import HASH_BYTES, record_hash
from spark_ssp.kafka_source.sink.columns import Rows

VERSION: Final = 1
_MOST_NAMED: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The last batch that a task has committed: the number of its rows, and the digest."""

    batch: int
    rows: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedBatch:
    """The last batch of which the driver knows that all tasks have committed."""

    batch: int
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A task that is about to write a batch. `first`: the first batch that is delivered exactly
    once. `has_gaps`: batches may be left out, as by a function of `foreachBatch`."""

    sink: str
    """The name by which the sink's markers are found, in errors."""
    task: int
    batch: int
    first: int = 0
    has_gaps: bool = False

    def __str__(self) -> str:
        return f"batch {self.batch}, task {self.task}, of sink {self.sink}"


class Action(StrEnum):
    """The part of a task in a batch."""

    WRITE = "write"
    COMPARE = "compare"
    """Its rows are committed: it reads them again, compares them, and writes nothing."""


class Refusal(StrEnum):
    """The reason why a task may not write: its rows could be written twice."""

    NEWER = "newer"
    """A later batch is committed: the checkpoint is an older copy, or another query's."""
    NOT_BEGUN = "not begun"
    """No marker exists, and the batch is not the first that is delivered exactly once."""
    GAP = "gap"
    """Batches were written without markers."""
    LOST = "lost"
    """A marker that was committed is gone."""


def decide(
    write: Write,
    marker: Marker | None,
    completed: CompletedBatch | None,
    of_first: Marker | None = None,
) -> Action | Refusal:
    """Return the action of a task from its marker and the last completed batch, None if unknown.

    The completed batch is read first, so that the marker is not older; the marker, after the task's
    transactional id was initialized, which ends every other transaction of the task. The driver
    records a batch after all its tasks have committed. So a task that has no marker of the batch
    may write it, unless a marker can have been lost.

    `of_first`: the marker of task 0, which takes part in every batch. It is only needed where the
    answer is `Refusal.GAP` without it: a record of a completed batch may go back.
    """
    batch = write.batch
    newest = _newest(marker, completed, of_first)
    if newest > batch:
        return Refusal.NEWER
    if marker is not None and marker.batch == batch:
        return Action.COMPARE
    if completed is None:
        is_first = marker is None and batch == write.first
        return Action.WRITE if is_first else Refusal.NOT_BEGUN
    if completed.batch == batch:
        return Refusal.LOST
    if newest < batch - 1 and not write.has_gaps:
        return Refusal.GAP
    took_part = write.task < completed.tasks
    if took_part and (marker is None or marker.batch < completed.batch):
        return Refusal.LOST
    return Action.WRITE


def continues(write: Write, marker: Marker | None) -> bool:
    """Return whether a task writes by a client that its process has kept, from the client's last
    marker, without reading anything.

    Any other attempt has initialized the task's id before its own commit, and so fenced the client.
    So unless the commit of this one fails, the task has not committed the batch.
    """
    return marker is not None and marker.batch == write.batch - 1


def _newest(*found: Marker | CompletedBatch | None) -> int:
    return max([-1, *(one.batch for one in found if one is not None)])


def tasks_left_out(completed: CompletedBatch, before: CompletedBatch | None) -> range:
    """Return the tasks that a completed batch does not have, and an earlier attempt at it may have
    had: those of the batch before, None if unknown, and the next one. If the last of these has
    committed, there may be more."""
    known = 0 if before is None else before.tasks
    return range(completed.tasks, max(completed.tasks, known) + 1)


# --- Errors ---------------------------------------------------------------------------------------


def refused(
    write: Write,
    refusal: Refusal,
    marker: Marker | None,
    completed: CompletedBatch | None,
    of_first: Marker | None = None,
) -> IncompatibleStateError:
    """Return the error for a task that may not write, from what `decide` was given."""
    newest = _newest(marker, completed, of_first)
    restart = (
        "give the sink another transactionName and set exactlyOnceFrom to "
        f"{write.batch}: the rows of this batch that are already written are then written again"
    )
    match refusal:
        case Refusal.NEWER:
            found = f"batch {newest} committed already"
            expected = "the checkpoint that the sink's last batch belongs to"
            step = (
                "start the query from that checkpoint; for a query of its own, set another "
                "transactionName"
            )
        case Refusal.NOT_BEGUN:
            found = "no record of a completed batch" + (
                "" if marker is None else f", and a marker of batch {marker.batch}"
            )
            expected = f"batch {write.first} (exactlyOnceFrom) and no marker, or such a record"
            step = (
                f"set exactlyOnceFrom to {write.batch} if no attempt at this batch has been "
                "written at least once; if the markers expired (offsets.retention.minutes) or "
                f"their topic was deleted, {restart}"
            )
        case Refusal.GAP:
            found = f"batch {newest} as the last one with a marker"
            expected = f"a marker of batch {write.batch - 1}"
            step = f"if the batches between were written at least once, {restart}"
        case Refusal.LOST:
            found = "no marker of this task" if marker is None else f"a marker of {marker.batch}"
            expected = f"its marker of batch {_newest(completed)}, of which all tasks are committed"
            step = f"keep the number of tasks while a batch is unfinished; or {restart}"
    return IncompatibleStateError(str(write), found=found, expected=expected, next_step=step)


def rows_differ(write: Write, marker: Marker, digest: RowDigest) -> IncompatibleStateError:
    """Return the error for a task whose rows are not those that it has committed."""
    return IncompatibleStateError(
        str(write),
        found=f"{digest.rows} rows in this attempt, with digest {digest.hex[-8:]}",
        expected=f"the {marker.rows} rows that are committed, with digest {marker.digest[-8:]}",
        next_step="run the batch again with the query, the settings and the sources that it had: "
        "a batch must give the same rows in the same tasks (no rand(), no current time, the same "
        "number of tasks)",
    )


def divided_anew(
    sink: str, completed: CompletedBatch, tasks: Sequence[int]
) -> IncompatibleStateError:
    """Return the error for a batch of which tasks that it no longer has are committed."""
    names = ", ".join(map(str, tasks[:_MOST_NAMED])) + (", ..." if len(tasks) > _MOST_NAMED else "")
    return IncompatibleStateError(
        f"batch {completed.batch} of sink {sink}",
        found=f"rows of task {names}, which an earlier attempt with more than {completed.tasks} "
        "tasks has committed: they are there twice",
        expected="the same number of tasks in each attempt at a batch",
        next_step="remove the rows that are there twice; started again, the query continues after "
        "this batch",
    )


# --- The digest -----------------------------------------------------------------------------------

_NULL: Final = 0x9E3779B97F4A7C15
"""Changes the seed of the hash of a key or value that is null: 2 ** 64 divided by the golden ratio,
whose bits are in no order."""


class RowDigest:
    """The number of a task's rows and a digest of them, which does not depend on their order: Spark
    reads a shuffle in any, in batches of any size.

    It is the sum of a hash of each row. Most rows have neither headers nor a partition, and take
    XXH3, a fraction of the time of `record_hash`. Different rows have one digest by chance only,
    and nobody has a reason to bring that about: it finds a query that does not repeat its rows.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, rows: Rows) -> None:
        """Add rows."""
        self.rows += rows.count
        if isinstance(rows.topics, str) and rows.partitions is None and rows.headers is None:
            self._sum += _sum_of_plain(rows.topics, rows.keys, rows.values)
            return
        plain: dict[str, tuple[list[bytes | None], list[bytes | None]]] = {}
        for topic, key, value, partition, headers in rows:
            if partition is None and not headers:
                keys, values = plain.setdefault(topic, ([], []))
                keys.append(key)
                values.append(value)
            else:
                hashed = record_hash(topic, key, value, partition, headers)
                self._sum += int.from_bytes(hashed)
        self._sum += sum(_sum_of_plain(topic, *parts) for topic, parts in plain.items())

    @property
    def hex(self) -> str:
        """The digest, as hexadecimal digits."""
        return f"{self._sum % (1 << 8 * HASH_BYTES):0{2 * HASH_BYTES}x}"

    def equals(self, marker: Marker) -> bool:
        """Return whether the rows are those of a marker."""
        return (self.rows, self.hex) == (marker.rows, marker.digest)


def _sum_of_plain(
    topic: str, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None]
) -> int:
    """Return the sum of the hashes of rows that have neither headers nor a partition: of a value,
    seeded by that of its key."""
    seed = xxh3_64_intdigest(topic.encode())
    try:  # As if there were no null: less than half of the time.
        return sum(map(_content_hash, values, _seeds(_content_hash, keys, seed)))
    except TypeError:
        return sum(map(_hash, values, _seeds(_hash, keys, seed)))


def _seeds(
    hash_of: Callable[[bytes | None, int], int], keys: Sequence[bytes | None] | None, seed: int
) -> Iterator[int]:
    if keys is None:
        return repeat(_hash(None, seed))
    return map(hash_of, keys, repeat(seed))


_content_hash = cast("Callable[[bytes | None, int], int]", xxh3_64_intdigest)
"""The hash of a part that is not null; raises TypeError for null."""


def _hash(part: bytes | None, seed: int) -> int:
    """Return the hash of a part of a row; null differs from every content by its seed."""
    return xxh3_64_intdigest(b"", seed ^ _NULL) if part is None else xxh3_64_intdigest(part, seed)


# --- Stored form ----------------------------------------------------------------------------------


def write_marker(digest: RowDigest) -> str:
    """Return the metadata of a task's marker; the batch is the offset."""
    return json.dumps({"v": VERSION, "rows": digest.rows, "digest": digest.hex})


def read_marker(subject: str, batch: int, metadata: str | None) -> Marker:
    """Parse a task's marker. Raises IncompatibleStateError unless this version can read it."""
    document = _document(subject, metadata, {"rows": int, "digest": str})
    return Marker(batch=batch, rows=document["rows"], digest=document["digest"])


def write_completed(tasks: int) -> str:
    """Return the metadata of a completed batch; the batch is the offset."""
    return json.dumps({"v": VERSION, "tasks": tasks})


def read_completed(subject: str, batch: int, metadata: str | None) -> CompletedBatch:
    """Parse a completed batch. Raises IncompatibleStateError unless this version can read it."""
    document = _document(subject, metadata, {"tasks": int})
    return CompletedBatch(batch=batch, tasks=document["tasks"])


def _document(subject: str, metadata: str | None, fields: dict[str, type]) -> dict[str, Any]:
    try:
        document = json.loads(metadata or "")
    except ValueError:
        document = None
    if (
        not isinstance(document, dict)
        or document.get("v") != VERSION
        or any(type(document.get(name)) is not kind for name, kind in fields.items())
    ):
        raise IncompatibleStateError(
            subject,
            found="a committed offset with other metadata",
            expected=f"a marker of a kafka-ssp sink, version {VERSION}",
            next_step="let no other client commit offsets for this group; or set another "
            "transactionName",
        )
    return document
