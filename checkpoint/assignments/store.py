"""The protocol of stores for the assignment of partitions to tasks.

A store holds one assignment: the union over all streams of all queries that name it. Every write is
conditional on the version that was read, so that writers cannot overwrite each other unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol

from spark_ssp.grouping.assignment import TaskAssignment

Version = NewType("Version", int)
"""The number of a write, from 1. Opaque to callers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAssignment:
    """The content of a store."""

    assignment: TaskAssignment
    version: Version


class AssignmentStore(Protocol):
    """A store of one assignment. Used by one thread at a time.

    Every method retries throttling and transient faults within its limits, then raises
    ServiceUnavailableError. AccessError without a permission or credentials; AssignmentStoreError
    if the target cannot be used or has other content.
    """

    @property
    def uri(self) -> str:
        """The option's value."""
        ...

    def read(self) -> StoredAssignment | None:
        """Return the stored assignment, not older than this call; None if there is none."""

    def write(self, assignment: TaskAssignment, expected: Version | None) -> Version:
        """Store the assignment if `expected` is still the stored version (None: nothing); return
        the new one.

        Raises AssignmentConflictError if another query wrote since. A write whose reply was lost is
        recognised: if the next version has this content, the write is done, no matter which query
        did it. After ServiceUnavailableError its effect is unknown.
        """
        ...

    def close(self) -> None:
        """Release connections. The store cannot be used afterwards."""
