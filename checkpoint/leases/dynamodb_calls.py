"""Calls to one DynamoDB table, and the project's errors for those that fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError

from spark_ssp.checkpoint.leases.lease import LeaseTableError
from spark_ssp.common.aws.botocore_bypass import DirectCalls
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.error_translation import (
    DeniedCall,
    Severity,
    access_error,
    code_of,
    quoted,
    safe_text,
    severity_of,
)
from spark_ssp.common.aws.service_calls import (
    Answer,
    Retrier,
    ServiceCalls,
    check_body,
    readable,
    reject_cut_bodies,
)
from spark_ssp.common.errors import InvalidRequestError, ServiceUnavailableError, SspError
from spark_ssp.common.options.endpoints import ConnectionOptions

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")

_NEVER_SENT: Final = (ConnectTimeoutError, EndpointConnectionError)


class DynamoDbCalls(ServiceCalls):
    """Calls of one client about one table. Thread-safe. `direct` makes those that it can without
    botocore."""

    def __init__(
        self,
        client: BaseClient,
        table: str,
        retrier: Retrier,
        *,
        role_arn: str | None = None,
        role_option: str = "roleArn",
        direct: DirectCalls | None = None,
    ) -> None:
        self.location = TableLocation(
            table=table,
            region=client.meta.region_name,
            endpoint=client.meta.endpoint_url,
            role_arn=role_arn,
            role_option=role_option,
        )
        super().__init__(client, retrier, subject=self.location.subject)
        reject_cut_bodies(client)
        self._direct = direct

    def once(self, operation: str, request: Mapping[str, Any]) -> Answer:
        """One attempt. Raises the SDK's errors."""
        direct = self._direct
        if direct is not None:
            answer = readable(lambda: direct.call(operation, request))
            if answer is not None:
                return answer
        return super().once(operation, request)

    def close(self) -> None:
        """Release the connections of the client."""
        self._client.close()
        if self._direct is not None:
            self._direct.forget()

    def _translated(self, error: Exception, operation: str) -> SspError:
        return translate(error, self.location, operation, attempts=self._retrier.max_attempts)


_Item = dict[str, dict[str, str | list[str] | bool]]
"""A row whose values have the same form in JSON as in botocore's answers."""
_TYPES: Final = frozenset({"S", "N", "SS", "NS", "BOOL", "NULL"})
"""The types of such values: binary ones are bytes in botocore's answers."""
_OTHER_TYPES: Final = (b'"B"', b'"BS"', b'"L"', b'"M"')


class _Updated(msgspec.Struct):
    Attributes: _Item


class _Scanned(msgspec.Struct):
    Items: list[_Item]
    LastEvaluatedKey: _Item | None = None


class _StatementError(msgspec.Struct):
    Code: str
    Item: _Item | None = None


class _Stated(msgspec.Struct):
    Error: _StatementError | None = None


class _Batch(msgspec.Struct):
    Responses: list[_Stated]


_UPDATED: Final = msgspec.json.Decoder(_Updated)
_SCANNED: Final = msgspec.json.Decoder(_Scanned)
_BATCH: Final = msgspec.json.Decoder(_Batch)


def _decode_put(body: bytes) -> Answer:
    check_body({"status_code": 200, "body": body})
    return {}


def _decode_update(body: bytes) -> Answer | None:
    answer = _decoded(_UPDATED, body)
    if answer is None:
        return None
    return {"Attributes": answer.Attributes} if _are_plain([answer.Attributes]) else None


def _decode_scan(body: bytes) -> Answer | None:
    answer = _decoded(_SCANNED, body)
    if answer is None or not (_names_plain_types(body) or _are_plain(answer.Items)):
        return None
    return {"Items": answer.Items, "LastEvaluatedKey": answer.LastEvaluatedKey}


def _decode_batch(body: bytes) -> Answer | None:
    answer = _decoded(_BATCH, body)
    if answer is None:
        return None
    errors = [stated.Error for stated in answer.Responses]
    if not _are_plain([error.Item for error in errors if error is not None and error.Item]):
        return None
    return {
        "Responses": [
            {} if error is None else {"Error": {"Code": error.Code, "Item": error.Item}}
            for error in errors
        ]
    }


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T | None:
    """Return an answer, or None to leave it to botocore. Raises as botocore's hook does."""
    try:
        return decoder.decode(body)
    except ValueError:
        check_body({"status_code": 200, "body": body})
        return None


def _names_plain_types(body: bytes) -> bool:
    """Return whether no other type can be in a body: a fast check of thousands of rows."""
    return not any(name in body for name in _OTHER_TYPES)


def _are_plain(items: list[_Item]) -> bool:
    return all(value.keys() <= _TYPES for item in items for value in item.values())


DECODERS: Final = {
    "BatchExecuteStatement": _decode_batch,
    "PutItem": _decode_put,
    "Scan": _decode_scan,
    "UpdateItem": _decode_update,
}
"""The decoders of frequent calls, for `common.aws.botocore_bypass`: None leaves an answer to
botocore."""


def connect_calls(connection: ConnectionOptions) -> Callable[[str, Retrier], DynamoDbCalls]:
    """Return a function that returns the calls about a table: all by one client, which the first
    `close` of any closes. DynamoDB is not called yet."""
    client = create_client("dynamodb", connection, endpoint_option="dynamodbEndpointUrl")
    direct = DirectCalls(client, DECODERS)

    def calls(table: str, retrier: Retrier) -> DynamoDbCalls:
        return DynamoDbCalls(
            client,
            table,
            retrier,
            role_arn=connection.role_arn,
            role_option=connection.role_option,
            direct=direct,
        )

    return calls


def has_code(error: ClientError, code: str) -> bool:
    """Return whether the error has this API error code."""
    return code_of(error) == code


def may_have_applied(error: Exception) -> bool:
    """Return whether the service may have applied the request that failed with this error."""
    return severity_of(error) is Severity.FAULT and not isinstance(error, _NEVER_SENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """A table, its region and its endpoint."""

    table: str
    region: str
    endpoint: str
    role_arn: str | None = None
    role_option: str = "roleArn"

    @property
    def subject(self) -> str:
        """The subject of errors about this table."""
        return f"lease table {self.table}"

    def __str__(self) -> str:
        return f"region {self.region} at {safe_text(self.endpoint)}"


def translate(
    error: Exception, location: TableLocation, operation: str, *, attempts: int
) -> SspError:
    """Return the error to raise when a call has failed for good, after `attempts` attempts."""
    access = access_error(
        error,
        DeniedCall(
            subject=location.subject,
            service="dynamodb",
            operation=operation,
            resource=f"the table {location.table}",
            place=str(location),
            role_arn=location.role_arn,
            role_option=location.role_option,
        ),
    )
    if access is not None:
        return access
    if severity_of(error) is not Severity.PERMANENT:
        return ServiceUnavailableError(
            location.subject,
            found=f"{quoted(error)} on {operation}, {attempts} times",
            expected=f"an answer from {location}",
            next_step=_retry_advice(severity_of(error), operation),
        )
    if code_of(error) == "ResourceNotFoundException":
        return LeaseTableError(
            location.subject,
            found=f"no such table on {operation} in {location}",
            expected="the table that existed at the start",
            next_step="restore it from a backup, or start the query again, which creates it: "
            "shards in the query's checkpoint continue there, others begin at TRIM_HORIZON",
        )
    return InvalidRequestError(
        location.subject,
        found=f"{quoted(error)} on {operation}",
        expected=f"a request that {location} accepts",
        next_step="check applicationName, leaseTable, region and dynamodbEndpointUrl",
    )


_OF_THE_ACCOUNT: Final = frozenset({"CreateTable", "DescribeTable"})
"""Operations whose limits are the account's and not those of the table's capacity."""


def _retry_advice(severity: Severity, operation: str) -> str:
    if severity is Severity.THROTTLE and operation in _OF_THE_ACCOUNT:
        return (
            "start the query again later, or raise the account's DynamoDB quotas, such as that of "
            "the number of tables; retry.maxAttempts and retry.maxBackoff limit the retries"
        )
    if severity is Severity.THROTTLE:
        return (
            "raise the table's capacity or set it to on demand; retry.maxAttempts and "
            "retry.maxBackoff limit the retries"
        )
    return (
        "check dynamodbEndpointUrl, region and the network, or wait for the service; "
        "retry.maxAttempts and retry.maxBackoff limit the retries"
    )
