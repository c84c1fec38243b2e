"""What a streaming query keeps to tell repeats, over a state store in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_source import repeats
from kafka_source.repeat_filter import Known, RepeatFilter, after
from kafka_source.repeat_headers import parse_position
from kafka_source.repeats import DropRepeats

DAY = 24 * 60 * 60 * 1_000


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


def _position(batch: int, made: int, number: int) -> str:
    return f"{batch}:{made}:0:{number:032x}:0"


def _kept(store: Store, rows: list[Row]) -> list[int]:
    """The places of the rows that come out of one batch of the reader, where a sort that spilled
    has put the later half of them first."""
    frame = pd.DataFrame(
        {
            "plain0": list(range(len(rows))),
            "ssp_offset": list(range(len(rows))),
            "ssp_source": [source for source, _, _, _ in rows],
            "ssp_position": [
                None if source is None else _position(batch, made, number)
                for source, batch, made, number in rows
            ],
        }
    )
    processor = DropRepeats(["plain0"], 7 * DAY)
    processor.init(store)  # type: ignore[arg-type]
    found: list[int] = []
    half = len(frame) // 2
    shuffled = pd.concat([frame[half:], frame[:half]])
    frames = iter([shuffled[:3], shuffled[3:]]) if len(frame) > 3 else iter([shuffled])
    for one in processor.handleInputRows(("orders", 0), frames, None):
        assert list(one.columns) == ["plain0"]
        found.extend(one["plain0"])
    processor.close()
    return found


_ROWS = st.tuples(
    st.sampled_from([None, "a", "b"]), st.integers(0, 3), st.integers(0, 5), st.integers(0, 9)
)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "_CHUNK", 3)
        patch.setattr(repeats, "_FRAME", 5)
        yield


@given(st.lists(st.lists(_ROWS, max_size=12), max_size=6))
def test_the_state_is_what_the_filter_wants_remembered(batches: list[list[Row]]) -> None:
    store = Store()
    known: dict[str, Known | None] = {"a": None, "b": None}
    for rows in batches:
        filters = {source: RepeatFilter(known[source]) for source in known}
        wanted = []
        for place, (source, batch, made, number) in enumerate(rows):
            position = parse_position(_position(batch, made, number))
            assert position is not None
            if source is None or filters[source].is_new(position):
                wanted.append(place)
        assert _kept(store, rows) == wanted
        for source in known:
            known[source] = after(known[source], filters[source].learnt())
            found: list[Any] = [
                entry for (name, _), entry in sorted(store.entries.items()) if name == source
            ]
            now = known[source]
            if now is None:
                assert found == []
                continue
            assert {batch for batch, _, _ in found} == {now.batch}
            assert found[0][1] == now.made
            ids = b"".join(ids for _, _, ids in found)
            assert len(ids) == 16 * len(now.rows)
            assert {ids[n : n + 16] for n in range(0, len(ids), 16)} == set(now.rows)
            assert all(len(ids) <= 3 * 16 for _, _, ids in found)


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
    frame = pd.DataFrame(
        {
            "plain0": [0, 1],
            "ssp_offset": [7, 8],
            "ssp_source": ["a", "a"],
            "ssp_position": ["2:3", None],
        }
    )
    processor = DropRepeats(["plain0"], DAY)
    processor.init(Store())  # type: ignore[arg-type]
    (kept,) = processor.handleInputRows(("orders", 0), iter([frame]), None)
    assert list(kept["plain0"]) == [0, 1]
