"""The lease table in DynamoDB.

Reads are consistent: what is decided on a row that was overwritten meanwhile would only fail its
condition.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from botocore.exceptions import ClientError

from checkpoint.dynamodb_calls import DynamoDbCalls, has_code, may_have_applied
from checkpoint.error_translation import TableLocation
from checkpoint.leases.conditional_writes import (
    Conflict,
    DeleteRow,
    Done,
    Outcome,
    PutRow,
    Write,
    to_update,
)
from checkpoint.leases.dynamodb_expressions import request_of
from checkpoint.leases.lease import Item, Lease, LeaseKey
from checkpoint.leases.lease_serializer import Attribute, text
from checkpoint.leases.lease_store import LeaseStore, Rows
from checkpoint.leases.row_parsing import parse_lease, parse_rows
from checkpoint.leases.table_schema import Readiness, TableSettings, creation_request, readiness
from checkpoint.leases.write_reconciliation import reconcile
from ssp_common.aws.clients import create_client
from ssp_common.aws.error_translation import MalformedAnswerError
from ssp_common.aws.retries import Retrier, RetryLog, RetrySettings
from ssp_common.errors import ServiceUnavailableError
from ssp_common.options.endpoints import ConnectionOptions

if TYPE_CHECKING:
    from botocore.client import BaseClient

_POLL_SECONDS: Final = 1.0


class DynamoDbLeaseStore:
    """`LeaseStore` on a boto3 client for DynamoDB. Not to be pickled or forked.

    `client` must have botocore's retries off. `monotonic` and `sleep` are in seconds, `random` is
    uniform in [0, 1).
    """

    def __init__(
        self,
        client: BaseClient,
        settings: TableSettings,
        *,
        retry: RetrySettings,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random.random,
        role_arn: str | None = None,
    ) -> None:
        self._client = client
        DynamoDbCalls.check_bodies(client)
        self._settings = settings
        self._monotonic = monotonic
        self._sleep = sleep
        self._place = TableLocation(
            table=settings.name,
            region=client.meta.region_name,
            endpoint=client.meta.endpoint_url,
            role_arn=role_arn,
        )
        self._log = RetryLog(monotonic)
        retrier = Retrier(retry, log=self._log, sleep=sleep, random=random)
        self._calls = DynamoDbCalls(client, self._place, retrier)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection stays in its process: open the store where it is needed")

    def retries(self) -> Mapping[tuple[str, str], int]:
        """How often a call was repeated so far, by (operation, error code)."""
        return self._log.counts()

    def close(self) -> None:
        """See `LeaseStore`."""
        self._client.close()

    # --- The table -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """See `LeaseStore`. Creating one asks for dynamodb:CreateTable, and with tags
        dynamodb:TagResource."""
        deadline = self._monotonic() + self._settings.wait_s
        while True:
            found = readiness(self._settings.name, self._description())
            if found is Readiness.READY:
                return
            if found is Readiness.ABSENT:
                self._create()
            if self._monotonic() >= deadline:
                raise self._not_ready(found)
            self._sleep(_POLL_SECONDS)

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
                # Another worker was faster, or this is the retry of one whose reply was lost.
                if not has_code(error, "ResourceInUseException"):
                    raise

        self._calls.patiently("CreateTable", create)

    def _not_ready(self, found: Readiness) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            self._place.subject,
            found=f"the table still {found} after {self._settings.wait_s:g} s",
            expected=f"an active table in {self._place}",
            next_step="see the table's status in DynamoDB, then start again",
        )

    # --- Rows ------------------------------------------------------------------------------------

    def scan(self) -> Rows:
        """See `LeaseStore`."""
        request: dict[str, Any] = {"TableName": self._settings.name, "ConsistentRead": True}
        items: list[Item] = []
        while True:
            answer = self._calls.ask("Scan", request)
            items.extend(answer.get("Items", ()))
            last = answer.get("LastEvaluatedKey")
            if not last:
                return parse_rows(items)
            request = {**request, "ExclusiveStartKey": last}

    def get(self, key: LeaseKey) -> Lease | None:
        """See `LeaseStore`."""
        return parse_lease(self._item(key))

    def write(self, write: Write) -> Outcome:
        """See `LeaseStore`."""
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
            lease = parse_lease(answer.get("Attributes"))
            if lease is None:
                raise MalformedAnswerError("an answer without the row that was written")
            return Done(lease=lease)

        return reconcile(
            write,
            attempt,
            retrying=lambda once: self._calls.patiently(operation, once),
            may_have_applied=may_have_applied,
        )

    def _found(self, error: ClientError, key: LeaseKey) -> Lease | None:
        """The row that failed the condition; where the answer has none, it is read."""
        item: Item | None = error.response.get("Item")  # type: ignore[assignment]
        return parse_lease(item or self._item(key))

    def _item(self, key: LeaseKey) -> Item | None:
        request = {
            "TableName": self._settings.name,
            "Key": {Attribute.KEY.value: text(key)},
            "ConsistentRead": True,
        }
        return self._calls.ask("GetItem", request).get("Item")


def open_store(connection: ConnectionOptions, settings: TableSettings) -> LeaseStore:
    """A store with a client of its own; `connection.endpoint_url` is `dynamodbEndpointUrl`.

    Raises AccessError when there are no credentials, InvalidOptionsError without a region; the
    service itself is not asked.
    """
    return DynamoDbLeaseStore(
        create_client("dynamodb", connection, endpoint_option="dynamodbEndpointUrl"),
        settings,
        retry=RetrySettings(
            max_attempts=connection.retry_max_attempts,
            max_backoff=connection.retry_max_backoff_ms / 1000,
        ),
        role_arn=connection.role_arn,
    )
