"""Servers for tests: ended when the block ends; those in separate processes, at the latest, with
the process that started them."""

from __future__ import annotations

import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ssp.testing.kafka.broker import LocalServer

if TYPE_CHECKING:
    from spark_ssp.testing.kinesis.service import ClientSettings

FIRST_COMPILER_ALONE: Final = "-XX:TieredStopAtLevel=1"
"""For a JVM that lives for minutes: its optimising compiler would cost more than it brings in."""
_POLL_S: Final = 0.05


class ServerProcess(LocalServer):
    """A process that ends when its standard input does. `_start` hands it to `_own`."""

    def __init__(self, name: str, *, patience_s: float) -> None:
        """`patience_s`: how long it may take to end by itself before it is killed."""
        self._name = name
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None

    def _own(self, process: subprocess.Popen[bytes], resources: ExitStack) -> None:
        self._process = process
        resources.callback(self._end)

    @property
    def pid(self) -> int:
        return self._running().pid

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self._name} is not running")
        return self._process

    def _end(self) -> None:
        process = self._running()
        self._process = None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=self._patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class LoggedProcess(ServerProcess):
    """A process with a temporary folder, in which its log is."""

    def __init__(self, name: str, *, patience_s: float) -> None:
        super().__init__(name, patience_s=patience_s)
        self._folder = Path()

    def _make_folder(self, resources: ExitStack) -> None:
        prefix = f"{self._name}-"
        self._folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))

    def _launch(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        resources: ExitStack,
        *,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                pass_fds=pass_fds,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._own(process, resources)

    def _wait_until(self, is_done: Callable[[], bool], purpose: str, timeout_s: float = 60) -> None:
        """Raises RuntimeError with the log if the process ends before, or takes longer."""
        process = self._running()
        deadline = time.monotonic() + timeout_s
        while not is_done():
            if process.poll() is not None or time.monotonic() > deadline:
                log = (self._folder / "log").read_text(errors="replace")
                raise RuntimeError(f"{self._name} did not {purpose}. Its log:\n{log}")
            time.sleep(_POLL_S)


class KinesisEmulator(LoggedProcess):
    """An emulator of Kinesis, which accepts any keys."""

    @property
    @abstractmethod
    def endpoint_url(self) -> str: ...

    def client_settings(self) -> ClientSettings:
        """Arguments for `boto3.client("kinesis", ...)`."""
        return {
            "endpoint_url": self.endpoint_url,
            "region_name": "us-east-1",
            "aws_access_key_id": "local",
            "aws_secret_access_key": "local",
        }
