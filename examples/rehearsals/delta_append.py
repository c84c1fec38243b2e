"""Departures appended to Delta tables, with a reshard, repeated batches and a record that is not
JSON: `python -m examples.rehearsals.delta_append`.

Needed: pip install '.[demo]' 'pyspark==4.1.*' in a checkout. Delta is fetched the first time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from pyspark.sql import SparkSession

from examples.flights.data import departures
from examples.recipes import delta_append
from examples.rehearsals.laptop import connection, forget_last_commit, put, read_all, run
from spark_ssp import EmbeddedKinesis

DEPARTURES: Final = 1_000
DELTA: Final = "io.delta:delta-spark_4.1_2.13:4.4.0"
# PySpark 4.1 has limits only with this trigger.
LIMIT: Final = {"maxRecordsPerTrigger": "300", "trigger": "processingTime"}
SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Of the table's log, which is small here.
    "spark.databricks.delta.snapshotPartitions": "2",
}


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if the tables have each departure once."""
    rows = departures(DEPARTURES).to_pylist()
    starts = {"sink": delta_append.start, "function": delta_append.start_split}

    def run_all() -> None:
        for name, start in starts.items():
            read_all(start(spark, f"{folder}/{name}", processingTime="0 seconds"))

    with EmbeddedKinesis() as kinesis, patch.dict(delta_append.SOURCE, connection(kinesis) | LIMIT):
        kinesis.state.create_stream("departures", shards=2)
        kinesis.state.put("departures", "broken producer", b"departure")
        put(kinesis, "departures", rows[:500], key="carrier")
        run_all()
        before = [_versions(spark, folder / name) for name in starts]
        for name in starts:
            forget_last_commit(folder / name / "checkpoint")
        run_all()
        after = [_versions(spark, folder / name) for name in starts]
        for name in starts:
            forget_last_commit(folder / name / "checkpoint")
        kinesis.state.scale("departures", 3)
        put(kinesis, "departures", rows[500:], key="carrier")
        run_all()

    expected = [row["index"] for row in rows]
    by_sink = _indexes(spark, folder / "sink")
    by_function = _indexes(spark, folder / "function")
    rejected = spark.read.format("delta").load(f"{folder}/function/rejected").count()
    print(f"{len(by_sink):,} rows by the sink, {len(by_function):,} by the function; ", end="")
    print(f"{DEPARTURES:,} departures put; {rejected} set aside")
    print(f"versions before and after the repeated batches: {before}, {after}")
    return (
        by_sink == [None, *expected]
        and by_function == expected
        and (rejected == 1 and before == after)
    )


def _versions(spark: SparkSession, folder: Path) -> int:
    """Return the number of versions of the table."""
    return spark.sql(f"DESCRIBE HISTORY delta.`{folder}/departures`").count()


def _indexes(spark: SparkSession, folder: Path) -> Sequence[Any]:
    """Return the numbers of the departures in the table, in order; null first."""
    table = spark.read.format("delta").load(f"{folder}/departures")
    return [row["index"] for row in table.orderBy("index").collect()]


if __name__ == "__main__":
    sys.exit(run(rehearse, DELTA, settings=SETTINGS))
