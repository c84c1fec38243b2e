"""Records appended to a Delta table by Delta's sink, or to two tables by a function."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {"streamName": "departures", "region": "eu-west-1", "startingPosition": "trim_horizon"}
DEPARTURE = "index bigint, carrier string, origin string, dest string"
POSITION = ("shardId", "sequenceNumber", "subSequenceNumber")
# One for each checkpoint: a table remembers the last batch that was appended under this name.
APPLICATION = "departures-1"


def parse(records: DataFrame) -> DataFrame:
    """Return a departure for each record, with its position; nulls if it is not one JSON value."""
    text = F.col("data").cast("string")
    # Spark ignores text after the end of the value.
    values = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    departure = F.when(values == 1, F.from_json(text, DEPARTURE))
    return records.select(departure.alias("departure"), *POSITION).select("departure.*", *POSITION)


def start(spark: SparkSession, folder: str, **trigger: Any) -> StreamingQuery:
    """Append each record to `folder`/departures."""
    records = spark.readStream.format("kinesis-ssp").options(**SOURCE).load()
    writer = parse(records).writeStream.format("delta").outputMode("append").trigger(**trigger)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    return writer.start(f"{folder}/departures")


def start_split(spark: SparkSession, folder: str, **trigger: Any) -> StreamingQuery:
    """Append departures to `folder`/departures, and the positions of other records to
    `folder`/rejected."""

    def write(records: DataFrame, batch: int) -> None:
        rows = parse(records).persist()
        # A table that has this batch already ignores it.
        once = {"txnAppId": APPLICATION, "txnVersion": str(batch)}
        good, bad = rows.where("index IS NOT NULL"), rows.where("index IS NULL").select(*POSITION)
        try:
            for name, part in (("departures", good), ("rejected", bad)):
                writer = part.write.format("delta").mode("append").options(**once)
                writer.save(f"{folder}/{name}")
        finally:
            rows.unpersist()

    records = spark.readStream.format("kinesis-ssp").options(**SOURCE).load()
    writer = records.writeStream.foreachBatch(write).trigger(**trigger)
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()
