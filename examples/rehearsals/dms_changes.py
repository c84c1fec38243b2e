"""Planes loaded, inserted, updated and deleted, in records as AWS DMS writes them, with control
records, another table, a repeated batch and bad records:
`python -m examples.rehearsals.dms_changes`.

Needed: pip install '.[demo]' deltalake in a checkout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from pyspark.sql import SparkSession

from examples.recipes import dms_changes
from examples.rehearsals.cdc_to_delta import changes
from examples.rehearsals.laptop import connection, forget_last_commit, run
from spark_ssp import EmbeddedKinesis

COMMITTED: Final = "2013-01-01T05:00:00.000000Z"


def metadata(
    operation: str,
    *,
    record_type: str = "data",
    schema: str = "public",
    table: str = "planes",
    transaction: int | None = None,
) -> dict[str, Any]:
    """Return the metadata of a record, with the details of its transaction if it is given."""
    details = {"transaction-id": transaction, "commit-timestamp": COMMITTED}
    return {
        "timestamp": "2013-01-01T05:00:01.000000Z",
        "record-type": record_type,
        "operation": operation,
        "partition-key-type": "primary-key",
        "schema-name": schema,
        "table-name": table,
        **(details if transaction is not None else {}),
    }


PLANE: Final = {"tailnum": "N1", "model": "A320", "seats": 2}
LEFT_OUT: Final[tuple[dict[str, Any], ...]] = (
    {"metadata": metadata("create-table", record_type="control"), "control": {"table-def": {}}},
    {"metadata": {"record-type": "control", "operation": "drop-table", "table-name": ""}},
    {"metadata": metadata("insert", table="airports"), "data": {"faa": "JFK"}},
    {"metadata": metadata("insert", schema="private"), "data": PLANE},
)
_BAD: Final[dict[str, Any]] = {
    "not a data record": {"metadata": metadata("insert", record_type="other")},
    "unknown operation": {"metadata": metadata("merge"), "data": PLANE},
    "no data": {"metadata": metadata("insert")},
    "tailnum is missing": {"metadata": metadata("insert"), "data": {"seats": 2}},
    "seats: not bigint": {"metadata": metadata("insert"), "data": {**PLANE, "seats": "two"}},
}
BAD: Final = {json.dumps(record).encode(): reason for reason, record in _BAD.items()} | {
    b"\xff": "not UTF-8",
    b"": "not one JSON object with metadata",
    b"[]": "not one JSON object with metadata",
    json.dumps(PLANE).encode(): "not one JSON object with metadata",
    json.dumps({"metadata": metadata("insert"), "data": PLANE}).encode() * 2: (
        "not one JSON object with metadata"
    ),
}
"""Each with the reason for which it is to be set aside."""


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if each change is a row, and each bad record is in the second table."""
    expected = []
    with EmbeddedKinesis() as kinesis, patch.dict(dms_changes.SOURCE, connection(kinesis)):
        kinesis.state.create_stream("dms", shards=2)
        for record in LEFT_OUT:
            kinesis.state.put("dms", "control", json.dumps(record).encode())
        for bad in BAD:
            kinesis.state.put("dms", "broken producer", bad)
        for number, change in enumerate(changes({}, seed=1)):
            operation = "load" if number < 100 else change["op"]
            plane = {name: change.get(name) for name in dms_changes.COLUMNS}
            if number % 2:
                # IncludeTransactionDetails, IncludeNullAndEmpty and the format `json`.
                about, data, indent = metadata(operation, transaction=number), plane, "\t"
            else:
                about, indent = metadata(operation), None
                data = {name: value for name, value in plane.items() if value is not None}
            text = json.dumps({"data": data, "metadata": about}, indent=indent)
            kinesis.state.put("dms", change["tailnum"], text.encode())
            details = (str(number), COMMITTED) if number % 2 else (None, None)
            expected.append((operation, *plane.values(), *details))
        dms_changes.start(spark, str(folder), availableNow=True).awaitTermination()
        forget_last_commit(folder / "checkpoint")
        dms_changes.start(spark, str(folder), availableNow=True).awaitTermination()

    table = spark.read.parquet(f"{folder}/changes")
    columns = ("operation", *dms_changes.COLUMNS, *dms_changes.TRANSACTION)
    rows = [tuple(row) for row in table.select(*columns).collect()]
    rejected = spark.read.parquet(f"{folder}/rejected").collect()
    print(f"{len(rows):,} changes in the table, {len(expected):,} put; {len(rejected)} set aside")
    return sorted(rows, key=repr) == sorted(expected, key=repr) and (
        sorted((bytes(row.data), row.reason) for row in rejected) == sorted(BAD.items())
    )


if __name__ == "__main__":
    sys.exit(run(rehearse))
