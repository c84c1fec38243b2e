"""What tells repeats from new rows, over histories of a sink that is at least once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.kafka_source.dedup.dedup_headers import Position
from spark_ssp.kafka_source.dedup.dedup_state import SeenBatch, SeenBatchUpdate, row_id
from tests.support.kafka.dedup_memory import Memory

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
                Record(Position(batch=number, attempt_ms=self._now, row=row), self.version)
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
    """In batches of any size, with what is remembered in between."""
    memory = Memory()
    kept = []
    rest = list(log)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        rows, rest = rest[:size], rest[size:]
        kept += [record for record in rows if memory.is_new(record.position)]
        memory = memory.after()
        for seen in (memory.newest, memory.before):
            assert seen is not None
            most = {r.row for r in log if r.position.batch == seen.batch}
            assert len(seen.rows()) <= len(most)
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


@given(st.data(), _BATCHES, st.integers(0, 10**18 - 1), st.integers(-3, 0), st.booleans())
def test_one_record_with_an_untrue_position_costs_no_row(
    data: st.DataObject, batches: list[list[str]], number: int, attempt_ms: int, near: bool
) -> None:
    """Somebody writes it who is no sink, with any number of a batch and any time that is not ahead
    of the clock; `near`: a number like those in use."""
    writer = Writer(data)
    for each, rows in enumerate(batches):
        writer.batch(each, rows)
    writer.end()
    if not writer.log:
        return
    place = data.draw(st.integers(0, len(writer.log)))
    clock = max((record.position.attempt_ms for record in writer.log[:place]), default=0)
    forged = Position(
        batch=number % 8 if near else number, attempt_ms=max(0, clock + attempt_ms), row="forged"
    )
    log = [*writer.log[:place], Record(forged, -1), *writer.log[place:]]
    found = {record.row for record in _read(data, log) if record.version == 0}
    assert found == {record.row for record in writer.log}


def test_a_record_far_ahead_does_not_end_the_batch_that_is_written() -> None:
    memory = Memory()
    assert memory.is_new(Position(batch=7, attempt_ms=100, row="a"))
    assert memory.is_new(Position(batch=10**17, attempt_ms=130, row="forged"))
    assert memory.is_new(Position(batch=7, attempt_ms=100, row="b"))
    assert not memory.is_new(Position(batch=7, attempt_ms=100, row="a"))
    assert memory.is_new(Position(batch=8, attempt_ms=120, row="a"))
    assert memory.is_new(Position(batch=9, attempt_ms=140, row="a"))
    assert not memory.is_new(Position(batch=8, attempt_ms=120, row="a"))
    assert not memory.is_new(Position(batch=7, attempt_ms=100, row="b"))


def test_a_straggler_is_dropped_and_a_row_of_a_batch_put_back_is_kept() -> None:
    memory = Memory(newest=_seen_batch(5, 100, "a"), before=_seen_batch(4, 90, "a"))
    assert not memory.is_new(Position(batch=4, attempt_ms=95, row="a"))
    assert not memory.is_new(Position(batch=3, attempt_ms=99, row="a"))
    assert not memory.is_new(Position(batch=3, attempt_ms=100, row="a"))
    assert memory.is_new(Position(batch=3, attempt_ms=101, row="a"))
    after = memory.after()
    assert after.newest is not None
    assert (after.newest.batch, after.newest.attempt_ms, after.newest.rows()) == (3, 101, _ids("a"))
    assert not after.is_new(Position(batch=2, attempt_ms=99, row="b"))
    assert after.is_new(Position(batch=4, attempt_ms=102, row="a"))


def test_rows_of_the_batch_that_is_known_come_beside_those_known() -> None:
    memory = Memory(newest=_seen_batch(5, 100, "a"), before=_seen_batch(4, 90))
    assert not memory.is_new(Position(batch=5, attempt_ms=120, row="a"))
    assert memory.is_new(Position(batch=5, attempt_ms=110, row="b"))
    assert not memory.is_new(Position(batch=5, attempt_ms=110, row="b"))
    newest, before = memory.filter.update()
    assert newest == SeenBatchUpdate(batch=5, attempt_ms=120, rows=_ids("b"), append=True)
    assert before is None


def test_a_clock_that_goes_back_does_not_undo_what_is_known() -> None:
    """The next batch, of a driver whose clock is behind."""
    memory = Memory(newest=_seen_batch(5, 100, "a"), before=_seen_batch(4, 90))
    assert memory.is_new(Position(batch=6, attempt_ms=50, row="a"))
    newest, before = memory.filter.update()
    assert newest == SeenBatchUpdate(batch=6, attempt_ms=50, rows=_ids("a"), append=False)
    assert before == SeenBatchUpdate(batch=5, attempt_ms=100, rows=_ids("a"), append=False)


def _ids(*rows: str) -> frozenset[bytes]:
    return frozenset(row_id(Position(batch=0, attempt_ms=0, row=row)) for row in rows)


def _seen_batch(batch: int, attempt_ms: int, *rows: str) -> SeenBatch:
    return SeenBatch(batch=batch, attempt_ms=attempt_ms, rows=lambda: _ids(*rows))
