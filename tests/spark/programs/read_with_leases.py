"""A Spark query that shares a table of leases, as a separate program.

Its options come as JSON in the first line of standard input. It writes the records it reads into
the file named as the second argument, as `tests/support/kcl/processor.py` does, batch by batch. A
second line stops it gracefully; the end of standard input ends it anyhow.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp.kinesis_source.leases.drain import stop_gracefully

_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.noDataProgressEventInterval": "500ms",
    "spark.ui.enabled": "false",
}

# Spark gives a new Python process ten seconds to report, regardless of its settings.
_TOO_BUSY = "Python worker failed to connect back"
_STARTS = 5


class Sink:
    """Writes a batch in one piece. Of a batch that comes again, as after a failure, the rows are
    written again: that is a record read twice."""

    def __init__(self, worker: str, output: str) -> None:
        self._worker = worker
        self._output = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        columns = ("shardId", "sequenceNumber", "subSequenceNumber", "partitionKey", "data")
        rows = frame.select(*columns).collect()
        at = time.time()
        lines = [
            json.dumps(
                {
                    "worker": self._worker,
                    "at": at,
                    "shard": row.shardId,
                    "sequence": row.sequenceNumber,
                    "sub": row.subSequenceNumber or 0,
                    "key": row.partitionKey,
                    "data": bytes(row.data).decode("ascii"),
                }
            )
            for row in rows
        ]
        os.write(self._output, "".join(f"{line}\n" for line in lines).encode())


def _session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _begin(spark: SparkSession, options: dict[str, str], sink: Sink) -> StreamingQuery:
    frame = spark.readStream.format("kinesis-ssp").options(**options).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", "checkpoint")
    return writer.trigger(processingTime="500 milliseconds").start()


def main() -> None:
    options = json.loads(sys.stdin.readline())
    sink = Sink(options["workerId"], sys.argv[1])
    spark = _session()
    asked = threading.Event()

    def listen() -> None:
        if sys.stdin.readline():
            asked.set()
        else:
            os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    for _ in range(_STARTS):
        query = _begin(spark, options, sink)
        while query.isActive and not asked.wait(0.1):
            pass
        if _TOO_BUSY not in str(query.exception()):
            break
    if query.isActive:
        print("drained:", stop_gracefully(query), flush=True)
    failure = query.exception()
    spark.stop()
    if failure is not None:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
