"""Duplicates dropped from a topic: `drop_duplicates` beside Spark's dropDuplicatesWithinWatermark.

    python -m benchmarks.kafka.duplicates [--records 120000] [--shuffle 2]

Each peer is a streaming query with a new checkpoint that reads all records of one topic with
`availableNow` into the sink `noop`. `ours` is `drop_duplicates`; `Spark` is Spark's own operator
over the same rows, with the same keys and state store (RocksDB) and a watermark of an hour;
`neither` drops nothing. One row in ten is written twice, as by a batch that failed and was run
again. Seconds are wall time from `start()` to the end of the query; `batch` is Spark's time of the
batch that has the rows (`triggerExecution`); CPU is the processor time of Spark and its Python
processes. The first rounds warm up and are dropped (`--warm-up`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.kafka.feed import KEYS, new_topic
from benchmarks.support.processes import cpu_seconds, used_since
from benchmarks.support.report import Report, ratio, spread
from benchmarks.support.sessions import checkpoint_in, run_on_spark
from spark_ssp.common.spark.requirement import PROVIDER, PROVIDER_SETTING
from spark_ssp.kafka_source.dedup.dedup_headers import (
    POSITION_HEADER,
    SOURCE_HEADER,
    RowCounter,
    WriteId,
    record_hash,
)
from spark_ssp.kafka_source.dedup.deduplicate import drop_duplicates, header_column
from spark_ssp.testing.kafka import LocalKafka

CORES: Final = 2
REPEATED: Final = 10
"""One row of so many is written twice."""
_CHUNK: Final = 10_000
_SHUFFLE: Final = "spark.sql.shuffle.partitions"


def fill(kafka: LocalKafka, topic: str, *, records: int, size: int, partitions: int) -> int:
    """Write `records` records with repeat headers, as two attempts at one batch; return the number
    of distinct rows."""
    rows = records * REPEATED // (REPEATED + 1)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20, "batch.size": 1_000_000}
    )
    filler = b"x" * (size - 8)
    now = int(time.time() * 1000)
    for attempt_ms, count in ((now - 1_000, records - rows), (now, rows)):
        write = WriteId(source="bench", batch=0, attempt_ms=attempt_ms, task=0)
        counter = RowCounter(write)
        for number in range(count):
            key, value = b"%08d" % (number % KEYS), b"%08d" % number + filler
            headers, _ = counter.headers(topic, record_hash(topic, key, value, None, ()))
            pairs: list[tuple[str, str | bytes | None]] = [*headers]
            producer.produce(topic, value, key, partition=number % partitions, headers=pairs)
            if number % _CHUNK == 0:
                producer.flush()
        producer.flush()
    return rows


def keep_all(records: DataFrame) -> DataFrame:
    """Drop nothing."""
    return records


def drop_by_spark(records: DataFrame) -> DataFrame:
    """Drop by the same identity of a row, with Spark's own operator."""
    position = F.split(header_column(POSITION_HEADER), ":")
    row = F.concat_ws(":", position[0], position[2], position[3], position[4])
    return (
        records.withColumns({"ssp_source": header_column(SOURCE_HEADER), "ssp_row": row})
        .withWatermark("timestamp", "1 hour")
        .dropDuplicatesWithinWatermark(["topic", "ssp_source", "ssp_row"])
        .drop("ssp_source", "ssp_row")
    )


PEERS: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "ours": drop_duplicates,
    "spark": drop_by_spark,
    "neither": keep_all,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds of one query."""

    seconds: float
    batch: float
    cpu: float


def measure(records: DataFrame, peer: str, checkpoint: str, expected: int) -> Took:
    """Run the query of a peer. Raises AssertionError if it returns another number of rows."""
    rows = PEERS[peer](records).observe("rows", F.count(F.lit(1)).alias("count"))
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    used = cpu_seconds()
    began = time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.perf_counter() - began
    cpu = sum(used_since(used).values())
    progress = [dict(one) for one in query.recentProgress]
    found = sum(one["observedMetrics"]["rows"]["count"] for one in progress)
    if found != expected:
        raise AssertionError(f"{peer}: {found:,} rows were returned, not {expected:,}")
    batch = max(one["durationMs"]["triggerExecution"] for one in progress if one["numInputRows"])
    return Took(seconds=seconds, batch=batch / 1_000, cpu=cpu)


def run(
    spark: SparkSession,
    kafka: LocalKafka,
    folder: Path,
    *,
    records: int,
    size: int,
    partitions: int,
    shuffle: list[int],
    rounds: int,
    warm_up: int = 2,
) -> Report:
    """Measure."""
    report = Report(
        name="kafka.duplicates",
        command=f"python -m benchmarks.kafka.duplicates --records {records} --size {size} "
        f"--partitions {partitions} --shuffle {' '.join(map(str, shuffle))} --rounds {rounds} "
        f"--warm-up {warm_up}",
        columns=(
            "rows, state partitions",
            "peer",
            "query s",
            "batch s",
            "CPU s",
            "query, part of Spark's",
            "CPU, part of Spark's",
        ),
    )
    spark.conf.set(PROVIDER_SETTING, PROVIDER)
    with new_topic(kafka, partitions) as topic:
        rows = fill(kafka, topic, records=records, size=size, partitions=partitions)
        stream = (
            spark.readStream.format("kafka-ssp")
            .options(**kafka.options, subscribe=topic)
            .options(startingOffsets="earliest", includeHeaders="true")
            .load()
        )
        for count in shuffle:
            spark.conf.set(_SHUFFLE, str(count))
            took: dict[str, list[Took]] = {peer: [] for peer in PEERS}
            for number in range(warm_up + rounds):
                for peer in PEERS:
                    checkpoint = checkpoint_in(folder, f"{count}-{number}-{peer}")
                    expected = records if peer == "neither" else rows
                    now = measure(stream, peer, checkpoint, expected)
                    if number >= warm_up:
                        took[peer].append(now)
            for peer in PEERS:
                _add(report, records, count, peer, took[peer], took["spark"])
    return report


def _add(
    report: Report, records: int, shuffle: int, peer: str, ours: list[Took], theirs: list[Took]
) -> None:
    part = ratio([one.seconds for one in ours], [one.seconds for one in theirs])
    cpu = ratio([one.cpu for one in ours], [one.cpu for one in theirs])
    report.add(
        f"{records:,}, {shuffle}",
        peer,
        *(
            spread(values).text(2)
            for values in (
                [one.seconds for one in ours],
                [one.batch for one in ours],
                [one.cpu for one in ours],
            )
        ),
        part.text(2),
        cpu.text(2),
        records=records,
        shuffle=shuffle,
        peer=peer,
        seconds=[one.seconds for one in ours],
        batch_seconds=[one.batch for one in ours],
        cpu_seconds=[one.cpu for one in ours],
        part_of_spark_rounds=part.values,
        cpu_part_of_spark=cpu.values,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=120_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a value")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--shuffle", type=int, nargs="+", default=[2], help=_SHUFFLE)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=3, help="rounds that do not count")
    run_on_spark(run, vars(parser.parse_args()), cores=CORES)


if __name__ == "__main__":
    main()
