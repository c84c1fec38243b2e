"""An assignment in a folder: every write is a new file, created only if it is not there.

    orders/00000001.json
    orders/00000002.json        the one in force: the highest number

Two writers that read version 2 both try to create 00000003.json, and one of them does. Files stay:
they are the history of the tasks and there are few of them, one for each expansion. If an old one
were removed, a writer that slept for long could create it again and take it for the last.
"""

from __future__ import annotations

import re
from typing import Final

from checkpoint.assignments.errors import AssignmentConflictError
from checkpoint.assignments.serialization import decode_text, encode_text
from checkpoint.assignments.store import StoredAssignment, Version
from checkpoint.assignments.uri import StoreUri
from ssp_common.documents.immutable_files import WriteOnceFiles
from task_grouping.assignment import TaskAssignment

_NAME: Final = re.compile(r"([0-9]{8,})\.json", re.ASCII)


class FileAssignmentStore:
    """`AssignmentStore` over such a folder."""

    def __init__(self, place: StoreUri, files: WriteOnceFiles) -> None:
        self._place = place
        self._files = files

    @property
    def uri(self) -> str:
        """See `AssignmentStore`."""
        return self._place.text

    def read(self) -> StoredAssignment | None:
        """See `AssignmentStore`."""
        newest = self._newest()
        if newest is None:
            return None
        name = file_name(newest)
        assignment = decode_text(self._files.read(name), f"file {name} of {conflict_subject(self)}")
        return StoredAssignment(assignment=assignment, version=newest)

    def write(self, assignment: TaskAssignment, expected: Version | None) -> Version:
        """See `AssignmentStore`."""
        version = Version((expected or 0) + 1)
        name, content = file_name(version), encode_text(assignment).encode()
        newest = self._newest()
        # The first test is for folders whose old files somebody removed.
        free = newest == expected and self._files.create(name, content)
        if free or (self._newest() == version and self._files.read(name) == content):
            return version
        raise conflict(conflict_subject(self), expected)

    def close(self) -> None:
        """See `AssignmentStore`."""
        self._files.close()

    def _newest(self) -> Version | None:
        found = (_NAME.fullmatch(name) for name in self._files.names())
        return Version(max((int(match[1]) for match in found if match), default=0)) or None


def file_name(version: Version) -> str:
    """The file of a version."""
    return f"{version:08}.json"


def conflict_subject(store: FileAssignmentStore) -> str:
    """How errors call a store."""
    return f"assignment store {store.uri}"


def conflict(subject: str, expected: Version | None) -> AssignmentConflictError:
    """Return the error for a store that another query has written to first."""
    return AssignmentConflictError(
        subject,
        found="a version that another query has just written",
        expected="nothing in it" if expected is None else f"version {expected} in it",
        next_step="start the query again, which takes over what the other one wrote; if this "
        "happens again, check which queries name the store",
    )
