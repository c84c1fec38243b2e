"""Spark and connections to the local services in which the recipes rehearse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp import EmbeddedKinesis


def connection(kinesis: EmbeddedKinesis) -> dict[str, str]:
    """Return the options that connect a query with the local Kinesis."""
    return {
        "endpointUrl": kinesis.endpoint_url,
        "region": kinesis.state.region,
        "awsAccessKeyId": "local",
        "awsSecretAccessKey": "local",
    }


def put(kinesis: EmbeddedKinesis, stream: str, rows: Iterable[Mapping[str, Any]], key: str) -> None:
    """Put each row as JSON; the field `key` is the partition key."""
    for row in rows:
        kinesis.state.put(stream, str(row[key]), json.dumps(row).encode())


def read_all(query: StreamingQuery) -> None:
    """Stop the query after it has read all records."""
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def forget_last_commit(checkpoint: Path) -> None:
    """Leave the checkpoint as it is after a kill between the sink's commit of a batch and
    Spark's: the next run repeats the batch."""
    commits = checkpoint / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def starting_position(checkpoint: Path, *arguments: str) -> dict[str, str]:
    """Return the options that `spark-ssp checkpoint --as-starting-position` prints."""
    command = ["spark-ssp", "checkpoint", str(checkpoint), "--as-starting-position", *arguments]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    found = subprocess.run(
        command, env=os.environ | keys | {"PATH": path}, stdout=subprocess.PIPE, check=True
    )
    options: dict[str, str] = json.loads(found.stdout)
    return options


def run(
    rehearse: Callable[[SparkSession, Path], bool],
    *packages: str,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Rehearse in a session with these packages of Maven and settings; return the exit code."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.jars.packages", ",".join(packages))
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.python.unix.domain.socket.dir", folder)
            .config(map={**settings})
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            return 0 if rehearse(spark, Path(folder)) else 1
        finally:
            spark.stop()
