"""Checks of the schemas of sources and sinks.

A source's schema follows from its options, so one that a user sets is rejected, as are tables of a
catalog, whose options Spark does not pass to a source. A sink maps the columns of a query to the
parts of the records that it writes: names are case-sensitive, any other column is ignored, as in
Spark's Kafka sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import ArrayType, DataType, StringType, StructType

from spark_ssp.common.errors import InvalidRowsError, UnsupportedError

_OF_TABLES: Final = "option."
"""The prefix of the names of a table's options in `CREATE TABLE`."""


def check_not_table(format_: str, options: Mapping[str, str]) -> None:
    """Raise UnsupportedError for the options that Spark passes for a table of a catalog: in `CREATE
    TABLE`, each also with the prefix `option.`; in a query of the table, none."""
    if options and not any(name.lower().startswith(_OF_TABLES) for name in options):
        return
    found = "the options of a table" if options else "no options, as for a table of a catalog"
    raise UnsupportedError(
        f"format {format_}",
        found=f"{found}: Spark does not pass the options of a table (CREATE TABLE, saveAsTable) to "
        "a source in Python",
        expected="the options of the read or write itself",
        next_step=f"in SQL, CREATE TEMPORARY VIEW name USING `{format_}` OPTIONS (...), for SELECT "
        "and INSERT; elsewhere, set the options with .option(...)",
    )


def check_schema(schema: StructType, expected: StructType, rule: str) -> None:
    """Raise UnsupportedError unless both schemas have the same names and types of columns. `rule`
    describes the schema of the source."""
    if _columns(schema) != _columns(expected):
        raise UnsupportedError(
            ".schema(...)",
            found=f"the schema {schema.simpleString()}",
            expected=f"no schema: {rule}",
            next_step="leave .schema(...) out and select or parse the columns after load()",
        )


def _columns(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


# --- Columns of a sink ---------------------------------------------------------------------------


def _cast_advice(name: str, kind: DataType) -> str:
    if isinstance(kind, StructType | ArrayType):
        return f"convert it to text, for example by to_json({name}) AS {name}"
    return f"CAST it: CAST({name} AS STRING)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumn:
    """A column that a sink reads. `fits` decides on its type, which errors describe by
    `type_text`."""

    name: str
    fits: Callable[[DataType], bool]
    type_text: str
    advice: Callable[[str, DataType], str] = _cast_advice
    """Returns the next step for a column of another type."""
    if_missing: tuple[str, str, str] | None = None
    """For a required column that is missing: the parts of the error, from found to next step."""


def of_types(*types: type[DataType]) -> Callable[[DataType], bool]:
    """Return the predicate for any of these types."""
    return lambda kind: isinstance(kind, types)


is_text = of_types(StringType)


def find_columns(schema: StructType, columns: Iterable[RecordColumn]) -> dict[str, int]:
    """Return the index of each column that the schema has; of several with a name the first.
    Raises InvalidRowsError with all problems."""
    found: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        found.setdefault(field.name, index)
    problems = list(_problems(schema, columns, found))
    if problems:
        raise InvalidRowsError(
            ", ".join(f"column {column}" for column, _, _, _ in problems),
            found="; ".join(text for _, text, _, _ in problems),
            expected="; ".join(expected for _, _, expected, _ in problems),
            next_step="; ".join(next_step for _, _, _, next_step in problems),
        )
    return {column.name: found[column.name] for column in columns if column.name in found}


def _problems(
    schema: StructType, columns: Iterable[RecordColumn], found: dict[str, int]
) -> Iterator[tuple[str, str, str, str]]:
    """Return the column, found, expected and next step of each problem: first of the missing
    columns, then of the types."""
    for column in columns:
        if column.name not in found and column.if_missing is not None:
            yield (column.name, *column.if_missing)
    for column in columns:
        if column.name not in found:
            continue
        kind = schema.fields[found[column.name]].dataType
        if not column.fits(kind):
            yield (
                column.name,
                f"{column.name} of type {kind.simpleString()}",
                f"{column.name} of type {column.type_text}",
                column.advice(column.name, kind),
            )
