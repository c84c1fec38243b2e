"""Rows sorted by offset within a bounded memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.kafka_source.dedup.row_blocks import sort_by_offset

KIB = 1 << 10


def _table(rows: list[tuple[int, str | None]]) -> pa.Table:
    """As pandas' frames become: a column without any value has the type null."""
    return pa.table({"text": [text for _, text in rows], "offset": [offset for offset, _ in rows]})


@given(
    st.lists(st.tuples(st.integers(0, 1 << 60), st.none() | st.text()), unique_by=lambda r: r[0]),
    st.data(),
    st.sampled_from([1, 200, 1 << 30]),
    st.sampled_from([1, 100, 1 << 20]),
    st.integers(1, 7),
)
def test_every_row_comes_once_in_order(
    rows: list[tuple[int, str | None]],
    data: st.DataObject,
    memory_bytes: int,
    chunk_bytes: int,
    chunk_rows: int,
) -> None:
    tables = []
    left = list(rows)
    while left:
        size = data.draw(st.integers(1, len(left)))
        tables.append(_table(left[:size]))
        left = left[size:]
    found = [
        (row["offset"], row["text"])
        for table in sort_by_offset(
            tables,
            "offset",
            memory_bytes=memory_bytes,
            chunk_bytes=chunk_bytes,
            chunk_rows=chunk_rows,
        )
        for row in table.to_pylist()
    ]
    assert found == sorted(rows)


@pytest.mark.parametrize("shuffled", [False, True])
def test_what_is_held_does_not_grow_with_the_rows(shuffled: bool) -> None:
    """40 MB, of which each half comes first or the second half does."""
    tables = [
        _table([(number * 10 + at, "x" * 10 * KIB) for at in range(10)]) for number in range(400)
    ]
    if shuffled:
        tables = [*tables[200:], *tables[:200]]
    before = pa.total_allocated_bytes()
    most = rows = 0
    for table in sort_by_offset(iter(tables), "offset", memory_bytes=2 << 20, chunk_bytes=64 * KIB):
        rows += table.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 4_000
    assert most < 6 << 20


def test_the_file_is_in_a_folder_of_sparks_and_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'gone'},{tmp_path}")
    tables = [_table([(number, "x" * KIB)]) for number in range(10)]
    ordered = sort_by_offset(tables, "offset", memory_bytes=KIB)
    assert next(ordered).num_rows == 1
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "gone"))
    assert len(list(sort_by_offset(tables, "offset", memory_bytes=KIB))) == 10
