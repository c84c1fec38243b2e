"""The service's error answers, by their names in the Kinesis API reference."""

from __future__ import annotations

from functools import partial
from typing import Final


class KinesisError(Exception):
    """An error answer: `code` is the exception's name in the API, `status` the HTTP status."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(code, message, status)
        self.code = code
        self.message = message
        self.status = status

    def __str__(self) -> str:
        return f"{self.code} ({self.status}): {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.code, self.message, self.status))


def _rebuild(code: str, message: str, status: int) -> KinesisError:
    return KinesisError(code, message, status=status)


class NoAnswer(Exception):
    """No answer is sent: after `delay_ms` the connection is dropped. `applied` is true if the
    operation was carried out before its answer was lost."""

    def __init__(self, *, delay_ms: int, applied: bool) -> None:
        super().__init__(delay_ms, applied)
        self.delay_ms = delay_ms
        self.applied = applied

    def __str__(self) -> str:
        what = "applied, answer lost" if self.applied else "not applied"
        return f"no answer ({what}; connection dropped after {self.delay_ms} ms)"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_no_answer, (self.delay_ms, self.applied))


def _rebuild_no_answer(delay_ms: int, applied: bool) -> NoAnswer:
    return NoAnswer(delay_ms=delay_ms, applied=applied)


access_denied: Final = partial(KinesisError, "AccessDeniedException")
expired_iterator: Final = partial(KinesisError, "ExpiredIteratorException")
expired_next_token: Final = partial(KinesisError, "ExpiredNextTokenException")
in_use: Final = partial(KinesisError, "ResourceInUseException")
internal_failure: Final = partial(KinesisError, "InternalFailure")
invalid_argument: Final = partial(KinesisError, "InvalidArgumentException")
limit_exceeded: Final = partial(KinesisError, "LimitExceededException")
not_found: Final = partial(KinesisError, "ResourceNotFoundException")
serialization: Final = partial(KinesisError, "SerializationException")
throughput_exceeded: Final = partial(KinesisError, "ProvisionedThroughputExceededException")
unknown_operation: Final = partial(KinesisError, "UnknownOperationException")
validation: Final = partial(KinesisError, "ValidationException")


def dry_run() -> KinesisError:
    """Return the answer to a request with DryRun that would have succeeded."""
    return KinesisError(
        "DryRunOperationException",
        "The request was rejected because the DryRun parameter was specified.",
    )
