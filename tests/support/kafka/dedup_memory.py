"""The memory of a reader that drops duplicates: the model of its state; positions as values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_ssp.kafka_source.dedup.dedup_headers import POSITION_PATTERN
from spark_ssp.kafka_source.dedup.dedup_state import (
    DedupFilter,
    RowId,
    SeenBatch,
    SeenBatchUpdate,
    hash_row,
)


class Position(NamedTuple):
    """The value of the header `ssp-position`."""

    batch: int
    attempt_ms: int
    row: str
    """`<task>:<hash>:<n>`: identifies the row in the batch; the same in every attempt."""


def parse_position(text: str) -> Position | None:
    """Parse a value of `ssp-position`; None if it has another form."""
    if re.fullmatch(POSITION_PATTERN, text, re.ASCII) is None:
        return None
    batch, attempt_ms, row = text.split(":", 2)
    return Position(batch=int(batch), attempt_ms=int(attempt_ms), row=row)


def row_id(position: Position) -> RowId:
    """Return the id of the row at this position."""
    return hash_row(position.row.encode())


@dataclass
class Memory:
    """The two batches of one source, and the filter of one batch of the reader."""

    newest: SeenBatch | None = None
    before: SeenBatch | None = None
    filter: DedupFilter = field(init=False)

    def __post_init__(self) -> None:
        self.filter = DedupFilter(self.newest, self.before)

    def is_new(self, position: Position) -> bool:
        """Return whether this row was not seen before."""
        (new,) = self.filter.are_new(position.batch, position.attempt_ms, [row_id(position)])
        return new

    def after(self) -> Memory:
        """Return the memory at the start of the next batch of the reader."""
        newest, before = self.filter.update()
        return Memory(_merged(self.newest, newest), _merged(self.before, before))


def _merged(seen: SeenBatch | None, update: SeenBatchUpdate | None) -> SeenBatch | None:
    if update is None:
        return seen
    rows = frozenset(update.rows)
    if update.append:
        assert seen is not None
        assert seen.batch == update.batch
        rows |= seen.rows()
    return SeenBatch(batch=update.batch, attempt_ms=update.attempt_ms, rows=lambda: rows)
