"""The memory of a reader of repeats as a value: the model of what is kept in the state."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_source.dedup.dedup_filter import Known, Learnt, RepeatFilter
from kafka_source.dedup.dedup_headers import Position


@dataclass
class Memory:
    """The two batches of one source, and the filter of one batch of the reader."""

    newest: Known | None = None
    before: Known | None = None
    filter: RepeatFilter = field(init=False)

    def __post_init__(self) -> None:
        self.filter = RepeatFilter(self.newest, self.before)

    def is_new(self, position: Position) -> bool:
        """Whether this row was not there before."""
        return self.filter.is_new(position)

    def after(self) -> Memory:
        """What the next batch of the reader begins with."""
        newest, before = self.filter.learnt()
        return Memory(_merged(self.newest, newest), _merged(self.before, before))


def _merged(known: Known | None, learnt: Learnt | None) -> Known | None:
    if learnt is None:
        return known
    rows = frozenset(learnt.rows)
    if learnt.beside:
        assert known is not None
        assert known.batch == learnt.batch
        rows |= known.rows()
    return Known(batch=learnt.batch, made=learnt.made, rows=lambda: rows)
