"""A client of Spark Connect that starts a query with leases and stops it gracefully.

Reads its task from standard input, as JSON:

    {"options": {...}, "checkpoint": "...", "output": "...", "rows": 20}

Once the query has read so many rows it is stopped. Prints one line of JSON: whether it had drained.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession

from spark_ssp import stop_gracefully

_DEADLINE_S = 240

# Spark gives a new Python process ten seconds to report, whatever its settings.
_TOO_BUSY = "Python worker failed to connect back"
_STARTS = 5


def main() -> None:
    task = json.load(sys.stdin)
    builder = SparkSession.builder.remote("local")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for _ in range(_STARTS):
        query = (
            spark.readStream.format("kinesis-ssp")
            .options(**task["options"])
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", task["checkpoint"])
            .option("path", task["output"])
            .start()
        )
        deadline = time.monotonic() + _DEADLINE_S
        rows = 0
        while rows < task["rows"] and query.isActive and time.monotonic() < deadline:
            time.sleep(0.2)
            rows = sum(
                source["numInputRows"] or 0
                for report in query.recentProgress
                for source in report["sources"]
            )
        if query.isActive or _TOO_BUSY not in str(query.exception()):
            break
    print(json.dumps({"rows": rows, "drained": stop_gracefully(query, timeout=_DEADLINE_S)}))
    spark.stop()


if __name__ == "__main__":
    main()
