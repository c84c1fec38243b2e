"""Tests of a pipeline: a Kinesis in the test's process, a reshard, a task that fails."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from examples.recipes import json_records as pipeline
from spark_ssp import EmbeddedKinesis


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2, 4]")  # 2 cores, and 4 attempts of a task
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.python.unix.domain.socket.dir", str(tmp_path_factory.mktemp("spark")))
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def kinesis(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis(region="eu-west-1") as service:
        service.state.create_stream("departures", shards=2)
        monkeypatch.setitem(pipeline.SOURCE, "endpointUrl", service.endpoint_url)
        monkeypatch.setitem(pipeline.SOURCE, "awsAccessKeyId", "local")
        monkeypatch.setitem(pipeline.SOURCE, "awsSecretAccessKey", "local")
        yield service


def put(kinesis: EmbeddedKinesis, numbers: Iterable[int]) -> None:
    for number in numbers:
        carrier = f"carrier-{number % 7}"
        departure = json.dumps({"index": number, "carrier": carrier})
        kinesis.state.put("departures", carrier, departure.encode())


def indexes(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row["index"] for row in spark.read.parquet(f"{folder}/departures").collect())


def test_a_reshard_loses_and_repeats_nothing(
    spark: SparkSession, kinesis: EmbeddedKinesis, tmp_path: Path
) -> None:
    query = pipeline.start(spark, str(tmp_path), processingTime="0 seconds")
    put(kinesis, range(50))
    query.processAllAvailable()
    kinesis.state.split("departures", kinesis.state.open_shard_ids("departures")[0])
    put(kinesis, range(50, 100))
    query.processAllAvailable()
    query.stop()
    assert indexes(spark, tmp_path) == list(range(100))


def test_a_failed_task_is_run_again(
    spark: SparkSession, kinesis: EmbeddedKinesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        yield from batches

    parse = pipeline.parse

    def parse_after_failure(records: DataFrame) -> DataFrame:
        return parse(records.mapInArrow(fail_once, records.schema))

    monkeypatch.setattr(pipeline, "parse", parse_after_failure)
    put(kinesis, range(50))
    pipeline.start(spark, str(tmp_path), availableNow=True).awaitTermination()
    assert indexes(spark, tmp_path) == list(range(50))
