"""A query from a Kinesis stream to Parquet files, as the job definitions beside it start it.

Every platform passes the same arguments; those that a platform adds are ignored.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp import register


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the job's arguments; those of a platform are left out."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--slots", default="8", help="at most this many tasks read")
    parser.add_argument("--output", required=True, help="a folder for Parquet files")
    parser.add_argument("--checkpoint", required=True, help="Spark's checkpoint location")
    parser.add_argument("--interval", default="10 seconds", help="the trigger's interval")
    parser.add_argument("--records", help="about this many records in a batch, at most")
    return parser.parse_known_args(arguments)[0]


def source_options(job: argparse.Namespace) -> dict[str, str]:
    """Return the options of the source."""
    options = {
        "streamName": job.stream,
        "region": job.region,
        "startingPosition": "trim_horizon",
        "slots": job.slots,
    }
    if job.records is not None:
        # PySpark 4.0 and 4.1 allow limits only in a query with this trigger.
        options |= {"maxRecordsPerTrigger": job.records, "trigger": "processingTime"}
    return options


def start(spark: SparkSession, job: argparse.Namespace) -> StreamingQuery:
    """Start the query."""
    orders = spark.readStream.format("kinesis-ssp").options(**source_options(job)).load()
    return (
        orders.withColumn("order", F.col("data").cast("string"))
        .select("partitionKey", "order", "approximateArrivalTimestamp")
        .writeStream.format("parquet")
        .option("path", job.output)
        .option("checkpointLocation", job.checkpoint)
        .trigger(processingTime=job.interval)
        .start()
    )


def main() -> None:
    """Run the query until it is stopped or fails."""
    job = parse_arguments()
    spark = SparkSession.builder.appName("orders").getOrCreate()
    register(spark)
    start(spark, job).awaitTermination()


if __name__ == "__main__":
    main()
