"""Thousands of busy shards: the time of a trigger, the driver's part, and the size of offsets.

    python -m benchmarks.kinesis.many_shards [--shards 1000 10000] [--slots 4] [--batches 200]

Each shard receives about one record of 200 B a second, and a trigger begins when the one before has
ended. `planner CPU` is that of the process on the driver that holds the source's reader. `heap` is
that of the JVM after a full collection, before the measured batches and after them: Spark keeps
the reports of a hundred batches, each with two offsets. `checkpoint` has the offsets of each batch.
`calls` and the processor time of the service, which runs on the same machine, are of driver and
tasks together. The service is one whose answers cost little (`formula_service`); with few cores it
still takes a part of a trigger.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.kinesis.formula_service import formula_service
from benchmarks.kinesis.service import RECORD_BYTES
from benchmarks.kinesis.triggers import last_batch, wait_for_batches
from benchmarks.support.processes import cpu_seconds, used_since
from benchmarks.support.report import Report, quantile
from benchmarks.support.sessions import checkpoint_in, run_on_spark

WARM_UP = 10
"""Batches that do not count."""


def run(
    spark: SparkSession, folder: Path, *, shards: Sequence[int], slots: int, batches: int
) -> Report:
    """Measure `batches` batches of a query over each number of shards."""
    report = Report(
        name="kinesis.many_shards",
        command="python -m benchmarks.kinesis.many_shards "
        f"--shards {' '.join(map(str, shards))} --slots {slots} --batches {batches}",
        columns=(
            "shards",
            "trigger ms: median, p99",
            "planning ms",
            "planner CPU ms a trigger",
            "JVM",
            "workers",
            "service",
            "calls a shard and trigger",
            "heap MiB before, after",
            "checkpoint KB a batch",
        ),
    )
    setting = "spark.sql.streaming.numRecentProgressUpdates"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "100")  # Spark's default
    try:
        for count in shards:
            _measure(report, spark, folder, count, slots, batches)
    finally:
        spark.conf.set(setting, before or "100")
    return report


def _measure(
    report: Report, spark: SparkSession, folder: Path, shards: int, slots: int, batches: int
) -> None:
    checkpoint = checkpoint_in(folder, f"{shards}-busy")
    with formula_service(shards, rate=1, size=RECORD_BYTES) as service:
        query = (
            spark.readStream.format("kinesis-ssp")
            .options(**service.options(), slots=str(slots))
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .start()
        )
        wait_for_batches(query, WARM_UP)
        heap = _heap_mib(spark)
        calls, of_service, used = service.calls(), service.cpu_seconds(), cpu_seconds()
        first = last_batch(query)
        # A hundred reports are kept: read often enough, none is missed.
        progress: dict[int, dict[str, Any]] = {}
        for waited in range(0, batches, 20):
            wait_for_batches(query, min(20, batches - waited))
            for entry in query.recentProgress:
                if first < entry["batchId"] and entry["numInputRows"] > 0:
                    progress[entry["batchId"]] = entry["durationMs"]
        milliseconds = {role: 1000 * value for role, value in used_since(used).items()}
        asked = sum(service.calls().values()) - sum(calls.values())
        of_service = 1000 * (service.cpu_seconds() - of_service)
        done = last_batch(query) - first
        heap_after = _heap_mib(spark)
        query.stop()
    stored = _stored_bytes(Path(checkpoint))
    triggers = [float(entry["triggerExecution"]) for entry in progress.values()]
    planning = [float(entry["latestOffset"]) for entry in progress.values()]
    report.add(
        f"{shards:,}",
        f"{quantile(triggers, 0.5):,.0f}, {quantile(triggers, 0.99):,.0f}",
        f"{quantile(planning, 0.5):,.0f}, {quantile(planning, 0.99):,.0f}",
        f"{milliseconds['planner'] / done:,.0f}",
        f"{milliseconds['jvm'] / done:,.0f}",
        f"{milliseconds['workers'] / done:,.0f}",
        f"{of_service / done:,.0f}",
        f"{asked / done / shards:.2f}",
        f"{heap:.0f}, {heap_after:.0f}",
        f"{stored / 1000:,.0f}",
        shards=shards,
        batches=done,
        triggers_ms=triggers,
        planning_ms=planning,
        cpu_ms_per_trigger={role: value / done for role, value in milliseconds.items()},
        service_cpu_ms_per_trigger=of_service / done,
        calls_per_shard=asked / done / shards,
        heap_mib=[heap, heap_after],
        checkpoint_bytes_per_batch=stored,
    )


def _heap_mib(spark: SparkSession) -> float:
    """Return the heap that is in use after a full collection."""
    jvm: Any = spark._jvm
    for _ in range(2):
        jvm.java.lang.System.gc()
    memory = jvm.java.lang.Runtime.getRuntime()
    return float(memory.totalMemory() - memory.freeMemory()) / (1 << 20)


def _stored_bytes(checkpoint: Path) -> float:
    """Return the bytes that Spark keeps of a batch in a checkpoint: its offsets and its commit."""
    batches = [path for path in (checkpoint / "offsets").iterdir() if path.name.isdecimal()]
    files = [*(checkpoint / "offsets").iterdir(), *(checkpoint / "commits").iterdir()]
    return sum(path.stat().st_size for path in files) / len(batches)


def measure(
    run: Callable[..., Report], doc: str | None, *, shards: Sequence[int], batches: int
) -> None:
    """Run a benchmark of many shards by its command line, with these defaults."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("--shards", type=int, nargs="+", default=list(shards))
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--batches", type=int, default=batches)
    arguments = vars(parser.parse_args())
    run_on_spark(run, arguments, cores=arguments["slots"])


def main() -> None:
    measure(run, __doc__, shards=(1_000, 10_000), batches=200)


if __name__ == "__main__":
    main()
