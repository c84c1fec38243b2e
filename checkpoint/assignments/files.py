"""Opens assignment stores by their URIs, and keeps an assignment in a folder: every write creates a
new file, unless that file exists.

    orders/00000001.json
    orders/00000002.json        the current one: the highest number

Two writers that read version 2 both try to create 00000003.json, and one of them succeeds. Files
are never deleted: they are the history of the tasks, one for each expansion. If an old file were
deleted, a writer that paused for long could create it again and take it for the latest.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Final

from spark_ssp.checkpoint.assignments.store import (
    AssignmentStore,
    AssignmentStoreError,
    StoredAssignment,
    StoreKind,
    StoreUri,
    Version,
    conflict,
    decode_text,
    encode_text,
    parse_store_uri,
    store_subject,
)
from spark_ssp.common.aws.error_translation import safe_text
from spark_ssp.common.errors import (
    AccessError,
    InvalidOptionsError,
    OptionProblem,
    ServiceUnavailableError,
    SspError,
)
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.write_once_files import (
    PACKAGES,
    FsspecFiles,
    LocalFiles,
    WriteOnceFiles,
    missing_package,
)
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


# --- Folders on disks and through fsspec ---------------------------------------------------------


def open_files(uri: StoreUri) -> WriteOnceFiles:
    """Return the folder of a URI. InvalidOptionsError if a package is missing."""
    if uri.kind is StoreKind.LOCAL:
        return LocalFiles(Path(uri.path), partial(_os_error, uri), needs_links=True)
    package = missing_package(uri.scheme)
    if package is not None:
        raise InvalidOptionsError(
            "kafka-ssp",
            [
                OptionProblem(
                    option="assignmentStore",
                    found=f"{uri.scheme}:// without the package {package}",
                    expected=f"{package} installed on the driver",
                    next_step=f"pip install {package}",
                )
            ],
        )
    try:
        return FsspecFiles(
            f"{uri.scheme}://{uri.container}/{uri.path}", partial(_storage_error, uri)
        )
    except Exception as error:
        raise _storage_error(uri, error) from error


def _os_error(uri: StoreUri, error: Exception) -> SspError:
    subject = store_subject(uri.text)
    found = f"{type(error).__name__} ({getattr(error, 'strerror', None)})"
    if isinstance(error, PermissionError):
        return AccessError(
            subject,
            found=found,
            expected="a folder that the driver may read and write, on a file system with hard "
            "links",
            next_step="give the driver's user access to it, or name another assignmentStore",
        )
    return AssignmentStoreError(
        subject,
        found=found,
        expected="a folder, existing or to be created, on a file system with hard links",
        next_step="correct the path, or name another assignmentStore",
    )


def _storage_error(uri: StoreUri, error: Exception) -> SspError:
    subject = store_subject(uri.text)
    found = f"{type(error).__name__} ({safe_text(str(error))})"
    if isinstance(error, PermissionError):
        return AccessError(
            subject,
            found=found,
            expected="permission to list, read and create files in it",
            next_step="grant it to the account of the driver's environment",
        )
    return ServiceUnavailableError(
        subject,
        found=found,
        expected="an answer from the storage",
        next_step=f"check the path, the credentials that {PACKAGES.get(uri.scheme, 'fsspec')} "
        "finds, and the network",
    )


# --- The store of a URI ---------------------------------------------------------------------------


def open_assignment_store(uri: str, connection: ConnectionOptions | None = None) -> AssignmentStore:
    """Return the store of a URI that passes `parse_store_uri`, without calling it yet. The code
    for AWS is imported when a store there is first opened.

    `connection` is for S3 and DynamoDB; without it AWS's default chain applies, with the region
    and the endpoint of AWS's configuration. Raises AccessError without credentials,
    InvalidOptionsError without a region or without the package that a scheme needs.
    """
    parsed = parse_store_uri(uri)
    aws = connection or ConnectionOptions()
    match parsed.kind:
        case StoreKind.LOCAL | StoreKind.FSSPEC:
            return FileAssignmentStore(parsed, open_files(parsed))
        case StoreKind.S3:
            from spark_ssp.checkpoint.assignments.aws import open_s3

            return FileAssignmentStore(parsed, open_s3(parsed, aws))
        case StoreKind.DYNAMODB:
            from spark_ssp.checkpoint.assignments.aws import open_dynamodb

            return open_dynamodb(parsed, aws)
