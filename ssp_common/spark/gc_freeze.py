"""Freezes long-lived objects (`gc.freeze`) so that PySpark's per-task collection stays cheap.

A collection visits every object of the process, mostly modules, classes and functions that live as
long as it: about 25 ms with pyarrow loaded, more than a small task takes. Objects are frozen at the
end of the first few tasks, since later tasks import more. Reference counts still free frozen
objects; only a cycle that was alive at that time is never collected.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

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


def freeze_after_task(rows: Iterator[T]) -> Iterator[T]:
    """Yield the `rows` of one task, then freeze the objects that the worker process keeps."""
    try:
        yield from rows
    finally:
        if _tasks.count() <= TASKS:
            gc.freeze()
