"""The format before the first record: its name, its schema, its refusals."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_kinesis_ssp import DefaultSource
from spark_ssp.kinesis_source.source import spark_schema


def test_the_format_is_known_without_a_register_call(spark: SparkSession) -> None:
    stream = spark.readStream.format("kinesis-ssp").option("streamName", "orders").load()
    assert stream.isStreaming
    assert stream.schema == spark_schema(include_repeat_keys=False)


def test_wrong_options_fail_in_load_and_all_are_named(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as raised:
        spark.readStream.format("kinesis-ssp").option("slots", "none").load()
    text = str(raised.value)
    assert "invalid-options" in text
    assert "streamName" in text
    assert "slots" in text


def test_another_schema_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"(?s)unsupported.*\.schema\(\.\.\.\)"):
        (
            spark.readStream.format("kinesis-ssp")
            .schema("value string")
            .option("streamName", "orders")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path))
            .start()
            .processAllAvailable()
        )


def test_credentials_stay_out_of_the_plan(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = (
        spark.readStream.format("kinesis-ssp")
        .option("streamName", "orders")
        .option("awsAccessKeyId", "AKIAPLAINLYVISIBLE")
        .option("awsSecretAccessKey", "plainly-visible-secret")
        .option("awsSessionToken", "plainly-visible-token")
        .load()
    )
    stream.explain(extended=True)
    text = capsys.readouterr().out
    assert "kinesis-ssp" in text
    assert "plainly-visible" not in text.lower()
    assert "AKIAPLAINLYVISIBLE" not in text


def test_the_source_crosses_to_another_process() -> None:
    source = DefaultSource({"streamName": "orders"})
    copy = pickle.loads(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]
    assert isinstance(copy, DefaultSource)
    assert copy._options == {"streamName": "orders"}
