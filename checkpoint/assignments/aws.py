"""Assignments in AWS: in a folder in S3, or in a DynamoDB table.

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

from typing import Any, Final, Literal

from botocore.exceptions import ClientError

from spark_ssp.checkpoint.assignments.store import (
    AssignmentStore,
    AssignmentStoreError,
    StoredAssignment,
    StoreUri,
    Version,
    conflict,
    decode_text,
    encode_text,
    store_subject,
    unreadable_error,
)
from spark_ssp.common.aws.error_translation import code_of
from spark_ssp.common.aws.service_calls import create_table, describe_table
from spark_ssp.common.aws.store import S3Calls, S3Files, StoreCalls, StoreLocation
from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.times import seconds_text
from spark_ssp.common.write_once_files import S3Folder, WriteOnceFiles
from spark_ssp.grouping.assignment import TaskAssignment


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
