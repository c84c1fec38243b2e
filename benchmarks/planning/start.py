"""The start of a query: from `start()` to its first planned batch, and to its first commit.

    python -m benchmarks.planning.start [--rounds 5]

A warm session, a small topic and a small stream. `ready-stream` is a Python source that plans its
only batch without any work, which is Spark's own part: a Python process for the reader, whose
imports Spark's archive `pyspark.zip` compiles each time, the checkpoint, and the JVM's planning.
`above` is the time of a source above that, round by round; `kafka` is Spark's own source, in the
JVM. `planned` ends when the first offset is in the checkpoint, `committed` with the first commit.
The sources take turns, another one first in each round.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka.feed import fill, new_topic
from benchmarks.kinesis.service import ServiceProcess, kinesis_service
from benchmarks.support.report import Report, spread
from benchmarks.support.sessions import checkpoint_in, run_on_spark
from benchmarks.support.sources import ReadyStreamSource
from spark_ssp.testing.kafka import LocalKafka
from tests.support.servers.spark_kafka import install

CORES: Final = 2
PARTS: Final = 4
RECORDS: Final = 4_000
_FLOOR: Final = "ready-stream"
_DEADLINE_S: Final = 120.0

Took = dict[str, list[tuple[float, float]]]
"""Seconds to the first planned batch and to its commit, by source and round."""


def _frames(
    spark: SparkSession, kafka: LocalKafka, topic: str, kinesis: ServiceProcess
) -> dict[str, DataFrame]:
    of_kafka = {**kafka.options, "subscribe": topic, "startingOffsets": "earliest"}
    options = {_FLOOR: {}, "kafka-ssp": of_kafka, "kinesis-ssp": kinesis.options()}
    options["kafka"] = of_kafka
    return {
        name: spark.readStream.format(name).options(**given).load()
        for name, given in options.items()
    }


def _seconds(frame: DataFrame, checkpoint: Path) -> tuple[float, float]:
    began = time.perf_counter()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.start()
    try:
        found = []
        for log in ("offsets", "commits"):
            while not (checkpoint / log / "0").exists():
                if (error := query.exception()) is not None:
                    raise error
                if time.perf_counter() - began > _DEADLINE_S:
                    raise TimeoutError(f"no batch in {log} after {_DEADLINE_S:g} s")
                time.sleep(0.002)
            found.append(time.perf_counter() - began)
    finally:
        query.stop()
    return found[0], found[1]


def run(
    spark: SparkSession,
    kafka: LocalKafka,
    folder: Path,
    *,
    rounds: int,
    warm_up: int = 2,
) -> Report:
    """Measure; `spark` has Spark's Kafka connector on its class path."""
    report = Report(
        name="planning.start",
        command=f"python -m benchmarks.planning.start --rounds {rounds} --warm-up {warm_up}",
        columns=("source", "planned s", "above s", "committed s"),
    )
    spark.dataSource.register(ReadyStreamSource)
    took: Took = {}
    with new_topic(kafka, PARTS) as topic, kinesis_service(PARTS) as kinesis:
        fill(kafka, topic, records=RECORDS, size=200, partitions=PARTS)
        kinesis.produce(RECORDS)
        time.sleep(0.5)
        kinesis.produce(0)
        frames = _frames(spark, kafka, topic, kinesis)
        names = list(frames)
        for number in range(warm_up + rounds):
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                checkpoint = Path(checkpoint_in(folder, f"{name}-{number}"))
                found = _seconds(frames[name], checkpoint)
                if number >= warm_up:
                    took.setdefault(name, []).append(found)
    for name in names:
        _add(report, name, took)
    return report


def _add(report: Report, name: str, took: Took) -> None:
    planned = [planned for planned, _ in took[name]]
    above = [one - floor for one, (floor, _) in zip(planned, took[_FLOOR], strict=True)]
    committed = [committed for _, committed in took[name]]
    report.add(
        name,
        spread(planned).text(2),
        spread(above).text(2),
        spread(committed).text(2),
        source=name,
        planned_s=planned,
        above_floor_s=above,
        committed_s=committed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds that do not count")
    run_on_spark(run, vars(parser.parse_args()), cores=CORES, class_path=install())


if __name__ == "__main__":
    main()
