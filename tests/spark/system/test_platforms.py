"""The wheel beside the PySpark of a platform: nothing of it changes, and queries run."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.environments.build import build_wheel, environment
from tests.support.environments.matrix import PLATFORMS, Entry
from tests.support.kafka.feed import KafkaFeed, query_options
from tests.support.kafka.topics import KafkaTopics
from tests.support.kinesis.feeds import EmbeddedFeed, options_for
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.drivers import Driver, records_in

_ORIGINS = """
import importlib.metadata, pathlib, pyspark, spark_ssp, sys
for module in spark_ssp, pyspark:
    assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), module.__file__
print(importlib.metadata.version("pyspark"), pyspark.__version__)
"""


@pytest.mark.long
@pytest.mark.timeout(900)  # PySpark is fetched, by the first test run
@pytest.mark.parametrize("entry", PLATFORMS, ids=lambda entry: entry.pyspark.version)
def test_queries_of_both_sources_resume_beside_a_platforms_pyspark(
    spark: SparkSession,
    entry: Entry,
    kinesis: EmbeddedKinesis,
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    tmp_path: Path,
) -> None:
    python = environment(entry, build_wheel(tmp_path / "dist"))
    found = subprocess.run(
        [python, "-c", _ORIGINS], cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == [entry.pyspark.version] * 2, found.stderr

    shards, partitions = EmbeddedFeed(kinesis), KafkaFeed(topics)
    shards.create("orders", shards=2)
    source, target = topics.create(2), topics.create(2)
    of_kinesis = options_for(shards.endpoint_url) | {
        "streamName": "orders",
        "startingPosition": "trim_horizon",
    }
    of_kafka = query_options(kafka_broker.options, source)
    folder = tmp_path / "driver"
    for _ in range(2):
        shards.put("orders", 40)
        partitions.put(source, 48)
        with Driver(
            folder,
            [of_kinesis, of_kafka],
            sources=["kinesis-ssp", "kafka-ssp"],
            sinks={1: {**kafka_broker.options, "topic": target}},
            python=python,
        ) as driver:
            assert [result["failure"] for result in driver.results()] == [None, None], driver.log

    assert Counter(records_in(spark, folder / "output-0")) == Counter(shards.records)
    copied = spark.read.format("kafka-ssp").options(**kafka_broker.options, subscribe=target).load()
    assert Counter((bytes(row.key), bytes(row.value)) for row in copied.collect()) == Counter(
        (put.record.key, put.record.value) for put in partitions.records
    )
