"""Triggers of the Kinesis source: time, calls and latency over 1, 16 and 128 shards.

    python -m benchmarks.kinesis_triggers [--shards 1 16 128] [--seconds 20] [--slots 4]

For each number of shards: an idle stream at the fastest trigger (calls per shard and look), a busy
one (1,000 records/s of 200 B; time of a trigger and of its planning, calls per shard and trigger),
and the time from a record's arrival to the end of the batch that has it, at a trigger of one
second. The service is the embedded one, on the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from benchmarks.sessions import STREAM, checkpoint_in, local_spark, stream_of
from embedded_kinesis import EmbeddedKinesis

RECORDS_PER_SECOND = 1000
CALLS = ("GetRecords", "GetShardIterator", "ListShards")


@contextmanager
def producing(kinesis: EmbeddedKinesis) -> Iterator[None]:
    """Put 1,000 records a second until the block ends."""
    stop = threading.Event()

    def put() -> None:
        done = 0
        body = b"x" * 200
        began = time.monotonic()
        while not stop.is_set():
            due = int((time.monotonic() - began) * RECORDS_PER_SECOND)
            for number in range(done, due):
                kinesis.state.put(STREAM, partition_key=f"key-{number % 5000}", data=body)
            done = due
            stop.wait(0.02)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def quantiles(values: list[float]) -> str:
    """Median and 95th percentile of milliseconds."""
    if len(values) < 2:
        return "-"
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return f"{statistics.median(values):,.0f} / {p95:,.0f}"


def progress_of(query: StreamingQuery, key: str, *, with_rows: bool) -> list[float]:
    """One of the durations of the batches so far, the first three left out."""
    return [
        float(progress["durationMs"][key])
        for progress in query.recentProgress[3:]
        if key in progress["durationMs"] and (progress["numInputRows"] > 0) == with_rows
    ]


def calls_since(kinesis: EmbeddedKinesis, shards: int, looks: float) -> str:
    by_operation = kinesis.state.calls.by_operation()
    return ", ".join(
        f"{by_operation.get(name, 0) / max(looks, 1) / shards:.2f} {name}" for name in CALLS
    )


def measure(
    spark: SparkSession, shards: int, slots: int, seconds: float, folder: Path
) -> list[str]:
    """One row of the table."""
    with EmbeddedKinesis() as kinesis:
        kinesis.state.create_stream(STREAM, shards=shards)
        options = {"slots": str(slots)}
        source = stream_of(spark, kinesis, options)
        query = (
            source.writeStream.format("noop")
            .option("checkpointLocation", checkpoint_in(folder, f"{shards}"))
            .start()
        )
        wait_for_batches(query, 1)
        time.sleep(3)
        kinesis.state.calls.reset()
        time.sleep(seconds / 2)
        looks = kinesis.state.calls.count("GetRecords") / shards
        idle_calls = calls_since(kinesis, shards, looks)
        idle_rate = looks / (seconds / 2)
        with producing(kinesis):
            wait_for_batches(query, 5)
            kinesis.state.calls.reset()
            before = last_batch(query)
            time.sleep(seconds)
            batches = last_batch(query) - before
            busy_calls = calls_since(kinesis, shards, batches)
            trigger = quantiles(progress_of(query, "triggerExecution", with_rows=True))
            planning = quantiles(progress_of(query, "latestOffset", with_rows=True))
            query.stop()
            latency = quantiles(latencies(spark, kinesis, options, shards, seconds, folder))
    return [
        f"{shards:,}",
        f"{idle_rate:.1f}",
        idle_calls,
        planning,
        trigger,
        busy_calls,
        latency,
    ]


def latencies(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    options: dict[str, str],
    shards: int,
    seconds: float,
    folder: Path,
) -> list[float]:
    """Milliseconds from arrival to the end of the batch, for each record read."""
    found: list[float] = []

    def note(batch: DataFrame, batch_id: int) -> None:
        arrivals = batch.selectExpr("unix_millis(approximateArrivalTimestamp) as at").collect()
        now = time.time() * 1000
        if batch_id > 3:
            found.extend(now - row["at"] for row in arrivals)

    query = (
        stream_of(spark, kinesis, {**options, "startingPosition": "latest"})
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", checkpoint_in(folder, f"{shards}-latency"))
        .trigger(processingTime="1 second")
        .start()
    )
    wait_for_batches(query, 4)
    time.sleep(seconds)
    query.stop()
    return found


def last_batch(query: StreamingQuery) -> int:
    """The number of the last batch done; -1 before the first."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def wait_for_batches(query: StreamingQuery, count: int) -> None:
    """Until so many batches are done; fails when the query does, or after two minutes."""
    deadline = time.monotonic() + 120
    target = last_batch(query) + count
    while last_batch(query) < target:
        if query.exception() is not None:
            raise RuntimeError("the query failed") from query.exception()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {count} batches within two minutes")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--slots", type=int, default=4)
    arguments = parser.parse_args()
    spark = local_spark(2)
    table = Table(title=f"Kinesis triggers, {arguments.slots} slots, 2 cores (ms: median / p95)")
    for column in (
        "shards",
        "idle: looks/s",
        "idle: calls per shard and look",
        "busy: planning ms",
        "busy: trigger ms",
        "busy: calls per shard and trigger",
        "latency at 1 s trigger, ms",
    ):
        table.add_column(column, overflow="fold")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for shards in arguments.shards:
            table.add_row(*measure(spark, shards, arguments.slots, arguments.seconds, Path(folder)))
    spark.stop()
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
