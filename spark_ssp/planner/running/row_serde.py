"""Serializes the rows of intermediate streams: the key as text, the columns as JSON.

Key. It determines the partition, so equal keys must be equal bytes in all stages. One column: a
string or binary unchanged; other types as JSON text without quotes. Several columns: a JSON array.
Null is the text `null`, so that such rows share one partition too. An integer has the same text for
every width; a decimal includes its scale (`5.00` is not `5`); `-0.0` is `0.0`, except within a
struct or an array.

Value. A JSON object with every column, which Spark writes and reads with the options below: binary
as base64, decimals in full, timestamps in UTC with microseconds. A test checks that every accepted
type round-trips. Other types (maps with keys that are not strings, variants, calendar intervals,
user-defined types) are rejected by name. A string that is not UTF-8, such as a cast from binary,
would not round-trip: it fails the query. Columns become nullable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    YearMonthIntervalType,
)

_FORMATS: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    # Historic zone offsets have seconds, which the format cannot represent.
    "timeZone": "UTC",
    # In a map, null differs from an absent key.
    "ignoreNullFields": "false",
}
_UNREAD: Final = "__ssp_unread"

_KEPT: Final[tuple[type[DataType], ...]] = (
    BinaryType,
    BooleanType,
    CharType,
    DateType,
    DayTimeIntervalType,
    NullType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    YearMonthIntervalType,
)


def lost_types(schema: StructType) -> tuple[str, ...]:
    """Return the columns that do not round-trip as JSON, with their types; nested ones as paths."""
    return tuple(text for field in schema for text in _lost(field.name, field.dataType))


def _lost(name: str, found: DataType) -> Iterator[str]:
    match found:
        case StructType():
            for field in found:
                yield from _lost(f"{name}.{field.name}", field.dataType)
        case ArrayType():
            yield from _lost(f"{name}[]", found.elementType)
        case MapType() if isinstance(found.keyType, StringType):
            yield from _lost(f"{name}[]", found.valueType)
        case AtomicType() | NullType() if isinstance(found, _KEPT) or found.typeName() == "time":
            return
        case _:
            yield f"{name} ({found.simpleString()})"


def invalid_keys(schema: StructType, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the key columns without a unique text, with their types: maps are unordered."""
    return tuple(
        f"{name} ({schema[name].dataType.simpleString()})"
        for name in columns
        if "map<" in schema[name].dataType.simpleString()
    )


def value_of(schema: StructType) -> Column:
    """Return the JSON text of these columns."""
    text = F.to_json(F.struct(*(column(name) for name in schema.names)), _FORMATS)
    return _of_utf8(text, schema, schema.names)


def _of_utf8(text: Column, schema: StructType, columns: Sequence[str]) -> Column:
    """Return `text` as a column that fails the query if a string in `columns` is not UTF-8."""
    checked: Column | None = None
    for name in columns:
        if _has_strings(schema[name].dataType):
            bad = _not_utf8(column(name), schema[name].dataType)
            refusal = F.raise_error(F.lit(_not_utf8_text(name))).cast("string")
            checked = F.when(bad, refusal) if checked is None else checked.when(bad, refusal)
    return text if checked is None else checked.otherwise(text)


def _has_strings(found: DataType) -> bool:
    match found:
        case StructType():
            return any(_has_strings(field.dataType) for field in found)
        case ArrayType():
            return _has_strings(found.elementType)
        case MapType():
            return _has_strings(found.keyType) or _has_strings(found.valueType)
        case _:
            return isinstance(found, StringType | CharType | VarcharType)


def _not_utf8(value: Column, found: DataType) -> Column:
    """Return the condition that a string in `value` is not UTF-8; null counts as false."""

    def within(values: Column, of: DataType) -> Column:
        return F.exists(values, lambda one: _not_utf8(one, of))

    match found:
        case StructType():
            parts = [
                _not_utf8(value.getField(field.name), field.dataType)
                for field in found
                if _has_strings(field.dataType)
            ]
        case ArrayType():
            parts = [within(value, found.elementType)]
        case MapType():
            sides = ((F.map_keys, found.keyType), (F.map_values, found.valueType))
            parts = [within(side(value), of) for side, of in sides if _has_strings(of)]
        case _:
            parts = [~F.is_valid_utf8(value)]
    return reduce(Column.__or__, parts)


def columns_of(value: Column, schema: StructType) -> Column:
    """Return a struct of the columns that `value_of` wrote; null for null. The query fails on text
    that is not a JSON object, or with another type in a column; the error does not quote it.
    Missing columns are null, since earlier records may have fewer; unknown ones are ignored."""
    unread = _UNREAD
    while unread.lower() in (name.lower() for name in schema.names):
        unread += "_"
    nullable = [StructField(field.name, _nullable(field.dataType)) for field in schema]
    read = F.from_json(
        value,
        StructType([*nullable, StructField(unread, StringType())]),
        _FORMATS | {"columnNameOfCorruptRecord": unread},
    )
    refusal = F.raise_error(F.lit(_NOT_OURS)).cast(read_type := StructType(nullable))
    kept = F.struct(*(read.getField(field.name).alias(field.name) for field in schema))
    bad = value.isNotNull() & (read.isNull() | read.getField(unread).isNotNull())
    return F.when(bad, refusal).when(value.isNotNull(), kept.cast(read_type))


def _nullable(found: DataType) -> DataType:
    """Return the type with all parts nullable, as Spark reads it from JSON."""
    match found:
        case StructType():
            return StructType([StructField(f.name, _nullable(f.dataType)) for f in found])
        case ArrayType():
            return ArrayType(_nullable(found.elementType))
        case MapType():
            return MapType(_nullable(found.keyType), _nullable(found.valueType))
        case _:
            return found


_NOT_OURS: Final = (
    "[incompatible-state] intermediate stream: found a value not written by a stage of this "
    "pipeline, or one with other types; expected the JSON of the columns of the stage that writes "
    "it. Next step: check the stream for other writers, or start the pipeline under a new root "
    "with new intermediate streams"
)


def _not_utf8_text(name: str) -> str:
    return (
        f"[invalid-rows] column {name}: found a string that is not UTF-8; expected text, or binary "
        "data as binary. Next step: leave it binary, or convert it with make_valid_utf8"
    )


def key_bytes(schema: StructType, columns: Sequence[str]) -> Column:
    """Return the key of a record, as binary."""
    if len(columns) > 1:
        return key_text(schema, columns).cast("binary")
    (name,) = columns
    only = column(name)
    match schema[name].dataType:
        case StringType() | BinaryType():
            text = only
        case AtomicType():
            text = F.regexp_replace(_scalar(name), '^"|"$', "")
        case _:
            text = _scalar(name)
    return F.coalesce(text.cast("binary"), F.lit("null").cast("binary"))


def key_text(schema: StructType, columns: Sequence[str]) -> Column:
    """Return the JSON array of these columns, by which rows are joined with a table."""
    parts = F.concat_ws(",", *(_scalar(name) for name in columns))
    return _of_utf8(F.concat(F.lit("["), parts, F.lit("]")), schema, columns)


def _scalar(name: str) -> Column:
    in_array = F.to_json(F.array(column(name)), _FORMATS)
    text = F.substring(in_array, F.lit(2), F.length(in_array) - 2)
    # These are equal numbers; a string would have quotes.
    return F.when(text == "-0.0", F.lit("0.0")).otherwise(text)


def column(name: str) -> Column:
    """Return a column by its name, which may contain any characters."""
    return F.col("`" + name.replace("`", "``") + "`")
