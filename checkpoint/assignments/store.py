"""Where the assignment of partitions to tasks is kept outside of a query's checkpoint.

One store holds one assignment: the union over all streams of all queries that name it. Every write
is conditional on the version that was read, so that two writers cannot overwrite each other unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol

from task_grouping.assignment import TaskAssignment

Version = NewType("Version", int)
"""Which write it was, counted from 1. For callers: something to hand back, no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAssignment:
    """What a store holds."""

    assignment: TaskAssignment
    version: Version


class AssignmentStore(Protocol):
    """A place for one assignment. To be used by one thread at a time.

    Every method rides out throttling and passing faults within its limits, then raises
    ServiceUnavailableError. AccessError where a permission or credentials are missing;
    AssignmentStoreError where the place cannot be used, or holds something else.
    """

    @property
    def uri(self) -> str:
        """What the user named it by."""
        ...

    def read(self) -> StoredAssignment | None:
        """What is stored, not older than this call; None when nothing ever was."""

    def write(self, assignment: TaskAssignment, expected: Version | None) -> Version:
        """Store it if `expected` is still what is stored (None: nothing), and return its version.

        Raises AssignmentConflictError when somebody else wrote meanwhile. A write whose reply was
        lost is recognised: if what stands there as the next version is what was to be written, it
        is done, whoever did it. After ServiceUnavailableError it is unknown whether it took effect.
        """
        ...

    def close(self) -> None:
        """Let go of connections. The store is not used afterwards."""
