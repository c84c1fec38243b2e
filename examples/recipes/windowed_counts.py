"""Departures counted by hour and airport; each count is written once, when it is final."""

from collections import Counter
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
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


class TooLate(StreamingQueryListener):
    """The number of counts that Spark has dropped since they came too late, by the id of the query.

    Add it before the start, by `spark.streams.addListener`."""

    def __init__(self) -> None:
        self.dropped = Counter[str]()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Add the counts that a batch has dropped."""
        operators = event.progress.stateOperators
        dropped = sum(each.numRowsDroppedByWatermark for each in operators)
        self.dropped[str(event.progress.id)] += dropped

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...
