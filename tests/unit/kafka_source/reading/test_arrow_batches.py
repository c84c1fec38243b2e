"""Columns of the Kafka source: the schema, nulls, headers, the columns of the task."""

from __future__ import annotations

from array import array

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.columns import Column
from spark_ssp.common.errors import NEW_CHECKPOINT, InvalidRequestError
from spark_ssp.kafka_source.reading.arrow_batches import (
    RecordColumns,
    all_columns,
    binary_column,
    headers_column,
    numeric_column,
    record_batch,
    rows_within,
    split_runs,
    string_column,
    unreadable_headers,
)
from spark_ssp.kafka_source.source import spark_schema
from tests.support.kafka.partitions import ssp
from tests.support.kafka.reading import part, task
from tests.support.spark.arrow_schemas import arrow_schema_of
from tests.support.spark.requested_columns import selected, some_of


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("of_task", [False, True])
def test_the_arrow_schema_is_what_pyspark_makes_of_the_spark_schema(
    headers: bool, of_task: bool
) -> None:
    spark = spark_schema(include_headers=headers, include_task=of_task)
    columns = all_columns(include_headers=headers, include_task=of_task)
    batch = record_batch(records_of([(b"k", b"v")]), columns, task())
    assert arrow_schema_of(spark).equals(batch.schema, check_metadata=True)


def test_the_columns_are_those_of_sparks_source() -> None:
    assert spark_schema(include_headers=True, include_task=False).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


def test_a_batch_of_two_partitions_with_its_task() -> None:
    columns = RecordColumns(
        runs=[(ssp("orders", 3), 2), (ssp("zoë", 1), 1)],
        keys=binary_column([b"a", None, b""]),
        values=binary_column([b"1", b"\xff", None]),
        offsets=numeric_column(pa.int64(), array("q", [5, 9, 0])),
        times_ms=numeric_column(pa.int64(), array("q", [1_700_000_000_123, 0, -1])),
        time_types=numeric_column(pa.int32(), array("i", [0, 1, -1])),
    )
    batch = record_batch(
        columns, all_columns(include_headers=False, include_task=True), task(number=4)
    )
    batch.validate(full=True)
    assert batch["key"].to_pylist() == [b"a", None, b""]
    assert batch["value"].to_pylist() == [b"1", b"\xff", None]
    assert batch["topic"].to_pylist() == ["orders", "orders", "zoë"]
    assert batch["partition"].to_pylist() == [3, 3, 1]
    assert batch["offset"].to_pylist() == [5, 9, 0]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_000, 0, -1000]
    assert batch["timestampType"].to_pylist() == [0, 1, -1]
    assert batch["task"].to_pylist() == ["Partition 4"] * 3
    assert batch["ssp"].to_pylist() == [4] * 3


@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_that_is_no_timestamp_is_an_error_that_names_the_record(sign: int) -> None:
    largest = 9_223_372_036_854_775

    def columns(millis: int) -> RecordColumns:
        return RecordColumns(
            runs=[(ssp("orders", 3), 2), (ssp("zoë", 1), 2)],
            keys=binary_column([None] * 4),
            values=binary_column([None] * 4),
            offsets=numeric_column(pa.int64(), array("q", [5, 9, 70, 71])),
            times_ms=numeric_column(pa.int64(), array("q", [0, -1, millis, 1])),
            time_types=numeric_column(pa.int32(), array("i", [0] * 4)),
        )

    requested = all_columns(include_headers=False, include_task=False)
    batch = record_batch(columns(sign * largest), requested, task())
    assert batch["timestamp"].cast(pa.int64()).to_pylist()[2] == sign * largest * 1000
    with pytest.raises(InvalidRequestError) as caught:
        record_batch(columns(sign * (largest + 1)), requested, task())
    assert caught.value.subject == "the record at offset 70 of partition zoë-1"
    assert str(sign * (largest + 1)) in caught.value.found
    for error in (caught.value, unreadable_headers("a record")):
        assert f"startingOffsets, with {NEW_CHECKPOINT}" in error.next_step
    without = record_batch(columns(sign * (largest + 1)), [Column("value")], task())
    assert without["value"].null_count == 4, "a time that is not requested is no error"


_TEXTS = st.none() | st.text(max_size=3).map(str.encode)


@given(
    some_of(all_columns(include_headers=True, include_task=True), ["key", "value"]),
    st.lists(st.tuples(_TEXTS, _TEXTS), min_size=1, max_size=5),
)
def test_any_columns_are_those_of_the_full_read(
    columns: list[Column], pairs: list[tuple[bytes | None, bytes | None]]
) -> None:
    everything = all_columns(include_headers=True, include_task=True)
    full = record_batch(records_of(pairs), everything, task(number=4))
    found = record_batch(records_of(pairs), columns, task(number=4))
    found.validate(full=True)
    assert found.equals(selected(full, columns))


@pytest.mark.parametrize("name", ["key", "value"])
def test_bytes_that_are_not_text_are_an_error_that_names_the_record(name: str) -> None:
    """Each record by itself: in a row, halves of a character would be one."""
    values = ["é".encode(), None, b"", b"\xc3", b"\xa9"]
    records = records_of([(value, value) for value in values])
    with pytest.raises(InvalidRequestError) as caught:
        record_batch(records, [Column(name, is_text=True)], task())
    assert caught.value.subject == "the record at offset 13 of partition orders-1"
    assert name in caught.value.found
    assert caught.value.__cause__ is None


def records_of(pairs: list[tuple[bytes | None, bytes | None]]) -> RecordColumns:
    """Records of two partitions, from offset 10, with these keys and values."""
    count = len(pairs)
    runs = [(ssp("orders", 0), count // 2), (ssp("orders", 1), count - count // 2)]
    return RecordColumns(
        runs=runs,
        keys=binary_column([key for key, _ in pairs]),
        values=binary_column([value for _, value in pairs]),
        offsets=numeric_column(pa.int64(), array("q", range(10, 10 + count))),
        times_ms=numeric_column(pa.int64(), array("q", range(count))),
        time_types=numeric_column(pa.int32(), array("i", [0] * count)),
        headers=headers_column([[("h", value)] if value else None for _, value in pairs]),
    )


@given(st.lists(st.none() | st.binary(max_size=5)))
def test_any_bytes(values: list[bytes | None]) -> None:
    column = binary_column(values)
    column.validate(full=True)
    assert column.to_pylist() == values


@given(st.lists(st.text(max_size=5)))
def test_any_text(values: list[str]) -> None:
    column = string_column(values)
    column.validate(full=True)
    assert column.to_pylist() == values


@given(
    st.lists(
        st.none()
        | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3)
    )
)
def test_any_headers(values: list[list[tuple[str, bytes | None]] | None]) -> None:
    column = headers_column(values)
    column.validate(full=True)
    assert column.to_pylist() == [
        [{"key": key, "value": value} for key, value in headers] if headers else None
        for headers in values
    ]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=20),
    st.integers(1, 200),
)
def test_rows_are_cut_by_their_bytes(sizes: list[int], most: int) -> None:
    rows = rows_within(np.array(sizes, np.int64), most)
    assert 1 <= rows <= len(sizes)
    assert rows == 1 or sum(sizes[:rows]) <= most
    if rows < len(sizes):
        assert sum(sizes[: rows + 1]) > most


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 30))
def test_runs_are_cut_where_rows_are(lengths: list[int], rows: int) -> None:
    runs = [(part("orders", number, 0, 1).ssp, length) for number, length in enumerate(lengths)]
    rows = min(rows, sum(lengths))
    first, rest = split_runs(runs, rows)
    assert sum(length for _, length in first) == rows
    flat = [ssp for ssp, length in (*first, *rest) for _ in range(length)]
    assert flat == [ssp for ssp, length in runs for _ in range(length)]
    assert all(length for _, length in (*first, *rest))
