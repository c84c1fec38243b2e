"""The storage of assignments: a folder, on disk, in S3 or through fsspec, or a DynamoDB table; and
the store of a URI.

In a folder every write creates a new file, unless that file exists.

    orders/00000001.json
    orders/00000002.json        the current one: the highest number

Two writers that read version 2 both try to create 00000003.json, and one of them succeeds. Files
are never deleted: they are the history of the tasks, one for each expansion. If an old file were
deleted, a writer that paused for long could create it again and take it for the latest.

In DynamoDB an assignment is one item, so that many pipelines can share a table:

| attribute    | type   |                                          |
| ------------ | ------ | ---------------------------------------- |
| `name`       | string | the table's key: the path of the URI     |
| `version`    | number | 1 for the first write, one more for each |
| `assignment` | string | the assignment, as in a file             |

An item holds up to 400 KB, enough for some 7,000 tasks. A missing table is created with the first
write, with on-demand capacity like the lease table.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from botocore.exceptions import ClientError

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
    unreadable_error,
)
from spark_ssp.common.aws.error_translation import code_of, safe_text
from spark_ssp.common.aws.service_calls import create_table, describe_table
from spark_ssp.common.aws.store import S3Calls, S3Files, StoreCalls, StoreLocation
from spark_ssp.common.errors import (
    AccessError,
    InvalidOptionsError,
    OptionProblem,
    ServiceUnavailableError,
    SspError,
)
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.times import seconds_text
from spark_ssp.common.write_once_files import (
    PACKAGES,
    FsspecFiles,
    LocalFiles,
    S3Folder,
    WriteOnceFiles,
    missing_package,
)
from spark_ssp.grouping.assignment import TaskAssignment

_NAME: Final = re.compile(r"([0-9]{8,})\.json", re.ASCII)


class FileAssignmentStore:
    """`AssignmentStore` in a folder."""

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


# --- Folders and items in AWS ---------------------------------------------------------------------


def open_s3(uri: StoreUri, connection: ConnectionOptions) -> WriteOnceFiles:
    """Return the S3 folder of a URI, with the errors of `open_assignment_store`."""
    return S3Files(s3_folder(uri), S3Calls.open(s3_where(uri), connection))


def s3_folder(uri: StoreUri) -> S3Folder:
    """Return the bucket and path of a URI."""
    return S3Folder(bucket=uri.container, path=uri.path)


def s3_where(uri: StoreUri) -> StoreLocation:
    """Return the description of an S3 folder in errors."""
    return _where(uri, "s3", s3_folder(uri).resource)


def dynamodb_where(uri: StoreUri) -> StoreLocation:
    """Return the description of a DynamoDB item in errors."""
    return _where(uri, "dynamodb", f"the table {uri.container}, whose only key is name (a string)")


def _where(uri: StoreUri, service: Literal["dynamodb", "s3"], resource: str) -> StoreLocation:
    return StoreLocation(
        subject=store_subject(uri.text),
        service=service,
        resource=resource,
        option="assignmentStore",
        read_by="kafka-ssp",
        absent=AssignmentStoreError,
    )


_ABSENT: Final = "ResourceNotFoundException"
_WAIT_S: Final = 600.0
_POLL_S: Final = 1.0

Item = dict[str, Any]


class DynamoDbAssignmentStore:
    """`AssignmentStore` in an item. Needs dynamodb:GetItem and PutItem, and DescribeTable and
    CreateTable if the table does not exist."""

    def __init__(self, uri: StoreUri, calls: StoreCalls) -> None:
        self._uri = uri
        self._calls = calls

    @property
    def uri(self) -> str:
        """The option's value."""
        return self._uri.text

    def close(self) -> None:
        """Release connections."""
        self._calls.close()

    def read(self) -> StoredAssignment | None:
        """Return the stored assignment; None if the item or the table does not exist."""
        item = self._calls.patiently("GetItem", self._item)
        if item is None:
            return None
        subject = self._calls.where.subject
        try:
            version, text = int(item["version"]["N"]), item["assignment"]["S"]
        except (KeyError, ValueError):
            raise unreadable_error(
                subject, "an item of another form", "the attributes version and assignment"
            ) from None
        return StoredAssignment(assignment=decode_text(text, subject), version=Version(version))

    def _item(self) -> Item | None:
        request = {
            "TableName": self._uri.container,
            "Key": {"name": {"S": self._uri.path}},
            "ConsistentRead": True,
        }
        try:
            return self._calls.once("GetItem", request).get("Item")
        except ClientError as error:
            if code_of(error) != _ABSENT:
                raise
            return None

    def write(self, assignment: TaskAssignment, expected: Version | None) -> Version:
        """Store the assignment if `expected` is still the stored version; return the new
        version."""
        version = Version((expected or 0) + 1)
        item = {
            "name": {"S": self._uri.path},
            "version": {"N": str(version)},
            "assignment": {"S": encode_text(assignment)},
        }
        found = self._calls.patiently("PutItem", lambda: self._put(item, expected))
        if found is _NO_TABLE:
            self._create_table()
            found = self._calls.patiently("PutItem", lambda: self._put(item, expected))
        if found != item:
            raise conflict(self._calls.where.subject, expected)
        return version

    def _put(self, item: Item, expected: Version | None) -> Item | None:
        """Return the stored item: the new one, or the one that failed the condition."""
        request: dict[str, Any] = {
            "TableName": self._uri.container,
            "Item": item,
            "ConditionExpression": "attribute_not_exists(#name)",
            "ExpressionAttributeNames": {"#name": "name"},
        }
        if expected is not None:
            request |= {
                "ConditionExpression": "#version = :expected",
                "ExpressionAttributeNames": {"#version": "version"},
                "ExpressionAttributeValues": {":expected": {"N": str(expected)}},
            }
        try:
            self._calls.once("PutItem", request)
        except ClientError as error:
            if code_of(error) == _ABSENT:
                return _NO_TABLE
            if code_of(error) != "ConditionalCheckFailedException":
                raise
            return self._item()
        return item

    def _create_table(self) -> None:
        deadline = self._calls.monotonic() + _WAIT_S
        create_table(
            self._calls,
            {
                "TableName": self._uri.container,
                "KeySchema": [{"AttributeName": "name", "KeyType": "HASH"}],
                "AttributeDefinitions": [{"AttributeName": "name", "AttributeType": "S"}],
                "BillingMode": "PAY_PER_REQUEST",
            },
        )
        # A new table may not be found at first.
        while not self._is_active():
            if self._calls.monotonic() >= deadline:
                raise ServiceUnavailableError(
                    self._calls.where.subject,
                    found=f"the new table not active after {seconds_text(_WAIT_S)}",
                    expected="an active table",
                    next_step="check the table's status in DynamoDB, then start again",
                )
            self._calls.sleep(_POLL_S)

    def _is_active(self) -> bool:
        table = describe_table(self._calls, self._uri.container)
        return table is not None and table["TableStatus"] == "ACTIVE"


_NO_TABLE: Final[Item] = {}
"""Returned instead of an item if there is no table."""


def open_dynamodb(uri: StoreUri, connection: ConnectionOptions) -> AssignmentStore:
    """Return the store of a URI, with the errors of `open_assignment_store`."""
    return DynamoDbAssignmentStore(uri, StoreCalls.open(dynamodb_where(uri), connection))


# --- The store of a URI ---------------------------------------------------------------------------


def open_assignment_store(uri: str, connection: ConnectionOptions | None = None) -> AssignmentStore:
    """Return the store of a URI that passes `parse_store_uri`, without calling it yet.

    `connection` is for S3 and DynamoDB; without it boto3's default chain applies, with AWS_REGION
    and AWS_ENDPOINT_URL. Raises AccessError without credentials, InvalidOptionsError without a
    region or without the package that a scheme needs.
    """
    parsed = parse_store_uri(uri)
    aws = connection or ConnectionOptions()
    match parsed.kind:
        case StoreKind.LOCAL | StoreKind.FSSPEC:
            return FileAssignmentStore(parsed, open_files(parsed))
        case StoreKind.S3:
            return FileAssignmentStore(parsed, open_s3(parsed, aws))
        case StoreKind.DYNAMODB:
            return open_dynamodb(parsed, aws)
