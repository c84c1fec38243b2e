"""Calls an AWS service through one client, with retries, and raises only this project's errors.

botocore's own retries must be off in the client, so that an attempt whose outcome is unknown is
seen as such. A retry that succeeds is not an error, but it must not go unseen: each is counted, and
a warning with the count is logged at most once per period and kind.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
import tenacity
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from spark_ssp.common.aws import error_translation as aws_faults
from spark_ssp.common.aws.error_translation import (
    BODY_ERRORS,
    MalformedAnswerError,
    Severity,
    StaleCredentialsError,
    code_of,
    unreadable,
)
from spark_ssp.common.aws.provided_credentials import LOOK_PERIOD_S, renew_refused
from spark_ssp.common.errors import SspError
from spark_ssp.common.logs import Detail
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.times import seconds_text

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")

Answer = Mapping[str, Any]

_SDK_ERRORS: Final = (BotoCoreError, ClientError, MalformedAnswerError, StaleCredentialsError)

_WOULD_SUCCEED: Final = "DryRunOperationException"
"""The error of a call with `DryRun` that would have succeeded."""


_log = logging.getLogger(__name__)


_FAULT_BASE: Final = 0.2
_THROTTLE_BASE: Final = 0.5
"""Seconds. Throttling gets longer: after a full 10 MB answer a shard refuses for up to five
seconds (Kinesis API reference, GetRecords), which the first few waits must outlast."""

_WARNING_PERIOD: Final = 30.0
_MAX_RENEWALS: Final = 3
"""The number of times that a call is repeated with other keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """The number of attempts (1 or more) and the longest backoff, in seconds."""

    max_attempts: int
    max_backoff: float


def retry_settings(connection: ConnectionOptions) -> RetrySettings:
    """Return those of the options `retry.maxAttempts` and `retry.maxBackoff`."""
    return RetrySettings(
        max_attempts=connection.retry_max_attempts,
        max_backoff=connection.retry_max_backoff_ms / 1000,
    )


def longest_call_s(connection: ConnectionOptions) -> float:
    """Return the time in which a call with all its attempts has failed, if no answer arrives in
    parts."""
    attempts = connection.retry_max_attempts
    attempt_ms = connection.connect_timeout_ms + connection.read_timeout_ms
    return (attempts * attempt_ms + (attempts - 1) * connection.retry_max_backoff_ms) / 1000


def backoff(settings: RetrySettings, severity: Severity, attempt: int, draw: float) -> float:
    """Seconds to wait after attempt `attempt` (from 1): exponential, with full jitter. `draw` is
    uniform in [0, 1). Full jitter spreads many clients that were refused at once."""
    base = _THROTTLE_BASE if severity is Severity.THROTTLE else _FAULT_BASE
    longest: float = min(settings.max_backoff, base * 2.0 ** min(attempt - 1, 32))
    return draw * longest


class RetryLog:
    """Counts retries by operation and error code, and warns of each kind now and then."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._warned: dict[tuple[str, str], tuple[float, int]] = {}

    def counts(self) -> Mapping[tuple[str, str], int]:
        """All retries so far, by (operation, code)."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def note(self, operation: str, subject: str, error: Exception, wait: float) -> None:
        """One attempt has failed and another will follow after `wait` seconds."""
        kind = (operation, code_of(error))
        now = self._monotonic()
        with self._lock:
            self._counts[kind] += 1
            count = self._counts[kind]
            last, reported = self._warned.get(kind, (0.0, 0))
            if now - last < _WARNING_PERIOD and reported:
                return
            self._warned[kind] = (now, count)
        more = count - reported - 1
        _log.warning(
            "%s on %s (%s): trying again in %s%s",
            *(kind[1], operation, subject, seconds_text(wait)),
            Detail(f"; {more} more such retries since the last warning" if more else ""),
        )


class Retrier:
    """Runs a function until it succeeds, fails for good, or the attempts are used up."""

    def __init__(
        self,
        settings: RetrySettings,
        *,
        log: RetryLog | None = None,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random.random,
        severity_of: Callable[[Exception], Severity] = aws_faults.severity_of,
    ) -> None:
        """`severity_of` classifies exceptions as transient or permanent."""
        self._settings = settings
        self._log = log or RetryLog()
        self._sleep = sleep
        self._random = random
        self._severity_of = severity_of

    @property
    def max_attempts(self) -> int:
        """The number of attempts for a transient fault."""
        return self._settings.max_attempts

    def run(
        self,
        function: Callable[[], T],
        *,
        operation: str,
        subject: str,
        outlast_throttling: bool = False,
        within: float | None = None,
        client: BaseClient | None = None,
    ) -> T:
        """Return the result of `function`; raises its last exception.

        With `outlast_throttling`, throttling is waited out, and only faults in a row use up the
        attempts. No attempt follows after pauses of `within` seconds in all. A call of
        `client` whose keys are refused is repeated with others, if there are any.
        """
        failed = renewals = 0

        def passes(error: BaseException) -> bool:
            nonlocal renewals
            if not isinstance(error, Exception):
                return False
            if self._severity_of(error) is not Severity.PERMANENT:
                return True
            renewals += 1
            return client is not None and renewals <= _MAX_RENEWALS and renew_refused(client, error)

        def is_last(state: tenacity.RetryCallState) -> bool:
            nonlocal failed
            severity = self._severity_of(_error_of(state))
            failed += 1
            if outlast_throttling and severity is Severity.THROTTLE:
                failed = 0
            is_late = within is not None and state.idle_for >= within
            return is_late or failed >= self._settings.max_attempts

        retrying = tenacity.Retrying(
            stop=is_last,
            wait=self._wait,
            retry=tenacity.retry_if_exception(passes),
            before_sleep=lambda state: self._log.note(
                operation, subject, _error_of(state), state.upcoming_sleep
            ),
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(function)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        severity = self._severity_of(_error_of(state))
        wait = backoff(self._settings, severity, state.attempt_number, self._random())
        if severity is not Severity.PERMANENT:
            return wait
        # A second refusal then loads the keys again, if the longest pause allows it.
        return min(wait + LOOK_PERIOD_S, self._settings.max_backoff)


def _error_of(state: tenacity.RetryCallState) -> Exception:
    error = None if state.outcome is None else state.outcome.exception()
    if not isinstance(error, Exception):
        raise TypeError("a wait is only asked for after an exception")
    return error


# --- Calls ---------------------------------------------------------------------------------------


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
            return self._retrier.run(
                function, operation=operation, subject=self._subject, client=self._client
            )
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


# --- Tables of DynamoDB --------------------------------------------------------------------------


def describe_table(calls: ServiceCalls, name: str) -> Answer | None:
    """Return the description of a table; None if there is none. Raises SspError."""

    def describe() -> Answer | None:
        try:
            table: Answer = calls.once("DescribeTable", {"TableName": name})["Table"]
        except ClientError as error:
            if code_of(error) != "ResourceNotFoundException":
                raise
            return None
        return table

    return calls.patiently("DescribeTable", describe)


def create_table(calls: ServiceCalls, request: Mapping[str, Any]) -> None:
    """Create a table, unless another process was faster. Raises SspError."""

    def create() -> None:
        try:
            calls.once("CreateTable", request)
        except ClientError as error:
            # It exists, or this is the retry of a call whose reply was lost.
            if code_of(error) != "ResourceInUseException":
                raise

    calls.patiently("CreateTable", create)


def reject_cut_bodies(client: BaseClient) -> None:
    """Make a client of DynamoDB reject truncated bodies. Repeating this has no effect."""
    client.meta.events.register(
        "before-parse.dynamodb", check_body, unique_id="spark-ssp-check-body"
    )


def check_body(response_dict: Mapping[str, Any], **_: object) -> None:
    """Raise MalformedAnswerError for a truncated body. botocore parses it as an answer without
    fields, which means a missing row or an empty table."""
    if response_dict["status_code"] < 300 and not isinstance(
        orjson.loads(response_dict["body"]), dict
    ):
        raise MalformedAnswerError("an answer that is not a JSON object")
