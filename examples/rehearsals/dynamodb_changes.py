"""Planes inserted, changed and deleted, in records as DynamoDB writes them into a stream: repeated,
out of order, with a late part, and with records that fail:
`python -m examples.rehearsals.dynamodb_changes`.

Needed: pip install '.[demo]' deltalake in a checkout.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from examples.recipes import dynamodb_changes
from examples.rehearsals.cdc_to_delta import CHANGES, changes
from examples.rehearsals.laptop import connection, forget_last_commit, put, run
from spark_ssp import EmbeddedKinesis

COLUMNS: Final = pa.schema(
    [
        ("tailnum", pa.string()),
        ("model", pa.string()),
        ("seats", pa.int64()),
        ("changed", pa.timestamp("us", "UTC")),
        ("removed", pa.bool_()),
    ]
)
_BEGIN_MS: Final = 1_357_000_000_000
_EVENTS: Final = {"insert": "INSERT", "update": "MODIFY", "delete": "REMOVE"}


def record(change: dict[str, Any], time_ms: int) -> dict[str, Any]:
    """Return a change as DynamoDB writes it, with one of both precisions of its time."""
    micros = time_ms % 2 == 0
    of_item: dict[str, Any] = {
        "ApproximateCreationDateTime": time_ms * (1000 if micros else 1),
        "ApproximateCreationDateTimePrecision": "MICROSECOND" if micros else "MILLISECOND",
        "Keys": {"tailnum": {"S": change["tailnum"]}},
        "SizeBytes": 100,
    }
    if change["op"] != "delete":
        of_item["NewImage"] = {
            **of_item["Keys"],
            "model": {"S": change["model"]},
            "seats": {"N": str(change["seats"])},
        }
    return {
        "awsRegion": "eu-west-1",
        "eventID": str(time_ms),
        "eventName": _EVENTS[change["op"]],
        "userIdentity": None,
        "recordFormat": "application/json",
        "tableName": "planes",
        "dynamodb": of_item,
        "eventSource": "aws:dynamodb",
    }


_GOOD: Final = record({"op": "insert", "tailnum": "N1", "model": "A320", "seats": 2}, _BEGIN_MS)
_OF_ITEM: Final = _GOOD["dynamodb"]
_KEYS: Final = _OF_ITEM["Keys"]
OTHER_TABLE: Final = {
    **_GOOD,
    "tableName": "airports",
    "dynamodb": {**_OF_ITEM, "Keys": {"faa": {"S": "JFK"}}},
}
_BAD: Final = (
    {**_GOOD, "eventName": "UPSERT"},
    {**_GOOD, "dynamodb": None},
    {**_GOOD, "dynamodb": {**_OF_ITEM, "Keys": {}}},
    {**_GOOD, "dynamodb": {**_OF_ITEM, "NewImage": None}},
    {**_GOOD, "dynamodb": {**_OF_ITEM, "NewImage": {**_KEYS, "seats": {"N": "two"}}}},
    {**_GOOD, "dynamodb": {**_OF_ITEM, "NewImage": {**_KEYS, "seats": {"S": "180"}}}},
    {**_GOOD, "dynamodb": {**_OF_ITEM, "NewImage": {**_KEYS, "model": {"N": "7"}}}},
    {**_GOOD, "dynamodb": {**_OF_ITEM, "ApproximateCreationDateTime": None}},
    {**_GOOD, "dynamodb": {**_OF_ITEM, "ApproximateCreationDateTimePrecision": "HOUR"}},
    [_GOOD],
)
BAD: Final = (
    *(json.dumps(one).encode() for one in _BAD),
    b"",
    b"\xff",
    json.dumps(_GOOD).encode() * 2,
)
"""Each fails the query."""


def disordered(records: list[dict[str, Any]], chance: random.Random) -> Iterator[dict[str, Any]]:
    """Yield each record once or twice, no further than some places away."""
    places = [
        (number + chance.uniform(0, 50), record)
        for number, record in enumerate(records)
        for _ in range(chance.choice((1, 1, 2)))
    ]
    return (record for _, record in sorted(places, key=lambda each: each[0]))


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if the table has the newest state of each plane."""
    table, checkpoint = f"{folder}/planes", folder / "checkpoint"
    state: dict[str, dict[str, Any]] = {}
    chance = random.Random(3)
    all_changes = [
        record(change, _BEGIN_MS + number)
        for number, change in enumerate([*changes(state, seed=1), *changes(state, seed=2)])
    ]
    timely = all_changes[:CHANGES]
    late = timely[CHANGES // 2 :: 7]
    del timely[CHANGES // 2 :: 7]
    DeltaTable.create(table, COLUMNS)
    limit = {"maxRecordsPerTrigger": "500"}
    with (
        EmbeddedKinesis() as kinesis,
        patch.dict(dynamodb_changes.SOURCE, connection(kinesis) | limit),
    ):
        kinesis.state.create_stream("plane-changes", shards=2)
        put(kinesis, "plane-changes", [OTHER_TABLE], key="eventID")
        put(kinesis, "plane-changes", disordered(timely, chance), key="eventID")
        dynamodb_changes.start(spark, table, str(checkpoint), availableNow=True).awaitTermination()
        before = rows_of(table)

        forget_last_commit(checkpoint)
        dynamodb_changes.start(spark, table, str(checkpoint), availableNow=True).awaitTermination()
        is_unchanged = rows_of(table) == before

        kinesis.state.scale("plane-changes", 3)
        put(kinesis, "plane-changes", disordered(all_changes[CHANGES:], chance), key="eventID")
        put(kinesis, "plane-changes", disordered(late, chance), key="eventID")
        dynamodb_changes.start(spark, table, str(checkpoint), availableNow=True).awaitTermination()

        refused = sum(fails(spark, kinesis, number, folder) for number in range(len(BAD)))

    rows = rows_of(table)
    removed = [row for row in rows if row["removed"]]
    items = [{name: row[name] for name in COLUMNS.names[:3]} for row in rows if not row["removed"]]
    expected = [state[key] for key in sorted(state)]
    print(f"{len(all_changes):,} changes, repeated and out of order; ", end="")
    print(f"{len(items)} planes in the table, {len(expected)} expected; {len(removed)} removed")
    print(f"a repeated batch has changed the table: {'no' if is_unchanged else 'yes'}; ", end="")
    print(f"{refused} of {len(BAD)} bad records have failed a query")
    return items == expected and bool(removed) and is_unchanged and refused == len(BAD)


def rows_of(table: str) -> list[dict[str, Any]]:
    """Return the rows of the table in the order of their keys."""
    rows: list[dict[str, Any]] = DeltaTable(table).to_pyarrow_table().sort_by("tailnum").to_pylist()
    return rows


def fails(spark: SparkSession, kinesis: EmbeddedKinesis, number: int, folder: Path) -> bool:
    """Return True if this bad record fails a query, which reports its position, before the table is
    changed."""
    stream, table = f"bad-changes-{number}", DeltaTable(f"{folder}/planes")
    kinesis.state.create_stream(stream, shards=1)
    kinesis.state.put(stream, "broken producer", BAD[number])
    with patch.dict(dynamodb_changes.SOURCE, {"streamName": stream}):
        checkpoint = f"{folder}/{stream}"
        query = dynamodb_changes.start(spark, table.table_uri, checkpoint, availableNow=True)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            is_same = DeltaTable(table.table_uri).version() == table.version()
            return "not a change: shardId-000000000000, " in str(error) and is_same
    return False


if __name__ == "__main__":
    sys.exit(run(rehearse))
