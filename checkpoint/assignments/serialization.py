"""The stored form of an assignment: `grouping.assignment`, version 1, as JSON on one line.

Version 1 is complete without the rules of a grouper, for other readers of a store and for earlier
releases; the versions of offsets are also read. Equal assignments have equal text. It contains
names of topics and tasks, and numbers, but no secrets.
"""

from __future__ import annotations

import json

from spark_ssp.checkpoint.assignments.errors import AssignmentStoreError
from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.grouping.assignment import TaskAssignment, decode_assignment, encode_assignment_v1


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
