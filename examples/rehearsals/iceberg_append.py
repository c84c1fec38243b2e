"""Departures appended to an Iceberg table, with a reshard and repeated batches:
`python -m examples.rehearsals.iceberg_append`.

Needed: pip install '.[demo]' 'pyspark==4.1.*' in a checkout. Iceberg is fetched the first time, 48
MB.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final
from unittest.mock import patch

from pyspark.sql import SparkSession

from examples.flights.data import departures
from examples.recipes import iceberg_append
from examples.rehearsals.laptop import connection, forget_last_commit, put, read_all, run
from spark_ssp import EmbeddedKinesis

DEPARTURES: Final = 1_000
ICEBERG: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
# PySpark 4.1 has limits only with this trigger.
LIMIT: Final = {"maxRecordsPerTrigger": "300", "trigger": "processingTime"}
SETTINGS: Final = {
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if the table has each departure once."""
    rows = departures(DEPARTURES).to_pylist()
    checkpoint = folder / "checkpoint"

    def run_query() -> None:
        read_all(iceberg_append.start(spark, str(checkpoint), processingTime="0 seconds"))

    def snapshots() -> int:
        return spark.table(f"{iceberg_append.TABLE}.snapshots").count()

    spark.conf.set("spark.sql.catalog.lake.warehouse", f"{folder}/lake")
    iceberg_append.create(spark)
    with (
        EmbeddedKinesis() as kinesis,
        patch.dict(iceberg_append.SOURCE, connection(kinesis) | LIMIT),
    ):
        kinesis.state.create_stream("departures", shards=2)
        put(kinesis, "departures", rows[:500], key="carrier")
        run_query()
        before = snapshots()
        forget_last_commit(checkpoint)
        run_query()
        after = snapshots()
        forget_last_commit(checkpoint)
        kinesis.state.scale("departures", 3)
        put(kinesis, "departures", rows[500:], key="carrier")
        run_query()

    table = spark.table(iceberg_append.TABLE)
    found = [row["index"] for row in table.orderBy("index").collect()]
    print(f"{len(found):,} rows in the table, {DEPARTURES:,} departures put; ", end="")
    print(f"snapshots before and after the repeated batch: {before}, {after}")
    return found == [row["index"] for row in rows] and before == after


if __name__ == "__main__":
    sys.exit(run(rehearse, ICEBERG, settings=SETTINGS))
