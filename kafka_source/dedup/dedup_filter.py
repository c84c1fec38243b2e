"""Which records of one source, in one partition of a topic, were written again. Pure.

A reader relies on this: Spark begins a batch only when the previous one is written completely. So
in each partition all rows of a batch come before any row of a later one. This holds for each
partition only, since a reader's position differs between them, and for rows that go to the same
partition in every attempt. Rows are processed in the order of their offsets.

Two batches are remembered, each with its rows: the newest one and the one seen before it. A row of
one of these is a repeat if it is among the rows seen. A row of a batch older than both is a repeat,
written by a task that was not stopped in time. A row of a batch between the two is not: a repeat
would have come before the newest batch. Nor is a row of any older batch that was made later than
the newest one: a query that was reset to an earlier batch, for example by restoring its checkpoint
from a backup, writes new rows under old batch numbers.

The second batch is remembered because of forged positions, which anyone with write access to the
topic can write. A forged record may have a batch number beyond all others; if it ended the batch
that is being written, the rest of that batch would count as repeats. With two batches, no single
record can cause a row to be dropped that is not equal to it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from kafka_source.dedup.dedup_headers import Position

ID_SIZE: Final = 16
RowId = bytes
"""16 bytes for which row of a batch it is."""

_NOTHING: Final = -1
"""Stands for the batch before the newest one if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A remembered batch: the time of its latest attempt, and its rows so far, which are loaded
    when needed. The number is -1 for no batch."""

    batch: int
    made: int
    rows: Callable[[], AbstractSet[RowId]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """The update of a remembered batch: `rows` replace the known ones, or are added to them
    (`beside`)."""

    batch: int
    made: int
    rows: AbstractSet[RowId]
    beside: bool


@dataclass(slots=True)
class _Batch:
    number: int
    made: int
    known: Known | None = None
    """The stored batch, if there is one."""
    rows: set[RowId] = field(default_factory=set)
    """The rows added since."""

    def add(self, position: Position) -> bool:
        """Add a row; return whether it is new."""
        self.made = max(self.made, position.made)
        row = row_id(position)
        if row in self.rows or (self.known is not None and row in self.known.rows()):
            return False
        self.rows.add(row)
        return True

    def learnt(self, known: Known | None) -> Learnt | None:
        """Return the update of `known`, or None if nothing has changed."""
        if known is not None and known is self.known:
            if not self.rows and self.made == known.made:
                return None
            return Learnt(batch=self.number, made=self.made, rows=self.rows, beside=True)
        rows = self.rows if self.known is None else self.rows | self.known.rows()
        return Learnt(batch=self.number, made=self.made, rows=rows, beside=False)


class RepeatFilter:
    """Separates new rows from repeats. `newest` and `before` are the remembered batches, None at
    first. `newest` without `before` was stored by an earlier version, which kept one batch: all
    older ones count as seen."""

    def __init__(self, newest: Known | None = None, before: Known | None = None) -> None:
        self._known = newest, before
        self._newest = _restored(newest)
        self._before = _restored(before)

    def is_new(self, position: Position) -> bool:
        """Whether this row was not there before. Asked once for each record."""
        newest, before = self._newest, self._before
        for batch in (newest, before):
            if batch is not None and batch.number == position.batch:
                return batch.add(position)
        found = _Batch(position.batch, position.made)
        if newest is None:
            self._newest, self._before = found, _Batch(_NOTHING, 0)
        elif position.batch > newest.number:
            self._newest, self._before = found, newest
        else:
            oldest = newest.number if before is None else before.number
            if position.batch < oldest and position.made <= newest.made:
                return False
            if position.made <= newest.made:
                self._before = found
            else:
                self._newest = found
                if position.batch < oldest:
                    # The query was reset: all batches older than this one count as seen.
                    self._before = _Batch(position.batch, position.made)
        return found.add(position)

    def learnt(self) -> tuple[Learnt | None, Learnt | None]:
        """Return the updates of the newest batch and of the one before it; None means no change."""
        newest, before = self._known
        return (
            None if self._newest is None else self._newest.learnt(newest),
            None if self._before is None else self._before.learnt(before),
        )


def _restored(known: Known | None) -> _Batch | None:
    return None if known is None else _Batch(known.batch, known.made, known)


def row_id(position: Position) -> RowId:
    """Of which row of the batch it is."""
    return blake2b(position.row.encode(), digest_size=ID_SIZE).digest()
