"""A stream copied to a topic by one query, and written to a table by another one."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp import drop_duplicates

STREAM = {"streamName": "departures", "region": "eu-west-1", "startingPosition": "trim_horizon"}
KAFKA = {"kafka.bootstrap.servers": "broker1:9092"}
TOPIC = "departures"
DEPARTURE = "index bigint, carrier string, origin string, dest string"


def start_copy(spark: SparkSession, checkpoint: str, **trigger: Any) -> StreamingQuery:
    """Copy the stream to the topic, which must exist; a key's records stay in order."""
    records = spark.readStream.format("kinesis-ssp").options(**STREAM).load()
    return (
        records.select(F.col("partitionKey").alias("key"), F.col("data").alias("value"))
        .writeStream.format("kafka-ssp")
        .options(**KAFKA)
        .option("topic", TOPIC)
        # A batch that is run again is written again. These headers make that recognizable.
        .option("includeRepeatHeaders", "true")
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger)
        .start()
    )


def start_table(spark: SparkSession, folder: str, **trigger: Any) -> StreamingQuery:
    """Write each record of the topic to the table once. Needs pandas and the RocksDB state store:
    `spark.conf.set("spark.sql.streaming.stateStore.providerClass", ...)`."""
    records = (
        spark.readStream.format("kafka-ssp")
        .options(**KAFKA)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    departure = F.from_json(F.col("value").cast("string"), DEPARTURE)
    rows = drop_duplicates(records).select(departure.alias("departure"), "partition", "offset")
    writer = rows.select("departure.*", "partition", "offset").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(**trigger)
    return writer.start(f"{folder}/departures")
