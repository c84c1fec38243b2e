"""The protocol of stores for the assignment of partitions to tasks, and the text that they store.

A store holds one assignment: the union over all streams of all queries that name it. Every write is
conditional on the version that was read, so that writers cannot overwrite each other unnoticed.

The text is `grouping.assignment`, version 1, as JSON on one line. Version 1 is complete without the
rules of a grouper, for other readers of a store and for earlier releases; the versions of offsets
are also read. Equal assignments have equal text. It contains names of topics and tasks, and
numbers, but no secrets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NewType, Protocol

from spark_ssp.common.errors import IncompatibleStateError, SspError
from spark_ssp.grouping.assignment import TaskAssignment, decode_assignment, encode_assignment_v1

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


# --- Errors --------------------------------------------------------------------------------------


class AssignmentStoreError(IncompatibleStateError):
    """The target of `assignmentStore` cannot be used as a store."""

    kind = "assignment-store"


class AssignmentConflictError(SspError):
    """Another query wrote to the store since it was read: read, merge and write again."""

    kind = "assignment-conflict"


class AssignmentContradictionError(IncompatibleStateError):
    """The store assigns a partition to another task than the query's checkpoint does."""

    kind = "assignment-contradiction"


def store_subject(uri: str) -> str:
    """Return the name of a store in errors."""
    return f"assignment store {uri}"


def conflict(subject: str, expected: Version | None) -> AssignmentConflictError:
    """Return the error for a store that another query has written to first."""
    return AssignmentConflictError(
        subject,
        found="a version that another query wrote since it was read",
        expected="nothing in it" if expected is None else f"version {expected} in it",
        next_step="start the query again, which adopts the tasks of the other one; if this "
        "happens again, check which queries name the store",
    )


# --- The stored text -----------------------------------------------------------------------------


def encode_text(assignment: TaskAssignment) -> str:
    """Return the stored form of an assignment."""
    return json.dumps(encode_assignment_v1(assignment), separators=(",", ":")) + "\n"


def decode_text(text: str | bytes, subject: str) -> TaskAssignment:
    """Parse the stored form. AssignmentStoreError about `subject` for other text or another
    version."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise unreadable_error(
            subject, "text that is not JSON", "a task assignment, version 1"
        ) from None
    try:
        return decode_assignment(document)
    except IncompatibleStateError as error:
        raise unreadable_error(subject, error.found, error.expected) from error


def unreadable_error(subject: str, found: str, expected: str) -> AssignmentStoreError:
    """Return the error for content of `subject` that is not an assignment."""
    return AssignmentStoreError(
        subject,
        found=found,
        expected=expected,
        next_step="use the spark-ssp version that wrote it, restore the previous content, or "
        "name another assignmentStore",
    )
