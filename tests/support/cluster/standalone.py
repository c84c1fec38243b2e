"""A standalone master and its workers, from the pip package of Spark, with drivers that ship the
project as an archive."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Final

import pyspark

from spark_ssp.testing.kafka.broker import LocalServer
from tests.support.environments.build import Environment, build_wheel
from tests.support.kinesis.feeds import Record
from tests.support.spark.drivers import ENVIRONMENT, Driver, committed_rows

_DEADLINE_S: Final = 120
_END_S: Final = 20
_POLL_S: Final = 0.05

SPARK_HOME: Final = Path(pyspark.__file__).parent
"""The Spark of this Python, as it was installed."""

Inside = Callable[[str], AbstractContextManager[object]]
"""Returns a context in which processes are started at the host with this name."""


def _anywhere(name: str) -> AbstractContextManager[object]:
    return nullcontext()


class Daemon:
    """A process of the master or of a worker, with its log."""

    def __init__(self, name: str, log: Path, command: list[str], folder: Path, host: str) -> None:
        self.name = name
        self.host = host
        self._log = log
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": (
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false"
            ),
        }
        # Executors have nothing but their worker's Spark and the archive.
        for inherited in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            environment.pop(inherited, None)
        spark_class = str(SPARK_HOME / "bin" / "spark-class")
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [spark_class, *command], cwd=folder, env=environment, stdout=file, stderr=file
            )

    @property
    def log(self) -> str:
        """Return the lines that it has written."""
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> str:
        """Wait for a line of its log; return the first group of the pattern."""
        deadline = time.monotonic() + _DEADLINE_S
        while (found := re.search(pattern, self.log)) is None:
            running = self._process.poll() is None and time.monotonic() < deadline
            assert running, f"{self.name}: no {pattern!r} in {self.log[-4000:]}"
            time.sleep(_POLL_S)
        return found[1]

    def kill(self) -> None:
        """Kill it, as a loss of its machine does; its executors end by themselves."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()


class StandaloneCluster(LocalServer):
    """A context manager: a master at `url`, and workers of one core each by their name.

    `hosts` are the addresses of "master" and of each worker; `inside` starts a process at the host
    of that name. Everything that they write is in `folder`, an executor's folder in
    `folder/<worker>/<application>/<executor>`.
    """

    def __init__(self, folder: Path, hosts: dict[str, str], inside: Inside = _anywhere) -> None:
        self.url = ""
        self.workers: dict[str, Daemon] = {}
        self._folder = folder
        self._hosts = hosts
        self._inside = inside

    def _start(self, resources: ExitStack) -> None:
        self._folder.mkdir()
        master = self._daemon(resources, "master", "master.Master")
        self.url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        for name in self._hosts.keys() - {"master"}:
            work = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name)]
            self.workers[name] = self._daemon(resources, name, "worker.Worker", *work, self.url)
        for worker in self.workers.values():
            worker.wait_for(r"(Successfully registered with master)")

    def _daemon(self, resources: ExitStack, name: str, kind: str, *arguments: str) -> Daemon:
        host = self._hosts[name]
        address = ["--host", host, "--port", "0", "--webui-port", "0"]
        command = [f"org.apache.spark.deploy.{kind}", *address, *arguments]
        with self._inside(name):
            daemon = Daemon(name, self._folder / f"{name}.log", command, self._folder, host)
        resources.callback(daemon.stop)
        return daemon


_ROOT: Final = Path(__file__).resolve().parents[3]
_PROVIDED: Final = ("pyspark", "py4j")
"""Executors take these from their worker's Spark, whose version they must have."""


class PackedEnvironment:
    """`environment` in `folder`, and the same as `environment.tar.gz`, without PySpark.

    `python` is its interpreter, relative to `folder` as well as to the folder of an executor for
    which `spark.archives` names `archive`. It is a link to the interpreter that made it, which
    every machine must have at the same path.
    """

    python: Final = "./environment/bin/python"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Tests of other versions of PySpark have no sources beside them, but the wheel installed.
        wheel = build_wheel(folder / "dist") if (_ROOT / "kinesis_source").exists() else None
        made = Environment(folder / "environment", wheel)
        tarball = folder / "environment.tar.gz"
        links = made.packages.relative_to(made.folder)
        with tarfile.open(tarball, "w:gz", compresslevel=1) as archive:
            for path in sorted(made.folder.rglob("*")):
                name = path.relative_to(made.folder)
                if links not in name.parents:
                    archive.add(path, str(name), recursive=False)
            # The packages are links to those of the running interpreter.
            archive.dereference = True
            for path in sorted(made.packages.iterdir()):
                if path.name.split("-")[0] not in _PROVIDED:
                    archive.add(path, str(links / path.name))
        self.archive = f"{tarball}#environment"
        self.size = tarball.stat().st_size


_RECORDS_S: Final = 240
_PAUSE_S: Final = 0.3
_RECORD: Final = ("stream", "shardId", "sequenceNumber", "partitionKey", "data")


def cluster_driver(
    folder: Path,
    queries: Sequence[Mapping[str, str]],
    cluster: StandaloneCluster,
    packed: PackedEnvironment,
    *,
    host: str,
    cores: int = 2,
    hold: Path | None = None,
    sources: Sequence[str] = ("kinesis-ssp",),
    sinks: Mapping[int, Mapping[str, str]] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Driver:
    """A driver at the address `host`, which runs until it is killed. It has the same environment as
    its executors, and nothing of the checkout."""
    folder.mkdir()
    (folder / "environment").symlink_to(packed.folder / "environment")
    return Driver(
        folder,
        queries,
        session=cluster.url,
        sources=sources,
        sinks=sinks or {},
        trigger="as fast as possible",
        python=Path(packed.python),
        hold=hold,
        settings={
            "spark.archives": packed.archive,
            "spark.driver.host": host,
            "spark.driver.bindAddress": host,
            "spark.executor.memory": "512m",
            # The first batch waits for all executors, each of which has one core.
            "spark.cores.max": str(cores),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            **(settings or {}),
        },
        environment={
            "SPARK_LOCAL_IP": host,
            "SPARK_HOME": str(SPARK_HOME),
            "PYTHONPATH": os.pathsep.join(
                map(str, sorted((SPARK_HOME / "python" / "lib").glob("*.zip")))
            ),
        },
    )


def records_by_batch(output: Path) -> list[tuple[int, Record]]:
    """Return the records that a driver's query has written and committed, with their batches."""
    return [
        (
            row["batch"],
            Record(
                stream=row["stream"],
                shard=row["shardId"],
                sequence=int(row["sequenceNumber"]),
                key=row["partitionKey"],
                data=row["data"],
            ),
        )
        for row in committed_rows(output, _RECORD)
    ]


def cluster_records(output: Path) -> Counter[Record]:
    """Return how often a driver's query has written and committed each record."""
    return Counter(record for _, record in records_by_batch(output))


def wait_for(driver: Driver, what: str, reached: Callable[[], bool]) -> None:
    """Wait for a condition; the end of the driver is an error at once."""
    deadline = time.monotonic() + _RECORDS_S
    while not reached():
        assert driver.alive, f"{driver.output[-2000:]}\n{driver.log[-4000:]}"
        assert time.monotonic() < deadline, f"not in time: {what}\n{driver.log[-4000:]}"
        time.sleep(_PAUSE_S)


def wait_for_records(driver: Driver, outputs: Sequence[Path], records: Iterable[Record]) -> None:
    """Wait until the outputs together have all records."""
    wanted = set(records)

    def complete() -> bool:
        return wanted <= {record for output in outputs for record in cluster_records(output)}

    wait_for(driver, f"{len(wanted)} records", complete)
