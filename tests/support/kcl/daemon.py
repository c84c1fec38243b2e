"""A worker of the Kinesis Client Library (KCL): its MultiLangDaemon with a processor in Python.

The daemon runs on Java 17 against kinesis-mock (HTTP/2, CBOR) and DynamoDB Local.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import psutil

from spark_ssp.testing.kafka.jars import java
from tests.support.kcl.jars import KclVersion, provide
from tests.support.kcl.workers import END_S, Worker, descendants
from tests.support.servers.process import FIRST_COMPILER_ALONE

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
    ) -> None:
        super().__init__(folder, name)
        self._kcl = provide(version)
        self._java_options = (*_JAVA_OPTIONS, *java_options)
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
