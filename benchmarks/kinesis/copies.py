"""A stream copied: Kafka to Kinesis and Kinesis to Kafka, beside bare loops that do the same.

    python -m benchmarks.kinesis.copies [--records 100000] [--size 200] [--parts 4] [--rounds 3]

`ours` is a streaming query with `availableNow` from one format to the other, with the sinks'
defaults; seconds are wall time from `start()` to its end. `loop` is the same copy without Spark, by
a process for each core: confluent-kafka's `consume` and boto3's PutRecords with 500 records in a
request, or boto3's GetRecords and confluent-kafka's `produce`; the start of its processes does not
count. It has no checkpoint, no limits per shard and no retries. Kinesis is the embedded service in
a separate process, without limits; it takes most of the processor time of both. The first rounds
warm up and are dropped (`--warm-up`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import boto3
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka.feed import fill, new_topic
from benchmarks.kinesis.service import STREAM, ServiceProcess, kinesis_service
from benchmarks.support.report import Report, ratio, spread
from benchmarks.support.sessions import checkpoint_in, local_spark
from spark_ssp.testing.kafka import LocalKafka

CORES: Final = 2
_REQUEST: Final = 500
_POLL_S: Final = 0.05
_AT_MOST_S: Final = 600

Loop = Callable[[str, str, str, list[int], Barrier], None]
"""Copies some partitions or shards, between the brokers' address and topic and the service's URL.
"""


def to_kinesis(servers: str, topic: str, url: str, partitions: list[int], ready: Barrier) -> None:
    """Consume, and put 500 records in a request."""
    client = _client(url)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    ready.wait()
    ended = 0
    while ended < len(partitions):
        entries = []
        for message in consumer.consume(_REQUEST, _POLL_S):
            error = message.error()
            if error is None:
                key, value = message.key() or b"", message.value()
                entries.append({"Data": value, "PartitionKey": key.decode()})
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
            else:
                raise RuntimeError(str(error))
        if entries:
            client.put_records(StreamName=STREAM, Records=entries)
    consumer.close()


def to_kafka(servers: str, topic: str, url: str, shards: list[int], ready: Barrier) -> None:
    """Get the pages of each shard, and produce their records."""
    client = _client(url)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    ready.wait()
    for shard in shards:
        iterator = client.get_shard_iterator(
            StreamName=STREAM, ShardId=f"shardId-{shard:012d}", ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            page = client.get_records(ShardIterator=iterator)
            for record in page["Records"]:
                while True:
                    try:
                        producer.produce(topic, record["Data"], record["PartitionKey"])
                        break
                    except BufferError:
                        producer.poll(_POLL_S)
            producer.poll(0)
            iterator = page.get("NextShardIterator")
            if iterator is None or (not page["Records"] and page["MillisBehindLatest"] == 0):
                break
    if producer.flush(_AT_MOST_S):
        raise RuntimeError("records were not delivered")


def _client(url: str) -> Any:
    return boto3.client(
        "kinesis",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )


def in_processes(loop: Loop, servers: str, topic: str, url: str, parts: int) -> float:
    """Return the seconds of a loop."""
    context = multiprocessing.get_context("spawn")
    shares = [share for core in range(CORES) if (share := list(range(parts))[core::CORES])]
    ready = context.Barrier(len(shares) + 1)
    processes = [
        context.Process(target=loop, args=(servers, topic, url, share, ready)) for share in shares
    ]
    for process in processes:
        process.start()
    ready.wait(_AT_MOST_S)
    began = time.perf_counter()
    for process in processes:
        process.join(_AT_MOST_S)
    took = time.perf_counter() - began
    if any(process.exitcode != 0 for process in processes):
        raise RuntimeError("a process of a loop failed")
    return took


def by_query(source: DataFrame, sink: str, options: dict[str, str], checkpoint: str) -> float:
    """Return the seconds of a query."""
    writer = source.writeStream.format(sink).options(**options)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    began = time.perf_counter()
    writer.start().awaitTermination()
    return time.perf_counter() - began


def _from_kafka(reader: Any, kafka: LocalKafka, topic: str) -> DataFrame:
    frame: DataFrame = (
        reader.format("kafka-ssp")
        .options(**kafka.options, subscribe=topic, startingOffsets="earliest")
        .load()
    )
    return frame


def _from_kinesis(reader: Any, service: ServiceProcess) -> DataFrame:
    frame: DataFrame = reader.format("kinesis-ssp").options(**service.options()).load()
    return frame


def _sink_options(service: ServiceProcess) -> dict[str, str]:
    return {name: value for name, value in service.options().items() if name != "startingPosition"}


def kafka_to_kinesis(
    spark: SparkSession, kafka: LocalKafka, topic: str, parts: int, records: int, checkpoint: str
) -> dict[str, float]:
    """Copy a topic by both, each into a new stream; return their seconds."""
    took: dict[str, float] = {}
    for peer in ("ours", "loop"):
        with kinesis_service(parts) as service:
            if peer == "ours":
                rows = _from_kafka(spark.readStream, kafka, topic).selectExpr(
                    "CAST(key AS STRING) AS partitionKey", "value AS data"
                )
                took[peer] = by_query(rows, "kinesis-ssp", _sink_options(service), checkpoint)
            else:
                servers = kafka.bootstrap_servers
                took[peer] = in_processes(to_kinesis, servers, topic, service.url, parts)
            _check(peer, _from_kinesis(spark.read, service).count(), records)
    return took


def kinesis_to_kafka(
    spark: SparkSession, kafka: LocalKafka, service: ServiceProcess, parts: int, checkpoint: str
) -> dict[str, float]:
    """Copy a stream by both, each into a new topic; return their seconds."""
    took: dict[str, float] = {}
    records = _from_kinesis(spark.read, service).count()
    for peer in ("ours", "loop"):
        with new_topic(kafka, parts) as topic:
            if peer == "ours":
                rows = _from_kinesis(spark.readStream, service).selectExpr(
                    "partitionKey AS key", "data AS value"
                )
                options = {**kafka.options, "topic": topic}
                took[peer] = by_query(rows, "kafka-ssp", options, checkpoint)
            else:
                servers = kafka.bootstrap_servers
                took[peer] = in_processes(to_kafka, servers, topic, service.url, parts)
            _check(peer, _from_kafka(spark.read, kafka, topic).count(), records)
    return took


def _check(peer: str, found: int, expected: int) -> None:
    if found != expected:
        raise AssertionError(f"{peer}: {found:,} records were copied of {expected:,}")


def run(
    spark: SparkSession,
    kafka: LocalKafka,
    folder: Path,
    *,
    records: int,
    size: int,
    parts: int,
    rounds: int,
    warm_up: int = 1,
) -> Report:
    """Measure."""
    report = Report(
        name="kinesis.copies",
        command=f"python -m benchmarks.kinesis.copies --records {records} --size {size} "
        f"--parts {parts} --rounds {rounds} --warm-up {warm_up}",
        columns=("copy", "ours s", "loop s", "ours records/s", "part of the loop's time"),
    )
    into_kinesis: list[dict[str, float]] = []
    into_kafka: list[dict[str, float]] = []
    with new_topic(kafka, parts) as topic, kinesis_service(parts) as service:
        fill(kafka, topic, records=records, size=size, partitions=parts)
        in_processes(to_kinesis, kafka.bootstrap_servers, topic, service.url, parts)
        for number in range(warm_up + rounds):
            first = checkpoint_in(folder, f"{number}-kinesis")
            second = checkpoint_in(folder, f"{number}-kafka")
            now = (
                kafka_to_kinesis(spark, kafka, topic, parts, records, first),
                kinesis_to_kafka(spark, kafka, service, parts, second),
            )
            if number >= warm_up:
                into_kinesis.append(now[0])
                into_kafka.append(now[1])
    _add(report, "Kafka to Kinesis", records, into_kinesis)
    _add(report, "Kinesis to Kafka", records, into_kafka)
    return report


def _add(report: Report, name: str, records: int, took: list[dict[str, float]]) -> None:
    ours, loop = ([one[peer] for one in took] for peer in ("ours", "loop"))
    part = ratio(ours, loop)
    report.add(
        name,
        spread(ours).text(2),
        spread(loop).text(2),
        f"{records / spread(ours).median:,.0f}",
        part.text(2),
        copy=name,
        records=records,
        seconds={"ours": ours, "loop": loop},
        part_of_loop=part.values,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a record")
    parser.add_argument("--parts", type=int, default=4, help="partitions, and shards")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that do not count")
    arguments = vars(parser.parse_args())
    spark = local_spark(CORES)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, LocalKafka() as kafka:
        report = run(spark, kafka, Path(folder), **arguments)
    spark.stop()
    report.publish()


if __name__ == "__main__":
    main()
