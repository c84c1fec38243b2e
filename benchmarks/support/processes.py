"""Processor time and memory of a query's processes, by their role.

* `driver`: this process, which holds the session.
* `planner`: the Python process on the driver's machine that holds the source's reader, which Spark
  asks for offsets. The source's driver side runs there.
* `jvm`: Spark itself; on a local session driver and executors together.
* `workers`: the Python processes that run tasks, with the one that forks them.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

import psutil

Role = Literal["driver", "planner", "jvm", "workers"]
ROLES: Final[tuple[Role, ...]] = ("driver", "planner", "jvm", "workers")

_PLANNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
_FORKING: Final = "pyspark.daemon"
_WORKERS: Final = (_FORKING, "pyspark.worker")


def by_role() -> dict[Role, list[psutil.Process]]:
    """The processes that this one has started and that belong to Spark, and this one."""
    found: dict[Role, list[psutil.Process]] = {role: [] for role in ROLES}
    own = psutil.Process()
    found["driver"].append(own)
    for process in own.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            role = _role(process)
            if role is not None:
                found[role].append(process)
    return found


def _role(process: psutil.Process) -> Role | None:
    if process.name() == "java":
        return "jvm"
    words = process.cmdline()
    if _PLANNER in words:
        return "planner"
    return "workers" if any(word in words for word in _WORKERS) else None


def cpu_seconds() -> dict[Role, float]:
    """Used so far, by all of a role together, those workers included that have ended."""
    used = dict.fromkeys(ROLES, 0.0)
    used["driver"] = time.process_time()
    for role, processes in by_role().items():
        for process in processes if role != "driver" else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                used[role] += _used_by(process)
                if role == "workers":
                    times = process.cpu_times()
                    used[role] += times.children_user + times.children_system
    return used


def _used_by(process: psutil.Process) -> float:
    """Return processor seconds of a process. On Linux from the process's clock, whose id is derived
    from the process id (clock_getcpuclockid); elsewhere in ticks of 10 ms, which are too coarse for
    a few triggers."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # it has ended, which `cpu_times` reports
            return time.clock_gettime((~process.pid << 3) | 2)
    times = process.cpu_times()
    return times.user + times.system


def used_since(before: dict[Role, float]) -> dict[Role, float]:
    """Return processor seconds since `before`. The time of a process that has ended is missing
    until its parent has waited for it: 0 is returned instead of a negative number."""
    now = cpu_seconds()
    return {role: max(0.0, now[role] - before[role]) for role in ROLES}


@dataclass(slots=True)
class Memory:
    """Resident bytes of the biggest process of each role, sample by sample."""

    samples: list[tuple[float, dict[Role, int]]] = field(default_factory=list)
    """Each with how far the work was, from 0 to 1; in order."""

    def at(self, part: float) -> dict[Role, int]:
        """Return the first sample taken when at least `part` of the work was done, else the last
        one."""
        for done, sample in self.samples:
            if done >= part:
                return sample
        return self.samples[-1][1]

    def peak(self) -> dict[Role, int]:
        """The most that each role had in any sample."""
        return {role: max(sample[role] for _, sample in self.samples) for role in ROLES}


@contextmanager
def sampled_memory(done: Callable[[], float], *, period_s: float = 0.2) -> Iterator[Memory]:
    """Sample until the block ends, and once more at its end. `done` returns the part of the work
    done."""
    memory = Memory()
    ended = threading.Event()

    def sample() -> None:
        memory.samples.append((done(), _resident_bytes()))

    def watch() -> None:
        while not ended.wait(period_s):
            sample()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        ended.set()
        thread.join()
        sample()


def _resident_bytes() -> dict[Role, int]:
    biggest = dict.fromkeys(ROLES, 0)
    for role, processes in by_role().items():
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                biggest[role] = max(biggest[role], process.memory_info().rss)
    return biggest
