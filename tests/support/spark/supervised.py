"""Drivers that are started again whenever they have ended, as a supervisor does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from tests.support.kinesis.fan_out_mode import EVERY_PROCESS
from tests.support.spark.drivers import Driver, command_of, send
from tests.support.spark.traffic import planned_batches
from tests.support.waiting import until

_ROOT: Final = Path(__file__).resolve().parents[3]
_PATIENCE_S: Final = 180
_END_S: Final = 20


class Supervised:
    """A driver with its files in `folder`, made by `make(folder, environment)`. `ended`: why it
    ended by itself. The logs of earlier starts are kept as `stderr-N`."""

    def __init__(self, folder: Path, make: Callable[[Path, Mapping[str, str]], Driver]) -> None:
        self.folder = folder
        self.ended: list[str] = []
        self.clock_shift_s = 0
        """By how much `time.time` of its Python processes is fast, from the next start on."""
        self._make = make
        self._starts = 0
        self._driver: Driver | None = None
        self._seen: set[psutil.Process] = set()

    @property
    def driver(self) -> Driver:
        assert self._driver is not None
        return self._driver

    def start(self) -> None:
        with suppress(FileNotFoundError):
            (self.folder / "stderr").rename(self.folder / f"stderr-{self._starts}")
        self._starts += 1
        environment: dict[str, str] = {}
        mark = self.folder / "clock-is-off"
        mark.unlink(missing_ok=True)
        if self.clock_shift_s:
            environment = {
                "PYTHONPATH": os.pathsep.join(map(str, (_ROOT, EVERY_PROCESS))),
                "SSP_CLOCK_SHIFT_S": str(self.clock_shift_s),
                "SSP_CLOCK_SHIFTED": str(mark),
            }
        self._driver = self._make(self.folder, environment).__enter__()
        if self.clock_shift_s:
            until(mark.exists, "a clock that is off", within_s=_PATIENCE_S)

    def look(self, *, may_end: str | None = None) -> None:
        """Start it again if it has ended by itself, which a fault may cause with a message that
        `may_end` matches."""
        if self.driver.alive:
            self._seen.update(self.driver.processes())
            return
        failures = self._failures() or [self.driver.log[-2000:]]
        self.ended += [one for one in failures if may_end is None or not re.search(may_end, one)]
        self.start()

    def kill(self) -> None:
        self.look()
        self.driver.kill()

    def stop(self) -> None:
        """Stop its queries gracefully."""
        self.look()
        try:
            self.driver.stop_gracefully()
        except (AssertionError, ValueError, subprocess.TimeoutExpired) as error:
            self.ended.append(f"on a graceful stop: {str(error)[:2000]}")
            (self.folder / "stop").unlink(missing_ok=True)
            self.driver.kill()

    def until_it_plans(self, queries: int) -> None:
        """Wait until it has planned another batch of each of its queries."""
        before = [planned_batches(self.folder, query) for query in range(queries)]

        def planned() -> bool:
            self.look()
            now = [planned_batches(self.folder, query) for query in range(queries)]
            return all(new > old for new, old in zip(now, before, strict=True))

        until(planned, "a batch of each query", within_s=_PATIENCE_S, poll_s=0.1)

    def kill_all(self) -> None:
        """Kill all of its processes that were seen, as the end of their machine would."""
        if self.driver.alive:
            self._seen.update(self.driver.processes())
        send(signal.SIGKILL, [one for one in self._seen if command_of(one)])
        self.driver.kill()

    def running(self, part: str) -> list[psutil.Process]:
        """Wait for processes with a part of the command, and return them."""
        found: list[psutil.Process] = []

        def there() -> bool:
            self.look()
            found[:] = self.driver.processes(part)
            return bool(found)

        until(there, f"a process with {part!r}", within_s=_PATIENCE_S, poll_s=0.1)
        return found

    def left(self) -> list[str]:
        """Return the commands of those of its processes that remain although it has ended."""
        _, alive = psutil.wait_procs([one for one in self._seen if command_of(one)], timeout=_END_S)
        return [command for one in alive if (command := command_of(one))]

    def _failures(self) -> list[str]:
        reports = [json.loads(line) for line in self.driver.output.splitlines() if line[:1] == "{"]
        return [str(report["failure"])[:2000] for report in reports]
