"""A driver of its own, for `tests/support/kinesis/peers.py`: reads a stream by any format, until a
file asks it to stop. It imports nothing of this project: it runs in the environment of each peer.

Its task is on standard input, as JSON. `queries[0].options`:

* `format`; `reader`: its options, as JSON; `folder`: of the outputs and checkpoints.
* `stop`: the file to wait for.
* `hold` and `from`: while the file exists, the query stands still between the output and the commit
  of a batch with that number or a higher one, and creates the file `held` in the folder.
* `harm`: the first attempt of each task fails at its row of this number, and creates the file
  `harmed`.
* `windows`: also count the rows of each minute, with a watermark of ten seconds.

The output of a batch is the folder `rows/N`, which replaces that of an earlier attempt at the batch
N. Each row has the time at which its task processed it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery


def _stamp(folder: Path, harm: int | None) -> Callable[[Column], Column]:
    """The time at which a row is processed."""
    rows: dict[int, int] = {}

    def stamp(_: int) -> int:
        task = TaskContext.get()
        assert task is not None
        attempt = task.taskAttemptId()
        rows[attempt] = rows.get(attempt, 0) + 1
        if rows[attempt] == harm and task.attemptNumber() == 0:
            (folder / "harmed").touch()
            raise RuntimeError("a task fails")
        return time.time_ns()

    return F.udf(stamp, "long").asNondeterministic()


def _read(frame: DataFrame, options: dict[str, str]) -> StreamingQuery:
    folder, hold, begin = Path(options["folder"]), options.get("hold"), options.get("from", "0")
    harm = int(options["harm"]) if "harm" in options else None

    def write(batch: DataFrame, number: int) -> None:
        output = folder / "rows" / str(number)
        batch.write.mode("overwrite").json(str(output))
        if hold is not None and Path(hold).exists() and _highest(output) >= int(begin):
            (folder / "held").touch()
            while Path(hold).exists():
                time.sleep(0.05)

    stamped = frame.withColumn("at", _stamp(folder, harm)(F.col("number")))
    writer = stamped.writeStream.foreachBatch(write)
    return writer.option("checkpointLocation", str(folder / "checkpoint-rows")).start()


def _highest(output: Path) -> int:
    lines = [line for part in output.glob("part-*") for line in part.read_text().splitlines()]
    return max((int(json.loads(line)["number"]) for line in lines), default=-1)


def _count(frame: DataFrame, options: dict[str, str]) -> StreamingQuery:
    folder = Path(options["folder"])
    (folder / "windows").mkdir(exist_ok=True)

    def write(batch: DataFrame, number: int) -> None:
        counts = {str(row["minute"]): row["count"] for row in batch.collect()}
        path = folder / "windows" / str(number)
        path.with_suffix(".part").write_text(json.dumps(counts))
        path.with_suffix(".part").rename(path)

    counts = (
        frame.withColumn("time", F.timestamp_seconds("number"))
        .withWatermark("time", "10 seconds")
        .groupBy(F.window("time", "1 minute").alias("window"))
        .count()
        .select((F.unix_seconds("window.start") / 60).cast("long").alias("minute"), "count")
    )
    writer = counts.writeStream.outputMode("update").foreachBatch(write)
    return writer.option("checkpointLocation", str(folder / "checkpoint-windows")).start()


def main() -> None:
    task: dict[str, Any] = json.load(sys.stdin)
    options: dict[str, str] = task["queries"][0]["options"]
    spark = (
        SparkSession.builder.master(task["session"])
        .config(map=task["settings"])
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    loaded = spark.readStream.format(options["format"]).options(**json.loads(options["reader"]))
    frame = loaded.load().select(
        F.col("partitionKey").alias("key"),
        F.col("data").cast("string").cast("long").alias("number"),
    )
    queries = [_read(frame, options)]
    if options.get("windows") == "true":
        queries.append(_count(frame, options))
    while not Path(options["stop"]).exists():
        for query in queries:
            if not query.isActive:
                raise RuntimeError(f"the query has ended: {query.exception()}")
        time.sleep(0.1)
    for query in queries:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
