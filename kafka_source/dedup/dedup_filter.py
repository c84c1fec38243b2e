"""Detects duplicates among the records that one source wrote to one partition of a topic.

The algorithm relies on this: Spark begins a batch only when the previous one is written completely.
So in each partition all rows of a batch come before any row of a later one. This holds for each
partition only, since a reader's position differs between them, and for rows that go to the same
partition in every attempt. Rows are processed in the order of their offsets.

Two batches are remembered, each with its rows: the newest one and the one seen before it. A row of
one of these is a duplicate if it is among the rows seen. A row of a batch older than both is a
duplicate, written by a task that was not stopped in time. A row of a batch between the two is new:
a duplicate would have come before the newest batch. A row of an older batch is also new if its
attempt is later than that of the newest batch: a query that was reset to an earlier batch, for
example by restoring its checkpoint from a backup, writes new rows under old batch numbers.

The second batch is remembered because of forged positions, which anyone with write access to the
topic can write. A forged record may have a batch number beyond all others; if it ended the batch
that is being written, the rest of that batch would count as duplicates. With two batches, no single
record can cause a row to be dropped that is not equal to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from spark_ssp.kafka_source.dedup.dedup_headers import Position

ROW_ID_BYTES: Final = 16
RowId = bytes
"""Identifies a row within a batch: a hash of 16 bytes."""

_NO_BATCH: Final = -1
"""The number of the batch before the newest one if there is only one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBatch:
    """A remembered batch: the time of its latest attempt, and its rows so far, which are loaded
    when needed. `batch` is -1 for no batch."""

    batch: int
    attempt_ms: int
    rows: Callable[[], AbstractSet[RowId]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBatchUpdate:
    """The update of a remembered batch: `rows` replace the stored ones, or are added to them
    (`append`)."""

    batch: int
    attempt_ms: int
    rows: AbstractSet[RowId]
    append: bool


@dataclass(slots=True)
class _Batch:
    number: int
    attempt_ms: int
    seen: SeenBatch | None = None
    """The stored batch, if there is one."""
    rows: set[RowId] = field(default_factory=set)
    """The rows added since."""

    def add(self, attempt_ms: int, rows: Sequence[RowId]) -> list[bool]:
        """Add rows; return for each whether it is new."""
        self.attempt_ms = max(self.attempt_ms, attempt_ms)
        seen = frozenset[RowId]() if self.seen is None else self.seen.rows()
        distinct = set(rows)
        if (
            len(distinct) == len(rows)
            and distinct.isdisjoint(self.rows)
            and distinct.isdisjoint(seen)
        ):
            self.rows |= distinct
            return [True] * len(rows)
        found = []
        for row in rows:
            found.append(row not in self.rows and row not in seen)
            if found[-1]:
                self.rows.add(row)
        return found

    def update(self, seen: SeenBatch | None) -> SeenBatchUpdate | None:
        """Return the update of `seen`, or None if nothing has changed."""
        if seen is not None and seen is self.seen:
            if not self.rows and self.attempt_ms == seen.attempt_ms:
                return None
            return SeenBatchUpdate(
                batch=self.number, attempt_ms=self.attempt_ms, rows=self.rows, append=True
            )
        rows = self.rows if self.seen is None else self.rows | self.seen.rows()
        return SeenBatchUpdate(
            batch=self.number, attempt_ms=self.attempt_ms, rows=rows, append=False
        )


class DedupFilter:
    """Separates new rows from duplicates. `newest` and `before` are the remembered batches, both
    None at first."""

    def __init__(self, newest: SeenBatch | None = None, before: SeenBatch | None = None) -> None:
        self._seen = newest, before
        self._newest = _restore(newest)
        self._before = _restore(before)

    def are_new(self, batch: int, attempt_ms: int, rows: Sequence[RowId]) -> list[bool]:
        """Return for each of consecutive rows of one attempt whether it was not seen before. Called
        once for each record."""
        found = self._batch(batch, attempt_ms)
        return [False] * len(rows) if found is None else found.add(attempt_ms, rows)

    def _batch(self, batch: int, attempt_ms: int) -> _Batch | None:
        """Return the remembered batch of this number, which this row may begin; None if all of its
        rows count as seen."""
        newest, before = self._newest, self._before
        for one in (newest, before):
            if one is not None and one.number == batch:
                return one
        found = _Batch(batch, attempt_ms)
        if newest is None or before is None:
            self._newest, self._before = found, _Batch(_NO_BATCH, 0)
        elif batch > newest.number:
            self._newest, self._before = found, newest
        else:
            if batch < before.number and attempt_ms <= newest.attempt_ms:
                return None
            if attempt_ms <= newest.attempt_ms:
                self._before = found
            else:
                self._newest = found
                if batch < before.number:
                    # The query was reset: all batches older than this one count as seen.
                    self._before = _Batch(batch, attempt_ms)
        return found

    def update(self) -> tuple[SeenBatchUpdate | None, SeenBatchUpdate | None]:
        """Return the updates of the newest batch and of the one before it; None means no change."""
        newest, before = self._seen
        return (
            None if self._newest is None else self._newest.update(newest),
            None if self._before is None else self._before.update(before),
        )


def _restore(seen: SeenBatch | None) -> _Batch | None:
    return None if seen is None else _Batch(seen.batch, seen.attempt_ms, seen)


def row_id(position: Position) -> RowId:
    """Return the id of the row at this position."""
    return hash_row(position.row.encode())


def hash_row(row: bytes) -> RowId:
    """Return the id of a row by its part of the position, `<task>:<hash>:<n>`."""
    return blake2b(row, digest_size=ROW_ID_BYTES).digest()
