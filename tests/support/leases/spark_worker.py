"""This project's worker: a Spark query in a separate process that can be killed with its JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from tests.support.kcl.workers import Worker
from tests.support.kinesis.fan_out_mode import EVERY_PROCESS
from tests.support.kinesis.feeds import options_for

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
