"""A stream that is copied to a topic while it is resharded, with a batch that is copied twice:
`python -m examples.rehearsals.kinesis_to_kafka_to_table`.

Needed: pip install '.[demo]' in a checkout. Kafka itself is fetched the first time, 43 MB.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final
from unittest.mock import patch

from pyspark.sql import SparkSession

from examples.flights.data import departures
from examples.recipes import kinesis_to_kafka_to_table as recipe
from examples.rehearsals.laptop import connection, forget_last_commit, put, run
from spark_ssp import EmbeddedKinesis, LocalKafka, disconnect_kafka

DEPARTURES: Final = 1_000
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if the table has each departure once, although the topic has some twice."""
    names = ["index", "carrier", "origin", "dest"]
    rows = departures(DEPARTURES).select(names).to_pylist()
    half = DEPARTURES // 2
    copy = folder / "copy"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    with (
        EmbeddedKinesis() as kinesis,
        LocalKafka() as kafka,
        patch.dict(recipe.STREAM, connection(kinesis)),
        patch.dict(recipe.KAFKA, kafka.options),
    ):
        kinesis.state.create_stream("departures", shards=2)
        kafka.create_topic(recipe.TOPIC, partitions=2)
        put(kinesis, "departures", rows[:half], key="carrier")
        recipe.start_copy(spark, str(copy), availableNow=True).awaitTermination()
        forget_last_commit(copy)
        kinesis.state.scale("departures", 3)
        put(kinesis, "departures", rows[half:], key="carrier")
        recipe.start_copy(spark, str(copy), availableNow=True).awaitTermination()
        recipe.start_table(spark, str(folder), availableNow=True).awaitTermination()
        topic = (
            spark.read.format("kafka-ssp")
            .options(**kafka.options)
            .option("subscribe", recipe.TOPIC)
            .load()
        )
        copied = topic.count()
        disconnect_kafka()

    table = spark.read.parquet(f"{folder}/departures").orderBy("index").select(names).collect()
    print(f"{len(rows):,} departures put, {copied:,} records in the topic, ", end="")
    print(f"{len(table):,} departures in the table")
    return [row.asDict() for row in table] == rows and copied > len(rows)


if __name__ == "__main__":
    sys.exit(run(rehearse))
