"""A schema of the user chooses columns of a source; any other is an error that names columns."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from spark_ssp.common.columns import Column
from spark_ssp.common.errors import UnsupportedError
from spark_ssp.common.spark.schema_check import requested_columns

LISTS = ArrayType(StringType())
PAIRS = ArrayType(StructType().add("key", StringType()))
COMMENTED = ArrayType(StructType().add("key", StringType(), metadata={"comment": "a name"}))
SOURCE = (
    StructType()
    .add("data", BinaryType())
    .add("offset", LongType())
    .add("lists", LISTS)
    .add("pairs", PAIRS)
)


def requested(*fields: tuple[str, DataType, bool]) -> tuple[Column, ...]:
    schema = StructType([StructField(*field) for field in fields])
    return requested_columns(schema, SOURCE, "lists with includeLists")


def test_columns_in_any_order_and_bytes_as_text() -> None:
    assert requested(("offset", LongType(), True), ("data", StringType(), True)) == (
        Column("offset"),
        Column("data", is_text=True),
    )
    assert requested_columns(SOURCE, SOURCE, "") == tuple(map(Column, SOURCE.names))


@pytest.mark.parametrize(
    ("field", "found", "expected"),
    [
        (("offset", StringType(), True), "offset of type string", "offset of type bigint"),
        (("data", LongType(), True), "data of type bigint", "data of type binary or string"),
        (("lists", StringType(), True), "lists of type string", "lists of type array<string>"),
        (("Data", BinaryType(), True), "Data, which is", "columns of data, offset, lists, pairs ("),
        (("offset", LongType(), False), "offset NOT NULL", "offset without NOT NULL"),
        (("lists", ArrayType(StringType(), False), True), "lists with NOT NULL", "lists of type"),
        (("pairs", COMMENTED, True), "pairs with NOT NULL or a comment", "pairs of type array<"),
    ],
)
def test_any_other_schema_is_refused(
    field: tuple[str, DataType, bool], found: str, expected: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        requested(field)
    assert caught.value.subject == f".schema(...), column {field[0]}"
    assert caught.value.found.startswith(found)
    assert caught.value.expected.startswith(expected)


def test_a_name_in_another_case_is_refused_with_the_right_one() -> None:
    with pytest.raises(UnsupportedError) as caught:
        requested(("DATA", BinaryType(), True), ("data", BinaryType(), True))
    assert caught.value.subject == ".schema(...), column DATA"
    assert caught.value.next_step.startswith("write data: ")


def test_all_problems_are_named_and_a_schema_has_columns() -> None:
    column = ("data", BinaryType(), True)
    with pytest.raises(UnsupportedError) as caught:
        requested(column, column, ("offset", StringType(), True))
    assert caught.value.subject == ".schema(...), column data, column offset"
    assert caught.value.found.startswith("data twice; offset of type")
    with pytest.raises(UnsupportedError, match="no columns"):
        requested()
