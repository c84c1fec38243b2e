"""A client of Spark Connect that publishes the metrics of a query until its input is closed. Its
task is an argument, as JSON: {"options": {...}, "checkpoint": "..."}. Prints the address of the
scrape endpoint."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from spark_ssp import publish_metrics


def main() -> None:
    task = json.loads(sys.argv[1])
    builder = SparkSession.builder.remote("local")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.streaming.noDataProgressEventInterval": "200ms",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    published = publish_metrics(spark, prometheus=0)
    query = (
        spark.readStream.format("kinesis-ssp")
        .options(**task["options"])
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", task["checkpoint"])
        .trigger(processingTime="1 second")
        .start()
    )
    print(published.url, flush=True)
    sys.stdin.read()
    query.stop()
    published.stop()
    spark.stop()


if __name__ == "__main__":
    main()
