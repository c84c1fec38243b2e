"""Which records of one source, in one partition of a topic, were written again. Pure.

What a reader may rely on: Spark begins a batch when the one before it is wholly written. So in each
partition all rows of a batch are there before any row of a later one, and once a later batch was
seen, rows of an older one can only be repeats: of a task that did not notice its end. What must be
remembered is therefore one batch and its rows. This holds partition by partition alone, since
a reader is not equally far in all of them, and for rows that go to the same partition in every try.

One thing looks the same and is not: a query that was put back to an earlier batch, say by restoring
its checkpoint from a backup, makes new rows under old numbers. Its tries were made later than those
of the batch remembered, a straggler's earlier; so its rows are kept, and that batch is forgotten.

Rows may come in any order between two `remember`.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from kafka_source.repeat_headers import Position

ID_SIZE: Final = 16
RowId = bytes
"""16 bytes for which row of a batch it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is remembered: the newest batch, when its newest try was made, and its rows so far."""

    batch: int
    made: int
    rows: AbstractSet[RowId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What is to be remembered: `rows` in place of the rows known, or `more` beside them."""

    batch: int
    made: int
    rows: AbstractSet[RowId]
    beside: bool
    """Whether `rows` come beside those known before; otherwise in their place."""


@dataclass(slots=True)
class _Batch:
    made: int
    rows: set[RowId] = field(default_factory=set)


class RepeatFilter:
    """Tells the rows that are new from repeats, starting from what is known."""

    def __init__(self, known: Known | None) -> None:
        self._known = known
        self._batches: dict[int, _Batch] = {}

    def is_new(self, position: Position) -> bool:
        """Whether this row was not there before. Asked once for each record."""
        row = row_id(position)
        known = self._known
        if known is not None:
            if position.batch < known.batch and position.made <= known.made:
                return False
            if position.batch == known.batch and row in known.rows:
                return False
        batch = self._batches.get(position.batch)
        if batch is None:
            batch = self._batches[position.batch] = _Batch(made=position.made)
        batch.made = max(batch.made, position.made)
        if row in batch.rows:
            return False
        batch.rows.add(row)
        return True

    def learnt(self) -> Learnt | None:
        """None when nothing new was seen."""
        if not self._batches:
            return None
        known = self._known
        put_back = known is not None and any(number < known.batch for number in self._batches)
        if put_back:
            newest = max(self._batches, key=lambda number: (self._batches[number].made, number))
        else:
            newest = max(self._batches)
        batch = self._batches[newest]
        if known is not None and newest == known.batch:
            made = max(known.made, batch.made)
            return Learnt(batch=newest, made=made, rows=batch.rows, beside=True)
        return Learnt(batch=newest, made=batch.made, rows=batch.rows, beside=False)


def after(known: Known | None, learnt: Learnt | None) -> Known | None:
    """What is known then."""
    if learnt is None:
        return known
    rows = frozenset(learnt.rows)
    if learnt.beside and known is not None:
        rows |= known.rows
    return Known(batch=learnt.batch, made=learnt.made, rows=rows)


def row_id(position: Position) -> RowId:
    """Of which row of the batch it is."""
    return blake2b(position.row.encode(), digest_size=ID_SIZE).digest()
