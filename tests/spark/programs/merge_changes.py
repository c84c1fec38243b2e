"""Runs the recipe that merges changes into a Delta table, until it is killed. Reads its task from
standard input, in the form of `copy_streams.py`; the output of the only query is the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from examples.recipes import cdc_to_delta
from examples.rehearsals.laptop import run


def main() -> int:
    """Return 1 if the query ends by itself."""
    (query,) = json.load(sys.stdin)["queries"]
    cdc_to_delta.SOURCE.update(query["options"])

    def merge(spark: SparkSession, _: Path) -> bool:
        started = cdc_to_delta.start(
            spark, query["output"], query["checkpoint"], processingTime="0 seconds"
        )
        started.awaitTermination()
        return False

    return run(merge)


if __name__ == "__main__":
    sys.exit(main())
