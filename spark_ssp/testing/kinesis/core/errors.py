"""The service's error answers, by their names in the Kinesis API reference."""

from __future__ import annotations


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
    """No answer is sent: after `delay_ms` the connection is dropped.

    `applied` is true if the operation was carried out before its answer was lost.
    """

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


def access_denied(message: str) -> KinesisError:
    return KinesisError("AccessDeniedException", message)


def expired_iterator(message: str) -> KinesisError:
    return KinesisError("ExpiredIteratorException", message)


def expired_next_token(message: str) -> KinesisError:
    return KinesisError("ExpiredNextTokenException", message)


def internal_failure(message: str, status: int = 500) -> KinesisError:
    return KinesisError("InternalFailure", message, status=status)


def invalid_argument(message: str) -> KinesisError:
    return KinesisError("InvalidArgumentException", message)


def limit_exceeded(message: str) -> KinesisError:
    return KinesisError("LimitExceededException", message)


def not_found(message: str) -> KinesisError:
    return KinesisError("ResourceNotFoundException", message)


def in_use(message: str) -> KinesisError:
    return KinesisError("ResourceInUseException", message)


def throughput_exceeded(message: str) -> KinesisError:
    return KinesisError("ProvisionedThroughputExceededException", message)


def validation(message: str) -> KinesisError:
    return KinesisError("ValidationException", message)


def dry_run() -> KinesisError:
    """Return the answer to a request with DryRun that would have succeeded."""
    return KinesisError(
        "DryRunOperationException",
        "The request was rejected because the DryRun parameter was specified.",
    )


def unknown_operation(message: str) -> KinesisError:
    return KinesisError("UnknownOperationException", message)


def serialization(message: str) -> KinesisError:
    return KinesisError("SerializationException", message)
