"""A job works in a folder whose files and packages are named like the product's modules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.environments.build import Environment, build_wheel
from tests.support.kafka.topics import KafkaTopics
from tests.support.kinesis.feeds import EmbeddedFeed, options_for
from tests.support.servers.clashes import write_clashes
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.drivers import ENVIRONMENT, FREE_CONNECT_PORT

_JOB = Path(__file__).parents[1] / "programs" / "job_among_clashes.py"
_PARTS = [
    "kinesis-ssp to kinesis-ssp",
    "kinesis-ssp to kafka-ssp with leases",
    "batch read of kinesis-ssp",
    "batch read of kafka-ssp",
    "metrics",
    "page",
    "command",
]
_EXTRAS = frozenset({"cli", "connect", "live", "metrics", "pipelines", "pyspark"})


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_may_have_files_named_like_ours(
    kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    names = write_clashes(folder)
    assert {"checkpoint", "operations", "kinesis_source", "options"} <= names
    shutil.copy(_JOB, folder / "job.py")
    wheel = build_wheel(tmp_path / "dist")
    python = Environment(tmp_path / "environment", wheel, extras=_EXTRAS).python
    # Executors find the job's files too.
    clashing = {"PYTHONPATH": str(folder)}
    checked = subprocess.run(
        [python, "-c", "import checkpoint"],
        cwd=tmp_path,
        env=clashing,
        capture_output=True,
        text=True,
    )
    assert "checkpoint of the job" in checked.stderr
    topic = topics.create(partitions=2)
    for kind, parts in (
        ("classic", [*_PARTS, "batch read of kafka-ssp", "pipeline"]),
        ("connect", _PARTS),
    ):
        with EmbeddedKinesis(dynamodb=True) as kinesis:
            feed = EmbeddedFeed(kinesis)
            feed.create("orders", shards=2)
            feed.create("copies", shards=2)
            feed.put("orders", 40)
            connection = options_for(kinesis.endpoint_url)
            task = {
                "kinesis": connection,
                "leases": {
                    "applicationName": f"{tmp_path.name}-{kind}",
                    "dynamodbEndpointUrl": kinesis.dynamodb_endpoint_url,
                },
                "brokers": kafka_broker.bootstrap_servers,
                "names": {
                    "topic": topic if kind == "classic" else topics.create(partitions=2),
                    "pipeline": topic,
                    "output": topics.create(partitions=2),
                },
                "folder": str(tmp_path / kind),
                "rows": 40,
            }
            result = subprocess.run(
                [python, "job.py", kind, json.dumps(task)],
                cwd=folder,
                env=os.environ
                | ENVIRONMENT
                | FREE_CONNECT_PORT
                | clashing
                | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
                capture_output=True,
                text=True,
            )
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.splitlines() == parts


def test_a_module_has_one_import_name() -> None:
    """In a checkout, whose root is on the path, the folders that `spark_ssp` links to are there by
    a second name."""
    for name in ("checkpoint", "kafka_source", "kinesis_source"):
        result = subprocess.run(
            [sys.executable, "-c", f"import {name}"],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
        )
        assert f"spark_ssp.{name}" in result.stderr.splitlines()[-1]
