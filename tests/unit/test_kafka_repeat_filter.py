"""What tells repeats from new rows, over histories of a sink that is at least once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kafka_source.repeat_filter import Known, RepeatFilter, after, row_id
from kafka_source.repeat_headers import Position

Row = tuple[int, str]
"""Batch and row."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a partition: `version` tells batches of one number from each other."""

    position: Position
    version: int

    @property
    def row(self) -> tuple[int, int, str]:
        return self.version, self.position.batch, self.position.row


class Writer:
    """A query that writes into one partition, draw by draw: batches of a few rows, tries that end
    early, stragglers of tries that write on while later batches are under way."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self._now = 0
        self._stragglers: list[list[Record]] = []
        self.log: list[Record] = []
        self.version = 0

    def batch(self, number: int, rows: list[str]) -> None:
        while True:
            self._now += 1
            order = self._data.draw(st.permutations(rows))
            records = [
                Record(Position(batch=number, made=self._now, row=row), self.version)
                for row in order
            ]
            if not self._data.draw(st.booleans(), "does the try fail?"):
                break
            written = self._data.draw(st.integers(0, len(records)))
            for record in records[:written]:
                self._write(record)
            self._stragglers.append(records[written:])
        for record in records:
            self._write(record)

    def _write(self, record: Record) -> None:
        self.log.append(record)
        for left in self._stragglers:
            if left and self._data.draw(st.integers(0, 3)) == 0:
                self.log.append(left.pop(0))

    def end(self) -> None:
        for left in self._stragglers:
            self.log.extend(left)


def _read(data: st.DataObject, log: list[Record]) -> list[Record]:
    """In batches of any size, in any order within each."""
    known: Known | None = None
    kept = []
    rest = list(log)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        rows, rest = data.draw(st.permutations(rest[:size])), rest[size:]
        seen = RepeatFilter(known)
        kept += [record for record in rows if seen.is_new(record.position)]
        known = after(known, seen.learnt())
        assert known is not None
        # Bounded: one batch and its rows.
        assert len(known.rows) <= len({r.row for r in log if r.position.batch == known.batch})
    return kept


_BATCHES = st.lists(st.lists(st.sampled_from("abcd"), unique=True), min_size=1, max_size=6)


@given(st.data(), _BATCHES)
def test_every_row_once_through_failed_tries_and_stragglers(
    data: st.DataObject, batches: list[list[str]]
) -> None:
    writer = Writer(data)
    for number, rows in enumerate(batches):
        writer.batch(number, rows)
    writer.end()
    found = Counter(record.row for record in _read(data, writer.log))
    assert found == Counter((0, number, row) for number, rows in enumerate(batches) for row in rows)


@given(st.data(), _BATCHES, _BATCHES, st.integers(0, 5))
def test_nothing_is_lost_by_a_query_that_is_put_back(
    data: st.DataObject, before: list[list[str]], again: list[list[str]], to: int
) -> None:
    """It may make other rows under the old numbers, which are not dropped for their number."""
    writer = Writer(data)
    for number, rows in enumerate(before):
        writer.batch(number, rows)
    writer.end()
    writer._stragglers.clear()
    writer.version = 1
    for number, rows in enumerate(again, start=min(to, len(before) - 1)):
        writer.batch(number, rows)
    writer.end()
    found = {record.row[1:] for record in _read(data, writer.log)}
    assert found == {record.row[1:] for record in writer.log}


def test_a_straggler_is_dropped_and_a_row_of_a_batch_put_back_is_kept() -> None:
    known = Known(batch=5, made=100, rows=frozenset())
    seen = RepeatFilter(known)
    assert not seen.is_new(Position(batch=4, made=99, row="a"))
    assert not seen.is_new(Position(batch=4, made=100, row="a"))
    assert seen.learnt() is None
    assert after(known, None) is known
    assert seen.is_new(Position(batch=4, made=101, row="a"))
    learnt = seen.learnt()
    assert learnt is not None
    assert not learnt.beside
    assert after(known, learnt) == Known(batch=4, made=101, rows=_ids("a"))


def test_rows_of_the_batch_that_is_known_come_beside_those_known() -> None:
    known = Known(batch=5, made=100, rows=_ids("a"))
    seen = RepeatFilter(known)
    assert not seen.is_new(Position(batch=5, made=120, row="a"))
    assert seen.is_new(Position(batch=5, made=110, row="b"))
    assert not seen.is_new(Position(batch=5, made=110, row="b"))
    learnt = seen.learnt()
    assert learnt is not None
    assert learnt.beside
    assert learnt.rows == _ids("b")
    assert after(known, learnt) == Known(batch=5, made=110, rows=_ids("a", "b"))


def test_a_clock_that_goes_back_does_not_undo_what_is_known() -> None:
    """The next batch, of a driver whose clock is behind."""
    seen = RepeatFilter(Known(batch=5, made=100, rows=_ids("a")))
    assert seen.is_new(Position(batch=6, made=50, row="a"))
    learnt = seen.learnt()
    assert learnt is not None
    assert (learnt.batch, learnt.made, learnt.beside) == (6, 50, False)


def _ids(*rows: str) -> frozenset[bytes]:
    return frozenset(row_id(Position(batch=0, made=0, row=row)) for row in rows)
