"""A driver of its own: copies a topic into another. Its task is on standard input, as JSON:
`tests.support.kafka.copying` says what `queries[0].options` may be."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from tests.support.kafka.copying import copying


def main() -> None:
    task = json.load(sys.stdin)
    options = task["queries"][0]["options"]
    spark = (
        SparkSession.builder.master(task["session"])
        .config(map=task["settings"])
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    copying(spark, options).start().awaitTermination()


if __name__ == "__main__":
    main()
