"""An assignment in a folder: every write creates a new file, unless that file exists.

    orders/00000001.json
    orders/00000002.json        the current one: the highest number

Two writers that read version 2 both try to create 00000003.json, and one of them succeeds. Files
are never deleted: they are the history of the tasks, one for each expansion. If an old file were
deleted, a writer that paused for long could create it again and take it for the latest.
"""

from __future__ import annotations

import re
from typing import Final

from spark_ssp.checkpoint.assignments.errors import conflict, store_subject
from spark_ssp.checkpoint.assignments.serialization import decode_text, encode_text
from spark_ssp.checkpoint.assignments.store import StoredAssignment, Version
from spark_ssp.checkpoint.assignments.uri import StoreUri
from spark_ssp.common.documents.immutable_files import WriteOnceFiles
from spark_ssp.grouping.assignment import TaskAssignment

_NAME: Final = re.compile(r"([0-9]{8,})\.json", re.ASCII)


class FileAssignmentStore:
    """`AssignmentStore` in such a folder."""

    def __init__(self, uri: StoreUri, files: WriteOnceFiles) -> None:
        self._uri = uri
        self._files = files

    @property
    def uri(self) -> str:
        """The option's value."""
        return self._uri.text

    def read(self) -> StoredAssignment | None:
        """Return the newest file's assignment, if there is one."""
        newest = self._newest()
        if newest is None:
            return None
        name = file_name(newest)
        assignment = decode_text(
            self._files.read(name), f"file {name} of {store_subject(self.uri)}"
        )
        return StoredAssignment(assignment=assignment, version=newest)

    def write(self, assignment: TaskAssignment, expected: Version | None) -> Version:
        """Store the assignment if `expected` is still the newest version; return the new
        version."""
        version = Version((expected or 0) + 1)
        name, content = file_name(version), encode_text(assignment).encode()
        newest = self._newest()
        # The first test covers folders whose old files were deleted.
        free = newest == expected and self._files.create(name, content)
        if free or (self._newest() == version and self._files.read(name) == content):
            return version
        raise conflict(store_subject(self.uri), expected)

    def close(self) -> None:
        """Release connections."""
        self._files.close()

    def _newest(self) -> Version | None:
        found = (_NAME.fullmatch(name) for name in self._files.names())
        return Version(max((int(match[1]) for match in found if match), default=0)) or None


def file_name(version: Version) -> str:
    """Return the file name of a version."""
    return f"{version:08}.json"
