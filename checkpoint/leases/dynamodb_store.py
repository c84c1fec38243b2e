"""The lease table in DynamoDB.

Reads are consistent: a write based on an outdated row would only fail its condition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from botocore.exceptions import ClientError

from spark_ssp.checkpoint.dynamodb_calls import DynamoDbCalls, has_code, may_have_applied
from spark_ssp.checkpoint.leases.conditional_writes import (
    Conflict,
    DeleteRow,
    Done,
    Outcome,
    PutRow,
    Write,
    to_update,
)
from spark_ssp.checkpoint.leases.dynamodb_expressions import request_of
from spark_ssp.checkpoint.leases.lease import Item, Lease, LeaseKey
from spark_ssp.checkpoint.leases.lease_serializer import Attribute, text
from spark_ssp.checkpoint.leases.lease_store import Rows
from spark_ssp.checkpoint.leases.row_parsing import LeaseCache, parse_lease, parse_rows
from spark_ssp.checkpoint.leases.table_schema import (
    Readiness,
    TableSettings,
    creation_request,
    readiness,
)
from spark_ssp.checkpoint.leases.write_reconciliation import reconcile
from spark_ssp.common.aws.error_translation import MalformedAnswerError
from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.times import seconds_text

_POLL_S: Final = 1.0


class DynamoDbLeaseStore:
    """`LeaseStore` in DynamoDB. Cannot be pickled or used after a fork.

    `calls` must use a client without botocore's retries. `monotonic` and `sleep` are in seconds.
    """

    def __init__(
        self,
        calls: DynamoDbCalls,
        settings: TableSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._calls = calls
        self._settings = settings
        self._monotonic = monotonic
        self._sleep = sleep
        self._cache = LeaseCache()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection belongs to its process: open the store where it is needed")

    def close(self) -> None:
        """Release connections."""
        self._calls.close()

    # --- The table -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the table if absent and wait until it is active. Creating needs
        dynamodb:CreateTable, and with tags dynamodb:TagResource."""
        deadline = self._monotonic() + self._settings.wait_s
        while True:
            found = readiness(self._settings.name, self._description())
            if found is Readiness.READY:
                return
            if found is Readiness.ABSENT:
                self._create()
            if self._monotonic() >= deadline:
                raise self._not_ready(found)
            self._sleep(_POLL_S)

    def _description(self) -> Mapping[str, Any] | None:
        def describe() -> Mapping[str, Any] | None:
            try:
                answer = self._calls.once("DescribeTable", {"TableName": self._settings.name})
            except ClientError as error:
                if has_code(error, "ResourceNotFoundException"):
                    return None
                raise
            table: Mapping[str, Any] = answer["Table"]
            return table

        return self._calls.patiently("DescribeTable", describe)

    def _create(self) -> None:
        def create() -> None:
            try:
                self._calls.once("CreateTable", creation_request(self._settings))
            except ClientError as error:
                # Another worker was faster, or this is the retry of a call whose reply was lost.
                if not has_code(error, "ResourceInUseException"):
                    raise

        self._calls.patiently("CreateTable", create)

    def _not_ready(self, found: Readiness) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            self._calls.location.subject,
            found=f"the table still {found} after {seconds_text(self._settings.wait_s)}",
            expected=f"an active table in {self._calls.location}",
            next_step="check the table's status in DynamoDB, then start again",
        )

    # --- Rows ------------------------------------------------------------------------------------

    def scan(self) -> Rows:
        """Return all rows."""
        request: dict[str, Any] = {"TableName": self._settings.name, "ConsistentRead": True}
        items: list[Item] = []
        while True:
            answer = self._calls.ask("Scan", request)
            items.extend(answer.get("Items", ()))
            last = answer.get("LastEvaluatedKey")
            if not last:
                rows = parse_rows(items, self._cache.decode)
                self._cache.retain(rows.leases)
                return rows
            request = {**request, "ExclusiveStartKey": last}

    def write(self, write: Write) -> Outcome:
        """Apply a write if its condition holds."""
        change = to_update(write)
        operation, request = request_of(self._settings.name, write.lease.key, change)

        def attempt() -> Outcome:
            try:
                answer = self._calls.once(operation, request)
            except ClientError as error:
                if not has_code(error, "ConditionalCheckFailedException"):
                    raise
                return Conflict(found=self._found(error, write.lease.key))
            if isinstance(change, PutRow | DeleteRow):
                return Done(lease=write.lease)
            lease = parse_lease(answer.get("Attributes"), self._cache.decode)
            if lease is None:
                raise MalformedAnswerError("an answer without the written row")
            return Done(lease=lease)

        return reconcile(
            write,
            attempt,
            retrying=lambda once: self._calls.patiently(operation, once),
            may_have_applied=may_have_applied,
        )

    def _found(self, error: ClientError, key: LeaseKey) -> Lease | None:
        """Return the row that failed the condition, reading it if the answer does not contain
        it."""
        item: Item | None = error.response.get("Item")  # type: ignore[assignment]
        return parse_lease(item or self._item(key), self._cache.decode)

    def _item(self, key: LeaseKey) -> Item | None:
        request = {
            "TableName": self._settings.name,
            "Key": {Attribute.KEY.value: text(key)},
            "ConsistentRead": True,
        }
        return self._calls.ask("GetItem", request).get("Item")
