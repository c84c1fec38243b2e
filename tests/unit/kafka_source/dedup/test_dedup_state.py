"""What a streaming query keeps to tell repeats, over a state store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.kafka_source.dedup import dedup_processor as dedup_processor
from spark_ssp.kafka_source.dedup import dedup_state as dedup_state
from spark_ssp.kafka_source.dedup import row_blocks as row_blocks
from spark_ssp.kafka_source.dedup.dedup_processor import MAX_CLOCK_SKEW_MS, DedupProcessor
from spark_ssp.kafka_source.dedup.dedup_state import SeenBatch, SeenBatchUpdate
from spark_ssp.kafka_source.dedup.row_blocks import BlockWriter, sort_by_offset
from tests.support.kafka.dedup_memory import Memory, Position, parse_position, row_id

DAY = 24 * 60 * 60 * 1_000
NOW = 20 * DAY


class Store:
    """As Spark's `MapState`: keys and values are tuples."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], tuple[int, int, bytes]] = {}

    def getMapState(self, name: str, key: str, value: str) -> Store:
        return self

    def getValue(self, key: tuple[str, int]) -> tuple[int, int, bytes] | None:
        return self.entries.get(key)

    def updateValue(self, key: tuple[str, int], value: tuple[int, int, bytes]) -> None:
        self.entries[key] = value

    def containsKey(self, key: tuple[str, int]) -> bool:
        return key in self.entries

    def removeKey(self, key: tuple[str, int]) -> None:
        del self.entries[key]

    def iterator(self) -> Iterator[tuple[tuple[str, int], tuple[int, int, bytes]]]:
        yield from list(self.entries.items())


Row = tuple[str | None, int, int, int]
"""Source, batch, time, number."""


def _position(batch: int, attempt_ms: int, number: int) -> str:
    return f"{batch}:{attempt_ms}:0:{number:032x}:0"


def _kept(store: Store, rows: list[Row], *, mixed: bool = False) -> list[int]:
    """The places of the rows that come out of one batch of the reader."""
    marks: list[tuple[str | None, str | None]] = [
        (None, None) if source is None else (source, _position(batch, attempt_ms, number))
        for source, batch, attempt_ms, number in rows
    ]
    return _kept_of(store, marks, mixed=mixed)


def _kept_of(
    store: Store, marks: list[tuple[str | None, str | None]], *, mixed: bool = False
) -> list[int]:
    """By source and position, as the headers have them. A sort that spilled has put the later half
    of the blocks first. `mixed`: the rows reach the writer of blocks in another order than that of
    their offsets, so that blocks overlap."""
    count = len(marks)
    offsets = [n for start in range(3) for n in range(start, count, 3)] if mixed else range(count)
    whole = pa.record_batch(
        {
            "column0": pa.array(["orders"] * count, pa.string()),
            "column1": pa.array([0] * count, pa.int32()),
            "column2": pa.array(offsets, pa.int64()),
            "mark": pa.array(
                [
                    None if source is None or position is None else f"{source}/{position}"
                    for source, position in (marks[offset] for offset in offsets)
                ],
                pa.string(),
            ),
        }
    )
    types = ("string", "int", "bigint")
    writer = BlockWriter(types=types, keys=(0, 1, 2), max_bytes=200)
    frames = [one.to_pandas() for one in writer(whole.slice(n, 7) for n in range(0, count, 7))]
    blocks = [frame[n : n + 1] for frame in frames for n in range(len(frame))]
    half = len(blocks) // 2
    processor = DedupProcessor(types, 7 * DAY, now=lambda: NOW / 1000)
    processor.init(store)  # type: ignore[arg-type]
    found: list[int] = []
    for one in processor.handleInputRows(("orders", 0), iter(blocks[half:] + blocks[:half]), None):
        assert list(one.columns) == ["column0", "column1", "column2"]
        found.extend(one["column2"])
    processor.close()
    return found


_ROWS = st.tuples(
    st.sampled_from([None, "a", "b"]), st.integers(0, 3), st.integers(0, 5), st.integers(0, 9)
)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup_state, "_CHUNK_ROWS", 3)
        patch.setattr(dedup_processor, "MAX_SOURCES", 3)
        few = partial(sort_by_offset, memory_bytes=200, chunk_rows=5)
        patch.setattr(row_blocks, "sort_by_offset", few)
        yield


@given(st.lists(st.lists(_ROWS, max_size=12), max_size=6), st.booleans())
def test_the_state_is_what_the_filter_wants_remembered(
    batches: list[list[Row]], mixed: bool
) -> None:
    store = Store()
    memories = {"a": Memory(), "b": Memory()}
    for rows in batches:
        wanted = []
        for place, (source, batch, attempt_ms, number) in enumerate(rows):
            position = parse_position(_position(batch, attempt_ms, number))
            assert position is not None
            if source is None or memories[source].is_new(position):
                wanted.append(place)
        assert _kept(store, rows, mixed=mixed) == wanted
        for source in memories:
            memories[source] = now = memories[source].after()
            for seen, sign in ((now.newest, 1), (now.before, -1)):
                found: list[Any] = [
                    entry
                    for (name, chunk), entry in sorted(
                        store.entries.items(), key=lambda entry: abs(entry[0][1])
                    )
                    if name == source and (chunk >= 0) == (sign > 0)
                ]
                if seen is None:
                    assert found == []
                    continue
                assert {batch for batch, _, _ in found} == {seen.batch}
                assert found[0][1] == seen.attempt_ms
                ids = b"".join(ids for _, _, ids in found)
                assert len(ids) == 16 * len(seen.rows())
                assert {ids[n : n + 16] for n in range(0, len(ids), 16)} == seen.rows()
                assert all(len(ids) <= 3 * 16 for _, _, ids in found)


_HEADER_TEXTS = (
    st.none() | st.text() | st.from_regex(r"\A\d{1,18}(:\d{1,18}){1,3}:[0-9a-f]{32}:\d+\Z")
)


@given(st.lists(st.lists(st.tuples(st.none() | st.text(), _HEADER_TEXTS), max_size=8), max_size=4))
def test_whatever_the_headers_say_rows_without_a_true_position_stay(
    batches: list[list[tuple[str | None, str | None]]],
) -> None:
    """Spark leaves out both where one is missing or is of another form; here nothing is believed of
    it."""
    store = Store()
    for marks in batches:
        kept = _kept_of(store, marks)
        for place, (_, text) in enumerate(marks):
            position = parse_position(text) if text else None
            if position is None or position.attempt_ms > NOW + MAX_CLOCK_SKEW_MS:
                assert place in kept
    assert len({source for source, _ in store.entries}) <= 3


def test_a_position_ahead_of_the_clock_counts_as_none_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    honest: list[Row] = [("a", batch, NOW - 100 + batch, 0) for batch in range(50)]
    forged: Row = ("a", 10**17, NOW + MAX_CLOCK_SKEW_MS + 1, 0)
    assert _kept(store, [honest[0], forged, forged, *honest[1:]]) == list(range(52))
    (line,) = caplog.messages
    assert line.startswith("partition orders-0: 2 records with the header ssp-position of a time")
    assert all(batch < 50 for batch, _, _ in store.entries.values())
    assert _kept(store, [honest[-1]]) == []
    at_most: Row = ("a", 10**17, NOW + MAX_CLOCK_SKEW_MS, 0)
    again: list[Row] = [("a", batch, NOW - 40 + batch, 0) for batch in range(49, 80)]
    assert _kept(store, [at_most, *again]) == [0, *range(2, 32)]


def test_a_stored_time_ahead_of_the_clock_drops_nothing() -> None:
    """It took any time from a header, and kept one batch."""
    store = Store()
    ahead = (10**17, NOW + MAX_CLOCK_SKEW_MS + 1, bytes(16))
    store.entries = {("a", 0): ahead, ("a", 1): ahead, ("silent", 0): ahead}
    honest: list[Row] = [("a", batch, NOW - 100 + batch, 0) for batch in range(50)]
    assert _kept(store, honest) == list(range(50))
    assert _kept(store, honest) == []
    assert {source for source, _ in store.entries} == {"a"}
    assert all(batch < 50 for batch, _, _ in store.entries.values())


def test_of_too_many_sources_those_that_wrote_last_are_remembered() -> None:
    store = Store()
    many: list[Row] = [(f"forged-{number}", 0, NOW, number) for number in range(50)]
    assert _kept(store, [("a", 0, NOW, 0)]) == [0]
    assert _kept(store, [*many, ("a", 0, NOW, 1)]) == list(range(51))
    assert len({source for source, _ in store.entries}) == 3
    assert _kept(store, [("a", 0, NOW, 0), ("a", 0, NOW, 1)]) == []
    assert _kept(store, [("b", 0, NOW + 1, 0)]) == [0]
    assert len({source for source, _ in store.entries}) == 3


def test_a_source_that_was_silent_for_long_is_forgotten_when_another_comes() -> None:
    store = Store()
    old: list[Row] = [("old", 0, 0, number) for number in range(7)]
    assert len(_kept(store, old)) == 7
    assert len(_kept(store, [("younger", 0, 7 * DAY, 0), *old])) == 1
    assert {source for source, _ in store.entries} == {"old", "younger"}
    assert len(_kept(store, [("youngest", 0, 7 * DAY + 1, 0)])) == 1
    assert {source for source, _ in store.entries} == {"younger", "youngest"}


def test_a_source_that_writes_again_is_not_forgotten_with_the_silent_ones() -> None:
    store = Store()
    assert _kept(store, [("b", 5, 0, 0)]) == [0]
    now = 8 * DAY
    assert _kept(store, [("a", 0, now, 0), ("b", 5, now, 0), ("b", 5, now, 1)]) == [0, 2]
    assert {source for source, _ in store.entries} == {"a", "b"}
    assert _kept(store, [("b", 5, now, 1), ("b", 5, now, 0)]) == []


def test_headers_of_another_version_mean_nothing() -> None:
    assert _kept_of(Store(), [("a", "2:3"), ("a", None)]) == [0, 1]


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
