"""The Spark session and the query that benchmarks measure."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.support.report import Report
from spark_ssp.testing.kafka import LocalKafka

STREAM = "bench"


def local_spark(cores: int, *, class_path: str = "") -> SparkSession:
    """A quiet local session on loopback, with the settings that the guide recommends, and further
    jars on its class path."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Otherwise each new Python process compiles all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
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


def run_on_spark(
    run: Callable[..., Report],
    arguments: Mapping[str, Any],
    *,
    cores: int = 2,
    class_path: str = "",
) -> None:
    """Run a benchmark with its command's `arguments`, and with those of session, broker and folder
    that it takes. Publish its report."""
    spark = local_spark(cores, class_path=class_path)
    given: dict[str, Any] = {"spark": spark}
    with ExitStack() as resources:
        if "folder" in run.__annotations__:
            folder = tempfile.TemporaryDirectory(prefix="bench-")
            given["folder"] = Path(resources.enter_context(folder))
        if "kafka" in run.__annotations__:
            given["kafka"] = resources.enter_context(LocalKafka())
        report = run(**given, **arguments)
    spark.stop()
    report.publish()


def checkpoint_in(folder: Path, name: str) -> str:
    """Return a separate checkpoint location."""
    return str(folder / f"checkpoint-{name}")
