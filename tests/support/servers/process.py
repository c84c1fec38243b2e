"""Servers for tests: ended when the block ends; those in separate processes, at the latest, with
the process that started them."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Final, Self

FIRST_COMPILER_ALONE: Final = "-XX:TieredStopAtLevel=1"
"""For a JVM that lives for minutes: its optimising compiler would cost more than it brings in."""


class Server(ABC):
    """A context manager that starts several things, and ends them in reverse."""

    _resources: ExitStack

    @abstractmethod
    def _start(self, resources: ExitStack) -> None:
        """Start all, until it serves. `resources` are given back in reverse at the end, or at once
        if this fails."""

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            self._start(resources)
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()


class ServerProcess(Server):
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
