"""Keeps garbage collections cheap: in the processes of tasks, and in the one of a stream reader.

Objects that live long are frozen (`gc.freeze`) so that PySpark's per-task collection stays cheap.

A collection visits every object of the process, mostly modules, classes and functions that live as
long as it: about 25 ms with pyarrow loaded, more than a small task takes. Objects are frozen at the
end of the first few tasks, since later tasks import more. Reference counts still free frozen
objects; only a cycle that was alive at that time is never collected.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

PLANNER_THRESHOLDS: Final = (50_000, 20, 100)
"""The defaults of Python 3.11 are 700, 10, 10."""

TASKS: Final = 3
"""The number of tasks of a process after which objects are frozen."""


@dataclass(slots=True)
class _Tasks:
    """The number of tasks that ended in this process. A forked child starts at zero."""

    process: int = 0
    ended: int = 0

    def count(self) -> int:
        """Count one more and return the number."""
        if self.process != os.getpid():
            self.process, self.ended = os.getpid(), 0
        self.ended += 1
        return self.ended


_tasks = _Tasks()


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage in the meantime: for the imports of a stream reader, whose objects live as
    long as the process. They would cause some twenty collections, one of them of all objects: 30 to
    70 ms of a query's start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def freeze_imports() -> None:
    """Freeze the objects of a stream reader's process, once it has imported what it needs."""
    gc.freeze()


def collect_rarely() -> None:
    """Make this process's garbage collections rare: the process of a stream reader, on the driver.

    A trigger over ten thousand shards replaces some hundred objects for each of them, which
    collections visit again and again: by the default thresholds, a quarter of the time of planning.
    Planning leaves hardly any cycles, and reference counts free all other objects.
    """
    gc.set_threshold(*PLANNER_THRESHOLDS)


def freeze_after_task(rows: Iterator[T]) -> Iterator[T]:
    """Yield the `rows` of one task, then freeze the objects that the worker process keeps."""
    try:
        yield from rows
    finally:
        if _tasks.count() <= TASKS:
            gc.freeze()
