"""Speed of a query on Spark that catches up under a limit, on a service with the limits of AWS.

    python -m benchmarks.kinesis.catch_up_http [--limits 1.25 1.5 2 5] [--seconds 60]

One shard takes in 1 MB a second of 1,000-byte records and holds an hour of them. The embedded
service is a separate process, over HTTP, in real time; the trigger never waits. Limits are
`maxBytesPerTrigger` in MB. `python -m benchmarks.kinesis.catch_up` is the same without Spark, on
simulated time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.support.report import Report
from benchmarks.support.sessions import checkpoint_in, run_on_spark
from spark_ssp.testing.kinesis import EmbeddedKinesis, Limits
from tests.support.simulation.catch_up import MEGABYTE, STREAM, Feed, create_full_stream, steady

RECORD_BYTES = 1000
HOUR_MS = 3_600_000


def serve() -> None:
    """Serve the stream until standard input ends; print the endpoint, then a count of GetRecords
    for each line read."""
    begin = time.time_ns() // 1_000_000
    late = HOUR_MS
    with EmbeddedKinesis(
        clock=lambda: time.time_ns() // 1_000_000 - late, limits=Limits.strict()
    ) as kinesis:
        create_full_stream(kinesis.state, Feed.even(steady(1000), RECORD_BYTES), begin - HOUR_MS)
        late = 0
        print(kinesis.client_settings()["endpoint_url"], flush=True)
        for _ in sys.stdin:
            print(kinesis.state.calls.by_operation().get("GetRecords", 0), flush=True)


@contextmanager
def _service() -> Iterator[subprocess.Popen[str]]:
    program = "from benchmarks.kinesis.catch_up_http import serve; serve()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        if process.stdin is not None:
            process.stdin.close()


def _answer(process: subprocess.Popen[str], request: str = "") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if request:
        process.stdin.write(request + "\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def read(spark: SparkSession, checkpoint: str, limit: int, seconds: float) -> list[int]:
    """Return the records of each batch, and at the end the number of GetRecords calls."""
    sizes = list[int]()
    with _service() as process:
        options = {
            "streamName": STREAM,
            "region": "us-east-1",
            "endpointUrl": _answer(process),
            "awsAccessKeyId": "local",
            "awsSecretAccessKey": "local",
            "startingPosition": "trim_horizon",
            "maxBytesPerTrigger": str(limit),
        }

        def count(batch: DataFrame, _: int) -> None:
            sizes.append(batch.count())

        query = (
            spark.readStream.format("kinesis-ssp")
            .options(**options)
            .load()
            .writeStream.foreachBatch(count)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        began = time.monotonic()
        while len(sizes) < 3 and query.isActive and time.monotonic() - began < 60:
            time.sleep(0.05)
        before, calls, began = len(sizes), int(_answer(process, "calls")), time.monotonic()
        while query.isActive and time.monotonic() - began < seconds:
            time.sleep(0.05)
        calls = int(_answer(process, "calls")) - calls
        failure = query.exception()
        query.stop()
        if failure is not None:
            raise failure
    return [*sizes[before:], calls]


def run(spark: SparkSession, folder: Path, *, limits: Sequence[float], seconds: float) -> Report:
    """Measure each limit."""
    report = Report(
        name="kinesis.catch_up_http",
        command="python -m benchmarks.kinesis.catch_up_http "
        f"--limits {' '.join(f'{limit:g}' for limit in limits)} --seconds {seconds:g}",
        columns=("limit", "MB/s", "share of calls", "batches", "largest MB"),
    )
    for limit in limits:
        size = round(limit * MEGABYTE)
        *batches, calls = read(spark, checkpoint_in(folder, f"limit-{limit:g}"), size, seconds)
        speed = sum(batches) * RECORD_BYTES / MEGABYTE / seconds
        largest = max(batches, default=0) * RECORD_BYTES / MEGABYTE
        share = calls / (5 * seconds)
        report.add(
            f"{limit:g} MB",
            f"{speed:.2f}",
            f"{share:.0%}",
            str(len(batches)),
            f"{largest:.2f}",
            of=f"{limit:g} MB",
            megabytes_per_second=speed,
            share_of_calls=share,
            largest=largest,
        )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--limits", type=float, nargs="+", default=[1.25, 1.5, 2, 5])
    parser.add_argument("--seconds", type=float, default=60)
    run_on_spark(run, vars(parser.parse_args()))


if __name__ == "__main__":
    main()
