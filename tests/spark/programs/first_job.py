"""A first job: reads a stream as its input says, and prints the result.

Standard input has one JSON document a line. `options`: of a batch read; with `checkpoint`, of a
streaming query that reads all that is there. Each is answered by a line `rows N` or `error TEXT`.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = f"rows {_rows(spark, **job)}"
        except Exception as error:  # noqa: BLE001  (what a user sees)
            answer = f"error {error}"
        print("answer", json.dumps(answer), flush=True)


def _rows(spark: SparkSession, options: dict[str, str], checkpoint: str | None = None) -> int:
    if checkpoint is None:
        return spark.read.format("kinesis-ssp").options(**options).load().count()
    rows: list[int] = []
    query = (
        spark.readStream.format("kinesis-ssp")
        .options(**options)
        .load()
        .writeStream.option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .foreachBatch(lambda batch, _: rows.append(batch.count()))
        .start()
    )
    query.awaitTermination()
    return sum(rows)


if __name__ == "__main__":
    main()
