"""Rejects schemas that a user sets on a source, whose schema follows from its options, and tables
of a catalog, whose options Spark does not pass to a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructType

from spark_ssp.common.errors import UnsupportedError

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
