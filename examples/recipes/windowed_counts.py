"""Departures counted by hour and airport; each count is written once, when it is final."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {"streamName": "departures", "region": "eu-west-1", "startingPosition": "trim_horizon"}
DEPARTURE = "origin string, time_hour timestamp"
# How much later than the newest departure another one may arrive and still count.
LATENESS = "2 hours"


def counts(records: DataFrame) -> DataFrame:
    """Count the departures of each airport and hour."""
    departure = F.from_json(F.col("data").cast("string"), DEPARTURE)
    return (
        records.select(departure.alias("departure"))
        .select("departure.*")
        .withWatermark("time_hour", LATENESS)
        .groupBy(F.window("time_hour", "1 hour"), "origin")
        .agg(F.count("*").alias("departures"))
        .select(F.col("window.start").alias("hour"), "origin", "departures")
    )


def start(spark: SparkSession, folder: str, **trigger: Any) -> StreamingQuery:
    """Append a row for each airport and hour that has passed out of the lateness."""
    records = spark.readStream.format("kinesis-ssp").options(**SOURCE).load()
    writer = counts(records).writeStream.format("parquet").outputMode("append").trigger(**trigger)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    return writer.start(f"{folder}/counts")


def too_late(query: StreamingQuery) -> int:
    """Return the number of counts that Spark has dropped since they came too late."""
    operators = (each for report in query.recentProgress for each in report.stateOperators)
    return sum(each.numRowsDroppedByWatermark for each in operators)
