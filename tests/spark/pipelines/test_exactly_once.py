"""A pipeline whose stages write to Kafka in transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_ssp.common.spark.batch_plan import ADAPTIVE_STREAM
from spark_ssp.kafka_source.pipeline_system import KafkaSystem
from spark_ssp.planner import Pipeline, Services
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.pipelines.runs import patiently, session_for_pipelines
from tests.support.servers.kafka_broker import KafkaBroker


@pytest.mark.long
def test_each_record_comes_once_through_the_stages(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    """With the settings of the guide, in two runs by one set of checkpoints."""
    session = session_for_pipelines(spark)
    session.conf.set(ADAPTIVE_STREAM, "false")
    source, target = topics.create(2), topics.create(2)
    between = f"{source}-by-item"
    topics.adopt(between)
    system = KafkaSystem(
        kafka_broker.options,
        reader={"startingOffsets": "earliest"},
        writer={"deliveryGuarantee": "exactly-once"},
    )
    known = Services({"kafka": system})

    def described() -> Pipeline:
        pipeline = Pipeline("orders", systems={"kafka": "kafka"})
        lines = pipeline.input("kafka", source).transform(
            lambda frame: frame.select(F.col("value").cast("string").alias("item"))
        )
        lines.partition_by("item", stream=between, name="by-item").output("kafka", target)
        return pipeline

    def run() -> None:
        planned = described().plan(known, root=str(tmp_path))
        with planned.run(session, known, available_now=True) as running:
            assert running.await_termination(400), running.status

    wanted = []
    for begin in (0, 50):
        items = [f"item-{number}" for number in range(begin, begin + 50)]
        topics.put(source, [Record(value=item.encode()) for item in items])
        wanted += items
        patiently(run)
    frame: Any = (
        session.read.format("kafka-ssp")
        .options(**kafka_broker.options, subscribe=target, startingOffsets="earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    found = [orjson.loads(bytes(row.value))["item"] for row in frame.collect()]
    assert sorted(found) == sorted(wanted)
