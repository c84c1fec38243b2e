"""A driver of its own: copies a topic into another. Its task is on standard input, as JSON:
`tests.support.kafka.copying` says what `queries[0].options` may be."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from tests.support.kafka.copying import copying


def main() -> None:
    options = json.load(sys.stdin)["queries"][0]["options"]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    copying(spark, options).start().awaitTermination()


if __name__ == "__main__":
    main()
