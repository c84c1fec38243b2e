"""A standalone master and its workers, from the pip package of Spark."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Final

import pyspark

from tests.support.servers.process import Server
from tests.support.spark.drivers import ENVIRONMENT

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

    def wait_for(self, pattern: str) -> str:
        """Wait for a line of its log; return the first group of the pattern."""
        deadline = time.monotonic() + _DEADLINE_S
        while (found := re.search(pattern, self._log.read_text(errors="replace"))) is None:
            running = self._process.poll() is None and time.monotonic() < deadline
            assert running, f"{self.name}: no {pattern!r} in {self._log.read_text()[-4000:]}"
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


class StandaloneCluster(Server):
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
