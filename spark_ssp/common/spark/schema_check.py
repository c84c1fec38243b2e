"""Checks of the schemas of sources and sinks.

A user's schema chooses columns of a source, whose names and types follow from its options. Tables
of a catalog are rejected, since Spark does not pass their options to a source. A sink maps the
columns of a query to the parts of the records that it writes: names are case-sensitive, any other
column is ignored, as in Spark's Kafka sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from spark_ssp.common.columns import Column
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


def check_append(holder: str, *, overwrite: bool) -> None:
    """Raise UnsupportedError for a batch write in the mode `overwrite`. `holder` is the word for
    the stream or topic."""
    if overwrite:
        raise UnsupportedError(
            "df.write.mode(...)",
            found="overwrite",
            expected=f"append: records of a {holder} are not replaced",
            next_step=f'use .mode("append"); to start over, delete the {holder} and create it',
        )


# --- Columns of a source -------------------------------------------------------------------------


def requested_columns(schema: StructType, source: StructType, optional: str) -> tuple[Column, ...]:
    """Return the columns that a user's schema requests: any of the source's, in any order, those of
    bytes also as text. `optional` names the columns that options add. Raises UnsupportedError with
    all problems."""
    types = {field.name: field.dataType for field in source.fields}
    problems = list(_requested_problems(schema, types, optional))
    if problems:
        raise UnsupportedError(
            ", ".join(dict.fromkeys([".schema(...)", *(f"column {each[0]}" for each in problems)])),
            found="; ".join(found for _, found, _, _ in problems),
            expected="; ".join(expected for _, _, expected, _ in problems),
            next_step="; ".join(dict.fromkeys(next_step for _, _, _, next_step in problems)),
        )
    if not schema.fields:
        raise UnsupportedError(
            ".schema(...)",
            found="no columns",
            expected=f"columns of {', '.join(types)}",
            next_step="name one, or leave .schema(...) out",
        )
    return tuple(
        Column(field.name, is_text=field.dataType != types[field.name]) for field in schema.fields
    )


def _requested_problems(
    schema: StructType, types: Mapping[str, DataType], optional: str
) -> Iterator[tuple[str, str, str, str]]:
    """Return the column, found, expected and next step of each problem."""
    by_lower = {name.lower(): name for name in types}
    seen: set[str] = set()
    for field in schema.fields:
        name, kind = field.name, field.dataType
        allowed = _allowed_types(types.get(name))
        if name in seen:
            yield name, f"{name} twice", f"{name} once", "name each column once"
        elif not allowed:
            known = by_lower.get(name.lower())
            yield (
                name,
                f"{name}, which is not a column of the source",
                f"columns of {', '.join(types)} ({optional})",
                "correct the name, or leave .schema(...) out and derive columns after load()"
                if known is None
                else f"write {known}: the case of names counts here",
            )
        elif kind.simpleString() not in (texts := [one.simpleString() for one in allowed]):
            yield (
                name,
                f"{name} of type {kind.simpleString()}",
                f"{name} of type {' or '.join(texts)}",
                "correct the type, or leave .schema(...) out and convert columns after load()",
            )
        elif not field.nullable:
            yield name, f"{name} NOT NULL", f"{name} without NOT NULL", "leave NOT NULL out"
        elif kind not in allowed:
            yield (
                name,
                f"{name} with NOT NULL or a comment within its type",
                f"{name} of type {' or '.join(texts)} without either",
                "leave NOT NULL and comments within types out",
            )
        seen.add(name)


def _allowed_types(kind: DataType | None) -> list[DataType]:
    if kind is None:
        return []
    return [kind, StringType()] if isinstance(kind, BinaryType) else [kind]


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
