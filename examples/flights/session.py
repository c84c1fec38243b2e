"""Starts Spark with its log and the output of its processes in a file."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession


@contextmanager
def spark_session(folder: Path, log: str) -> Iterator[SparkSession]:
    """A `local[2]` session that logs to that file in `folder` and keeps its own files there."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Paths of sockets are short, and only this user may open them: it has mode 0700.
    with tempfile.TemporaryDirectory(prefix="spark-") as sockets:
        builder = (
            SparkSession.builder.master("local[2]")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.python.unix.domain.socket.dir", sockets)
            .appName("flights")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.session.timeZone", "UTC")
            .config(
                "spark.sql.adaptive.enabled", "false"
            )  # streaming queries do without; no warning
            # A small table is broadcast by one task, so that all tasks counted are the query's own.
            .config("spark.sql.leafNodeDefaultParallelism", "1")
            .config("spark.ui.retainedJobs", "100000")  # the check counts the tasks of all of them
            .config("spark.ui.retainedStages", "100000")
        )
        with output_to(folder / log):
            spark = builder.getOrCreate()
            spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Redirect standard output and error to a file: those of this process and, for good, those
    of the processes that are started, which Spark's Python workers inherit from it in turn."""
    sys.stdout.flush()
    sys.stderr.flush()
    ours = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in zip((1, 2), ours, strict=True):
            os.dup2(saved, number)
            os.close(saved)


class TaskCounter:
    """Counts the tasks of each batch by Spark's own books (`StatusTracker`)."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._tracker = spark.sparkContext.statusTracker()
        self._seen: set[int] = set()
        self.most: dict[int, int] = {}
        """By batch: the most tasks that one of its stages had."""

    def count(self, batch: int) -> None:
        """Book the jobs that the query has run since the last call to this batch.

        Called by the query's own thread, within the batch: its jobs are the query's group.
        """
        group = self._context.getLocalProperty("spark.jobGroup.id")
        jobs = set(self._tracker.getJobIdsForGroup(group)) - self._seen
        for job in sorted(jobs):
            info = self._tracker.getJobInfo(job)
            stages = [] if info is None else [self._tracker.getStageInfo(s) for s in info.stageIds]
            if not stages or None in stages:
                continue  # not in the books yet: the next call finds it
            self._seen.add(job)
            tasks = max(stage.numTasks for stage in stages if stage is not None)
            self.most[batch] = max(self.most.get(batch, 0), tasks)
