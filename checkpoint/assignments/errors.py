"""Errors of assignment stores."""

from __future__ import annotations

from spark_ssp.checkpoint.assignments.store import Version
from spark_ssp.common.errors import IncompatibleStateError, SspError


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
