"""The pipeline, as a user of the product writes it: read, parse, enrich, write two tables.

Stateless and exactly once: the source gives a batch the same records however often it is run, and
writing a batch replaces the output of an earlier attempt at the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import (
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from examples.flights import data

DEPARTURES = "departures"
MALFORMED = "malformed"
TRIGGER = "2 seconds"

_TYPES: dict[str, DataType] = {"int64": LongType(), "string": StringType()}
_SPOILT = "spoilt"
_PAYLOAD = StructType(
    [
        *(StructField(field.name, _TYPES[str(field.type)]) for field in data.DEPARTURE),
        StructField(_SPOILT, StringType()),  # the whole text, if it cannot be read as the others
    ]
)
_ORIGIN = ("shard", "sequence", "slot", "task")
"""The origin of a record: its shard and sequence number, the slot and the Spark task that read
it."""


def start(
    spark: SparkSession,
    source: Mapping[str, str],
    folder: Path,
    after_batch: Callable[[int], None],
) -> StreamingQuery:
    """Start the query. `source`: the options of `kinesis-ssp`. Writes the tables `DEPARTURES` and
    `MALFORMED` below `folder`, and calls `after_batch` with the number of each batch written."""
    stream = spark.readStream.format("kinesis-ssp").options(**source).load()
    parsed = enrich(spark, parse(stream))

    def write(frame: DataFrame, batch: int) -> None:
        write_batch(frame, batch, folder)
        after_batch(batch)

    return (
        parsed.writeStream.foreachBatch(write)
        .queryName("flights")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime=TRIGGER)
        .start()
    )


def parse(stream: DataFrame) -> DataFrame:
    """A departure's columns (null in a malformed record), the record as it was, the reason why it
    is malformed (null if it is not), and where it came from."""
    text = F.col("data").cast("string")
    record = stream.select(
        F.col("partitionKey").alias("key"),
        F.col("data"),
        F.col("approximateArrivalTimestamp").alias("arrived"),
        F.col("shardId").alias("shard"),
        F.col("sequenceNumber").alias("sequence"),
        F.col("ssp").alias("slot"),
        F.spark_partition_id().alias("task"),
        F.from_json(text, _PAYLOAD, {"columnNameOfCorruptRecord": _SPOILT}).alias("d"),
    )
    fields = [F.col(f"d.{name}") for name in data.DEPARTURE.names if name != "time_hour"]
    return record.select(
        "key",
        "data",
        "arrived",
        *_ORIGIN,
        *fields,
        F.try_to_timestamp(F.col("d.time_hour")).alias("time_hour"),
        _reason().alias("reason"),
    )


def _reason() -> Column:
    """Return the reason why a record is malformed, else null."""
    reason = F.when(
        F.col("d").isNull() | F.col(f"d.{_SPOILT}").isNotNull(),
        F.lit("is not the JSON of a departure"),
    )
    for field in data.DEPARTURE:
        if not field.nullable:
            reason = reason.when(F.col(f"d.{field.name}").isNull(), F.lit(f"lacks {field.name}"))
    unreadable = F.try_to_timestamp(F.col("d.time_hour")).isNull()
    return reason.when(unreadable, F.lit("has an invalid time_hour"))


def enrich(spark: SparkSession, parsed: DataFrame) -> DataFrame:
    """Add the airline's name, the airports' names and places, and the plane, where known."""
    airlines = spark.createDataFrame(data.airlines())
    airports = spark.createDataFrame(data.airports())
    planes = spark.createDataFrame(data.planes())
    return (
        parsed.join(F.broadcast(airlines), "carrier", "left")
        .join(F.broadcast(_airport(airports, "origin")), "origin", "left")
        .join(F.broadcast(_airport(airports, "dest")), "dest", "left")
        .join(F.broadcast(planes), "tailnum", "left")
    )


def _airport(airports: DataFrame, role: str) -> DataFrame:
    return airports.select(
        F.col("faa").alias(role),
        *(F.col(name).alias(f"{role}_{name}") for name in airports.columns if name != "faa"),
    )


def write_batch(frame: DataFrame, batch: int, folder: Path) -> None:
    """Write a batch to both tables.

    Each batch has its own partitions (`batch=`), which are replaced as a whole. Since a repeated
    batch holds the same records, it has the same partitions: nothing stays of the first attempt.
    """
    numbered = frame.select(
        "*",
        F.lit(batch).alias("batch"),
        # The place at which Spark delivered the row: all rows of a task are in their order.
        F.monotonically_increasing_id().alias("row"),
    ).persist()
    try:
        good = numbered.where("reason is null").drop("data", "reason")
        bad = numbered.where("reason is not null").select(
            "key", "data", "reason", "arrived", *_ORIGIN, "row", "batch"
        )
        _replace(good, folder / DEPARTURES, "month", "batch")
        _replace(bad, folder / MALFORMED, "batch")
    finally:
        numbered.unpersist()


def _replace(frame: DataFrame, table: Path, *partitions: str) -> None:
    (
        frame.write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(*partitions)
        .parquet(str(table))
    )
