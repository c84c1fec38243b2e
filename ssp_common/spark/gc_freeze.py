"""Makes the collection of garbage cheap that PySpark's worker runs after every task.

It looks at every object of the process, mostly modules, classes and functions that live as long as
it: about 25 ms with pyarrow loaded, more than a small task takes. What is there at the end of the
first tasks is put aside (`gc.freeze`): not only of the first, because some things are imported and
made only after it. Reference counts still free what is put aside; only a cycle that was alive then
stays for good once it is dropped.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

TASKS: Final = 3
"""The tasks of a process after which everything is put aside."""


@dataclass(slots=True)
class _Tasks:
    """How many tasks of this process have ended. A forked child counts anew."""

    process: int = 0
    ended: int = 0

    def count(self) -> int:
        """One more has ended; how many have."""
        if self.process != os.getpid():
            self.process, self.ended = os.getpid(), 0
        self.ended += 1
        return self.ended


_tasks = _Tasks()


def settled(rows: Iterator[T]) -> Iterator[T]:
    """`rows` of one task; in the end, what a worker process keeps is put aside."""
    try:
        yield from rows
    finally:
        if _tasks.count() <= TASKS:
            gc.freeze()
