"""The text in which an assignment is stored: `task_grouping.assignment`, version 1, on one line.

Equal assignments are equal text. It holds names of topics and tasks, and numbers; nothing secret.
"""

from __future__ import annotations

import json

from checkpoint.assignments.errors import AssignmentStoreError
from ssp_common.errors import IncompatibleStateError
from task_grouping.assignment import TaskAssignment, decode_assignment, encode_assignment


def encode_text(assignment: TaskAssignment) -> str:
    """The assignment as it is stored."""
    return json.dumps(encode_assignment(assignment), separators=(",", ":")) + "\n"


def decode_text(text: str | bytes, subject: str) -> TaskAssignment:
    """Read it back; `place` is named in the AssignmentStoreError for what is no assignment, or one
    of another version."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise unreadable_error(
            subject, "text that is no JSON", "a task assignment, version 1"
        ) from None
    try:
        return decode_assignment(document)
    except IncompatibleStateError as error:
        raise unreadable_error(subject, error.found, error.expected) from error


def unreadable_error(subject: str, found: str, expected: str) -> AssignmentStoreError:
    """What stands at `place` is no assignment."""
    return AssignmentStoreError(
        subject,
        found=found,
        expected=expected,
        next_step="use the spark-ssp version that wrote it, put back what was there before, or "
        "name another assignmentStore",
    )
