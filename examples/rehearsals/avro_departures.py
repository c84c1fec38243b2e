"""Departures in two versions of an Avro schema, and the check of the table that is made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

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
    {
        "name": "time_hour",
        "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
        "default": None,
    },
]
SCHEMAS: Final = tuple(
    {"type": "record", "name": "Departure", "fields": fields} for fields in (_FIRST, _FIRST + _NEW)
)


def rows() -> list[dict[str, Any]]:
    """Return the departures. Those with an even index are written by the first schema."""
    found: list[dict[str, Any]] = departures(DEPARTURES).to_pylist()
    return [row | {"time_hour": datetime.fromisoformat(row["time_hour"])} for row in found]


def without_time() -> dict[str, Any]:
    """Return a departure of the second schema, whose last byte is that of its null `time_hour`."""
    return rows()[1] | {"time_hour": None}


def with_impossible_time(departure: bytes) -> bytes:
    """Return the encoded departure without a time with one 292 million years ago."""
    return departure[:-1] + b"\x02" + b"\xff" * 9 + b"\x01"


def check(spark: SparkSession, folder: Path, bad: Sequence[bytes | None], data: str) -> bool:
    """Return True if the table has every departure, and every bad record with an error and its
    bytes in the column `data`."""
    table = spark.read.parquet(f"{folder}/departures")
    time = F.unix_seconds("time_hour").alias("time")
    good = table.where("error IS NULL").select("*", time).orderBy("index").collect()
    aside = table.where("error IS NOT NULL").collect()
    print(f"{len(good):,} departures decoded, {DEPARTURES:,} put; {len(aside)} records set aside:")
    for row in sorted(aside, key=lambda row: str(row.error)):
        print(f"  {row.error}, {len(row[data] or b'')} bytes")
    found = [(row["index"], row.carrier, row.tailnum, row.time, row[data]) for row in good]
    expected = [
        (row["index"], row["carrier"], row["tailnum"], row["time_hour"].timestamp(), None)
        if row["index"] % 2
        else (row["index"], row["carrier"], None, None, None)
        for row in rows()
    ]
    kept = Counter(None if row[data] is None else bytes(row[data]) for row in aside)
    return (
        found == expected
        and kept == Counter(bad)
        and "OverflowError" in {row.error for row in aside}
    )
