"""Assignments in a DynamoDB table: one item each, so that many pipelines can share a table.

| attribute    | type   |                                          |
| ------------ | ------ | ---------------------------------------- |
| `name`       | string | the table's key: the path of the URI     |
| `version`    | number | 1 for the first write, one more for each |
| `assignment` | string | the assignment, as in a file             |

An item holds up to 400 KB, enough for some 7,000 tasks. A missing table is created with the first
write, with on-demand capacity like the lease table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from spark_ssp.checkpoint.assignments.aws import dynamodb_where
from spark_ssp.checkpoint.assignments.errors import conflict
from spark_ssp.checkpoint.assignments.serialization import (
    decode_text,
    encode_text,
    unreadable_error,
)
from spark_ssp.checkpoint.assignments.store import AssignmentStore, StoredAssignment, Version
from spark_ssp.checkpoint.assignments.uri import StoreUri
from spark_ssp.checkpoint.dynamodb_calls import DynamoDbCalls
from spark_ssp.common.aws.error_translation import code_of
from spark_ssp.common.aws.store import StoreCalls
from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.assignment import TaskAssignment

if TYPE_CHECKING:
    from botocore.client import BaseClient

_ABSENT: Final = "ResourceNotFoundException"
_WAIT_S: Final = 600.0
_POLL_S: Final = 1.0

Item = dict[str, Any]


class ItemCalls(StoreCalls):
    """Calls to DynamoDB that reject truncated bodies."""

    def _prepare(self, client: BaseClient) -> None:
        DynamoDbCalls.check_bodies(client)


class DynamoDbAssignmentStore:
    """`AssignmentStore` in an item. Needs dynamodb:GetItem and PutItem, and DescribeTable and
    CreateTable if the table does not exist."""

    def __init__(self, uri: StoreUri, calls: ItemCalls) -> None:
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
        self._calls.patiently("CreateTable", self._create)
        while self._calls.patiently("DescribeTable", self._status) != "ACTIVE":
            if self._calls.monotonic() >= deadline:
                raise ServiceUnavailableError(
                    self._calls.where.subject,
                    found=f"the new table not active after {seconds_text(_WAIT_S)}",
                    expected="an active table",
                    next_step="check the table's status in DynamoDB, then start again",
                )
            self._calls.sleep(_POLL_S)

    def _create(self) -> None:
        request = {
            "TableName": self._uri.container,
            "KeySchema": [{"AttributeName": "name", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "name", "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        try:
            self._calls.once("CreateTable", request)
        except ClientError as error:
            # Another query was faster, or this is the retry of a call whose reply was lost.
            if code_of(error) != "ResourceInUseException":
                raise

    def _status(self) -> str:
        try:
            answer = self._calls.once("DescribeTable", {"TableName": self._uri.container})
        except ClientError as error:
            # A new table may not be found at first.
            if code_of(error) != _ABSENT:
                raise
            return "absent"
        return str(answer["Table"]["TableStatus"])


_NO_TABLE: Final[Item] = {}
"""Returned instead of an item if there is no table."""


def open_dynamodb(uri: StoreUri, connection: ConnectionOptions) -> AssignmentStore:
    """Return the store of a URI, with the errors of `open_assignment_store`."""
    return DynamoDbAssignmentStore(uri, ItemCalls.open(dynamodb_where(uri), connection))
