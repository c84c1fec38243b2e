"""Records appended to an Iceberg table by Iceberg's sink."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {"streamName": "departures", "region": "eu-west-1", "startingPosition": "trim_horizon"}
# In a catalog that the session's settings name.
TABLE = "lake.airport.departures"
DEPARTURE = "index bigint, carrier string, origin string, time_hour timestamp"
POSITION = "shardId string, sequenceNumber string, subSequenceNumber bigint"


def create(spark: SparkSession) -> None:
    """Create the table unless it exists."""
    columns = f"{DEPARTURE}, {POSITION}"
    partitions = "PARTITIONED BY (days(time_hour))"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns}) USING iceberg {partitions}")


def start(spark: SparkSession, checkpoint: str, **trigger: Any) -> StreamingQuery:
    """Append each record to the table; a departure of nulls if it is not one JSON value."""
    records = spark.readStream.format("kinesis-ssp").options(**SOURCE).load()
    text = F.col("data").cast("string")
    # Spark ignores text after the end of the value.
    values = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    departure = F.when(values == 1, F.from_json(text, DEPARTURE))
    rows = records.withColumn("departure", departure)
    rows = rows.select("departure.*", "shardId", "sequenceNumber", "subSequenceNumber")
    writer = rows.writeStream.format("iceberg").outputMode("append").trigger(**trigger)
    # Each task writes the rows that it has read: no shuffle, and no sort by partition.
    writer = writer.option("distribution-mode", "none").option("fanout-enabled", "true")
    return writer.option("checkpointLocation", checkpoint).toTable(TABLE)
