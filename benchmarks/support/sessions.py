"""The Spark session and the query that benchmarks measure."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

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


def checkpoint_in(folder: Path, name: str) -> str:
    """Return a separate checkpoint location."""
    return str(folder / f"checkpoint-{name}")
