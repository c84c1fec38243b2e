"""Rejects schemas that a user sets on a source, whose schema follows from its options."""

from __future__ import annotations

from pyspark.sql.types import StructType

from ssp_common.errors import UnsupportedError


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
