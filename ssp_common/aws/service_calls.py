"""Calls an AWS service through one client, with retries, and raises only this project's errors.

botocore's own retries must be off in the client, so that an attempt whose outcome is unknown is
seen as such.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from ssp_common.aws.error_translation import (
    BODY_ERRORS,
    MalformedAnswerError,
    StaleCredentialsError,
    unreadable,
)
from ssp_common.aws.retries import Retrier
from ssp_common.errors import SspError

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")

Answer = Mapping[str, Any]

_SDK_ERRORS: Final = (BotoCoreError, ClientError, MalformedAnswerError, StaleCredentialsError)


class ServiceCalls(ABC):
    """Calls of one client about one subject. Thread-safe."""

    def __init__(self, client: BaseClient, retrier: Retrier, *, subject: str) -> None:
        self._client = client
        self._retrier = retrier
        self._subject = subject

    @abstractmethod
    def _translated(self, error: Exception, operation: str) -> SspError:
        """Return the error that users get for an error of the SDK."""

    def once(self, operation: str, request: Mapping[str, Any]) -> Answer:
        """One attempt. Raises the SDK's errors."""
        return readable(lambda: getattr(self._client, xform_name(operation))(**request))

    def ask(self, operation: str, request: Mapping[str, Any]) -> Answer:
        """The answer. Raises SspError."""
        return self.patiently(operation, lambda: self.once(operation, request))

    def patiently(self, operation: str, function: Callable[[], T]) -> T:
        """The result of `function`, tried again while that helps. Raises SspError."""
        try:
            return self._retrier.run(function, operation=operation, subject=self._subject)
        except _SDK_ERRORS as error:
            # Without the cause: the text of a signature error holds the session token.
            raise self._translated(error, operation) from None


def readable(read: Callable[[], T]) -> T:
    """Return the result of `read`. Raises the SDK's errors, also for malformed answers."""
    try:
        return read()
    except (BotoCoreError, ClientError):
        raise
    except BODY_ERRORS as error:
        raise unreadable(error) from None
