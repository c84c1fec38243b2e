"""Runs the pipeline on local services: `python -m examples.declarative_pipeline`.

Fifty orders are put into a Kinesis stream and the pipeline runs; a shard is split, fifty more are
put, and the pipeline runs twice more. Afterwards the table must have every order once, and the
topic every large one. From PySpark 4.2 on, the second run already reads all of them. In 4.1 a run
is one batch for each flow, which ends where the shard was split; the third one reads the rest.

Needed: pip install '.[local,pyspark]' 'pyspark[pipelines]' in a checkout, PySpark 4.1 or newer.
Kafka itself is fetched the first time, 43 MB.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import boto3
import pyarrow.parquet as pq
import pyspark
import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from spark_ssp import EmbeddedKinesis, LocalKafka

_HERE: Final = Path(__file__).parent
_SPEC: Final = "spark-pipeline.yml"


def main() -> int:
    """Return 0 if no order is missing or repeated."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        EmbeddedKinesis(region="eu-west-1") as kinesis,
        LocalKafka() as kafka,
    ):
        folder = Path(temporary)
        kinesis.state.create_stream("orders", shards=2)
        kafka.create_topic("large-orders", partitions=1)
        _copy_pipeline(folder, kafka.bootstrap_servers)
        environment = _environment(folder, kinesis)
        producer = boto3.client("kinesis", **kinesis.client_settings())

        def put(numbers: range) -> None:
            for number in numbers:
                producer.put_record(
                    StreamName="orders",
                    PartitionKey=f"customer-{number % 5}",
                    Data=json.dumps({"number": number}),
                )

        put(range(50))
        _run(folder, environment)
        first = _numbers_in_table(folder)
        print(f"first run: {first.total()} orders in the table, 50 put")
        # The middle of the first shard's hash keys, which are the lower half of 2 ** 128.
        producer.split_shard(
            StreamName="orders",
            ShardToSplit="shardId-000000000000",
            NewStartingHashKey=str(1 << 126),
        )
        put(range(50, 100))
        _run(folder, environment)
        print(f"second run: {_numbers_in_table(folder).total()} orders in the table, 100 put")
        _run(folder, environment)
        table = _numbers_in_table(folder)
        topic = _numbers_in_topic(kafka)
    print(f"third run: {table.total()} orders in the table, 100 put")
    print(f"{topic.total()} large orders in the topic, 50 put")
    complete = (
        first == Counter(range(50))
        and table == Counter(range(100))
        and topic == Counter(range(50, 100))
    )
    return 0 if complete else 1


def _copy_pipeline(folder: Path, brokers: str) -> None:
    """Copy the pipeline, with the addresses and the storage of this run."""
    shutil.copytree(_HERE / "transformations", folder / "transformations")
    spec = yaml.safe_load((_HERE / _SPEC).read_text(encoding="utf-8"))
    spec["storage"] = (folder / "storage").as_uri()
    spec["configuration"]["orders.brokers"] = brokers
    (folder / _SPEC).write_text(yaml.safe_dump(spec), encoding="utf-8")


def _environment(folder: Path, kinesis: EmbeddedKinesis) -> dict[str, str]:
    """Return environment variables for Spark: this Python, its settings, the local Kinesis."""
    # PySpark's own folder also has its modules as a zip, which would be imported instead.
    home = folder / "spark"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    metastore = f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
        # The tables must outlive the run, which those of the default catalog, in memory, do not.
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    lines = [f"{name} {value}\n" for name, value in settings.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    return {
        **os.environ,
        **kinesis.environment(),
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _run(folder: Path, environment: dict[str, str]) -> None:
    """Run the pipeline until all flows have read the available records."""
    program = Path(environment["SPARK_HOME"], "bin", "spark-pipelines")
    command = [str(program), "run", "--spec", str(folder / _SPEC), "--remote", "local[2]"]
    subprocess.run(command, cwd=folder, env=environment, check=True)


def _numbers_in_table(folder: Path) -> Counter[int]:
    table = pq.read_table(folder / "warehouse" / "orders", columns=["number"])
    return Counter(table.column("number").to_pylist())


def _numbers_in_topic(kafka: LocalKafka) -> Counter[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "check",
            "enable.auto.commit": False,
        }
    )
    try:
        partition = TopicPartition("large-orders", 0, OFFSET_BEGINNING)
        _, end = consumer.get_watermark_offsets(partition, timeout=30)
        consumer.assign([partition])
        messages = consumer.consume(end, timeout=30)
        return Counter(json.loads(message.value() or b"{}")["number"] for message in messages)
    finally:
        consumer.close()


if __name__ == "__main__":
    sys.exit(main())
