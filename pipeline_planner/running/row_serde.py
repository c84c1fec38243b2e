"""Rows as they lie in an intermediate stream: their key as text, their columns as JSON.

Key. It decides on the partition, so equal keys must be equal bytes whichever stage writes them. One
column: a string or binary as it is; anything else as its JSON text without quotes. Several: a JSON
array. Null is the text `null`, so that these rows too lie in one partition. An integer has one text
whatever its width; a decimal has its scale in it (`5.00` is not `5`); `-0.0` is `0.0`, but within a
struct or an array.

Value. A JSON object with every column, which Spark writes and reads with the options below: binary
as base64, decimals in full, timestamps in UTC with microseconds. That every type that is let
through comes back as it was is held by a test. Types that do not come back (maps whose keys are no
strings, variants, calendar intervals, user-defined types) are refused by name. A string that is not
UTF-8, as a cast from binary may make it, would come back as another: it fails the query. Columns
come back nullable.
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
    # Offsets of old times have seconds, which the format has no room for.
    "timeZone": "UTC",
    # Null in a map is not the same as no such key.
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
    """The columns that JSON does not bring back, each with its type; parts of one as a path."""
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
    """The key columns that have no one text, each with its type: maps have no order."""
    return tuple(
        f"{name} ({schema[name].dataType.simpleString()})"
        for name in columns
        if "map<" in schema[name].dataType.simpleString()
    )


def value_of(schema: StructType) -> Column:
    """The JSON text of these columns."""
    text = F.to_json(F.struct(*(column(name) for name in schema.names)), _FORMATS)
    return _of_utf8(text, schema, schema.names)


def _of_utf8(text: Column, schema: StructType, columns: Sequence[str]) -> Column:
    """`text`; the query fails where a string in one of `columns` is not UTF-8."""
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
    """Whether a string in `value`, a column that may have some, is not UTF-8; null may be no."""

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
    """A struct of the columns that `value_of` wrote; null for null.

    The query fails, without quoting it, on a text that is no JSON object, or that has another type
    in one of the columns. Columns that the text lacks are null, since what was written earlier may
    have fewer; others are passed over.
    """
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
    """With nulls allowed in every place, as in what Spark reads from JSON."""
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
    "[incompatible-state] intermediate stream: found a value that no stage of this pipeline has "
    "written, or one with other types; expected the JSON of the columns of the stage that writes "
    "it. Next step: see who else writes the stream, or start the pipeline under a new root with "
    "new intermediate streams"
)


def _not_utf8_text(name: str) -> str:
    return (
        f"[invalid-rows] column {name}: found a string that is not UTF-8; expected text, or binary "
        "data as binary. Next step: leave it binary, or mend it with make_valid_utf8"
    )


def key_bytes(schema: StructType, columns: Sequence[str]) -> Column:
    """The key of a record, as binary."""
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
    """The JSON array of these columns: what a table's rows and those joined with them meet by."""
    parts = F.concat_ws(",", *(_scalar(name) for name in columns))
    return _of_utf8(F.concat(F.lit("["), parts, F.lit("]")), schema, columns)


def _scalar(name: str) -> Column:
    in_array = F.to_json(F.array(column(name)), _FORMATS)
    text = F.substring(in_array, F.lit(2), F.length(in_array) - 2)
    # Equal numbers; as a string it would have quotes.
    return F.when(text == "-0.0", F.lit("0.0")).otherwise(text)


def column(name: str) -> Column:
    """A column by its whole name, whatever characters are in it."""
    return F.col("`" + name.replace("`", "``") + "`")
