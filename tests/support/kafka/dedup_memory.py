"""The memory of a reader that drops duplicates: the model of its state."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_ssp.kafka_source.dedup.dedup_headers import Position
from spark_ssp.kafka_source.dedup.dedup_state import (
    DedupFilter,
    SeenBatch,
    SeenBatchUpdate,
    row_id,
)


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
