"""What the SDK raises, sorted by what to do about it and put into this project's errors.

Pure: functions of the exception and of the call that met it. The texts name the call, the stream,
the region and the endpoint. A message of the service is quoted only where it cannot hold secrets:
one about a wrong signature repeats the signed headers, and with them the session token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import botocore.exceptions as sdk

from kinesis_source.model import AfterRecord, AtTimestamp, Position
from kinesis_source.service import (
    ExpiredIteratorError,
    InvalidPositionError,
    ShardNotFoundError,
    ThrottledError,
    UnreachableError,
)
from kinesis_source.wire import MalformedAnswerError
from ssp_common.errors import (
    AccessError,
    InvalidRequestError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from task_grouping.identifiers import ShardId, StreamName

_THROTTLES: Final = frozenset(
    {
        "429",
        "BandwidthLimitExceeded",
        "KMSThrottlingException",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_FAULTS: Final = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalFailureException",
        "InternalServerError",
        "RequestTimeout",
        "RequestTimeoutException",
        "ResourceInUseException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
    }
)
"""`ResourceInUseException`: ListShards of a stream that is not active yet (API reference)."""

_DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException", "NotAuthorized"})
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_UNKNOWN_KEYS: Final = frozenset(
    {
        "401",
        "403",
        "AuthFailure",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "SubscriptionRequiredException",
        "UnrecognizedClientException",
    }
)
_KMS: Final = frozenset(
    {
        "KMSAccessDeniedException",
        "KMSDisabledException",
        "KMSInvalidStateException",
        "KMSNotFoundException",
        "KMSOptInRequired",
    }
)
_REFUSALS: Final = frozenset({"InvalidArgumentException", "ValidationException"})

_NO_CREDENTIALS: Final = (
    sdk.ConfigNotFound,
    sdk.ConfigParseError,
    sdk.LoginError,
    sdk.NoAuthTokenError,
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.ProfileNotFound,
    sdk.RefreshWithMFAUnsupportedError,
    sdk.SSOError,
    sdk.TokenRetrievalError,
    sdk.UnknownCredentialError,
)
_CREDENTIALS_FETCH: Final = (sdk.CredentialRetrievalError, sdk.MetadataRetrievalError)
"""The place that hands out credentials did not answer well: may pass, and is about access."""

_CHAIN: Final = (
    "set awsAccessKeyId and awsSecretAccessKey (and awsSessionToken), or awsProfile, or give the "
    "processes credentials by AWS's default chain (environment, shared files, container, instance)"
)


class NotReadyError(Exception):
    """The stream exists and is not usable yet; its status is the text. Passes by itself."""


class StaleCredentialsError(Exception):
    """Credentials were refreshed and are still expired."""


class ExpiredTokenError(InvalidRequestError):
    """The list that a `NextToken` continues is forgotten: begin it anew."""


class FutureTimeError(InvalidRequestError):
    """The service called a timestamp one of the future: its clock is behind what was believed."""


class Severity(StrEnum):
    """What to do: wait longer, wait, or give up."""

    THROTTLE = "throttle"
    FAULT = "fault"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call, as far as a message about it needs. `operation` is the API's name."""

    operation: str
    stream: StreamName | None = None
    shard: ShardId | None = None
    position: Position | None = None
    region: str
    endpoint: str
    role_arn: str | None = None

    @property
    def subject(self) -> str:
        """What the call is about."""
        if self.stream is None:
            return f"Kinesis in {self.region}"
        return f"stream {self.stream}" + (f", shard {self.shard}" if self.shard else "")

    @property
    def place(self) -> str:
        """Which service was asked."""
        return f"region {self.region} at {safe_text(self.endpoint)}"


def code_of(error: Exception) -> str:
    """A short stable name for what happened: the API's error code, else the exception's type."""
    if isinstance(error, sdk.ClientError):
        return str(error.response.get("Error", {}).get("Code") or status_of(error))
    return type(error).__name__


def severity_of(error: Exception) -> Severity:
    """Whether asking again can help, and how long to wait before."""
    if isinstance(error, sdk.ClientError):
        return _severity_of_answer(code_of(error), status_of(error))
    passing = (
        sdk.ConnectionError,
        sdk.HTTPClientError,
        MalformedAnswerError,
        NotReadyError,
        *_CREDENTIALS_FETCH,
    )
    return Severity.FAULT if isinstance(error, passing) else Severity.PERMANENT


def _severity_of_answer(code: str, status: int) -> Severity:
    if code in _THROTTLES or status == 429:
        return Severity.THROTTLE
    if code in _FAULTS or status >= 500:
        return Severity.FAULT
    # An error that names no code, as from a proxy or when the connection broke in its midst.
    nameless = code.isdigit() and code not in _UNKNOWN_KEYS
    return Severity.FAULT if nameless else Severity.PERMANENT


def impatient(error: Exception, call: Call) -> ThrottledError:
    """A single try met throttling or a transient fault."""
    kind = ThrottledError if severity_of(error) is Severity.THROTTLE else UnreachableError
    return kind(
        call.subject,
        found=f"{_shown(error)} on a single {call.operation}",
        expected=f"an answer from {call.place}",
        next_step="none: this is tried again with the next trigger",
    )


def translate(error: Exception, call: Call, *, attempts: int) -> SspError:
    """The error of this project for what `call` met at last, after so many attempts."""
    access = _access_error(error, call)
    if access is not None:
        return access
    if severity_of(error) is not Severity.PERMANENT:
        return ServiceUnavailableError(
            call.subject,
            found=f"{_shown(error)} on {call.operation}, {attempts} times",
            expected=f"an answer from {call.place}",
            next_step="check endpointUrl, region and the network, or wait for the service; "
            "retry.maxAttempts and retry.maxBackoff say how long to go on, connectTimeout and "
            "readTimeout how long to wait for an answer",
        )
    code = code_of(error)
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
    return kind(
        call.subject,
        found=f"{_shown(error)} on {call.operation}",
        expected=f"a request that {call.place} accepts",
        next_step="check streamName, streamARN, region and endpointUrl against each other",
    )


def _access_error(error: Exception, call: Call) -> AccessError | None:
    code = code_of(error)
    if isinstance(error, _NO_CREDENTIALS):
        return no_credentials(f"{code} on {call.operation} in {call.place}")
    if isinstance(error, _CREDENTIALS_FETCH):
        return no_credentials(f"{_shown(error)} on {call.operation} in {call.place}")
    if isinstance(error, StaleCredentialsError) or code in _EXPIRED:
        return AccessError(
            call.subject,
            found=f"expired credentials ({code}) on {call.operation} in {call.place}",
            expected="credentials that are valid, or that can be refreshed",
            next_step="give new ones, or use roleArn or AWS's default chain, which refresh "
            "themselves; check the machine's clock",
        )
    if not isinstance(error, sdk.ClientError):
        return None
    if error.operation_name.startswith("AssumeRole") and status_of(error) < 500:
        return _role_error(error, call) if severity_of(error) is Severity.PERMANENT else None
    if code in _DENIED:
        return AccessError(
            call.subject,
            found=f"{_shown(error)} on {call.operation} in {call.place}",
            expected=f"permission for kinesis:{call.operation}",
            next_step=f"allow kinesis:{call.operation} on the stream to the user or role in use",
        )
    if code in _KMS:
        return AccessError(
            call.subject,
            found=f"{_shown(error)} on {call.operation} in {call.place}",
            expected="a usable key for the stream's encryption, and permission for kms:Decrypt",
            next_step="enable the key, and allow kms:Decrypt on it to the user or role in use",
        )
    if code in _UNKNOWN_KEYS:
        return AccessError(
            call.subject,
            found=f"{code} on {call.operation} in {call.place}",
            expected="credentials that the service knows",
            next_step=f"check the clock and the credentials: {_CHAIN}",
        )
    return None


def _role_error(error: sdk.ClientError, call: Call) -> AccessError:
    code = code_of(error)
    shown = _shown(error) if code in _DENIED else code
    return AccessError(
        f"option roleArn ({call.role_arn})" if call.role_arn else "the role of the AWS profile",
        found=f"{shown} on {error.operation_name}",
        expected=f"permission for sts:{error.operation_name} and a role that trusts the caller",
        next_step="check roleArn, roleExternalId, the role's trust policy and stsEndpointUrl",
    )


def no_credentials(found: str) -> AccessError:
    """None of the places for credentials had usable ones."""
    return AccessError(
        "AWS credentials",
        found=found,
        expected="credentials from the options or from AWS's default chain",
        next_step=_CHAIN + "; a local service takes any, for example awsAccessKeyId=test",
    )


def stream_not_found(call: Call, found: str) -> StreamNotFoundError:
    """The stream does not exist there, or no longer."""
    return StreamNotFoundError(
        f"stream {call.stream}",
        found=f"{found} in {call.place}",
        expected="an existing stream",
        next_step="check streamName or streamARN, region and endpointUrl",
    )


def shard_not_found(call: Call, found: str) -> ShardNotFoundError:
    """The stream exists and the shard does not."""
    return ShardNotFoundError(
        f"stream {call.stream}, shard {call.shard}",
        found=f"{found} in {call.place}",
        expected="a shard that ListShards names",
        next_step="the shard's records have passed the stream's retention, or the stream was "
        "recreated; see failOnDataLoss",
    )


def _not_found(error: Exception, call: Call) -> SspError:
    # One emulator says this of a record that it does not have; the service never does.
    if isinstance(call.position, AfterRecord) and _says(error, "sequencenumber"):
        return _invalid_position(error, call)
    found = f"{_shown(error)} on {call.operation}"
    if call.shard is not None and _says(error, call.shard):
        return shard_not_found(call, found)
    return stream_not_found(call, found)


def _invalid_position(error: Exception, call: Call) -> InvalidPositionError:
    return InvalidPositionError(
        call.subject,
        found=f"{_shown(error)} on {call.operation}",
        expected="a sequence number of this shard",
        next_step="the offset belongs to another stream, or the stream was recreated: start "
        "with a new checkpoint",
    )


def _is_refused_iterator(error: Exception, call: Call) -> bool:
    refused = code_of(error) in _REFUSALS and call.operation == "GetRecords"
    return refused and _says(error, "iterator")


def _says(error: Exception, word: str) -> bool:
    return word.lower() in _message_of(error).lower()


def _message_of(error: Exception) -> str:
    if isinstance(error, sdk.ClientError):
        return str(error.response.get("Error", {}).get("Message") or "")
    return str(error)


def status_of(error: sdk.ClientError) -> int:
    """The HTTP status of an answer that was an error; 0 when unknown."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)


def _shown(error: Exception) -> str:
    message = safe_text(_message_of(error))
    return f"{code_of(error)} ({message})" if message else code_of(error)


def safe_text(text: str) -> str:
    """`text` on one line, cut to a sane length, without anything shaped like a secret."""
    text = re.sub(r"(?i)x-amz-security-token.*", "***", text, flags=re.DOTALL)
    text = re.sub(r"\b(?:AKIA|ASIA)[A-Z0-9]{8,}\b", "***", text)
    text = re.sub(r"//[^/@\s]+@", "//***@", text)
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:297] + "..."
