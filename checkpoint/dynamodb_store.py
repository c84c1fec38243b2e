"""The lease table in DynamoDB: the one file here that knows the AWS SDK.

botocore's own retries are off, so that an attempt whose outcome is unknown is seen as such (see
`lost_replies.py`). Reads are consistent: what is decided on a row that was overwritten meanwhile
would only fail its condition.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import orjson
from botocore import xform_name
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
)

from checkpoint.codec import Attribute, text
from checkpoint.expressions import request_of
from checkpoint.faults import Place, translate
from checkpoint.lease import Item, Lease, LeaseKey
from checkpoint.lost_replies import settle
from checkpoint.reading import lease_of_item, rows_of_items
from checkpoint.store import LeaseStore, Rows
from checkpoint.table_shape import Readiness, TableSettings, creation_request, readiness
from checkpoint.writes import Conflict, DeleteRow, Done, Outcome, PutRow, Write, change_of
from ssp_common.aws_clients import create_client
from ssp_common.aws_faults import (
    BODY_ERRORS,
    MalformedAnswerError,
    Severity,
    StaleCredentialsError,
    code_of,
    severity_of,
    unreadable,
)
from ssp_common.connection import ConnectionOptions
from ssp_common.errors import ServiceUnavailableError
from ssp_common.retries import Retrier, RetryLog, RetrySettings

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")

Answer = Mapping[str, Any]

_SDK_ERRORS: Final = (BotoCoreError, ClientError, MalformedAnswerError, StaleCredentialsError)
_NEVER_SENT: Final = (ConnectTimeoutError, EndpointConnectionError)
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
        client.meta.events.register("before-parse.dynamodb", _check_body)
        self._settings = settings
        self._monotonic = monotonic
        self._sleep = sleep
        self._place = Place(
            table=settings.name,
            region=client.meta.region_name,
            endpoint=client.meta.endpoint_url,
            role_arn=role_arn,
        )
        self._log = RetryLog(monotonic)
        self._retrier = Retrier(retry, log=self._log, sleep=sleep, random=random)

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
        deadline = self._monotonic() + self._settings.wait_seconds
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
                answer = self._ask("DescribeTable", {"TableName": self._settings.name})
            except ClientError as error:
                if code_of(error) == "ResourceNotFoundException":
                    return None
                raise
            table: Mapping[str, Any] = answer["Table"]
            return table

        return self._patiently("DescribeTable", describe)

    def _create(self) -> None:
        def create() -> None:
            try:
                self._ask("CreateTable", creation_request(self._settings))
            except ClientError as error:
                # Another worker was faster, or this is the retry of one whose reply was lost.
                if code_of(error) != "ResourceInUseException":
                    raise

        self._patiently("CreateTable", create)

    def _not_ready(self, found: Readiness) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            self._place.subject,
            found=f"the table still {found} after {self._settings.wait_seconds:g} s",
            expected=f"an active table in {self._place}",
            next_step="see the table's status in DynamoDB, then start again",
        )

    # --- Rows ------------------------------------------------------------------------------------

    def scan(self) -> Rows:
        """See `LeaseStore`."""
        request: dict[str, Any] = {"TableName": self._settings.name, "ConsistentRead": True}
        items: list[Item] = []
        while True:
            answer = self._asked("Scan", request)
            items.extend(answer.get("Items", ()))
            last = answer.get("LastEvaluatedKey")
            if not last:
                return rows_of_items(items)
            request = {**request, "ExclusiveStartKey": last}

    def get(self, key: LeaseKey) -> Lease | None:
        """See `LeaseStore`."""
        return lease_of_item(self._item(key))

    def write(self, write: Write) -> Outcome:
        """See `LeaseStore`."""
        change = change_of(write)
        operation, request = request_of(self._settings.name, write.lease.key, change)

        def attempt() -> Outcome:
            try:
                answer = self._ask(operation, request)
            except ClientError as error:
                if code_of(error) != "ConditionalCheckFailedException":
                    raise
                return Conflict(found=self._found(error, write.lease.key))
            if isinstance(change, PutRow | DeleteRow):
                return Done(lease=write.lease)
            lease = lease_of_item(answer.get("Attributes"))
            if lease is None:
                raise MalformedAnswerError("an answer without the row that was written")
            return Done(lease=lease)

        return settle(
            write,
            attempt,
            retrying=lambda once: self._patiently(operation, once),
            may_have_applied=_may_have_applied,
        )

    def _found(self, error: ClientError, key: LeaseKey) -> Lease | None:
        """The row that failed the condition; where the answer has none, it is read."""
        item: Item | None = error.response.get("Item")  # type: ignore[assignment]
        return lease_of_item(item or self._item(key))

    def _item(self, key: LeaseKey) -> Item | None:
        request = {
            "TableName": self._settings.name,
            "Key": {Attribute.KEY.value: text(key)},
            "ConsistentRead": True,
        }
        return self._asked("GetItem", request).get("Item")

    # --- One call --------------------------------------------------------------------------------

    def _asked(self, operation: str, request: Mapping[str, Any]) -> Answer:
        return self._patiently(operation, lambda: self._ask(operation, request))

    def _patiently(self, operation: str, function: Callable[[], T]) -> T:
        """The result of `function`, tried again while that helps; raises our own errors alone."""
        try:
            return self._retrier.run(function, operation=operation, subject=self._place.subject)
        except _SDK_ERRORS as error:
            # Without the cause: the text of a signature error holds the session token.
            attempts = self._retrier.max_attempts
            raise translate(error, self._place, operation, attempts=attempts) from None

    def _ask(self, operation: str, request: Mapping[str, Any]) -> Answer:
        try:
            answer: Answer = getattr(self._client, xform_name(operation))(**request)
        except (BotoCoreError, ClientError):
            raise
        except BODY_ERRORS as error:
            raise unreadable(error) from None
        return answer


def _check_body(response_dict: Mapping[str, Any], **_: object) -> None:
    """botocore takes a body that is cut for one without fields: for a row, or a whole table,
    that is not there."""
    if response_dict["status_code"] < 300 and not isinstance(
        orjson.loads(response_dict["body"]), dict
    ):
        raise MalformedAnswerError("an answer that is no JSON object")


def _may_have_applied(error: Exception) -> bool:
    """Whether the service may have carried out what was answered like this."""
    return severity_of(error) is Severity.FAULT and not isinstance(error, _NEVER_SENT)


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
