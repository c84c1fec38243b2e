"""The Spark session and the query that benchmarks measure."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from embedded_kinesis import EmbeddedKinesis

STREAM = "bench"


def local_spark(cores: int, *, class_path: str = "") -> SparkSession:
    """A quiet local session on loopback, with the settings that the guide recommends, and further
    jars on its class path."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("spark-ssp-benchmarks")
        .config("spark.driver.extraClassPath", class_path)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def stream_of(
    spark: SparkSession, kinesis: EmbeddedKinesis, options: dict[str, str], stream: str = STREAM
) -> DataFrame:
    """The stream, read from its beginning unless `options` override it."""
    settings = kinesis.client_settings()
    return (
        spark.readStream.format("kinesis-ssp")
        .options(
            streamName=stream,
            endpointUrl=settings["endpoint_url"],
            region=settings["region_name"],
            awsAccessKeyId=settings["aws_access_key_id"],
            awsSecretAccessKey=settings["aws_secret_access_key"],
            startingPosition="trim_horizon",
        )
        .options(**options)
        .load()
    )


def checkpoint_in(folder: Path, name: str) -> str:
    """Return a separate checkpoint location."""
    return str(folder / f"checkpoint-{name}")
