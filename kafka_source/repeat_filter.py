"""Which records of one source, in one partition of a topic, were written again. Pure.

What a reader may rely on: Spark begins a batch when the one before it is wholly written. So in each
partition all rows of a batch are there before any row of a later one. This holds partition by
partition only, since a reader is not equally far in all of them, and for rows that go to the same
partition in every try. Rows are looked at in the order of their offsets.

Two batches are remembered, each with its rows: the newest one and the one seen before it. A row of
one of these is a repeat if it is among the rows seen. A row of a batch older than both is one: of a
task that did not notice its end. A row of a batch between the two is none: it would have come
before the newest batch. Nor is a row of any older batch that was made later than the newest one: a
query that was put back to an earlier batch, say by restoring its checkpoint from a backup, makes
new rows under old numbers.

The second batch is there for records whose position is not true, since anybody may write one who
may write to the topic. One such record may have a number beyond all others; if it ended the batch
that is being written, the rest of that batch would pass for repeats. As it is, no single record has
a row dropped that is not equal to it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from kafka_source.repeat_headers import Position

ID_SIZE: Final = 16
RowId = bytes
"""16 bytes for which row of a batch it is."""

_NOTHING: Final = -1
"""In place of a batch's number, where there was none before the newest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A batch that is remembered: when its newest try was made, and its rows so far, which are
    asked for when they are needed. The number is -1 for no batch."""

    batch: int
    made: int
    rows: Callable[[], AbstractSet[RowId]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What is to be remembered of a batch: `rows` in place of those known, or `beside` them."""

    batch: int
    made: int
    rows: AbstractSet[RowId]
    beside: bool


@dataclass(slots=True)
class _Batch:
    number: int
    made: int
    known: Known | None = None
    """As it was remembered, if it was."""
    rows: set[RowId] = field(default_factory=set)
    """Those that have come since."""

    def add(self, position: Position) -> bool:
        """Note a row; whether it was not there before."""
        self.made = max(self.made, position.made)
        row = row_id(position)
        if row in self.rows or (self.known is not None and row in self.known.rows()):
            return False
        self.rows.add(row)
        return True

    def learnt(self, known: Known | None) -> Learnt | None:
        """What is to be remembered in place of `known`; None: nothing has changed."""
        if known is not None and known is self.known:
            if not self.rows and self.made == known.made:
                return None
            return Learnt(batch=self.number, made=self.made, rows=self.rows, beside=True)
        rows = self.rows if self.known is None else self.rows | self.known.rows()
        return Learnt(batch=self.number, made=self.made, rows=rows, beside=False)


class RepeatFilter:
    """Separates rows that are new from repeats. `newest` and `before` are what is known: None and
    None at first. `newest` without `before` was remembered by an earlier version, which kept one
    batch: all older ones count as seen."""

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
                    # The query was put back: what is older than this batch was seen.
                    self._before = _Batch(position.batch, position.made)
        return found.add(position)

    def learnt(self) -> tuple[Learnt | None, Learnt | None]:
        """What is to be remembered of the newest batch and of the one before; None: no change."""
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
