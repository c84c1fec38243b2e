"""Calls an AWS service through one client, with retries, and raises only this project's errors.

botocore's own retries must be off in the client, so that an attempt whose outcome is unknown is
seen as such.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from spark_ssp.common.aws.error_translation import (
    BODY_ERRORS,
    MalformedAnswerError,
    StaleCredentialsError,
    code_of,
    unreadable,
)
from spark_ssp.common.aws.retries import Retrier
from spark_ssp.common.errors import SspError

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")

Answer = Mapping[str, Any]

_SDK_ERRORS: Final = (BotoCoreError, ClientError, MalformedAnswerError, StaleCredentialsError)

_WOULD_SUCCEED: Final = "DryRunOperationException"
"""The error of a call with `DryRun` that would have succeeded."""


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

    def dry_run(
        self, operation: str, request: Mapping[str, Any], *, permitted: Collection[str] = ()
    ) -> bool:
        """Call with `DryRun`: nothing is carried out. Return False, without a call, if this version
        of botocore lacks it for the operation. `permitted`: codes of errors that a permitted call
        may have. Raises SspError if the call would fail."""
        shape = self._client.meta.service_model.operation_model(operation).input_shape
        if shape is None or "DryRun" not in shape.members:
            return False

        def attempt() -> None:
            try:
                self.once(operation, {**request, "DryRun": True})
            except ClientError as error:
                if code_of(error) not in (_WOULD_SUCCEED, *permitted):
                    raise

        self.patiently(operation, attempt)
        return True

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
