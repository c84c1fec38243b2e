"""Small batches from Kafka: this project's source beside Spark's own.

    python -m benchmarks.kafka.triggers [--partitions 4 16 64] [--tasks 4] [--seconds 8]

1,000 records/s of 200 B, the fastest trigger. A trigger's time is Spark's own (`triggerExecution`),
into the sink `noop`. A record's latency is the time from its timestamp, which its producer on this
machine gave it, to the end of the trigger that has it, its commit included; for that, a second
query hands each batch to Python, which collects the timestamps. `ours, N tasks` is the same with
`tasks` fixed. The peers take turns, another one first in each round; a round that reads only first
batches comes before, so that no measured query is the first of its kind.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.kafka.feed import new_topic, producing
from benchmarks.kinesis.triggers import wait_for_batches
from benchmarks.support.report import Report, quantile, ratio, spread
from benchmarks.support.sessions import checkpoint_in, run_on_spark
from spark_ssp.testing.kafka import LocalKafka
from tests.support.servers.spark_kafka import install

RATE: Final = 1_000
WARM_UP: Final = 10
"""Batches of each query that do not count: workers start and code is compiled in the first ones."""


@dataclass(slots=True)
class Found:
    """Milliseconds of one query: of its triggers with rows, their parts, and its records."""

    triggers: list[float] = field(default_factory=list)
    add_batch: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)


def measure(source: DataFrame, checkpoint: str, seconds: float, *, warm_up: int) -> Found:
    """Run one query for a while, then another one for half as long, for the latencies."""
    found = Found()
    query = source.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        for entry in _progress(query, seconds, warm_up):
            found.triggers.append(float(entry["durationMs"]["triggerExecution"]))
            found.add_batch.append(float(entry["durationMs"]["addBatch"]))
    finally:
        query.stop()
    arrivals: dict[int, list[float]] = {}

    def note(batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("unix_millis(timestamp) as at").collect()
        arrivals[batch_id] = [row["at"] for row in rows]

    checkpoint = f"{checkpoint}-latency"
    query = source.writeStream.foreachBatch(note).option("checkpointLocation", checkpoint).start()
    try:
        found.latencies = latencies(_progress(query, seconds / 2, warm_up), arrivals)
    finally:
        query.stop()
    return found


def _progress(query: StreamingQuery, seconds: float, warm_up: int) -> list[dict[str, Any]]:
    """Return Spark's progress of the batches that had rows and ended within `seconds` after the
    first `warm_up`; at least one. The very first batch has no rows."""
    warm_up = max(warm_up, 1)
    wait_for_batches(query, warm_up)
    time.sleep(seconds)
    wait_for_batches(query, 1)
    reported = [dict(entry) for entry in query.recentProgress]
    return [
        entry for entry in reported if entry["batchId"] >= warm_up and entry["numInputRows"] > 0
    ]


def latencies(
    progress: Sequence[Mapping[str, Any]], arrivals: Mapping[int, Sequence[float]]
) -> list[float]:
    """Milliseconds from each record's timestamp to the end of its trigger. `arrivals` has the
    timestamps of each batch, in epoch milliseconds."""
    found: list[float] = []
    for entry in progress:
        times = arrivals[int(entry["batchId"])]
        if len(times) != entry["numInputRows"]:
            raise AssertionError(
                f"batch {entry['batchId']} had {entry['numInputRows']} rows, {len(times)} were seen"
            )
        end = _end_ms(entry)
        found.extend(end - at for at in times)
    return found


def _end_ms(progress: Mapping[str, Any]) -> float:
    began = datetime.datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000
    return began + float(progress["durationMs"]["triggerExecution"])


def run(
    spark: SparkSession,
    kafka: LocalKafka,
    folder: Path,
    *,
    partitions: list[int],
    tasks: int,
    seconds: float,
    rounds: int,
    warm_up: int = WARM_UP,
) -> Report:
    """Measure; `spark` has Spark's connector on its class path."""
    report = Report(
        name="kafka.triggers",
        command="python -m benchmarks.kafka.triggers "
        f"--partitions {' '.join(str(count) for count in partitions)} --tasks {tasks} "
        f"--seconds {seconds:g} --rounds {rounds} --warm-up {warm_up}",
        columns=(
            "partitions",
            "source",
            "trigger ms: median, p99",
            "addBatch ms",
            "latency ms: median, p99",
            "trigger, part of Spark's",
        ),
    )
    peers: dict[str, tuple[str, dict[str, str]]] = {
        "Spark": ("kafka", {}),
        "ours": ("kafka-ssp", {}),
        f"ours, {tasks} tasks": ("kafka-ssp", {"tasks": str(tasks)}),
    }
    for count in partitions:
        found: dict[str, list[Found]] = {name: [] for name in peers}
        with (
            new_topic(kafka, count) as topic,
            producing(kafka, topic, rate=RATE, partitions=count),
        ):
            for number in range(-1 if warm_up else 0, rounds):
                for name in _rotated(list(peers), number):
                    source, options = peers[name]
                    frame = (
                        spark.readStream.format(source)
                        .options(**kafka.options, **options)
                        .option("subscribe", topic)
                        .option("startingOffsets", "latest")
                        .load()
                    )
                    checkpoint = checkpoint_in(folder, f"{count}-{number}-{name.replace(' ', '-')}")
                    counted = seconds if number >= 0 else 0
                    took = measure(frame, checkpoint, counted, warm_up=warm_up)
                    if number >= 0:
                        found[name].append(took)
        for name in peers:
            _add(report, count, name, found[name], found["Spark"])
    return report


def _rotated(names: list[str], number: int) -> list[str]:
    first = number % len(names)
    return names[first:] + names[:first]


def _add(
    report: Report, partitions: int, name: str, ours: Sequence[Found], theirs: Sequence[Found]
) -> None:
    triggers = [ms for one in ours for ms in one.triggers]
    latency = spread([quantile(one.latencies, 0.5) for one in ours])
    late = [ms for one in ours for ms in one.latencies]
    add_batch = quantile([ms for one in ours for ms in one.add_batch], 0.5)
    medians = spread([spread(one.triggers).median for one in ours])
    part = ratio(medians.values, [spread(one.triggers).median for one in theirs])
    report.add(
        str(partitions),
        name,
        f"{medians.text()}, {quantile(triggers, 0.99):,.0f}",
        f"{add_batch:,.0f}",
        f"{latency.text()}, {quantile(late, 0.99):,.0f}",
        part.text(2),
        partitions=partitions,
        format=name,
        triggers=len(triggers),
        trigger_ms=medians.median,
        trigger_p99_ms=quantile(triggers, 0.99),
        add_batch_ms=add_batch,
        latency_ms=latency.median,
        latency_p99_ms=quantile(late, 0.99),
        round_trigger_ms=medians.values,
        round_latency_ms=latency.values,
        part_of_spark=part.median,
        part_of_spark_rounds=part.values,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="batches that do not count")
    run_on_spark(run, vars(parser.parse_args()), class_path=install())


if __name__ == "__main__":
    main()
