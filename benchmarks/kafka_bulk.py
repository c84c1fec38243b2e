"""Kafka in bulk: this project's source beside Spark's own, the bare client, and Spark's ceiling.

    python -m benchmarks.kafka_bulk [--records 2000000] [--sizes 200 1000 20] [--partitions 4 16]

One batch of all records into the sink `noop`. `ours` and `Spark` are the same batch read
(`spark.read`) with the one format and the other; `client` is confluent-kafka's `consume(10000)`, in
as many processes as there are cores, which looks at no record; `ceiling` is a Python source that
has the same rows ready as Arrow. Seconds are wall time; a first round warms up and is dropped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_feed import fill
from benchmarks.ready_source import ReadySource
from benchmarks.report import Report, ratio, spread
from benchmarks.sessions import local_spark
from local_kafka import LocalKafka
from tests.support.spark_kafka import install

CORES: Final = 2


def seconds(work: Callable[[], object]) -> float:
    """How long it took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def read_into_nothing(frame: DataFrame) -> None:
    """Read all rows, with all columns."""
    frame.write.format("noop").mode("overwrite").save()


def kafka_frame(spark: SparkSession, kafka: LocalKafka, name: str, topic: str) -> DataFrame:
    """The whole topic by one of the formats."""
    return (
        spark.read.format(name)
        .options(**kafka.options)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )


def consume_all(servers: str, topic: str, partitions: list[int]) -> None:
    """Consume to the end of each partition and look at nothing."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    ended = 0
    while ended < len(partitions):
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is None:
                continue
            if error.code() != KafkaError._PARTITION_EOF:
                raise RuntimeError(str(error))
            ended += 1
    consumer.close()


def consume_in_processes(kafka: LocalKafka, topic: str, partitions: int) -> float:
    """Seconds that the bare client takes; starting the processes does not count."""
    context = multiprocessing.get_context("fork")
    shares = [list(range(core, partitions, CORES)) for core in range(CORES)]
    processes = [
        context.Process(target=consume_all, args=(kafka.bootstrap_servers, topic, share))
        for share in shares
        if share
    ]

    def run() -> None:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode != 0:
                raise RuntimeError(f"a consumer ended with {process.exitcode}")

    return seconds(run)


def run(
    spark: SparkSession,
    kafka: LocalKafka,
    *,
    records: int,
    sizes: list[int],
    partitions: list[int],
    rounds: int,
) -> Report:
    """Measure; `spark` has Spark's connector on its class path."""
    report = Report(
        name="kafka_bulk",
        command=f"python -m benchmarks.kafka_bulk --records {records}",
        columns=(
            "bytes, partitions",
            "ours s",
            "Spark s",
            "client s",
            "ceiling s",
            "ours records/s",
            "times Spark's",
            "part of the ceiling",
        ),
    )
    spark.dataSource.register(ReadySource)
    for size in sizes:
        for count in partitions:
            topic = f"bulk-{size}-{count}"
            fill(kafka, topic, records=records, size=size, partitions=count)
            ready = spark.read.format("ready").options(records=records, size=size, partitions=count)
            frames = {
                "ours": kafka_frame(spark, kafka, "kafka-ssp", topic),
                "spark": kafka_frame(spark, kafka, "kafka", topic),
                "ceiling": ready.load(),
            }
            took: dict[str, list[float]] = {"ours": [], "spark": [], "client": [], "ceiling": []}
            for number in range(rounds + 1):
                now = {
                    "ours": seconds(partial(read_into_nothing, frames["ours"])),
                    "spark": seconds(partial(read_into_nothing, frames["spark"])),
                    "client": consume_in_processes(kafka, topic, count),
                    "ceiling": seconds(partial(read_into_nothing, frames["ceiling"])),
                }
                if number > 0:  # The first one warms up.
                    for name, value in now.items():
                        took[name].append(value)
            times = ratio(took["spark"], took["ours"])
            part = ratio(took["ceiling"], took["ours"])
            report.add(
                f"{size:,} B, {count}",
                *(spread(took[name]).text(2) for name in ("ours", "spark", "client", "ceiling")),
                f"{records / spread(took['ours']).median:,.0f}",
                times.text(2),
                part.text(2),
                size=size,
                partitions=count,
                records=records,
                seconds=took,
                times_spark=times.median,
            )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 1_000, 20])
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spark = local_spark(CORES, class_path=install())
    with LocalKafka() as kafka:
        report = run(
            spark,
            kafka,
            records=arguments.records,
            sizes=arguments.sizes,
            partitions=arguments.partitions,
            rounds=arguments.rounds,
        )
    spark.stop()
    report.publish()


if __name__ == "__main__":
    main()
