"""Kafka in bulk: this project's source beside Spark's own, the bare client, and Spark's ceiling.

    python -m benchmarks.kafka.bulk [--records 2000000] [--sizes 200 1000 20] [--partitions 4 16] \
        [--columns value]

One batch of all records into the sink `noop`. `ours` and `Spark` are the same batch read
(`spark.read`) with the one format and the other; `client` is confluent-kafka's `consume(10000)`, in
as many processes as there are cores, which looks at no record; `ceiling` is a Python source that
has the same rows ready as Arrow. `whole` is a whole query with either format, from `start()` to its
end: a stream of all records with the trigger availableNow. With `--columns`, `chosen` is `ours` of
only these columns. Seconds are wall time; the first rounds warm up and are dropped (`--warm-up`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from benchmarks.kafka.bare import consume_in_processes
from benchmarks.kafka.feed import fill, new_topic
from benchmarks.support.report import Report, ratio, spread
from benchmarks.support.sessions import run_on_spark
from benchmarks.support.sources import ReadySource
from spark_ssp.kafka_source.source import spark_schema
from spark_ssp.testing.kafka import LocalKafka
from tests.support.servers.spark_kafka import install

CORES: Final = 2


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of `work`."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def read_into_nothing(frame: DataFrame) -> None:
    """Read all rows, with all columns of the DataFrame."""
    frame.write.format("noop").mode("overwrite").save()


def kafka_frame(
    spark: SparkSession, kafka: LocalKafka, name: str, topic: str, columns: Sequence[str] = ()
) -> DataFrame:
    """The whole topic by one of the formats: only some columns, or all."""
    source = spark_schema(include_headers=False, include_task=False)
    reader = spark.read.format(name)
    if columns:
        reader = reader.schema(StructType([source[column] for column in columns]))
    return (
        reader.options(**kafka.options)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )


def run_to_the_end(spark: SparkSession, kafka: LocalKafka, name: str, topic: str) -> None:
    """Run a query of the whole topic by one of the formats, from its start to its end."""
    source = (
        spark.readStream.format(name)
        .options(**kafka.options)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = source.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()
        query.awaitTermination()


def consumed(kafka: LocalKafka, topic: str, partitions: int, records: int) -> float:
    """Seconds of the bare client."""
    took, found = consume_in_processes(kafka.bootstrap_servers, topic, partitions, CORES)
    if found != records:
        raise AssertionError(f"{found:,} records were consumed of {records:,}")
    return took


def run(
    spark: SparkSession,
    kafka: LocalKafka,
    *,
    records: int,
    sizes: list[int],
    partitions: list[int],
    rounds: int,
    warm_up: int = 2,
    columns: Sequence[str] = (),
) -> Report:
    """Measure; `spark` has Spark's connector on its class path."""
    report = Report(
        name="kafka.bulk",
        command=f"python -m benchmarks.kafka.bulk --records {records} "
        f"--sizes {' '.join(str(size) for size in sizes)} "
        f"--partitions {' '.join(str(count) for count in partitions)} --rounds {rounds} "
        f"--warm-up {warm_up}{' --columns ' if columns else ''}{' '.join(columns)}",
        columns=(
            "bytes, partitions",
            "ours s",
            "Spark s",
            "client s",
            "ceiling s",
            "ours records/s",
            "times Spark's",
            "whole s",
            "whole Spark s",
            "times Spark's",
            "part of the ceiling",
            *(("chosen s", "part of all columns") if columns else ()),
        ),
    )
    spark.dataSource.register(ReadySource)
    for size in sizes:
        for count in partitions:
            with new_topic(kafka, count) as topic:
                fill(kafka, topic, records=records, size=size, partitions=count)
                took = _rounds(spark, kafka, topic, records, size, count, rounds, warm_up, columns)
            _add(report, size, count, records, took)
    return report


Took = dict[str, list[float]]
"""Seconds of each peer, by round."""


def _rounds(
    spark: SparkSession,
    kafka: LocalKafka,
    topic: str,
    records: int,
    size: int,
    partitions: int,
    rounds: int,
    warm_up: int,
    columns: Sequence[str],
) -> Took:
    ready = spark.read.format("ready").options(records=records, size=size, partitions=partitions)
    frames = {
        "ours": kafka_frame(spark, kafka, "kafka-ssp", topic),
        "spark": kafka_frame(spark, kafka, "kafka", topic),
        "ceiling": ready.load(),
    }
    if columns:
        frames["chosen"] = kafka_frame(spark, kafka, "kafka-ssp", topic, columns)
    for name, frame in frames.items():
        if (found := frame.count()) != records:
            raise AssertionError(f"{name}: {found:,} records were read of {records:,}")
    took: Took = defaultdict(list)
    for number in range(warm_up + rounds):
        now = {
            **{name: seconds(partial(read_into_nothing, frame)) for name, frame in frames.items()},
            "client": consumed(kafka, topic, partitions, records),
            "whole_ours": seconds(partial(run_to_the_end, spark, kafka, "kafka-ssp", topic)),
            "whole_spark": seconds(partial(run_to_the_end, spark, kafka, "kafka", topic)),
        }
        if number >= warm_up:
            for name, value in now.items():
                took[name].append(value)
    return took


def _add(report: Report, size: int, partitions: int, records: int, took: Took) -> None:
    times = ratio(took["spark"], took["ours"])
    part = ratio(took["ceiling"], took["ours"])
    whole = ratio(took["whole_spark"], took["whole_ours"])
    chosen = ratio(took["chosen"], took["ours"]) if "chosen" in took else None
    report.add(
        f"{size:,} B, {partitions}",
        *(spread(took[name]).text(2) for name in ("ours", "spark", "client", "ceiling")),
        f"{records / spread(took['ours']).median:,.0f}",
        times.text(2),
        spread(took["whole_ours"]).text(2),
        spread(took["whole_spark"]).text(2),
        whole.text(2),
        part.text(2),
        *(() if chosen is None else (spread(took["chosen"]).text(2), chosen.text(2))),
        size=size,
        partitions=partitions,
        records=records,
        seconds=took,
        times_spark=times.median,
        times_spark_whole=whole.median,
        part_of_ceiling=part.median,
        part_of_all_columns=None if chosen is None else chosen.median,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 1_000, 20])
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds that do not count")
    parser.add_argument("--columns", nargs="+", default=(), help="also read only these")
    run_on_spark(run, vars(parser.parse_args()), cores=CORES, class_path=install())


if __name__ == "__main__":
    main()
