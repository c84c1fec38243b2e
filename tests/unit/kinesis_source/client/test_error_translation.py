"""Exceptions of the SDK become the right errors of this project, without secrets."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import botocore
import botocore.exceptions as sdk
import pytest
from botocore.retries import standard

from spark_ssp.common.aws.error_translation import Severity, StaleCredentialsError, safe_text
from spark_ssp.common.errors import (
    AccessError,
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
)
from spark_ssp.kinesis_source.client.error_translation import (
    ApiCall,
    ExpiredTokenError,
    FutureTimeError,
    NotReadyError,
    severity_of,
    single_try_error,
    translate,
)
from spark_ssp.kinesis_source.client.messages import MalformedAnswerError
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    SequenceNumber,
)

SHARD = ShardId("shardId-000000000007")
AFTER = AfterRecord(sequence_number=SequenceNumber("49"))
TOKEN = "FwoGZXIvYXdzEXAMPLETOKEN"
SECRET_KEY_ID = "AKIAIOSFODNN7EXAMPLE"


def call(operation: str = "GetRecords", **more: object) -> ApiCall:
    fields: dict[str, object] = {
        "operation": operation,
        "stream": StreamName("orders"),
        "shard": SHARD,
        "region": "eu-west-1",
        "endpoint": "https://kinesis.eu-west-1.amazonaws.com",
    }
    return ApiCall(**(fields | more))  # type: ignore[arg-type]


def client_error(
    code: str, message: str = "no", *, status: int = 400, operation: str = "GetRecords"
) -> sdk.ClientError:
    return sdk.ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},  # type: ignore[typeddict-item]
        },
        operation,
    )


URL = "http://127.0.0.1:1/"
EXPIRED = (
    "Signature expired: 20261122T100000Z is now earlier than 20261122T110000Z (20261122T110500Z "
    "- 5 min.)"
)
EARLY = "Signature not yet current: 20261122T100000Z is still later than 20261122T090000Z"


@pytest.mark.parametrize(
    ("error", "severity"),
    [
        (client_error("ProvisionedThroughputExceededException"), Severity.THROTTLE),
        (client_error("LimitExceededException"), Severity.THROTTLE),
        (client_error("KMSThrottlingException"), Severity.THROTTLE),
        (client_error("ThrottlingException"), Severity.THROTTLE),
        (client_error("Throttling"), Severity.THROTTLE),
        (client_error("429", status=429), Severity.THROTTLE),
        (client_error("InternalFailure", status=500), Severity.FAULT),
        (client_error("InternalFailureException", status=400), Severity.FAULT),
        (client_error("ServiceUnavailable", status=503), Severity.FAULT),
        (client_error("Whatever", status=599), Severity.FAULT),
        (client_error("502", status=502), Severity.FAULT),
        (client_error("400", status=400), Severity.FAULT),
        (client_error("", status=404), Severity.FAULT),
        (client_error("ResourceInUseException"), Severity.FAULT),
        (sdk.EndpointConnectionError(endpoint_url=URL), Severity.FAULT),
        (sdk.ConnectTimeoutError(endpoint_url=URL), Severity.FAULT),
        (sdk.ReadTimeoutError(endpoint_url=URL), Severity.FAULT),
        (sdk.ConnectionClosedError(endpoint_url=URL), Severity.FAULT),
        (sdk.SSLError(endpoint_url=URL, error=OSError("x")), Severity.FAULT),
        (sdk.HTTPClientError(error="x"), Severity.FAULT),
        (sdk.MetadataRetrievalError(error_msg="x"), Severity.FAULT),
        (client_error("InvalidSignatureException", EXPIRED), Severity.FAULT),
        (client_error("SignatureDoesNotMatch", EARLY, operation="AssumeRole"), Severity.FAULT),
        (client_error("RequestTimeTooSkewed", status=403), Severity.FAULT),
        (client_error("RequestExpired"), Severity.FAULT),
        (client_error("IDPCommunicationError", operation="AssumeRole"), Severity.FAULT),
        (sdk.IncompleteReadError(actual_bytes=1, expected_bytes=2), Severity.FAULT),
        (MalformedAnswerError("x"), Severity.FAULT),
        (NotReadyError("x"), Severity.FAULT),
        (client_error("InvalidSignatureException", "does not match"), Severity.PERMANENT),
        (client_error("AccessDeniedException"), Severity.PERMANENT),
        (client_error("ExpiredTokenException"), Severity.PERMANENT),
        (client_error("ResourceNotFoundException"), Severity.PERMANENT),
        (client_error("ExpiredIteratorException"), Severity.PERMANENT),
        (client_error("InvalidArgumentException"), Severity.PERMANENT),
        (client_error("403", status=403), Severity.PERMANENT),
        (client_error("KMSDisabledException"), Severity.PERMANENT),
        (sdk.NoCredentialsError(), Severity.PERMANENT),
        (sdk.ParamValidationError(report="x"), Severity.PERMANENT),
        (ValueError("x"), Severity.PERMANENT),
    ],
    ids=lambda value: str(value)[:60],
)
def test_severity(error: Exception, severity: Severity) -> None:
    assert severity_of(error) is severity


def retried_by_botocore() -> set[str]:
    """The error codes in the tables of botocore's retry modes."""
    tables = json.loads((Path(botocore.__file__).parent / "data" / "_retry.json").read_text())
    legacy = re.findall(r'"service_error_code": "(\w+)"', json.dumps(tables))
    return {
        *legacy,
        *vars(standard.TransientRetryableChecker)["_TRANSIENT_ERROR_CODES"],
        *vars(standard.ThrottledRetryableChecker)["_THROTTLED_ERROR_CODES"],
    }


@pytest.mark.parametrize("code", sorted(retried_by_botocore()))
def test_what_botocore_would_retry_is_retried(code: str) -> None:
    assert severity_of(client_error(code)) is not Severity.PERMANENT


@pytest.mark.parametrize(
    ("error", "at", "expected", "words"),
    [
        (
            client_error("AccessDeniedException", "User: arn:aws:iam::1:user/me is not authorized"),
            call(),
            AccessError,
            ["kinesis:GetRecords", "orders", "eu-west-1", "user/me"],
        ),
        (
            client_error("ExpiredTokenException"),
            call(),
            AccessError,
            ["expired credentials", "roleArn"],
        ),
        (StaleCredentialsError("x"), call(), AccessError, ["expired credentials"]),
        (client_error("InvalidSignatureException", EXPIRED), call(), AccessError, ["clock", "NTP"]),
        (client_error("RequestTimeTooSkewed"), call(), AccessError, ["clock", "NTP"]),
        (
            client_error("IDPCommunicationError", operation="AssumeRoleWithWebIdentity"),
            call(),
            ServiceUnavailableError,
            ["IDPCommunicationError"],
        ),
        (client_error("UnrecognizedClientException"), call(), AccessError, ["awsAccessKeyId"]),
        (client_error("403", status=403), call(), AccessError, ["403"]),
        (client_error("KMSAccessDeniedException"), call(), AccessError, ["kms:Decrypt"]),
        (
            sdk.NoCredentialsError(),
            call(),
            AccessError,
            ["awsAccessKeyId", "awsProfile", "default chain"],
        ),
        (sdk.MetadataRetrievalError(error_msg="x"), call(), AccessError, ["awsProfile"]),
        (
            client_error("AccessDenied", "not authorized", operation="AssumeRole", status=403),
            call(role_arn="arn:aws:iam::1:role/reader"),
            AccessError,
            ["roleArn", "role/reader", "sts:AssumeRole"],
        ),
        (
            client_error("ResourceNotFoundException", "Stream orders under account 1 not found."),
            call(),
            StreamNotFoundError,
            ["orders", "eu-west-1", "streamName"],
        ),
        (
            client_error("ResourceNotFoundException", f"Shard {SHARD} in stream orders: gone"),
            call(),
            ShardNotFoundError,
            [SHARD, "orders"],
        ),
        (
            client_error("ResourceNotFoundException", "Unable to find SequenceNumber(12)"),
            call("GetShardIterator", position=AFTER),
            InvalidPositionError,
            [SHARD],
        ),
        (
            client_error(
                "InvalidArgumentException",
                "StartingSequenceNumber 49 used in GetShardIterator on shard is invalid",
            ),
            call("GetShardIterator", position=AFTER),
            InvalidPositionError,
            ["orders", "one shard of one stream"],
        ),
        (
            client_error("ValidationException", "Value at 'startingSequenceNumber' failed"),
            call("GetShardIterator", position=AFTER),
            InvalidPositionError,
            [SHARD],
        ),
        (
            client_error("InvalidArgumentException", "The timestampInMillis is ahead"),
            call("GetShardIterator", position=AtTimestamp(millis=EpochMillis(1))),
            FutureTimeError,
            ["orders"],
        ),
        (client_error("ExpiredIteratorException"), call(), ExpiredIteratorError, [SHARD]),
        (
            client_error("InvalidArgumentException", "Invalid ShardIterator."),
            call(),
            ExpiredIteratorError,
            [SHARD],
        ),
        (client_error("ExpiredNextTokenException"), call("ListShards"), ExpiredTokenError, []),
        (
            client_error("InvalidArgumentException", "wrong"),
            call(),
            InvalidRequestError,
            ["wrong", "GetRecords"],
        ),
        (
            sdk.EndpointConnectionError(endpoint_url=URL),
            call(endpoint="http://me:pass@127.0.0.1:1/"),
            ServiceUnavailableError,
            ["http://***@127.0.0.1:1/", "8 times", "retry.maxAttempts", "endpointUrl"],
        ),
        (
            client_error("ProvisionedThroughputExceededException"),
            call(),
            ServiceUnavailableError,
            ["ProvisionedThroughputExceededException"],
        ),
        (
            client_error("Throttling", operation="AssumeRole"),
            call(),
            ServiceUnavailableError,
            ["Throttling"],
        ),
        (NotReadyError("the stream is CREATING"), call(), ServiceUnavailableError, ["CREATING"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_translation(
    error: Exception, at: ApiCall, expected: type[SspError], words: list[str]
) -> None:
    translated = translate(error, at, attempts=8)
    assert type(translated) is expected
    for word in words:
        assert word in str(translated)
    again = pickle.loads(pickle.dumps(translated))
    assert (type(again), str(again)) == (expected, str(translated))


@pytest.mark.parametrize("code", ["InvalidSignatureException", "SignatureDoesNotMatch"])
def test_a_wrong_signature_does_not_tell_the_token(code: str) -> None:
    message = (
        "The Canonical String for this request should have been\n"
        f"'POST\n/\n\nhost:kinesis\nx-amz-security-token:{TOKEN}\n'"
    )
    text = str(translate(client_error(code, message, status=400), call(), attempts=1))
    assert code in text
    assert TOKEN not in text
    assert "Canonical" not in text


@pytest.mark.parametrize(
    "code", ["AccessDeniedException", "InvalidArgumentException", "Throttling"]
)
def test_no_message_tells_a_secret(code: str) -> None:
    message = f"{SECRET_KEY_ID} did not work\nX-Amz-Security-Token: {TOKEN}"
    for error in (
        translate(client_error(code, message), call(), attempts=1),
        single_try_error(client_error(code, message), call()),
    ):
        assert TOKEN not in str(error)
        assert SECRET_KEY_ID not in str(error)


def test_an_impatient_try_names_its_fault_and_the_place() -> None:
    error = single_try_error(client_error("ProvisionedThroughputExceededException"), call())
    for word in ("ProvisionedThroughputExceededException", "orders", SHARD, "eu-west-1"):
        assert word in str(error)


def test_texts_are_one_short_line() -> None:
    shown = safe_text("<html>\n" + "x " * 1000)
    assert len(shown) == 300
    assert "\n" not in shown
