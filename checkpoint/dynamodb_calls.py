"""One call to DynamoDB, tried again while that helps, with this project's errors alone.

botocore's own retries must be off in the client, so that an attempt whose outcome is unknown is
seen as such (see `lost_replies.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from botocore import xform_name
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
)

from checkpoint.faults import Place, translate
from ssp_common.aws_faults import (
    BODY_ERRORS,
    MalformedAnswerError,
    Severity,
    StaleCredentialsError,
    code_of,
    severity_of,
    unreadable,
)
from ssp_common.retries import Retrier

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")

Answer = Mapping[str, Any]

_SDK_ERRORS: Final = (BotoCoreError, ClientError, MalformedAnswerError, StaleCredentialsError)
_NEVER_SENT: Final = (ConnectTimeoutError, EndpointConnectionError)


class DynamoDbCalls:
    """Calls of one client about one table. Thread-safe."""

    def __init__(self, client: BaseClient, place: Place, retrier: Retrier) -> None:
        self._client = client
        self._place = place
        self._retrier = retrier

    @staticmethod
    def check_bodies(client: BaseClient) -> None:
        """Let the client refuse bodies that were cut. Once for each client."""
        client.meta.events.register("before-parse.dynamodb", _check_body)

    def once(self, operation: str, request: Mapping[str, Any]) -> Answer:
        """One attempt. Raises the SDK's errors."""
        try:
            answer: Answer = getattr(self._client, xform_name(operation))(**request)
        except (BotoCoreError, ClientError):
            raise
        except BODY_ERRORS as error:
            raise unreadable(error) from None
        return answer

    def ask(self, operation: str, request: Mapping[str, Any]) -> Answer:
        """The answer. Raises SspError."""
        return self.patiently(operation, lambda: self.once(operation, request))

    def patiently(self, operation: str, function: Callable[[], T]) -> T:
        """The result of `function`, tried again while that helps. Raises SspError."""
        try:
            return self._retrier.run(function, operation=operation, subject=self._place.subject)
        except _SDK_ERRORS as error:
            # Without the cause: the text of a signature error holds the session token.
            attempts = self._retrier.max_attempts
            raise translate(error, self._place, operation, attempts=attempts) from None


def _check_body(response_dict: Mapping[str, Any], **_: object) -> None:
    """botocore takes a body that is cut for one without fields: for a row, or a whole table,
    that is not there."""
    if response_dict["status_code"] < 300 and not isinstance(
        orjson.loads(response_dict["body"]), dict
    ):
        raise MalformedAnswerError("an answer that is no JSON object")


def is_code(error: ClientError, code: str) -> bool:
    """Whether this is the API's error of that name."""
    return code_of(error) == code


def may_have_applied(error: Exception) -> bool:
    """Whether the service may have carried out what was answered like this."""
    return severity_of(error) is Severity.FAULT and not isinstance(error, _NEVER_SENT)
