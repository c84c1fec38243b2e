"""Kafka in bulk with parts of the native consumer replaced by the client's public functions.

    python -m benchmarks.kafka.native [--records 1500000] [--sizes 200 20 1000] [--headers 0 1]

The same batch read (`spark.read`) into the sink `noop` by each variant of the source: `native` is
the unchanged source; `timestamps` calls `rd_kafka_message_timestamp` for each record, `headers` the
functions for headers (only where there are headers); `confluent` is confluent-kafka's consumer. All
variants read once per round, in turn, each round starting with another one. Seconds are wall time;
CPU is the processor time of Spark's processes, without the broker. Ratios are over `native`, round
by round; the first rounds warm up and are dropped (`--warm-up`).
"""

from __future__ import annotations

import argparse
import time
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka.bulk import CORES, read_into_nothing
from benchmarks.kafka.feed import fill, new_topic
from benchmarks.kafka.native_variants import (
    CONFLUENT,
    HEADERS,
    NATIVE,
    TIMESTAMPS,
    VariantSource,
)
from benchmarks.support.processes import cpu_seconds, used_since
from benchmarks.support.report import Report, ratio, spread
from benchmarks.support.sessions import run_on_spark
from spark_ssp.testing.kafka import LocalKafka

_CHECKSUM: Final = "sum(xxhash64(*) % 1000003)"

Taken = dict[str, list[tuple[float, float]]]
"""Seconds and processor seconds of each variant, by round."""


def run(
    spark: SparkSession,
    kafka: LocalKafka,
    *,
    records: int,
    sizes: list[int],
    headers: list[int],
    partitions: int,
    rounds: int,
    warm_up: int = 2,
) -> Report:
    """Measure all sizes without headers, and with each further number of headers per record."""
    report = Report(
        name="kafka.native",
        command=f"python -m benchmarks.kafka.native --records {records} "
        f"--sizes {' '.join(str(size) for size in sizes)} "
        f"--headers {' '.join(str(count) for count in headers)} "
        f"--partitions {partitions} --rounds {rounds} --warm-up {warm_up}",
        columns=("bytes, headers", "variant", "s", "over native", "CPU s", "over native"),
    )
    spark.dataSource.register(VariantSource)
    for count in headers:
        for size in sizes:
            with new_topic(kafka, partitions) as topic:
                fill(
                    kafka,
                    topic,
                    records=records,
                    size=size,
                    partitions=partitions,
                    headers=count,
                )
                frames = _frames(spark, kafka, topic, with_headers=count > 0)
                _add(report, size, count, _measure(frames, rounds, warm_up))
    return report


def _frames(
    spark: SparkSession, kafka: LocalKafka, topic: str, *, with_headers: bool
) -> dict[str, DataFrame]:
    """The topic by each variant; fails unless all have the same rows."""
    names = [NATIVE, TIMESTAMPS, *([HEADERS] if with_headers else []), CONFLUENT]
    frames = {
        name: spark.read.format(VariantSource.name())
        .options(**kafka.options)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", str(with_headers).lower())
        .option("variant", name)
        .load()
        for name in names
    }
    checksums = {name: frame.selectExpr(_CHECKSUM).collect() for name, frame in frames.items()}
    if any(checksum != checksums[NATIVE] for checksum in checksums.values()):
        raise AssertionError(f"the variants read different rows: {checksums}")
    return frames


def _measure(frames: dict[str, DataFrame], rounds: int, warm_up: int) -> Taken:
    taken: Taken = {name: [] for name in frames}
    names = [*frames]
    for number in range(warm_up + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            used, began = cpu_seconds(), time.perf_counter()
            read_into_nothing(frames[name])
            seconds = time.perf_counter() - began
            if number >= warm_up:
                taken[name].append((seconds, sum(used_since(used).values())))
    return taken


def _add(report: Report, size: int, headers: int, taken: Taken) -> None:
    seconds, cpu = (
        {name: [pair[place] for pair in pairs] for name, pairs in taken.items()} for place in (0, 1)
    )
    for name in taken:
        cells = (
            text
            for values in (seconds, cpu)
            for text in (
                spread(values[name]).text(2),
                ratio(values[name], values[NATIVE]).text(2),
            )
        )
        report.add(
            f"{size:,} B, {headers}",
            name,
            *cells,
            size=size,
            headers=str(headers),
            variant=name,
            seconds=seconds[name],
            cpu_seconds=cpu[name],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=1_500_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 20, 1_000])
    parser.add_argument("--headers", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds that do not count")
    run_on_spark(run, vars(parser.parse_args()), cores=CORES)


if __name__ == "__main__":
    main()
