"""This project's worker: a Spark query in a separate process that can be killed with its JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from tests.support.kcl.workers import Read, reads_in
from tests.support.kinesis.fan_out_mode import EVERY_PROCESS
from tests.support.kinesis.feeds import options_for

_ROOT: Final = Path(__file__).resolve().parents[3]
_PROGRAM: Final = _ROOT / "tests" / "spark" / "programs" / "read_with_leases.py"
_END_S: Final = 120


class SparkWorker:
    """A context manager: the query runs until it is stopped or the block ends."""

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
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
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
                [sys.executable, str(_PROGRAM), str(self._output)],
                cwd=self._folder,
                env=os.environ
                | {
                    "PYSPARK_PYTHON": sys.executable,
                    **self._environment,
                    "SPARK_CONF_DIR": str(_ROOT / "tests" / "spark" / "conf"),
                    "SPARK_LOCAL_DIRS": str(self._folder / "local"),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group for Python and its JVM
            )
        self._say(self._process, json.dumps(self._options))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def stop(self) -> None:
        """As the guide advises: with `stop_gracefully`."""
        process, self._process = self._process, None
        assert process is not None
        self._say(process, "stop")
        try:
            status = process.wait(timeout=_END_S)
        finally:
            _kill(process)
        assert status == 0, f"{self._name} ended with {status}:\n{self.log[-4000:]}"
        assert "drained: True" in self.log, f"{self._name} was not drained:\n{self.log[-4000:]}"

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)

    @property
    def _output(self) -> Path:
        return self._folder / "reads"

    @staticmethod
    def _say(process: subprocess.Popen[bytes], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """`kill -9` for Python and its JVM at once. The lease agent is in a separate group and ends by
    itself."""
    assert process.stdin is not None
    if process.poll() is None:
        group = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        psutil.wait_procs([each for each in group if each.is_running()], timeout=_END_S)
    process.stdin.close()
