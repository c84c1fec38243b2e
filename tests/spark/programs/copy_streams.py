"""A driver of its own: copies streams into Parquet files or a sink, as a user's program would.

Reads its task from standard input, as JSON:

    {"session": "local[2]", "log_settings": null, "settings": {}, "trigger": "available now",
     "queries": [{"source": "kinesis-ssp", "options": {...}, "checkpoint": "...", "output": "...",
                  "sink": null, "hold": null}]}

`settings` are Spark's. `source` is a format. `sink` are options of the sink of its format, in place
of the output. With `hold`, the path of a file, each row also has the
`module` that its task imported, a file of the source's package, and its `executor`, a folder. While
the file exists, tasks that have rows wait; each creates a file beside it, `held-` and the name of
the worker.

`session` is a master, or "connect" for Spark Connect with a server of its
own; `log_settings` is a file of log4j. With `trigger` "as fast as possible" the queries run side by
side until the process is killed, until the first of them fails, or until there is a file `stop` in
the current folder: then they are stopped gracefully. Otherwise they run one after the other, with
"batch" as batch queries. Prints one line of JSON for each: its plan, its progress, its failure.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # As the guide advises where the external id of a role is to be hidden.
    "spark.sql.redaction.options.regex": "(?i)url|roleExternalId",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}

# Spark gives a new Python process ten seconds to report, whatever its settings.
_TOO_BUSY = "Python worker failed to connect back"
_STARTS = 5


def _session(kind: str, log_settings: str | None, settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder
    if log_settings is not None:
        option = f"-Dlog4j2.configurationFile=file:{log_settings}"
        builder = builder.config("spark.driver.extraJavaOptions", option)
    builder = builder.remote("local") if kind == "connect" else builder.master(kind)
    for name, value in (_SETTINGS | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _frame(spark: SparkSession, query: dict[str, Any]) -> DataFrame:
    frame = spark.readStream.format(query["source"]).options(**query["options"]).load()
    if query["hold"] is None:
        return frame
    hold = Path(query["hold"])

    @udf("module string, executor string")
    def place(data: bytes) -> tuple[str, str]:
        from spark_ssp import kinesis_source

        executor = Path.cwd()
        while hold.exists():
            hold.with_name(f"held-{executor.parents[1].name}").touch()
            time.sleep(0.05)
        return str(kinesis_source.__file__), str(executor)

    return frame.withColumn("place", place("data")).select("*", "place.*").drop("place")


def _records(frame: DataFrame, query: dict[str, Any]) -> DataFrame:
    """The columns that the sink of the source's format has."""
    columns = ("key", "value") if query["source"] == "kafka-ssp" else ("partitionKey", "data")
    return frame.select(*columns)


def _copy_once(spark: SparkSession, query: dict[str, Any]) -> dict[str, Any]:
    frame = spark.read.format(query["source"]).options(**query["options"]).load()
    writer = _records(frame, query).write.format(query["source"]).mode("append")
    writer.options(**query["sink"]).save()
    return {"plan": "", "progress": [], "failure": None}


def _writer(frame: DataFrame, query: dict[str, Any]) -> DataStreamWriter:
    if query["sink"] is None:
        writer = frame.writeStream.format("parquet").option("path", query["output"])
    else:
        writer = _records(frame, query).writeStream
        writer = writer.format(query["source"]).options(**query["sink"])
    return writer.option("checkpointLocation", query["checkpoint"])


def _copy(spark: SparkSession, query: dict[str, Any]) -> dict[str, Any]:
    """To the end of all there is."""
    try:
        frame = _frame(spark, query)
    except PySparkException as error:
        return {"plan": "", "progress": [], "failure": str(error)}
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        frame.explain(extended=True)
    writer = _writer(frame, query).trigger(availableNow=True)
    for _ in range(_STARTS):
        running = writer.start()
        failure = None
        try:
            running.awaitTermination()
        except PySparkException as error:
            failure = str(error)
        if _TOO_BUSY not in (failure or ""):
            break
    return {"plan": plan.getvalue(), "progress": _progress(running), "failure": failure}


def _progress(running: StreamingQuery) -> list[Any]:
    return [json.loads(json.dumps(report, default=str)) for report in running.recentProgress]


def _copy_side_by_side(spark: SparkSession, queries: list[dict[str, Any]]) -> dict[str, Any]:
    """Run until one fails, or all are to stop; report on that one, or on the first."""
    from spark_ssp import stop_gracefully

    writers = [_writer(_frame(spark, query), query) for query in queries]
    running = [writer.start() for writer in writers]
    starts = 0
    while True:
        time.sleep(0.1)
        if Path("stop").exists():
            drained = [stop_gracefully(query) for query in running]
            failure = None if all(drained) else "a query was not stopped in time"
            return {"plan": "", "progress": _progress(running[0]), "failure": failure}
        for number, query in enumerate(running):
            if query.isActive:
                continue
            failure = str(query.exception())
            starts += 1
            if starts == _STARTS or _TOO_BUSY not in failure:
                return {"plan": "", "progress": _progress(query), "failure": failure}
            running[number] = writers[number].start()


def main() -> None:
    task = json.load(sys.stdin)
    spark = _session(task["session"], task["log_settings"], task["settings"])
    if task["trigger"] == "as fast as possible":
        results: Iterable[dict[str, Any]] = [_copy_side_by_side(spark, task["queries"])]
    else:
        copy = _copy_once if task["trigger"] == "batch" else _copy
        results = (copy(spark, query) for query in task["queries"])
    for result in results:
        print(json.dumps(result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
