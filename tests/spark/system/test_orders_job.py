"""The job of the platforms' examples, and what their definitions name in Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ssp import register
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.architecture.layers import ROOT
from tests.support.guides import blocks
from tests.support.kinesis.feeds import EmbeddedFeed
from tests.support.platforms import WITH_SETTINGS, spark_settings
from tests.support.spark.drivers import committed_rows
from tests.support.spark.queries import wait_until

_VARIABLES = ("spark.executorEnv.", "spark.kubernetes.driverEnv.", "spark.yarn.appMasterEnv.")
# Those of EMR Serverless are not Spark's.
_OF_PLATFORMS = ("spark.emr-serverless.",)


def test_formats_that_spark_has_found_can_be_registered(spark: SparkSession) -> None:
    session = spark.newSession()
    register(session)
    register(session)
    stream = session.readStream.format("kinesis-ssp").option("streamName", "orders").load()
    assert "partitionKey" in stream.columns
    topic = session.readStream.format("kafka-ssp").option("kafka.bootstrap.servers", "host:9092")
    assert "offset" in topic.option("subscribe", "orders").load().columns


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_spark_knows_the_settings_of_a_definition(spark: SparkSession, name: str) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    entries = jvm.org.apache.spark.internal.config.ConfigEntry
    names = set(spark_settings(name))
    assert names
    checked = {each for each in names if not each.startswith(_VARIABLES + _OF_PLATFORMS)}
    assert {each for each in checked if entries.findEntry(each) is None} == set()


@pytest.mark.long
@pytest.mark.usefixtures("spark_environment")
def test_the_job_reads_every_record_once(kinesis: EmbeddedKinesis, tmp_path: Path) -> None:
    feed, output = EmbeddedFeed(kinesis), tmp_path / "output"
    feed.create("orders", shards=2)
    for _ in range(2):
        feed.put("orders", 20)
        with _job(kinesis, tmp_path):
            wait_until(
                lambda: _orders(output).total() >= len(feed.records),
                "every record is read",
            )
    assert _orders(output) == Counter(record.data.decode() for record in feed.records)


@pytest.mark.usefixtures("spark_environment")
def test_the_job_of_the_readme_reads_every_record_once(
    kinesis: EmbeddedKinesis, tmp_path: Path
) -> None:
    (job,) = [block for block in blocks(ROOT / "README.md", "python") if "# orders.py" in block]
    (tmp_path / "orders.py").write_text(job)
    feed = EmbeddedFeed(kinesis)
    feed.create("orders", shards=2)
    feed.put("orders", 20)
    output = tmp_path / "lake" / "orders"
    with _program(kinesis, [sys.executable, "orders.py"], tmp_path):
        wait_until(lambda: _orders(output).total() >= 20, "every record is read")
    assert _orders(output) == Counter(record.data.decode() for record in feed.records)


@contextmanager
def _job(kinesis: EmbeddedKinesis, folder: Path) -> Iterator[None]:
    """Run the job as a program, and kill it at the end of the block."""
    command = [
        *(sys.executable, "-m", "examples.platforms.orders_job"),
        *("--stream", "orders", "--region", kinesis.state.region, "--slots", "2"),
        *("--output", str(folder / "output"), "--checkpoint", str(folder / "checkpoint")),
        *("--interval", "1 second", "--records", "10"),
    ]
    with _program(kinesis, command, ROOT):
        yield


@contextmanager
def _program(kinesis: EmbeddedKinesis, command: list[str], folder: Path) -> Iterator[None]:
    settings = "--master local[2] --conf spark.ui.enabled=false pyspark-shell"
    environment = {**os.environ, **kinesis.environment(), "PYSPARK_SUBMIT_ARGS": settings}
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _orders(output: Path) -> Counter[str]:
    if not (output / "_spark_metadata").exists():
        return Counter()
    return Counter(row["order"] for row in committed_rows(output, ["order"]))
