"""Workers that share a lease table, as processes that can be killed: a Spark query, and the Kinesis
Client Library (KCL), whose MultiLangDaemon runs a processor in Python for each shard.

The daemon runs on Java 17 against kinesis-mock (HTTP/2, CBOR) and DynamoDB Local."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

import psutil

from spark_ssp.testing.kafka.jars import java
from tests.support.kcl.jars import KclVersion, provide
from tests.support.kinesis.fan_out_mode import EVERY_PROCESS
from tests.support.kinesis.feeds import options_for
from tests.support.servers.process import FIRST_COMPILER_ALONE

END_S: Final = 120


class Read(NamedTuple):
    """A record as a worker read it. `at`: seconds since the epoch, when it was written down."""

    worker: str
    at: float
    shard: str
    sequence: str
    sub: int
    key: str
    data: str


class Worker(ABC):
    """A worker in a process group, started by `with`, and killed at the end of the block unless it
    was stopped before. Its files are in `folder`, its log lines in `folder/log`. `name` is its id
    in the lease table."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._folder = folder
        self._output = folder / "reads"
        self._process: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def failed(self) -> bool:
        """Return whether it has ended without being stopped or killed."""
        return self._process is not None and self._process.poll() is not None

    @property
    def log(self) -> str:
        """Return its output so far."""
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def reads(self) -> list[Read]:
        """Return the records that it has read and written down."""
        return reads_in(self._output)

    @abstractmethod
    def stop(self) -> None:
        """Stop it as its users would, and wait for its end."""

    def kill(self) -> None:
        """`kill -9` for all of its processes at once, if it lives."""
        if self._process is not None:
            _kill(self._released())

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str], stdin: int
    ) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=os.environ | environment,
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._process

    def _released(self) -> subprocess.Popen[bytes]:
        process, self._process = self._process, None
        assert process is not None
        return process

    def _wait_for_end(self, process: subprocess.Popen[bytes]) -> int:
        """Return its exit status. The rest of its group is killed."""
        try:
            return process.wait(timeout=END_S)
        finally:
            _kill(process)


def descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill its process group. A lease agent is in another group and ends by itself."""
    if process.poll() is None:
        group = descendants(process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        psutil.wait_procs(group, timeout=END_S)
    if process.stdin is not None:
        process.stdin.close()


def reads_in(path: Path) -> list[Read]:
    """The lines of a file. One that is not complete is being written, or its writer was killed."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [Read(**json.loads(line)) for line in lines]


# --- The Kinesis Client Library -----------------------------------------------------------------

_PROCESSOR: Final = Path(__file__).with_name("processor.py")
_DAEMON: Final = "software.amazon.kinesis.multilang.MultiLangDaemon"
_JAVA_OPTIONS: Final = ("-Xmx400m", "-XX:+UseSerialGC", FIRST_COMPILER_ALONE)
_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}

_SETTINGS: Final = {
    "processingLanguage": f"python/{sys.version_info.major}.{sys.version_info.minor}",
    "AWSCredentialsProvider": "DefaultCredentialsProvider",
    "regionName": "us-east-1",
    "initialPositionInStream": "TRIM_HORIZON",
    "retrievalMode": "POLLING",
    "metricsLevel": "NONE",
    # By default the daemon does not wait for its processors at its end.
    "shutdownGraceMillis": "30000",
    # Shorter than by default, for a test of seconds.
    "idleTimeBetweenReadsInMillis": "300",
    "shardSyncIntervalMillis": "2000",
    "parentShardPollIntervalMillis": "1000",
    "leaseAssignmentIntervalMillis": "3000",
}


class KclWorker(Worker):
    """A daemon and its processors, one for each shard."""

    def __init__(
        self,
        version: KclVersion,
        *,
        folder: Path,
        name: str,
        application: str,
        stream: str,
        kinesis_url: str,
        dynamodb_url: str,
        failover_ms: int = 5_000,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        hold: tuple[Path, int] | None = None,
    ) -> None:
        """`hold`: the last arguments of the processor."""
        super().__init__(folder, name)
        self._kcl = provide(version)
        self._java_options = (*_JAVA_OPTIONS, *java_options)
        # The KCL cuts a command line at every space, so that a path must not hold one.
        last = () if hold is None else map(str, hold)
        start = shlex.join([sys.executable, str(_PROCESSOR), name, str(self._output), *last])
        (folder / "processor.sh").write_text(f"exec {start}\n")
        properties = {
            "executableName": "sh processor.sh",
            "applicationName": application,
            "streamName": stream,
            "workerId": name,
            "kinesisEndpoint": kinesis_url,
            "dynamoDBEndpoint": dynamodb_url,
            "failoverTimeMillis": str(failover_ms),
        }
        merged = _SETTINGS | properties | dict(settings or {})
        lines = [f"{key} = {value}\n" for key, value in sorted(merged.items())]
        (folder / "worker.properties").write_text("".join(lines))

    def __enter__(self) -> Self:
        properties = str(self._folder / "worker.properties")
        command = [java(), *self._java_options, "-cp", self._kcl.class_path]
        self._start(
            [*command, _DAEMON, "--properties-file", properties],
            _CREDENTIALS | {"PYTHONPATH": str(self._kcl.python_path)},
            subprocess.DEVNULL,
        )
        return self

    def stop(self) -> None:
        """A signal to the daemon, which asks its processors to checkpoint; they end with it."""
        process = self._released()
        group = descendants(process)
        process.terminate()
        self._wait_for_end(process)
        _, left = psutil.wait_procs(group, timeout=END_S)
        assert not left, f"{self.name} left processes: {left}"


# --- This project -------------------------------------------------------------------------------

_ROOT: Final = Path(__file__).resolve().parents[3]
_PROGRAM: Final = _ROOT / "tests" / "spark" / "programs" / "read_with_leases.py"


class SparkWorker(Worker):
    """Python and its JVM, with one query."""

    def __init__(
        self,
        *,
        folder: Path,
        name: str,
        application: str,
        stream: str,
        kinesis_url: str,
        dynamodb_url: str,
        failover_ms: int,
        options: Mapping[str, str] | None = None,
        is_pushed: bool = False,
    ) -> None:
        """With `is_pushed` it reads ranges of any size by enhanced fan-out."""
        super().__init__(folder, name)
        self._options = options_for(kinesis_url) | {
            "streamName": stream,
            "startingPosition": "trim_horizon",
            "applicationName": application,
            "dynamodbEndpointUrl": dynamodb_url,
            "workerId": name,
            "failoverTime": f"{failover_ms}ms",
            "checkpointInterval": "1s",
            **(options or {}),
            **({"consumerMode": "efo"} if is_pushed else {}),
        }
        self._environment = {
            "PYTHONPATH": os.pathsep.join(map(str, (_ROOT, EVERY_PROCESS))),
            "SSP_CONSUMER_MODE": "efo" if is_pushed else "polling",
        }

    def __enter__(self) -> Self:
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            **self._environment,
            "SPARK_CONF_DIR": str(_ROOT / "tests" / "spark" / "conf"),
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [sys.executable, str(_PROGRAM), str(self._output)]
        process = self._start(command, environment, subprocess.PIPE)
        _say(process, json.dumps(self._options))
        return self

    def stop(self) -> None:
        """As the guide advises: with `stop_gracefully`."""
        process = self._released()
        _say(process, "stop")
        status = self._wait_for_end(process)
        assert status == 0, f"{self.name} ended with {status}:\n{self.log[-4000:]}"
        assert "drained: True" in self.log, f"{self.name} was not drained:\n{self.log[-4000:]}"


def _say(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()
