"""Planes inserted, changed and deleted, with a batch that is repeated, and records that fail:
`python -m examples.rehearsals.cdc_to_delta`.

Needed: pip install '.[demo]' deltalake in a checkout.
"""

from __future__ import annotations

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

from examples.flights.data import planes
from examples.recipes import cdc_to_delta
from examples.rehearsals.laptop import connection, forget_last_commit, put, run
from spark_ssp import EmbeddedKinesis

CHANGES: Final = 2_000
COLUMNS: Final = pa.schema(
    [("tailnum", pa.string()), ("model", pa.string()), ("seats", pa.int64())]
)
BAD: Final = (
    b'{"tailnum": "N1", "seats": 2}',
    b'{"op": "upsert", "tailnum": "N1", "seats": 2}',
    b'{"op": "insert", "tailnum": null, "seats": 2}',
    b'{"op": "insert", "tailnum": "N1", "seats": "two"}',
    b'{"op": "insert", "tailnum": "N\xff"}',
    b'[{"op": "insert", "tailnum": "N1"}]',
    b'{"op": "insert", "tailnum": "N1"}{"op": "insert", "tailnum": "N2"}',
    b'{"op": "insert", "tailnum": "N1"}], [{}',
    b'{"op": "insert", "tailnum": "N1"}}, {',
    b"",
)
"""Each fails the query."""


def changes(state: dict[str, dict[str, Any]], seed: int) -> Iterator[dict[str, Any]]:
    """Yield random changes of planes, and apply them to `state`, which has a row for each key."""
    chance = random.Random(seed)
    fleet = planes().select(COLUMNS.names).slice(0, 100).to_pylist()
    for _ in range(CHANGES):
        plane = chance.choice(fleet)
        key = plane["tailnum"]
        if key in state and chance.random() < 0.3:
            del state[key]
            yield {"op": "delete", "tailnum": key}
        else:
            op = "update" if key in state else "insert"
            state[key] = plane | {"seats": chance.randrange(1, 400)}
            yield {"op": op, **state[key]}


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if the table has the newest state of each plane, and no batch twice."""
    table, checkpoint = f"{folder}/planes", folder / "checkpoint"
    state: dict[str, dict[str, Any]] = {}
    DeltaTable.create(table, COLUMNS)
    limit = {"maxRecordsPerTrigger": "500"}
    with EmbeddedKinesis() as kinesis, patch.dict(cdc_to_delta.SOURCE, connection(kinesis) | limit):
        kinesis.state.create_stream("plane-changes", shards=2)
        put(kinesis, "plane-changes", changes(state, seed=1), key="tailnum")
        cdc_to_delta.start(spark, table, str(checkpoint), availableNow=True).awaitTermination()
        before = DeltaTable(table).version()

        forget_last_commit(checkpoint)
        cdc_to_delta.start(spark, table, str(checkpoint), availableNow=True).awaitTermination()
        repeated = DeltaTable(table).version() - before

        kinesis.state.scale("plane-changes", 3)
        put(kinesis, "plane-changes", changes(state, seed=2), key="tailnum")
        cdc_to_delta.start(spark, table, str(checkpoint), availableNow=True).awaitTermination()

        refused = sum(fails(spark, kinesis, number, folder) for number in range(len(BAD)))

    rows = DeltaTable(table).to_pyarrow_table().sort_by("tailnum").to_pylist()
    expected = [state[key] for key in sorted(state)]
    print(f"{2 * CHANGES:,} changes in {DeltaTable(table).version()} merges; ", end="")
    print(f"{len(rows)} planes in the table, {len(expected)} expected; {repeated} merged again")
    print(f"{refused} of {len(BAD)} bad records have failed a query")
    return rows == expected and repeated == 0 and refused == len(BAD)


def fails(spark: SparkSession, kinesis: EmbeddedKinesis, number: int, folder: Path) -> bool:
    """Return True if this bad record fails a query, which reports its position only, before the
    table is changed."""
    stream, table = f"bad-changes-{number}", DeltaTable(f"{folder}/planes")
    kinesis.state.create_stream(stream, shards=1)
    put(kinesis, stream, [{"op": "insert", "tailnum": "N0"}], key="tailnum")
    kinesis.state.put(stream, "broken producer", BAD[number])
    # Another application, since its batches are numbered from 0 again.
    with (
        patch.dict(cdc_to_delta.SOURCE, {"streamName": stream}),
        patch.object(cdc_to_delta, "APPLICATION", stream),
    ):
        checkpoint = f"{folder}/{stream}"
        query = cdc_to_delta.start(spark, table.table_uri, checkpoint, availableNow=True)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            reported = "not a change: shardId-000000000000, " in str(error)
            leaked = "N1" in str(error) or "seats" in str(error)
            return (
                reported and not leaked and DeltaTable(table.table_uri).version() == table.version()
            )
    return False


if __name__ == "__main__":
    sys.exit(run(rehearse))
