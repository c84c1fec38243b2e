"""A job that uses every part of the product, as a user's would: started in a folder whose files are
named like the product's modules.

    python job.py {classic|connect} '{"kinesis": {...}, "leases": {...}, "brokers": "...", ...}'

Prints the name of each part that has worked.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ssp import (
    KafkaSystem,
    KinesisSystem,
    Pipeline,
    Services,
    publish_metrics,
    serve_live_page,
)


class Job:
    def __init__(self, spark: SparkSession, task: dict[str, Any]) -> None:
        self._spark = spark
        self._kinesis = task["kinesis"]
        self._leases = task["leases"]
        self._kafka = {"kafka.bootstrap.servers": task["brokers"]}
        self._names = task["names"]
        self._folder = Path(task["folder"])
        self._rows = task["rows"]

    def run(self) -> None:
        """Run each part; the ones that feed others come first."""
        source = self._kinesis | {"streamName": "orders", "startingPosition": "trim_horizon"}
        self._copy("kinesis-ssp", source, "kinesis-ssp", self._kinesis | {"streamName": "copies"})
        topic = {"topic": self._names["topic"]}
        self._copy("kinesis-ssp", source | self._leases, "kafka-ssp", self._kafka | topic)
        read = {"subscribe": self._names["topic"], "startingOffsets": "earliest"}
        self._count("kinesis-ssp", source | {"streamName": "copies"})
        self._count("kafka-ssp", self._kafka | read)

    def _copy(self, source: str, options: dict[str, str], sink: str, to: dict[str, str]) -> None:
        rows = self._spark.readStream.format(source).options(**options).load()
        columns = [F.col("partitionKey").alias("key"), F.col("data").alias("value")]
        query = (
            (rows.select(columns) if sink == "kafka-ssp" else rows.select("partitionKey", "data"))
            .writeStream.format(sink)
            .options(**to)
            .option("checkpointLocation", str(self._folder / f"{sink}-{len(options)}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print(f"{source} to {sink}{' with leases' if 'applicationName' in options else ''}")

    def _count(self, source: str, options: dict[str, str]) -> None:
        count = self._spark.read.format(source).options(**options).load().count()
        assert count == self._rows, count
        print(f"batch read of {source}")

    def operate(self) -> None:
        """Look at a query that runs: metrics, page, command."""
        published = publish_metrics(self._spark, prometheus=0)
        page = serve_live_page(self._spark)
        options = self._kinesis | {"streamName": "orders"}
        query = (
            self._spark.readStream.format("kinesis-ssp")
            .options(**options)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._folder / "operated"))
            .start()
        )
        while query.lastProgress is None:
            assert query.isActive, query.exception()
            query.awaitTermination(1)
        assert published.url is not None
        for name, url in (("metrics", published.url), ("page", page.url)):
            with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310
                assert answer.status == 200
            print(name)
        query.stop()
        page.stop()
        published.stop()
        command = [sys.executable, "-m", "spark_ssp", "checkpoint", str(self._folder / "operated")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print("command")

    def run_pipeline(self) -> None:
        """Plan and run two stages, through a topic in between."""
        pipeline = Pipeline(self._names["pipeline"])
        (
            pipeline.input("kinesis", "orders")
            .transform(_keyed, name="keyed")
            .partition_by("key")
            .transform(_text, name="text")
            .output("kafka", self._names["output"])
        )
        kinesis = KinesisSystem(self._kinesis | {"startingPosition": "trim_horizon"})
        kafka = KafkaSystem(self._kafka, reader={"startingOffsets": "earliest"})
        services = Services({"kafka": kafka, "kinesis": kinesis})
        planned = pipeline.plan(services, root=str(self._folder / "pipeline"))
        with planned.run(self._spark, services, available_now=True) as running:
            assert running.await_termination()
        read = {"subscribe": self._names["output"], "startingOffsets": "earliest"}
        self._count("kafka-ssp", self._kafka | read)
        print("pipeline")


def _keyed(rows: DataFrame) -> DataFrame:
    return rows.select(F.col("partitionKey").alias("key"), F.col("data").alias("value"))


def _text(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value")


def _session(kind: str) -> SparkSession:
    builder = SparkSession.builder
    builder = builder.remote("local") if kind == "connect" else builder.master("local[2]")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    kind, task = sys.argv[1], json.loads(sys.argv[2])
    spark = _session(kind)
    job = Job(spark, task)
    job.run()
    job.operate()
    if kind == "classic":
        job.run_pipeline()
    spark.stop()


if __name__ == "__main__":
    main()
