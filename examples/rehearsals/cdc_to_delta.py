"""Planes inserted, changed and deleted, with a batch that is repeated:
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
from pyspark.sql import SparkSession

from examples.flights.data import planes
from examples.recipes import cdc_to_delta
from examples.rehearsals.laptop import connection, forget_last_commit, put, run
from spark_ssp import EmbeddedKinesis

CHANGES: Final = 2_000
COLUMNS: Final = pa.schema(
    [("tailnum", pa.string()), ("model", pa.string()), ("seats", pa.int64())]
)


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

    rows = DeltaTable(table).to_pyarrow_table().sort_by("tailnum").to_pylist()
    expected = [state[key] for key in sorted(state)]
    print(f"{2 * CHANGES:,} changes in {DeltaTable(table).version()} merges; ", end="")
    print(f"{len(rows)} planes in the table, {len(expected)} expected; {repeated} merged again")
    return rows == expected and repeated == 0


if __name__ == "__main__":
    sys.exit(run(rehearse))
