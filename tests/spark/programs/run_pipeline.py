"""A driver of its own: runs the pipeline of `tests.support.pipelines.flights_pipeline`. Its task is
on standard input, as JSON: `queries[0].options` has the streams by name, `root`, `gates`, and
`to_end` (yes or no)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.pipelines.flights_pipeline import Streams, run


def main() -> None:
    options = json.load(sys.stdin)["queries"][0]["options"]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    streams = Streams(**{name: options[name] for name in Streams._fields})
    run(
        spark,
        streams,
        Path(options["root"]),
        Path(options["gates"]),
        to_end=options["to_end"] == "yes",
    )


if __name__ == "__main__":
    main()
