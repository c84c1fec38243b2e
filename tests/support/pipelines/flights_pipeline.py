"""A pipeline of departures that a test kills: from Kinesis, by carrier through Kafka, joined with a
table of airlines, totalled into Kafka. Its streams, their input, and the expected output."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.two_stage_pipeline import names_of
from spark_ssp.kafka_source.dedup.deduplicate import drop_duplicates
from spark_ssp.kafka_source.pipeline_system import KafkaSystem
from spark_ssp.kinesis_source.pipeline_system import KinesisSystem
from spark_ssp.planner import PlannedPipeline, Services
from spark_ssp.planner.builder import Pipeline
from tests.support.kinesis.feeds import options_for
from tests.support.pipelines.runs import patiently, session_for_pipelines

FIRST, SECOND = "by-carrier", "totals"
"""The stages."""

STREAM: Final = "flights"
_PATIENCE_S: Final = 600.0
_DEPARTURE: Final = "index long, carrier string, dep_delay long"


class Streams(NamedTuple):
    """Topics of the pipeline, and the endpoints of Kafka and Kinesis."""

    brokers: str
    endpoint: str
    airlines: str
    between: str
    totals: str


def described(streams: Streams, gates: Path, *, second: str = SECOND) -> Pipeline:
    """Return the pipeline. A stage does not pass a certain batch before its gate, a file in `gates`
    named after the stage, exists: of all tasks only the first one writes. `second` is the name of
    the second stage."""
    pipeline = Pipeline("flights")
    airlines = pipeline.table("airlines", key="carrier")
    airlines.side_input(
        pipeline.input("kafka", streams.airlines).transform(names_of("carrier", "airline"))
    )
    (
        pipeline.input("kinesis", STREAM)
        .transform(_departures)
        .transform(lambda frame: _gated(frame, gates / FIRST, batch=0))
        .partition_by("carrier", name=FIRST, stream=streams.between)
        .join_table(airlines)
        .transform(_totals, state="shuffled")
        .transform(lambda frame: _gated(frame, gates / SECOND, batch=1))
        .output("kafka", streams.totals, name=second)
    )
    return pipeline


def services(streams: Streams) -> Services:
    """Return the systems, with limits at which the input takes several batches."""
    kinesis = options_for(streams.endpoint) | {
        "startingPosition": "trim_horizon",
        "slots": "2",
        "maxRecordsPerTrigger": "500",
    }
    kafka = {"kafka.bootstrap.servers": streams.brokers}
    reader = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "600"}
    return Services({"kafka": KafkaSystem(kafka, reader=reader), "kinesis": KinesisSystem(kinesis)})


def run(
    spark: SparkSession, streams: Streams, root: Path, gates: Path, *, to_end: bool = True
) -> PlannedPipeline:
    """Run it in a new session to the end of all records, or until the process is killed."""
    own = session_for_pipelines(spark)
    known = services(streams)

    def once() -> PlannedPipeline:
        planned = described(streams, gates).plan(known, root=str(root))
        # Totals of all carriers in each batch: Spark's way to write an aggregate with headers for
        # deduplication.
        with planned.run(
            own, known, available_now=to_end, output_modes={SECOND: "complete"}
        ) as running:
            assert running.await_termination(_PATIENCE_S), running.status
        return planned

    return patiently(once)


def _departures(frame: DataFrame) -> DataFrame:
    row = F.from_json(F.col("data").cast("string"), _DEPARTURE).alias("row")
    return frame.select(row).select("row.*")


def _totals(frame: DataFrame) -> DataFrame:
    return (
        frame.groupBy("carrier", "airline")
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("left"),
            F.sum("dep_delay").alias("delay"),
            F.sum("index").alias("indices"),
            F.sum(F.col("index") * F.col("index")).alias("squares"),
        )
        .select(F.col("carrier").alias("key"), "*")
    )


def _gated(frame: DataFrame, gate: Path, *, batch: int) -> DataFrame:
    def behind_the_gate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        waits = task.partitionId() > 0 and int(task.getLocalProperty(_BATCH) or 0) >= batch
        deadline = time.monotonic() + _PATIENCE_S
        while waits and not gate.exists():
            assert time.monotonic() < deadline, "the gate stayed closed"
            time.sleep(0.05)
        yield from batches

    return frame.mapInArrow(behind_the_gate, frame.schema)


_BATCH: Final = "streaming.sql.batchId"


# --- Input and expected output -------------------------------------------------------------------


def messages(flights: pa.Table) -> list[bytes]:
    """Departures as they are put."""
    return [orjson.dumps(row) for row in rows(flights)]


def rows(flights: pa.Table) -> list[dict[str, Any]]:
    """Return the departures as the stream between the stages contains them."""
    found: list[dict[str, Any]] = flights.select(["index", "carrier", "dep_delay"]).to_pylist()
    return found


def totals(flights: pa.Table, airlines: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the final totals expected in the output, by carrier."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows(flights):
        carrier, delay, index = row["carrier"], row["dep_delay"], row["index"]
        total = found.setdefault(
            carrier,
            {
                "key": carrier,
                "carrier": carrier,
                "airline": airlines[carrier],
                "flights": 0,
                "left": 0,
                "delay": None,
                "indices": 0,
                "squares": 0,
            },
        )
        total["flights"] += 1
        total["indices"] += index
        total["squares"] += index * index
        if delay is not None:
            total["left"] += 1
            total["delay"] = (total["delay"] or 0) + delay
    return found


# --- Content of topics ---------------------------------------------------------------------------


class Written(NamedTuple):
    """A record of a stage: the batch that wrote it, by its headers, and its value."""

    batch: int
    value: bytes


def written(brokers: str, topic: str) -> list[Written]:
    """All records of a topic, repeats among them; none when it is not there."""
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "none", "log_level": 0, "enable.auto.commit": 0}
    )
    try:
        there = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        found: list[Written] = []
        for partition in there:
            place = TopicPartition(topic, partition, 0)
            end = _end(consumer, place)
            consumer.assign([place])
            position = 0
            while position < end:
                for message in consumer.consume(min(1000, end - position), timeout=1):
                    assert message.error() is None, message.error()
                    position = (message.offset() or 0) + 1
                    headers = dict(message.headers() or [])
                    found.append(_of_headers(headers, message.value()))
        return found
    finally:
        consumer.close()


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """The end of a partition, which may have been made a moment ago and not be led yet."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=30)[1]
        except KafkaException as error:
            unled = error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
            if not unled or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def without_repeats(spark: SparkSession, brokers: str, topic: str) -> list[Written]:
    """Return the records of a topic after deduplication."""
    frame = (
        spark.read.format("kafka-ssp")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
    )
    return [
        _of_headers({h.key: h.value for h in row.headers}, row.value)
        for row in drop_duplicates(frame).collect()
    ]


def _of_headers(headers: Mapping[str, Any], value: Any) -> Written:
    """A record by its headers."""
    position = bytes(headers["ssp-position"]).decode()
    return Written(int(position.split(":")[0]), bytes(value))
