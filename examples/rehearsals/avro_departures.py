"""Departures in two versions of an Avro schema, and the check of the table that is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from examples.flights.data import departures

DEPARTURES: Final = 1_000
_FIRST: Final[list[dict[str, Any]]] = [
    {"name": "index", "type": "long"},
    {"name": "carrier", "type": "string"},
]
# A field that the reader expects, and one that it does not.
_NEW: Final[list[dict[str, Any]]] = [
    {"name": "tailnum", "type": ["null", "string"], "default": None},
    {"name": "dest", "type": "string", "default": ""},
]
SCHEMAS: Final = tuple(
    {"type": "record", "name": "Departure", "fields": fields} for fields in (_FIRST, _FIRST + _NEW)
)


def rows() -> list[dict[str, Any]]:
    """Return the departures. Those with an even index are written by the first schema."""
    found: list[dict[str, Any]] = departures(DEPARTURES).to_pylist()
    return found


def check(spark: SparkSession, folder: Path, bad: Sequence[bytes | None]) -> bool:
    """Return True if the table has every departure, and every bad record with an error."""
    table = spark.read.parquet(f"{folder}/departures")
    good = table.where("error IS NULL").orderBy("index").collect()
    errors = [row.error for row in table.where("error IS NOT NULL").collect()]
    print(f"{len(good):,} departures decoded, {DEPARTURES:,} put; {len(errors)} records set aside:")
    for error in sorted(errors):
        print(f"  {error}")
    found = [(row["index"], row.carrier, row.tailnum) for row in good]
    expected = [
        (row["index"], row["carrier"], row["tailnum"] if row["index"] % 2 else None)
        for row in rows()
    ]
    return found == expected and len(errors) == len(bad)
