"""Small batches from Kafka: this project's source beside Spark's own.

    python -m benchmarks.kafka_triggers [--partitions 4 16 64] [--tasks 4] [--seconds 20]

1,000 records/s of 200 B, the fastest trigger, the sink `noop`. A trigger's time is Spark's own
(`triggerExecution`); a record's latency is the time from its timestamp to the end of the batch
that has it. The two formats take turns; `ours, N tasks` is the same with `tasks` fixed.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_feed import producing
from benchmarks.kinesis_triggers import wait_for_batches
from benchmarks.report import Report, quantile, ratio, spread
from benchmarks.sessions import checkpoint_in, local_spark
from local_kafka import LocalKafka
from tests.support.spark_kafka import install

RATE: Final = 1_000
WARM_UP: Final = 20
"""Batches that do not count: workers start and code is compiled in the first ones."""


@dataclass(slots=True)
class Found:
    """Milliseconds of one query: of its triggers with rows, their parts, and its records."""

    triggers: list[float] = field(default_factory=list)
    add_batch: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)


def measure(
    spark: SparkSession, source: DataFrame, checkpoint: str, seconds: float, *, warm_up: int
) -> Found:
    """Run one query for a while."""
    found = Found()
    arrivals: dict[int, list[float]] = {}

    def note(batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("unix_millis(timestamp) as at").collect()
        arrivals[batch_id] = [row["at"] for row in rows]

    query = source.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    wait_for_batches(query, warm_up)
    time.sleep(seconds)
    progress = [dict(entry) for entry in query.recentProgress[warm_up:]]
    query.stop()
    for entry in progress:
        if entry["numInputRows"] > 0 and "addBatch" in entry["durationMs"]:
            found.triggers.append(float(entry["durationMs"]["triggerExecution"]))
            found.add_batch.append(float(entry["durationMs"]["addBatch"]))
    query = (
        source.writeStream.foreachBatch(note)
        .option("checkpointLocation", f"{checkpoint}-l")
        .start()
    )
    wait_for_batches(query, warm_up)
    time.sleep(seconds / 2)
    ended = {int(entry["batchId"]): _end_ms(entry) for entry in query.recentProgress[warm_up:]}
    query.stop()
    for batch_id, end in ended.items():
        found.latencies.extend(end - at for at in arrivals.get(batch_id, []))
    return found


def _end_ms(progress: Any) -> float:
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
        name="kafka_triggers",
        command=f"python -m benchmarks.kafka_triggers --seconds {seconds:g} --tasks {tasks}",
        columns=(
            "partitions",
            "format",
            "trigger ms: median, p99",
            "addBatch ms",
            "latency ms: median, p99",
            "trigger, times Spark's",
        ),
    )
    peers: dict[str, tuple[str, dict[str, str]]] = {
        "Spark": ("kafka", {}),
        "ours": ("kafka-ssp", {}),
        f"ours, {tasks} tasks": ("kafka-ssp", {"tasks": str(tasks)}),
    }
    for count in partitions:
        topic = f"small-{count}"
        kafka.create_topic(topic, count)
        found: dict[str, list[Found]] = {name: [] for name in peers}
        with producing(kafka, topic, rate=RATE, partitions=count):
            for number in range(rounds):
                for name, (source, options) in peers.items():
                    frame = (
                        spark.readStream.format(source)
                        .options(**kafka.options, **options)
                        .option("subscribe", topic)
                        .option("startingOffsets", "latest")
                        .load()
                    )
                    checkpoint = checkpoint_in(folder, f"{count}-{number}-{name.replace(' ', '-')}")
                    found[name].append(measure(spark, frame, checkpoint, seconds, warm_up=warm_up))
        theirs = [spread(one.triggers).median for one in found["Spark"]]
        for name, rounds_found in found.items():
            triggers = [ms for one in rounds_found for ms in one.triggers]
            latencies = [ms for one in rounds_found for ms in one.latencies]
            times = ratio([spread(one.triggers).median for one in rounds_found], theirs)
            report.add(
                str(count),
                name,
                f"{quantile(triggers, 0.5):,.0f}, {quantile(triggers, 0.99):,.0f}",
                f"{quantile([ms for one in rounds_found for ms in one.add_batch], 0.5):,.0f}",
                f"{quantile(latencies, 0.5):,.0f}, {quantile(latencies, 0.99):,.0f}",
                times.text(2),
                partitions=count,
                format=name,
                trigger_ms=quantile(triggers, 0.5),
                trigger_p99_ms=quantile(triggers, 0.99),
                latency_ms=quantile(latencies, 0.5),
                latency_p99_ms=quantile(latencies, 0.99),
                times_spark=times.median,
            )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spark = local_spark(2, class_path=install())
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, LocalKafka() as kafka:
        report = run(
            spark,
            kafka,
            Path(folder),
            partitions=arguments.partitions,
            tasks=arguments.tasks,
            seconds=arguments.seconds,
            rounds=arguments.rounds,
        )
    spark.stop()
    report.publish()


if __name__ == "__main__":
    main()
