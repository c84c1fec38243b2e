"""Calls to one DynamoDB table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError

from checkpoint.error_translation import TableLocation, translate
from ssp_common.aws.error_translation import MalformedAnswerError, Severity, code_of, severity_of
from ssp_common.aws.retries import Retrier
from ssp_common.aws.service_calls import ServiceCalls
from ssp_common.errors import SspError

if TYPE_CHECKING:
    from botocore.client import BaseClient

_NEVER_SENT: Final = (ConnectTimeoutError, EndpointConnectionError)


class DynamoDbCalls(ServiceCalls):
    """Calls of one client about one table. Thread-safe."""

    def __init__(
        self, client: BaseClient, table: str, retrier: Retrier, *, role_arn: str | None = None
    ) -> None:
        self.location = TableLocation(
            table=table,
            region=client.meta.region_name,
            endpoint=client.meta.endpoint_url,
            role_arn=role_arn,
        )
        super().__init__(client, retrier, subject=self.location.subject)
        self.check_bodies(client)

    @staticmethod
    def check_bodies(client: BaseClient) -> None:
        """Make the client reject truncated bodies. Repeating this has no effect."""
        client.meta.events.register(
            "before-parse.dynamodb", _check_body, unique_id="spark-ssp-check-body"
        )

    def close(self) -> None:
        """Release the connections of the client."""
        self._client.close()

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


def has_code(error: ClientError, code: str) -> bool:
    """Return whether the error has this API error code."""
    return code_of(error) == code


def may_have_applied(error: Exception) -> bool:
    """Return whether the service may have applied the request that failed with this error."""
    return severity_of(error) is Severity.FAULT and not isinstance(error, _NEVER_SENT)
