"""A query of Spark's own Kafka source, continued by this one from the same checkpoint, and back:
`python -m examples.rehearsals.from_spark_kafka`.

Needed: pip install '.[cli,demo]' in a checkout. Kafka is fetched the first time, 43 MB, and so is
Spark's source.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights.data import departures
from examples.rehearsals.laptop import forget_last_commit, run, starting_position
from spark_ssp import LocalKafka, disconnect_kafka

DEPARTURES: Final = 1_000
SPARK_KAFKA: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def start(
    spark: SparkSession, source: str, options: dict[str, str], folder: Path
) -> StreamingQuery:
    """Start the query with either source; nothing else differs."""
    records = spark.readStream.format(source).options(**options).load()
    return (
        records.selectExpr("CAST(value AS STRING) AS departure", "partition", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/departures")
    )


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if the tables before and after the way back have each departure once."""
    rows = [f"{row['index']} {row['carrier']}" for row in departures(DEPARTURES).to_pylist()]
    there, back = folder / "there", folder / "back"
    with (
        LocalKafka() as kafka,
        Producer({"bootstrap.servers": kafka.bootstrap_servers}) as producer,
    ):
        kafka.create_topic("departures", partitions=2)
        options = {
            **kafka.options,
            "subscribe": "departures",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "200",
        }

        def write(values: list[str]) -> None:
            for value in values:
                producer.produce("departures", key=value.split()[1], value=value)
            producer.flush()

        write(rows[:400])
        start(spark, "kafka", options, there).awaitTermination()
        before = spark.read.parquet(f"{there}/departures").count()
        # As if it had been killed: its last batch is planned and not committed.
        forget_last_commit(there / "checkpoint")
        kafka.add_partitions("departures", 4)
        write(rows[400:800])
        start(spark, "kafka-ssp", options, there).awaitTermination()

        # The way back: the same source as at first, on another checkpoint.
        write(rows[800:])
        brokers = ("--bootstrap-servers", kafka.bootstrap_servers)
        position = starting_position(there / "checkpoint", *brokers)
        start(spark, "kafka", options | position, back).awaitTermination()
        disconnect_kafka()

    found = [
        [row.departure for row in spark.read.parquet(f"{path}/departures").collect()]
        for path in (there, back)
    ]
    print(
        f"{before} departures read by Spark's source, {len(found[0]) - before} by this one, ",
        end="",
    )
    print(f"{len(found[1])} by Spark's again; {len(rows):,} written")
    return sorted(found[0]) == sorted(rows[:800]) and sorted(found[1]) == sorted(rows[800:])


if __name__ == "__main__":
    sys.exit(run(rehearse, SPARK_KAFKA))
