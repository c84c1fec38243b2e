"""A backlog that ended: the batches and GetRecords that a query needs until it has read all of it.

    python -m benchmarks.kinesis.backlog [--shards 4] [--records 200000] [--over 20] [--silence 60]

Records of 200 bytes arrive within `over` seconds, then nothing more. After the silence a query with
Spark's default trigger starts at the beginning of the stream, on the embedded service in a separate
process, each of whose calls takes 15 ms longer. `looks` are GetRecords of the driver until the
planning of the last batch with records is over, for each shard; `fetches` are those of the tasks.
They are separated by a `foreachBatch`, which reads its batch: Spark calls the driver's side of a
source only between two of them.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kinesis.service import ServiceProcess, kinesis_service
from benchmarks.support.report import Report, spread
from benchmarks.support.sessions import checkpoint_in, run_on_spark

LATENCY_S: Final = 0.015
_TIMEOUT_S: Final = 300


@dataclass(slots=True)
class Reading:
    """The progress of one query."""

    rows: int = 0
    batches: int = 0
    looks: int = 0
    fetches: int = 0
    seconds: float = 0.0
    """From the first plan to the end of the last batch."""
    sizes: list[int] = field(default_factory=list)


def read_all(spark: SparkSession, service: ServiceProcess, checkpoint: str, rows: int) -> Reading:
    """Read the stream until `rows` rows have come. Raises RuntimeError if the query fails, and
    TimeoutError after five minutes."""
    found = Reading()
    began = time.monotonic()
    counted = _get_records(service)

    def count(batch: DataFrame, _: int) -> None:
        nonlocal counted
        planned = _get_records(service)
        read = batch.count()
        fetched = _get_records(service)
        if read:
            found.batches += 1
            found.looks += planned - counted
            found.fetches += fetched - planned
            found.seconds = time.monotonic() - began
            found.sizes.append(read)
            found.rows += read
            counted = fetched

    query = (
        spark.readStream.format("kinesis-ssp")
        .options(**service.options())
        .load()
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        while found.rows < rows:
            if not query.isActive:
                raise RuntimeError("the query failed") from query.exception()
            if time.monotonic() - began > _TIMEOUT_S:
                raise TimeoutError(f"{found.rows} of {rows} rows within five minutes")
            time.sleep(0.1)
    finally:
        query.stop()
    return found


def _get_records(service: ServiceProcess) -> int:
    return service.calls().get("GetRecords", 0)


def run(
    spark: SparkSession,
    folder: Path,
    *,
    shards: int,
    records: int,
    over: float,
    silence: float,
    rounds: int,
) -> Report:
    """Measure, each round with another stream."""
    report = Report(
        name="kinesis.backlog",
        command="python -m benchmarks.kinesis.backlog "
        f"--shards {shards} --records {records} --over {over:g} --silence {silence:g} "
        f"--rounds {rounds}",
        columns=(
            "shards, records, silence",
            "batches",
            "rows of a batch",
            "looks a shard",
            "fetches a shard",
            "seconds",
        ),
    )
    readings: list[Reading] = []
    for number in range(rounds):
        with kinesis_service(shards, latency_s=LATENCY_S) as service:
            service.produce(round(records / over), most=records)
            while service.produced() < records:
                time.sleep(0.1)
            time.sleep(silence)
            readings.append(
                read_all(spark, service, checkpoint_in(folder, f"backlog-{number}"), records)
            )
    report.add(
        f"{shards}, {records:,}, {silence:g} s",
        spread([one.batches for one in readings]).text(),
        "; ".join(" + ".join(f"{size:,}" for size in one.sizes) for one in readings),
        spread([one.looks / shards for one in readings]).text(1),
        spread([one.fetches / shards for one in readings]).text(1),
        spread([one.seconds for one in readings]).text(1),
        shards=shards,
        records=records,
        silence_s=silence,
        batches=[one.batches for one in readings],
        looks_per_shard=[one.looks / shards for one in readings],
        fetches_per_shard=[one.fetches / shards for one in readings],
        seconds=[one.seconds for one in readings],
    )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--over", type=float, default=20)
    parser.add_argument("--silence", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    run_on_spark(run, vars(parser.parse_args()))


if __name__ == "__main__":
    main()
