"""Events of CloudWatch Logs, which a subscription puts into a stream, each as a row."""

import gzip
import json
import zlib
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {"streamName": "logs", "region": "eu-west-1", "startingPosition": "trim_horizon"}

EVENT = "group string, stream string, id string, time_ms bigint, message string"


def unpack(data: bytes) -> tuple[list[tuple[str, str, str, int, str]], str | None]:
    """Return the events of a record, and the reason to set it aside, or None."""
    try:
        # A record may have several members, with a message each.
        text = gzip.decompress(data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return [], "not gzip with UTF-8"
    events: list[tuple[str, str, str, int, str]] = []
    try:
        while True:
            message, end = json.JSONDecoder().raw_decode(text)
            # The others are CONTROL_MESSAGE: CloudWatch Logs checks that it can write.
            if message["messageType"] == "DATA_MESSAGE":
                place = message["logGroup"], message["logStream"]
                events += [
                    (*place, event["id"], int(event["timestamp"]), event["message"])
                    for event in message["logEvents"]
                ]
            text = text[end:].strip()
            if not text:
                return events, None
    except (ValueError, KeyError, TypeError, RecursionError):
        return [], "not messages of CloudWatch Logs"


def parse(records: DataFrame) -> DataFrame:
    """Add `events`, and the reason to set a record aside, or null."""
    # useArrow: PySpark 4.3 otherwise takes the kind of function from its types, and warns.
    unpacked = F.udf(unpack, f"events array<struct<{EVENT}>>, reason string", useArrow=False)
    return records.withColumn("unpacked", unpacked("data")).select("*", "unpacked.*")


def start(spark: SparkSession, folder: str, **trigger: Any) -> StreamingQuery:
    """Write events to `folder`/events and bad records to `folder`/rejected."""

    def write(records: DataFrame, batch: int) -> None:
        rows = parse(records).persist()
        events = rows.select(F.explode("events").alias("event")).select("event.*")
        times = F.timestamp_millis("time_ms").alias("time")
        bad = rows.where("reason IS NOT NULL").select(*records.columns, "reason")
        # A batch that is run again replaces its own files.
        try:
            good = events.select("group", "stream", "id", times, "message")
            good.write.mode("overwrite").parquet(f"{folder}/events/batch={batch}")
            bad.write.mode("overwrite").parquet(f"{folder}/rejected/batch={batch}")
        finally:
            rows.unpersist()

    records = spark.readStream.format("kinesis-ssp").options(**SOURCE).load()
    writer = records.writeStream.foreachBatch(write).trigger(**trigger)
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()
