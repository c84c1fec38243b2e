"""Translates exceptions of the SDK into this project's errors, by how they can be handled.

The texts name the call, the stream, the region and the endpoint. A message of the service is quoted
only if it cannot contain secrets: one about a wrong signature repeats the signed headers, and with
them the session token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_ssp.common.aws import error_translation as aws_errors
from spark_ssp.common.aws.error_translation import (
    DeniedCall,
    Severity,
    code_of,
    message_of,
    operation_of,
    quoted,
    safe_text,
)
from spark_ssp.common.errors import (
    NEW_CHECKPOINT,
    InvalidRequestError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    InvalidPositionError,
    ShardNotFoundError,
    StreamInUseError,
    ThrottledError,
    UnreachableError,
)
from spark_ssp.kinesis_source.model.shard import AfterRecord, AtTimestamp, Position

_REFUSALS: Final = frozenset({"InvalidArgumentException", "ValidationException"})


class NotReadyError(Exception):
    """The stream exists and is not usable yet; the text is its status. Temporary."""


class ExpiredTokenError(InvalidRequestError):
    """The listing that a `NextToken` continues has expired: restart it."""


class FutureTimeError(InvalidRequestError):
    """The service refused a timestamp as in the future: its clock is behind the estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One call, as described in error texts. `operation` is the API's name."""

    operation: str
    stream: StreamName | None = None
    shard: ShardId | None = None
    position: Position | None = None
    region: str
    endpoint: str
    role_arn: str | None = None

    @property
    def subject(self) -> str:
        """The stream or shard of the call, for error texts."""
        if self.stream is None:
            return f"Kinesis in {self.region}"
        return f"stream {self.stream}" + (f", shard {self.shard}" if self.shard else "")

    @property
    def place(self) -> str:
        """The service that was called, for error texts."""
        return f"region {self.region} at {safe_text(self.endpoint)}"

    @property
    def denied_call(self) -> DeniedCall:
        """The call, as described in errors about access."""
        return DeniedCall(
            subject=self.subject,
            service="kinesis",
            operation=self.operation,
            resource="the stream",
            place=self.place,
            role_arn=self.role_arn,
            key_permission="kms:GenerateDataKey" if self.sends_records else "kms:Decrypt",
        )

    @property
    def sends_records(self) -> bool:
        """True if the request contains record data, which a refusal of the service may quote."""
        return self.operation == "PutRecords"


def severity_of(error: Exception) -> Severity:
    """Return whether a retry can help, and how to pause before it."""
    if isinstance(error, NotReadyError):
        return Severity.FAULT
    if _is_taken(error):
        return Severity.PERMANENT
    return aws_errors.severity_of(error)


def single_try_error(error: Exception, call: ApiCall) -> ThrottledError:
    """Return the error of a call without retries that met throttling or a transient fault."""
    kind = ThrottledError if severity_of(error) is Severity.THROTTLE else UnreachableError
    single = kind(
        call.subject,
        found=f"{quoted(error)} on a single {call.operation}",
        expected=f"an answer from {call.place}",
        next_step="none: the call is repeated",
    )
    single.code = code_of(error)
    return single


def translate(error: Exception, call: ApiCall, *, attempts: int) -> SspError:
    """Return this project's error for the last error of `call`, after `attempts` tries."""
    access = aws_errors.access_error(error, call.denied_call)
    if access is not None:
        return access
    if severity_of(error) is not Severity.PERMANENT:
        return ServiceUnavailableError(
            call.subject,
            found=f"{quoted(error)} on {call.operation}, {attempts} times",
            expected=f"an answer from {call.place}",
            next_step="check endpointUrl, region and the network, or wait for the service to "
            "recover; raise retry.maxAttempts and retry.maxBackoff to repeat calls for longer, "
            "connectTimeout and readTimeout to wait longer for an answer",
        )
    code = code_of(error)
    if _is_taken(error):
        return StreamInUseError(
            call.subject,
            found=f"{quoted(error)} on {call.operation} in {call.place}",
            expected="no stream of that name",
            next_step="use the existing stream, or choose another name",
        )
    if code == "ResourceNotFoundException":
        return _not_found(error, call)
    if code == "ExpiredIteratorException" or _is_refused_iterator(error, call):
        return ExpiredIteratorError(
            call.subject,
            found=f"{code} on {call.operation}",
            expected="an iterator younger than five minutes",
            next_step="open another iterator at the same position",
        )
    if code in _REFUSALS and isinstance(call.position, AfterRecord) and _says(error, "sequence"):
        return _invalid_position(error, call)
    kind = InvalidRequestError
    if code == "ExpiredNextTokenException":
        kind = ExpiredTokenError
    elif code in _REFUSALS and isinstance(call.position, AtTimestamp) and _says(error, "timestamp"):
        kind = FutureTimeError
    if call.sends_records:
        return kind(
            call.subject,
            found=f"{code} on {call.operation}",
            expected=f"records that {call.place} accepts",
            next_step="if the MaxRecordSizeInKiB of the stream was lowered since the batch began, "
            "or in the minute before, write again with smaller records; else make the stream's "
            "name, region and endpointUrl name one stream of one service",
        )
    return kind(
        call.subject,
        found=f"{quoted(error)} on {call.operation}",
        expected=f"a request that {call.place} accepts",
        next_step="make streamName, streamARN, region and endpointUrl name one stream of one "
        "service",
    )


def stream_not_found(call: ApiCall, found: str) -> StreamNotFoundError:
    """Return the error for a stream that does not exist, or no longer."""
    return StreamNotFoundError(
        f"stream {call.stream}",
        found=f"{found} in {call.place}",
        expected="an existing stream",
        next_step="check streamName or streamARN, region and endpointUrl",
    )


def shard_not_found(call: ApiCall, found: str) -> ShardNotFoundError:
    """Return the error for a shard that does not exist in an existing stream."""
    return ShardNotFoundError(
        f"stream {call.stream}, shard {call.shard}",
        found=f"{found} in {call.place}",
        expected="a shard that ListShards names",
        next_step="set failOnDataLoss=false to continue without the shard's records, which have "
        f"passed the stream's retention; if the stream was recreated, start with {NEW_CHECKPOINT}",
    )


def _not_found(error: Exception, call: ApiCall) -> SspError:
    # One emulator returns this for a record that it does not have; the service never does.
    if isinstance(call.position, AfterRecord) and _says(error, "sequencenumber"):
        return _invalid_position(error, call)
    found = f"{quoted(error)} on {call.operation}"
    if call.shard is not None and _says(error, call.shard):
        return shard_not_found(call, found)
    return stream_not_found(call, found)


def _invalid_position(error: Exception, call: ApiCall) -> InvalidPositionError:
    return InvalidPositionError(
        call.subject,
        found=f"{quoted(error)} on {call.operation}",
        expected="a sequence number of this shard",
        next_step="use the number of a record of this shard: a sequence number belongs to one "
        "shard of one stream",
    )


def _is_refused_iterator(error: Exception, call: ApiCall) -> bool:
    refused = code_of(error) in _REFUSALS and call.operation == "GetRecords"
    return refused and _says(error, "iterator")


def _is_taken(error: Exception) -> bool:
    """Return whether the name of a new stream is taken. From other calls the same code means that
    the stream is not ready yet (API reference, CreateStream)."""
    return operation_of(error) == "CreateStream" and code_of(error) == "ResourceInUseException"


def _says(error: Exception, word: str) -> bool:
    return word.lower() in message_of(error).lower()
