"""A worker of the Kinesis Client Library (KCL): its MultiLangDaemon with a processor in Python.

The daemon runs on Java 17 against kinesis-mock (HTTP/2, CBOR) and DynamoDB Local.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from spark_ssp.testing.kafka.jars import java
from tests.support.kcl.jars import KclVersion, provide
from tests.support.kcl.workers import Read, reads_in
from tests.support.servers.process import FIRST_COMPILER_ALONE

_PROCESSOR: Final = Path(__file__).with_name("processor.py")
_DAEMON: Final = "software.amazon.kinesis.multilang.MultiLangDaemon"
_JAVA_OPTIONS: Final = ("-Xmx400m", "-XX:+UseSerialGC", FIRST_COMPILER_ALONE)
_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
_END_S: Final = 60

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


class KclWorker:
    """A context manager: the worker runs until it is stopped or the block ends.

    `folder` is for its files. Log lines are kept in `folder/log`.
    """

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
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._kcl = provide(version)
        self._folder = folder
        self._name = name
        self._java_options = (*_JAVA_OPTIONS, *java_options)
        self._process: subprocess.Popen[bytes] | None = None
        # The KCL cuts a command line at every space, so that a path must not hold one.
        start = shlex.join([sys.executable, str(_PROCESSOR), name, str(self._output)])
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

    @property
    def name(self) -> str:
        return self._name

    @property
    def failed(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def reads(self) -> list[Read]:
        return reads_in(self._output)

    def __enter__(self) -> Self:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    java(),
                    *self._java_options,
                    "-cp",
                    self._kcl.class_path,
                    _DAEMON,
                    "--properties-file",
                    str(self._folder / "worker.properties"),
                ],
                cwd=self._folder,
                env=os.environ | _CREDENTIALS | {"PYTHONPATH": str(self._kcl.python_path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group for it and its processors
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def stop(self) -> None:
        """A signal to the daemon, which asks its processors to checkpoint; they end with it."""
        process, self._process = self._process, None
        assert process is not None
        group = _descendants(process)
        process.terminate()
        try:
            process.wait(timeout=_END_S)
        finally:
            _kill(process)
        _, left = psutil.wait_procs(group, timeout=_END_S)
        assert not left, f"{self._name} left processes: {left}"

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)

    @property
    def _output(self) -> Path:
        return self._folder / "reads"


def _descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """`kill -9` for the daemon and its processors at once, if it lives."""
    if process.poll() is None:
        group = _descendants(process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        psutil.wait_procs(group)
