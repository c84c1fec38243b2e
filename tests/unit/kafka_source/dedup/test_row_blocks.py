"""Rows packed into blocks, sorted by offset in bounded memory, and returned by the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.kafka_source.dedup.row_blocks import TYPES, BlockWriter, read_blocks, sort_by_offset

KINDS = ("string", "int", "bigint", *TYPES)
"""Topic, partition and offset, then a column of each type."""

_INTEGERS = {"int": st.integers(-(2**31), 2**31 - 1), "bigint": st.integers(-(2**63), 2**63 - 1)}
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "binary": st.binary(max_size=300),
    "string": st.text(max_size=100),
    "boolean": st.booleans(),
    **_INTEGERS,
}
_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["orders", "orders-2"]),
        st.integers(0, 2),
        st.integers(0, 2**60),
        *(st.none() | _VALUES[kind] for kind in TYPES),
    ),
    unique_by=lambda row: row[:3],
    max_size=30,
)


@given(_ROWS, st.integers(1, 9), st.sampled_from([1, 300, 1 << 20]), st.booleans())
def test_the_rows_of_each_partition_come_once_in_order_with_all_their_columns(
    rows: list[tuple[Any, ...]], batch_rows: int, max_bytes: int, large: bool
) -> None:
    types = [*(TYPES[kind] for kind in KINDS), pa.string()]
    if large:  # as with spark.sql.execution.arrow.useLargeVarTypes
        larger = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
        types = [larger.get(one, one) for one in types]
    columns = [*zip(*rows, strict=True)] or [()] * len(KINDS)
    arrays = [
        pa.array(values, kind)
        for values, kind in zip([*columns, (None,) * len(rows)], types, strict=True)
    ]
    whole = pa.RecordBatch.from_arrays(arrays, names=[str(n) for n in range(len(arrays))])
    writer = BlockWriter(types=KINDS, keys=(0, 1, 2), max_bytes=max_bytes)
    parts = (whole.slice(n, batch_rows) for n in range(0, len(rows), batch_rows))
    written = pa.Table.from_batches(writer(parts), _schema()).to_pandas()
    found: list[tuple[Any, ...]] = []
    for _, frame in written.groupby(["topic", "partition"]):
        for block in read_blocks([frame[::-1][["first", "last", "rows"]]], KINDS):
            kept = pa.Table.from_pandas(block.frame([True] * len(block.rows)))
            assert [one.type for one in kept.schema] == [TYPES[kind] for kind in KINDS]
            found += [tuple(row.values()) for row in kept.to_pylist()]
    assert found == sorted(rows, key=lambda row: row[:3])


def _schema() -> pa.Schema:
    return pa.schema(
        {
            "topic": pa.string(),
            "partition": pa.int32(),
            "first": pa.int64(),
            "last": pa.int64(),
            "rows": pa.binary(),
        }
    )


@pytest.mark.parametrize(("max_bytes", "blocks"), [(1, 40), (4_000, 10), (1 << 20, 1)])
def test_a_block_has_at_least_a_row_and_about_the_bytes_that_it_may_have(
    max_bytes: int, blocks: int
) -> None:
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(["orders"] * 40),
            pa.array([0] * 40, pa.int32()),
            pa.array(range(40), pa.int64()),
            pa.array([bytes(1_000)] * 40),
            pa.nulls(40, pa.string()),
        ],
        names=list("abcde"),
    )
    writer = BlockWriter(
        types=("string", "int", "bigint", "binary"), keys=(0, 1, 2), max_bytes=max_bytes
    )
    found = sum(batch.num_rows for batch in writer([rows]))
    assert found == pytest.approx(blocks, rel=0.4)


# --- The order of offsets -------------------------------------------------------------------------

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
