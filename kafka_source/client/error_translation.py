"""Translates librdkafka's errors into this project's errors, by the possible remedy.

Messages of librdkafka and brokers are quoted only for connection errors, where they contain more
than the code does (refused, unknown host, the certificate), and without anything that is shaped
like a secret. For all other errors the text is that of the code, so that it cannot contain a part
of a record or a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from spark_ssp.common.errors import (
    NEW_CHECKPOINT,
    AccessError,
    DataLossError,
    InvalidRequestError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.kafka_source.options.login_tokens import tokens_in_use


class ErrorKind(StrEnum):
    """A category of errors with the same remedy."""

    TRANSIENT = "transient"
    """Temporary: retry after a pause."""
    ACCESS = "access"
    """Credentials, permissions or certificates must be corrected."""
    GROUP_ACCESS = "of-groups"
    """A missing permission on a consumer group, which librdkafka requests and reading does not
    need."""
    MISSING = "missing"
    """The topic or partition does not exist, or no longer."""
    OUT_OF_RANGE = "out-of-range"
    """The position is outside the partition's log."""
    TRUNCATED = "truncated"
    """Records that were read are no longer in the log, since brokers elected a leader without them.
    The log may have grown past the position since."""
    PERMANENT = "permanent"
    """A retry cannot help."""


_INCONSISTENT_TOPIC_ID: Final = 103
"""Kafka's code, which confluent-kafka 2.14 has no name for."""

_TRANSIENT: Final = frozenset(
    {
        # By brokers.
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        _INCONSISTENT_TOPIC_ID,
        KafkaError.INVALID_MSG,  # a batch damaged in transit; CORRUPT_MESSAGE in Kafka
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.REBOOTSTRAP_REQUIRED,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.STALE_BROKER_EPOCH,
        KafkaError.STALE_CTRL_EPOCH,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        # By librdkafka.
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
        KafkaError._FAIL,
        KafkaError._IN_PROGRESS,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._NODE_UPDATE,
        KafkaError._OUTDATED,
        KafkaError._PARTIAL,
        KafkaError._RESOLVE,
        KafkaError._RETRY,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._WAIT_CACHE,
        KafkaError._WAIT_COORD,
    }
)
_LOGIN: Final = frozenset(
    {
        KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_AUTH_DISABLED,
        KafkaError.DELEGATION_TOKEN_EXPIRED,
        KafkaError.DELEGATION_TOKEN_NOT_FOUND,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.SECURITY_DISABLED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError._AUTHENTICATION,
    }
)
_PERMISSION: Final = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_MISSING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._NOENT,  # no leader is known for any requested partition
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
_OUT_OF_RANGE: Final = frozenset(
    {
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._AUTO_OFFSET_RESET,
    }
)
_TRUNCATED: Final = KafkaError(KafkaError._LOG_TRUNCATION).str()
"""Part of librdkafka's message about a position that it must not reset because the leader's log
ends before it in the epoch of the last record read (KIP-320)."""

_CONNECTING: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._AUTHENTICATION,
        KafkaError._RESOLVE,
        KafkaError._SSL,
        KafkaError._TRANSPORT,
    }
)
"""The errors whose messages are quoted."""

_ABORTED_HANDSHAKE: Final = ("disconnected", "connection reset", "broken pipe", "timed out")
"""The parts of librdkafka's message about a handshake that a broker aborted, for example while it
shuts down."""


_ALERT: Final = re.compile(
    r"(?i)alert (?:access denied|bad certificate|certificate \w+|decrypt error|handshake failure"
    r"|unknown ca|unsupported certificate)"
)


def _is_alert(error: KafkaError) -> bool:
    """Return whether the error is a broker's rejection of the client's certificate. With TLS 1.3 it
    follows the handshake, as a closed connection."""
    return _ALERT.search(error.str()) is not None


def error_kind(error: KafkaError) -> ErrorKind:
    """Return the category of an error."""
    code = error.code()
    if code == KafkaError._TRANSPORT and _is_alert(error):
        return ErrorKind.ACCESS
    if code in _TRANSIENT:
        return ErrorKind.TRANSIENT
    if code == KafkaError._SSL:
        aborted = any(word in error.str().lower() for word in _ABORTED_HANDSHAKE)
        return ErrorKind.TRANSIENT if aborted else ErrorKind.ACCESS
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return ErrorKind.GROUP_ACCESS
    if code in _LOGIN or code in _PERMISSION:
        return ErrorKind.ACCESS
    if code in _MISSING:
        return ErrorKind.MISSING
    if code == KafkaError._LOG_TRUNCATION or (
        code == KafkaError._AUTO_OFFSET_RESET and _TRUNCATED in error.str()
    ):
        return ErrorKind.TRUNCATED
    if code in _OUT_OF_RANGE:
        return ErrorKind.OUT_OF_RANGE
    return ErrorKind.PERMANENT


def is_transient(error: KafkaError) -> bool:
    """Return whether a retry can help."""
    return error_kind(error) is ErrorKind.TRANSIENT


def kafka_error(exception: KafkaException) -> KafkaError:
    """Return the error of a KafkaException."""
    first = exception.args[0] if exception.args else None
    return first if isinstance(first, KafkaError) else KafkaError(KafkaError._FAIL)


_UNREADABLE: Final = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION})
LIMIT_STEP: Final = (
    "if kafka.receive.message.max.bytes is set, remove it, or raise it above the largest record "
    "batch, decompressed: it refuses larger ones"
)
"""The next step where librdkafka refuses a response or a record batch: its limit is not in the
error, only in its log."""


def to_error(error: KafkaError, *, subject: str, secrets: Iterable[str] = ()) -> SspError:
    """Return this project's error for `error`, with the given `subject` ("topic orders"). `secrets`
    are values to mask in quoted messages, see `client_config.secrets_of`."""
    found = describe_error(error, secrets)
    match error_kind(error):
        case ErrorKind.TRANSIENT:
            return ServiceUnavailableError(
                subject,
                found=found,
                expected="an answer from the brokers of kafka.bootstrap.servers",
                next_step="check kafka.bootstrap.servers, kafka.security.protocol and the network, "
                "or wait for the brokers",
            )
        case ErrorKind.ACCESS | ErrorKind.GROUP_ACCESS:
            return AccessError(
                subject,
                found=found,
                expected="a user whom the brokers accept, over a connection both sides trust",
                next_step=_access_advice(error),
            )
        case ErrorKind.MISSING:
            return StreamNotFoundError(
                subject,
                found=found,
                expected="an existing topic and partition",
                next_step="check its name and kafka.bootstrap.servers; if it was deleted, start a "
                f"new query with {NEW_CHECKPOINT}",
            )
        case ErrorKind.OUT_OF_RANGE | ErrorKind.TRUNCATED:
            return DataLossError(
                subject,
                found=found,
                expected="a position within the partition's log",
                next_step="set failOnDataLoss to false to continue after the gap, or start a new "
                f"query with {NEW_CHECKPOINT}",
            )
        case ErrorKind.PERMANENT:
            return InvalidRequestError(
                subject,
                found=found,
                expected="a request that the brokers and their version accept",
                next_step=f"{LIMIT_STEP}; otherwise check the records by another client"
                if error.code() in _UNREADABLE
                else "check the options kafka.*, and the topic's settings",
            )


def _access_advice(error: KafkaError) -> str:
    code = error.code()
    if code == KafkaError._SSL or _is_alert(error):
        return (
            "check kafka.ssl.ca.location, kafka.ssl.keystore.location (or kafka.ssl.certificate."
            "location and kafka.ssl.key.location) and kafka.ssl.endpoint.identification.algorithm "
            "against the brokers' certificates"
        )
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return (
            "allow the user to describe and read the topic, or to write to it for a sink, which "
            "also reads it with deliveryGuarantee=exactly-once (ACLs)"
        )
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return (
            "allow the user to read with this group (ACLs), see groupIdPrefix and kafka.group.id; "
            "groups that begin with ssp/ are those of a sink with deliveryGuarantee=exactly-once"
        )
    if code in _PERMISSION:
        return "give the user the permission (ACLs)"
    return (
        "check kafka.sasl.mechanism, kafka.sasl.jaas.config (or kafka.sasl.username and "
        "kafka.sasl.password) and kafka.security.protocol; with IAM, the identity's policy must "
        "allow kafka-cluster:Connect; with tokenProvider, the brokers must accept the function's "
        "tokens, and the log has its failures"
    )


_MAX_LENGTH: Final = 400
_TOKEN_ENDPOINT_ANSWER: Final = re.compile(
    r"(?is)(\b(?:OIDC|OAUTHBEARER) token(?: from \"[^\"]*\")?): .*?(\s\(-?\d+\))?$"
)
"""The answer of a token endpoint, which may repeat the request and with it the client's secret."""
_TOKENS: Final = re.compile(
    r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_.-]*"  # a JSON web token
    r"|aHR0cHM6Ly9[A-Za-z0-9_-]+"  # a signed URL as a token: base64 of https://
    r"|(?i:X-Amz-(?:Signature|Security-Token|Credential)=[^&\s]+)"
    r"|(?i:\b(?:bearer|basic)\s+[A-Za-z0-9+/=._-]{8,})"
    r"|(?i:\w*(?:password|secret|assertion)\b[\"']?\s*[=:]\s*[\"']?[^\s\"',;&)]+)"
    r"|(?i:\w*token(?:=|[\"']\s*:\s*[\"'])[^\s\"',;&)]+)"
)


def describe_error(error: KafkaError, secrets: Iterable[str] = ()) -> str:
    """Return the error's name and message on one line, without secrets."""
    code = error.code()
    message = error.str() if code in _CONNECTING else KafkaError(code).str()
    return f"{error.name()} ({redact(message, secrets)})"


class LastError:
    """The text of the last error that a client has reported, if any. `secrets` are masked.

    A client references its error callback. So that of a consumer is the method `record` of this
    object, which does not reference the consumer: in a cycle, it and the tokens of its login would
    stay until the garbage collector runs."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self.text: str | None = None

    def record(self, error: KafkaError) -> None:
        """Record an error, unless it does not concern reading."""
        if error_kind(error) is not ErrorKind.GROUP_ACCESS:
            self.text = describe_error(error, self._secrets)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` on one line of limited length, with `secrets`, the tokens of logins and
    secret-like parts masked."""
    masked = {one for one in (*secrets, *tokens_in_use()) if one}
    for secret in sorted(masked, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _TOKEN_ENDPOINT_ANSWER.sub(r"\1\2", text)
    text = _TOKENS.sub("***", text)
    text = re.sub(r"//[^/@\s]+@", "//***@", text)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 3] + "..."
