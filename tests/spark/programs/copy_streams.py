"""A driver of its own: copies streams into Parquet files, as a user's program would.

Reads its task from standard input, as JSON:

    {"source": "kinesis-ssp", "session": "local[2]", "log_settings": null,
     "trigger": "available now",
     "queries": [{"options": {...}, "checkpoint": "...", "output": "..."}]}

`source` is the format of all queries. `session` is a master, or "connect" for Spark Connect with a
server of its own; `log_settings` is a file of log4j. With `trigger` "as fast as possible" the first
query runs until the process is killed; otherwise the queries run one after the other. Prints one
line of JSON for each: its plan, its progress, its failure.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

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


def _session(kind: str, log_settings: str | None) -> SparkSession:
    builder = SparkSession.builder
    if log_settings is not None:
        option = f"-Dlog4j2.configurationFile=file:{log_settings}"
        builder = builder.config("spark.driver.extraJavaOptions", option)
    builder = builder.remote("local") if kind == "connect" else builder.master(kind)
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _copy(spark: SparkSession, source: str, trigger: str, query: dict[str, Any]) -> dict[str, Any]:
    try:
        frame = spark.readStream.format(source).options(**query["options"]).load()
    except PySparkException as error:
        return {"plan": "", "progress": [], "failure": str(error)}
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        frame.explain(extended=True)
    writer = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", query["checkpoint"])
        .option("path", query["output"])
    )
    if trigger == "available now":
        writer = writer.trigger(availableNow=True)
    for _ in range(_STARTS):
        running = writer.start()
        failure = None
        try:
            running.awaitTermination()
        except PySparkException as error:
            failure = str(error)
        if _TOO_BUSY not in (failure or ""):
            break
    progress = [json.loads(json.dumps(report, default=str)) for report in running.recentProgress]
    return {"plan": plan.getvalue(), "progress": progress, "failure": failure}


def main() -> None:
    task = json.load(sys.stdin)
    if task["session"].startswith("local-cluster"):
        # Workers keep what they write where Spark is said to live.
        import pyspark

        os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))
    spark = _session(task["session"], task["log_settings"])
    for query in task["queries"]:
        print(json.dumps(_copy(spark, task["source"], task["trigger"], query)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
