"""Calls to one DynamoDB table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import orjson
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError

from spark_ssp.checkpoint.error_translation import TableLocation, translate
from spark_ssp.common.aws.botocore_bypass import DirectCalls
from spark_ssp.common.aws.error_translation import (
    MalformedAnswerError,
    Severity,
    code_of,
    severity_of,
)
from spark_ssp.common.aws.retries import Retrier
from spark_ssp.common.aws.service_calls import Answer, ServiceCalls, readable
from spark_ssp.common.errors import SspError

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")

_NEVER_SENT: Final = (ConnectTimeoutError, EndpointConnectionError)


class DynamoDbCalls(ServiceCalls):
    """Calls of one client about one table. Thread-safe.

    `direct` makes those that it can without botocore.
    """

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
        self.check_bodies(client)
        self._direct = direct

    @staticmethod
    def check_bodies(client: BaseClient) -> None:
        """Make the client reject truncated bodies. Repeating this has no effect."""
        client.meta.events.register(
            "before-parse.dynamodb", _check_body, unique_id="spark-ssp-check-body"
        )

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


def _check_body(response_dict: Mapping[str, Any], **_: object) -> None:
    """Raise MalformedAnswerError for a truncated body.

    botocore parses it as an answer without fields, which means a missing row or an empty table.
    """
    if response_dict["status_code"] < 300 and not isinstance(
        orjson.loads(response_dict["body"]), dict
    ):
        raise MalformedAnswerError("an answer that is not a JSON object")


_Item = dict[str, dict[str, str | list[str] | bool]]
"""A row whose values have the same form in JSON as in botocore's answers."""
_TYPES: Final = frozenset({"S", "N", "SS", "NS", "BOOL", "NULL"})
"""The types of such values: binary ones are bytes in botocore's answers."""


class _Updated(msgspec.Struct):
    Attributes: _Item


class _Scanned(msgspec.Struct):
    Items: list[_Item]
    LastEvaluatedKey: _Item | None = None


_UPDATED: Final = msgspec.json.Decoder(_Updated)
_SCANNED: Final = msgspec.json.Decoder(_Scanned)


def _decode_update(body: bytes) -> Answer | None:
    answer = _decoded(_UPDATED, body)
    if answer is None:
        return None
    return {"Attributes": answer.Attributes} if _are_plain([answer.Attributes]) else None


def _decode_scan(body: bytes) -> Answer | None:
    answer = _decoded(_SCANNED, body)
    if answer is None or not _are_plain(answer.Items):
        return None
    return {"Items": answer.Items, "LastEvaluatedKey": answer.LastEvaluatedKey}


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T | None:
    """Return an answer, or None to leave it to botocore. Raises as botocore's hook does."""
    try:
        return decoder.decode(body)
    except ValueError:
        _check_body({"status_code": 200, "body": body})
        return None


def _are_plain(items: list[_Item]) -> bool:
    return all(value.keys() <= _TYPES for item in items for value in item.values())


DECODERS: Final = {"Scan": _decode_scan, "UpdateItem": _decode_update}
"""The decoders of frequent calls, for `common.aws.botocore_bypass`: None leaves an answer to
botocore."""


def has_code(error: ClientError, code: str) -> bool:
    """Return whether the error has this API error code."""
    return code_of(error) == code


def may_have_applied(error: Exception) -> bool:
    """Return whether the service may have applied the request that failed with this error."""
    return severity_of(error) is Severity.FAULT and not isinstance(error, _NEVER_SENT)
