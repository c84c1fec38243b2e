"""Workers that share a lease table: child processes, and the records they have read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

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
        """Return its exit status. What is left of it is killed."""
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
