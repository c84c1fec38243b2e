"""Departures by two versions of a producer, with bad records among them:
`python -m examples.rehearsals.json_records`.

Needed: pip install '.[demo]' in a checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from pyspark.sql import SparkSession

from examples.flights.data import departures
from examples.recipes import json_records
from examples.rehearsals.laptop import connection, put, run
from spark_ssp import EmbeddedKinesis

DEPARTURES: Final = 1_000
BAD: Final = {
    b'{"index": 1, "carrier": "UA"': "not one JSON object",
    b'{"index": 2, "carrier": "UA"}{"index": 3, "carrier": "UA"}': "not one JSON object",
    b'{"index": 3, "carrier": "UA"}], [junk': "not one JSON object",
    b'{"index": 3, "carrier": "UA"}} junk': "not one JSON object",
    b'[{"index": 4, "carrier": "UA"}]': "not one JSON object",
    b"": "not one JSON object",
    b'{"index": 5, "carrier": "\xff"}': "not UTF-8",
    b'{"index": 6}': "carrier is missing",
    b'{"index": "seven", "carrier": "UA"}': "index: not bigint",
    b'{"index": 8, "carrier": "UA", "dep_delay": "late"}': "dep_delay: not double",
}
"""Each with the reason for which it is to be set aside."""


def version_1(row: dict[str, Any]) -> dict[str, Any]:
    """Return the departure as version 1 of the producer writes it."""
    return {name: row[name] for name in ("index", "carrier", "dep_delay")}


def version_2(row: dict[str, Any]) -> dict[str, Any]:
    """Return it as version 2 writes it: the delay is text, and two fields are new."""
    delay = None if row["dep_delay"] is None else f"{row['dep_delay']}.0"
    return {**version_1(row), "dep_delay": delay, "tailnum": row["tailnum"], "dest": row["dest"]}


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if each record is in one of the two tables, with its values or its reason."""
    rows = departures(DEPARTURES).to_pylist()
    older, newer = rows[: DEPARTURES // 2], rows[DEPARTURES // 2 :]
    with EmbeddedKinesis() as kinesis, patch.dict(json_records.SOURCE, connection(kinesis)):
        kinesis.state.create_stream("departures", shards=2)
        put(kinesis, "departures", map(version_1, older), key="carrier")
        for data in BAD:
            kinesis.state.put("departures", "broken producer", data)
        json_records.start(spark, str(folder), availableNow=True).awaitTermination()
        put(kinesis, "departures", map(version_2, newer), key="carrier")
        json_records.start(spark, str(folder), availableNow=True).awaitTermination()

    table = spark.read.parquet(f"{folder}/departures").orderBy("index").collect()
    rejected = spark.read.parquet(f"{folder}/rejected").collect()
    print(f"{len(table):,} departures in the table, {len(rows):,} put; {len(rejected)} set aside:")
    for row in rejected:
        print(f"  {row.reason:<22} {bytes(row.data)!r}")
    found = [(row["index"], row.carrier, row.dep_delay, row.tailnum, row.others) for row in table]
    expected = [
        *((row["index"], row["carrier"], row["dep_delay"], None, {}) for row in older),
        *(
            (row["index"], row["carrier"], row["dep_delay"], row["tailnum"], {"dest": row["dest"]})
            for row in newer
        ),
    ]
    return found == expected and {bytes(row.data): row.reason for row in rejected} == BAD


if __name__ == "__main__":
    sys.exit(run(rehearse))
