"""Classifies the AWS SDK's errors by remedy: the part that all services share. A message of the
service is quoted only where it cannot hold secrets: one about a wrong signature repeats the signed
headers, and with them the session token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import botocore.exceptions as sdk
from botocore.parsers import ResponseParserError

from spark_ssp.common.errors import AccessError

THROTTLES: Final = frozenset(
    {
        "429",
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
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
"""The codes of errors by which services refuse a call because of its rate."""
_FAULTS: Final = frozenset(
    {
        "BadDigest",
        "IDPCommunicationError",
        "InternalError",
        "InternalFailure",
        "InternalFailureException",
        "InternalServerError",
        "PriorRequestNotComplete",
        "ReplicatedWriteConflictException",
        "RequestTimeout",
        "RequestTimeoutException",
        "ResourceInUseException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "TransactionInProgressException",
    }
)
"""`ResourceInUseException`: a stream or a table that is not active yet (API references). The others
are in botocore's own tables of codes to retry, or are failures of the service."""

_DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException", "NotAuthorized"})
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException"})
_CLOCK: Final = frozenset({"RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed"})
_SIGNATURES: Final = frozenset({"InvalidSignatureException", "SignatureDoesNotMatch"})
_UNTIMELY: Final = re.compile(r"signature (?:expired|not yet current)", re.IGNORECASE)
"""In the message about a valid signature with a wrong time: the machine slept between signing and
sending, or its clock is not corrected yet. The next attempt is signed again."""
_UNKNOWN_KEYS: Final = frozenset(
    {
        "401",
        "403",
        "AuthFailure",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidAccessKeyId",
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
_REFUSED_KEYS: Final = _EXPIRED | {
    "AuthFailure",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
}
"""Refusals that other keys cure."""
_KMS: Final = frozenset(
    {
        "KMSAccessDeniedException",
        "KMSDisabledException",
        "KMSInvalidStateException",
        "KMSNotFoundException",
        "KMSOptInRequired",
    }
)

_NO_CREDENTIALS: Final = (
    sdk.ConfigNotFound,
    sdk.ConfigParseError,
    sdk.NoAuthTokenError,
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.ProfileNotFound,
    sdk.RefreshWithMFAUnsupportedError,
    sdk.SSOError,
    sdk.TokenRetrievalError,
    sdk.UnknownCredentialError,
    *([sdk.LoginError] if hasattr(sdk, "LoginError") else []),  # since November 2025
)
_DAMAGED: Final = (sdk.ChecksumError, sdk.FlexibleChecksumError, sdk.IncompleteReadError)
"""An answer that was damaged in transit."""
_CREDENTIALS_FETCH: Final = (sdk.CredentialRetrievalError, sdk.MetadataRetrievalError)
"""The place that hands out credentials did not answer well: may pass, and is about access."""

_CHAIN: Final = (
    "give the processes credentials by AWS's default chain (a role of the machine or container, "
    "the environment, shared files), or set awsProfile, or awsAccessKeyId and awsSecretAccessKey"
)


class MalformedAnswerError(Exception):
    """An answer that violates the API reference, such as one cut by a broken connection. botocore
    does not compare a body's length with its header, so a cut body gets this far. The text never
    holds any of the answer."""


class StaleCredentialsError(Exception):
    """Credentials were refreshed and are still expired."""


class ProviderFailedError(sdk.CredentialRetrievalError):
    """The credentials of `credentialsProvider` could not be refreshed, which may pass."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(provider=path, error_msg=reason)
        self.path = path
        self.reason = reason


class CredentialsProviderError(AccessError):
    """The function that `credentialsProvider` names returns no credentials."""


BODY_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    ResponseParserError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that botocore's parser and our parsers raise for a malformed body. Callers handle
botocore's own errors first."""


def unreadable(error: Exception) -> Exception:
    """Return the error to raise instead of one of BODY_ERRORS."""
    if isinstance(error, RuntimeError) and "still expired" in str(error):
        return StaleCredentialsError("refreshed credentials were expired")
    return MalformedAnswerError(f"an answer that cannot be read: {type(error).__name__}")


class Severity(StrEnum):
    """The remedy: a longer backoff, a backoff, or failure."""

    THROTTLE = "throttle"
    FAULT = "fault"
    PERMANENT = "permanent"


def code_of(error: Exception) -> str:
    """Return a short stable name of an error: the API's error code, else the exception's type."""
    if isinstance(error, sdk.ClientError):
        return str(error.response.get("Error", {}).get("Code") or status_of(error))
    return type(error).__name__


def operation_of(error: Exception) -> str:
    """Return the API's name of the call that failed; empty for errors of the client."""
    return error.operation_name if isinstance(error, sdk.ClientError) else ""


def severity_of(error: Exception) -> Severity:
    """Classify an error: retry with a longer backoff, retry, or fail."""
    if isinstance(error, sdk.ClientError):
        if _is_about_time(error):
            return Severity.FAULT
        return severity_of_code(code_of(error), status_of(error))
    passing = (
        sdk.ConnectionError,
        sdk.HTTPClientError,
        MalformedAnswerError,
        *_DAMAGED,
        *_CREDENTIALS_FETCH,
    )
    return Severity.FAULT if isinstance(error, passing) else Severity.PERMANENT


def is_about_keys(error: Exception) -> bool:
    """Return whether the service refused a call for its keys, which others cure."""
    return isinstance(error, sdk.ClientError) and code_of(error) in _REFUSED_KEYS


def _is_about_time(error: sdk.ClientError) -> bool:
    """Return whether the time of the request was wrong by the service's clock."""
    code = code_of(error)
    untimely = code in _SIGNATURES and _UNTIMELY.search(message_of(error)) is not None
    return code in _CLOCK or untimely


def severity_of_code(code: str, status: int = 0) -> Severity:
    """Classify an answer by its error code and HTTP status; 0 for one that is unknown."""
    if code in THROTTLES or status == 429:
        return Severity.THROTTLE
    if code in _FAULTS or status >= 500:
        return Severity.FAULT
    # An error that names no code, as from a proxy or when the connection broke in its midst.
    nameless = code.isdigit() and code not in _UNKNOWN_KEYS
    return Severity.FAULT if nameless else Severity.PERMANENT


# --- About access --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedCall:
    """A refused request, as a message about access describes it."""

    subject: str
    """The subject of the call."""
    service: str
    """The prefix of its IAM actions: `kinesis`, `dynamodb`."""
    operation: str
    """The API's name."""
    resource: str
    """The resource of a permission: `the stream`, `the table orders and its indexes`."""
    place: str
    """The service."""
    role_arn: str | None = None
    role_option: str = "roleArn"
    """The option that names the role."""
    key_permission: str = "kms:Decrypt"
    """The permission that the call needs on a key of the encryption."""


def access_error(error: Exception, asked: DeniedCall) -> AccessError | None:
    """Return the error to raise after all attempts if access was refused; None for other or
    temporary faults."""
    code = code_of(error)
    if isinstance(error, _NO_CREDENTIALS):
        return no_credentials(f"{code} on {asked.operation} in {asked.place}")
    if isinstance(error, ProviderFailedError):
        return refresh_error(error)
    if isinstance(error, _CREDENTIALS_FETCH):
        return no_credentials(f"{quoted(error)} on {asked.operation} in {asked.place}")
    if isinstance(error, StaleCredentialsError) or code in _EXPIRED:
        return AccessError(
            asked.subject,
            found=f"expired credentials ({code}) on {asked.operation} in {asked.place}",
            expected="credentials that are valid, or that can be refreshed",
            next_step="give new ones, or use roleArn, credentialsProvider or AWS's default chain, "
            "which refresh themselves; check the machine's clock",
        )
    if not isinstance(error, sdk.ClientError):
        return None
    if _is_about_time(error):
        return AccessError(
            asked.subject,
            found=f"a request time that the service refuses ({code}) on {asked.operation} in "
            f"{asked.place}",
            expected="a clock within five minutes of the service's",
            next_step="correct the machine's clock, for example by NTP, and restart the query",
        )
    if error.operation_name.startswith("AssumeRole") and status_of(error) < 500:
        return _role_error(error, asked) if severity_of(error) is Severity.PERMANENT else None
    return _refused_access(error, asked)


_PERMISSION: Final = "permission for "


def is_denied(error: AccessError) -> bool:
    """Return whether the credentials are valid, and do not allow the call."""
    return error.expected.startswith(_PERMISSION)


def _refused_access(error: sdk.ClientError, asked: DeniedCall) -> AccessError | None:
    code = code_of(error)
    action = f"{asked.service}:{asked.operation}"
    if code in _DENIED:
        return AccessError(
            asked.subject,
            found=f"{quoted(error)} on {asked.operation} in {asked.place}",
            expected=f"{_PERMISSION}{action}",
            next_step=f"allow {action} on {asked.resource} to the user or role in use",
        )
    if code in _KMS:
        return AccessError(
            asked.subject,
            found=f"{quoted(error)} on {asked.operation} in {asked.place}",
            expected=f"a usable key for the encryption of {asked.resource}, and permission for "
            f"{asked.key_permission}",
            next_step=f"enable the key, and allow {asked.key_permission} on it to the user or role "
            "in use",
        )
    if code in _UNKNOWN_KEYS:
        return AccessError(
            asked.subject,
            found=f"{code} on {asked.operation} in {asked.place}",
            expected="credentials that the service knows",
            next_step=f"check the clock and the credentials: {_CHAIN}",
        )
    return None


def _role_error(error: sdk.ClientError, asked: DeniedCall) -> AccessError:
    code = code_of(error)
    shown = quoted(error) if code in _DENIED else code
    role, option = asked.role_arn, asked.role_option
    external_id = option.replace("Arn", "ExternalId")
    return AccessError(
        f"option {option} ({role})" if role else "the role of the AWS profile",
        found=f"{shown} on {error.operation_name}",
        expected=f"permission for sts:{error.operation_name} and a role that trusts the caller",
        next_step=f"check {option}, {external_id}, the role's trust policy and stsEndpointUrl",
    )


def no_credentials(found: str) -> AccessError:
    """Return the error for absent credentials."""
    return AccessError(
        "AWS credentials",
        found=found,
        expected="credentials from the options or from AWS's default chain",
        next_step=_CHAIN + "; a local service takes any, for example awsAccessKeyId=test and "
        "awsSecretAccessKey=test",
    )


def provider_error(
    path: str, found: str, expected: str, next_step: str
) -> CredentialsProviderError:
    """Return the error for a provider that returns no credentials."""
    return CredentialsProviderError(
        f"option credentialsProvider ({path})",
        found=found,
        expected=expected,
        next_step=next_step,
    )


def refresh_error(error: ProviderFailedError) -> CredentialsProviderError:
    """Return the error for a provider whose credentials cannot be refreshed."""
    return provider_error(
        error.path,
        f"{error.reason} when its credentials were refreshed",
        "credentials that refresh themselves",
        "check the service behind the provider; the text of its error is not shown, since it may "
        "contain secrets",
    )


# --- Texts ---------------------------------------------------------------------------------------


def message_of(error: Exception) -> str:
    """Return the message of the service or the SDK; it may hold secrets, see `safe_text`."""
    if isinstance(error, sdk.ClientError):
        return str(error.response.get("Error", {}).get("Message") or "")
    return str(error)


def status_of(error: sdk.ClientError) -> int:
    """The HTTP status of an answer that was an error; 0 when unknown."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)


def quoted(error: Exception) -> str:
    """Code and message, fit for an error or a log."""
    message = safe_text(message_of(error))
    return f"{code_of(error)} ({message})" if message else code_of(error)


def safe_text(text: str) -> str:
    """`text` on one line, cut to a sane length, without anything shaped like a secret."""
    text = re.sub(r"(?i)x-amz-security-token.*", "***", text, flags=re.DOTALL)
    text = re.sub(r"(?i)invalid header value.*", "invalid header value ***", text, flags=re.DOTALL)
    text = re.sub(r"\b(?:AKIA|ASIA)[A-Z0-9]{8,}\b", "***", text)
    text = re.sub(r"//[^/@\s]+@", "//***@", text)
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:297] + "..."
