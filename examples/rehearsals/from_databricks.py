"""A query with the options of Databricks' Kinesis source, continued from its table:
`python -m examples.rehearsals.from_databricks`.

Databricks' source runs only on Databricks. Here the source of this package reads with its options,
into the table that it would have written. Needed: pip install '.[demo]' in a checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights.data import departures
from examples.recipes.start_after_table import start_after
from examples.rehearsals.laptop import put, run
from spark_ssp import EmbeddedKinesis

DEPARTURES: Final = 1_000


def start(
    spark: SparkSession, options: dict[str, str], table: str, checkpoint: str
) -> StreamingQuery:
    """Append the records to a table that keeps their positions."""
    records = spark.readStream.format("kinesis-ssp").options(**options).load()
    return (
        records.selectExpr("CAST(data AS STRING) AS departure", "shardId", "sequenceNumber")
        .writeStream.option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(table)
    )


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if both tables together have each departure once."""
    rows = departures(DEPARTURES).to_pylist()
    old, new = f"{folder}/old", f"{folder}/new"
    half = DEPARTURES // 2
    with EmbeddedKinesis() as kinesis:
        options = {
            "streamName": "departures",
            "region": kinesis.state.region,
            "endpoint": kinesis.endpoint_url,
            "awsAccessKey": "local",
            "awsSecretKey": "local",
            "initialPosition": "trim_horizon",
            "maxFetchDuration": "10s",
        }
        kinesis.state.create_stream("departures", shards=3)
        put(kinesis, "departures", rows[:half], key="carrier")
        start(spark, options, old, f"{folder}/checkpoint-of-databricks").awaitTermination()
        # Between the two queries more is put, and the stream is resharded.
        put(kinesis, "departures", rows[half : half + 100], key="carrier")
        kinesis.state.scale("departures", 2)
        put(kinesis, "departures", rows[half + 100 :], key="carrier")
        options["initialPosition"] = start_after(spark.read.parquet(old))
        start(spark, options, new, f"{folder}/checkpoint").awaitTermination()

    tables = [spark.read.parquet(path) for path in (old, new)]
    found = tables[0].union(tables[1]).selectExpr("get_json_object(departure, '$.index') AS i")
    indexes = sorted(int(row.i) for row in found.collect())
    print(
        f"{tables[0].count()} departures in the old table, {tables[1].count()} in the new one, ",
        end="",
    )
    print(f"{len(rows):,} put; {len(indexes) - len(set(indexes))} twice")
    return indexes == list(range(DEPARTURES))


if __name__ == "__main__":
    sys.exit(run(rehearse))
