"""Stores for the assignment of partitions to tasks: their protocol, their URIs (the option
`assignmentStore`), and the text that they hold.

A store holds one assignment: the union over all streams of all queries that name it. Every write is
conditional on the version that was read, so that writers cannot overwrite each other unnoticed. So
a store needs storage that can create a file atomically if it does not exist, and the schemes of
others are rejected.

The text is `grouping.assignment`, version 1, as JSON on one line. Version 1 is complete without the
rules of a grouper, for other readers of a store and for earlier releases; the versions of offsets
are also read. Equal assignments have equal text. It contains names of topics and tasks, and
numbers, but no secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType, Protocol

from spark_ssp.common.errors import IncompatibleStateError, SspError, shown
from spark_ssp.common.options.spec import BadValueError, Fault
from spark_ssp.common.write_once_files import is_bucket
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


# --- The URI of a store ---------------------------------------------------------------------------

_URI_EXAMPLES: Final = (
    "a URI such as s3://bucket/assignments/orders, dynamodb://table/orders, gs://bucket/orders, "
    "abfs://container/orders or file:///mnt/shared/orders"
)


class StoreKind(StrEnum):
    """The implementation of a store."""

    LOCAL = "local"
    FSSPEC = "fsspec"
    S3 = "s3"
    DYNAMODB = "dynamodb"


_KINDS: Final[Mapping[str, StoreKind]] = {
    "abfs": StoreKind.FSSPEC,
    "abfss": StoreKind.FSSPEC,
    "az": StoreKind.FSSPEC,
    "dynamodb": StoreKind.DYNAMODB,
    "file": StoreKind.LOCAL,
    "gcs": StoreKind.FSSPEC,
    "gs": StoreKind.FSSPEC,
    "memory": StoreKind.FSSPEC,
    "s3": StoreKind.S3,
    "s3a": StoreKind.S3,
}

_URI: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([^\s?#@]+)", re.ASCII)
_TABLE: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}", re.ASCII)
_MAX_KEY_BYTES: Final = 900
"""Below the limits of S3 (1024) and DynamoDB (2048), to leave room for suffixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUri:
    """A parsed URI. Its text contains no password and may be shown."""

    text: str
    scheme: str
    kind: StoreKind
    container: str
    """The bucket, container or table; empty for a local path."""
    path: str
    """The folder in it, without a trailing slash; for a local store the whole path, for DynamoDB
    the item's key."""


def parse_store_uri(text: str) -> StoreUri:
    """Parse a URI. BadValueError if it cannot be a store."""
    match = _URI.fullmatch(text)
    if match is None:
        raise _bad(
            text, _URI_EXAMPLES, "write scheme and path, without a user, a password or a query"
        )
    scheme, rest = match.groups()
    kind = _KINDS.get(scheme)
    if kind is None:
        raise _bad(
            text,
            _URI_EXAMPLES,
            f"{shown(scheme)} cannot create a file only if it does not exist, so that two writers "
            "could overwrite each other: choose another storage",
        )
    if kind is StoreKind.LOCAL:
        path = "/" + rest.strip("/")
        if not rest.startswith("/") or path == "/" or ".." in path.split("/"):
            raise _bad(text, "file:// and an absolute path", "write file:///folder/name")
        return StoreUri(text=text, scheme=scheme, kind=kind, container="", path=path)
    container, _, path = rest.partition("/")
    path = path.strip("/")
    if not path or len(path.encode()) > _MAX_KEY_BYTES:
        raise _bad(
            text,
            f"a path of 1 to {_MAX_KEY_BYTES} bytes after the first name",
            "write it as in s3://bucket/assignments/orders: many pipelines can share a bucket, "
            "each with another path",
        )
    _check_container(text, kind, container)
    return StoreUri(text=text, scheme=scheme, kind=kind, container=container, path=path)


def _check_container(text: str, kind: StoreKind, container: str) -> None:
    if kind is StoreKind.S3 and not is_bucket(container):
        raise _bad(text, "a bucket name of 3 to 63 characters", "write it as in S3")
    if kind is StoreKind.DYNAMODB and not _TABLE.fullmatch(container):
        raise _bad(
            text,
            "a table name of 3 to 255 letters, digits, '_', '.' and '-'",
            "write it as in DynamoDB",
        )
    if not container:
        raise _bad(text, _URI_EXAMPLES, "name the bucket or container")


def _bad(text: str, expected: str, next_step: str) -> BadValueError:
    return BadValueError(Fault(found=shown(text), expected=expected, next_step=next_step))
