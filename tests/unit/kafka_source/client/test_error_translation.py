"""What librdkafka reports becomes the right error of this project, and never tells a secret."""

from __future__ import annotations

import pickle

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_ssp.common.errors import (
    AccessError,
    DataLossError,
    InvalidRequestError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.kafka_source.client.error_translation import (
    ErrorKind,
    describe_error,
    error_kind,
    is_transient,
    kafka_error,
    redact,
    to_error,
)

REFUSED = (
    "127.0.0.1:9092/bootstrap: Connect to ipv4#127.0.0.1:9092 failed: Connection refused "
    "(after 0ms in state CONNECT)"
)
UNTRUSTED = (
    "ssl://127.0.0.1:9093/bootstrap: SSL handshake failed: certificate verify failed: broker "
    "certificate could not be verified"
)
UNKNOWN_CLIENT = (
    "ssl://127.0.0.1:9093/bootstrap: Receive failed: error:0A000412:SSL routines::ssl/tls alert "
    "bad certificate: SSL alert number 42 (after 1ms in state APIVERSION_QUERY)"
)
ANSWER = '{"error_description": "refused: YWxpY2U6aHVudGVyMg"}'
CUT = "ssl://127.0.0.1:9093/bootstrap: SSL handshake failed: Disconnected"
TRUNCATED = (
    "Partition log truncation detected at offset 9 (leader epoch 1): broker end offset is 5 "
    "(offset leader epoch 0). Reset to INVALID.: Local: Partition log truncation detected "
    "(broker 2)"
)
WRONG = "sasl_plaintext://127.0.0.1:9094/bootstrap: SASL PLAIN authentication failed"


@pytest.mark.parametrize(
    ("code", "text", "kind", "error", "advice"),
    [
        (KafkaError._TRANSPORT, REFUSED, "transient", ServiceUnavailableError, "bootstrap.servers"),
        (KafkaError._TIMED_OUT, None, "transient", ServiceUnavailableError, "wait for the brokers"),
        (KafkaError.LEADER_NOT_AVAILABLE, None, "transient", ServiceUnavailableError, "wait"),
        (KafkaError.NOT_LEADER_FOR_PARTITION, None, "transient", ServiceUnavailableError, "wait"),
        (KafkaError._SSL, CUT, "transient", ServiceUnavailableError, "security.protocol"),
        (KafkaError._SSL, UNTRUSTED, "access", AccessError, "kafka.ssl.ca.location"),
        (KafkaError._TRANSPORT, UNKNOWN_CLIENT, "access", AccessError, "kafka.ssl.keystore"),
        (KafkaError._AUTHENTICATION, WRONG, "access", AccessError, "kafka.sasl.jaas.config"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, None, "access", AccessError, "sasl.mechanism"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, None, "access", AccessError, "ACLs"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, None, "of-groups", AccessError, "groupIdPrefix"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, None, "access", AccessError, "permission"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, None, "missing", StreamNotFoundError, "deleted"),
        (KafkaError._UNKNOWN_PARTITION, None, "missing", StreamNotFoundError, "deleted"),
        (KafkaError.OFFSET_OUT_OF_RANGE, None, "out-of-range", DataLossError, "failOnDataLoss"),
        (KafkaError._AUTO_OFFSET_RESET, None, "out-of-range", DataLossError, "failOnDataLoss"),
        (
            KafkaError._AUTO_OFFSET_RESET,
            TRUNCATED,
            "truncated",
            DataLossError,
            "failOnDataLoss",
        ),
        (KafkaError._LOG_TRUNCATION, None, "truncated", DataLossError, "failOnDataLoss"),
        (KafkaError.MSG_SIZE_TOO_LARGE, None, "permanent", InvalidRequestError, "kafka.*"),
        (KafkaError._FATAL, None, "permanent", InvalidRequestError, "kafka.*"),
        (KafkaError._INVALID_ARG, None, "permanent", InvalidRequestError, "kafka.*"),
    ],
)
def test_a_fault_is_sorted_by_its_remedy(
    code: int, text: str | None, kind: str, error: type[SspError], advice: str
) -> None:
    fault = KafkaError(code, text) if text else KafkaError(code)

    assert error_kind(fault) is ErrorKind(kind)
    assert is_transient(fault) is (kind == "transient")
    found = to_error(fault, subject="topic orders")
    assert type(found) is error
    assert found.subject == "topic orders"
    assert fault.name() in found.found
    assert advice in found.next_step
    assert str(pickle.loads(pickle.dumps(found))) == str(found)


def test_every_code_of_the_library_has_a_kind_and_an_error() -> None:
    codes = [value for name, value in vars(KafkaError).items() if isinstance(value, int)]
    assert len(codes) > 150
    assert all(isinstance(to_error(KafkaError(code), subject="x"), SspError) for code in codes)


def test_words_are_quoted_of_connecting_alone() -> None:
    assert "Connection refused" in describe_error(KafkaError(KafkaError._TRANSPORT, REFUSED))
    said = describe_error(
        KafkaError(KafkaError.INVALID_RECORD, "value {'card': '4111'} is no good")
    )
    assert said == "INVALID_RECORD (Broker: Broker failed to validate record)"


@pytest.mark.parametrize(
    "text",
    [
        "user alice with hunter2-hunter2 is unknown",
        'answer {"token": "hunter2-hunter2"}',
        "password=hunter2-hunter2, and more",
        "client_secret: hunter2-hunter2",
        "Authorization: Bearer hunter2-hunter2",
        "https://alice:hunter2-hunter2@tokens/oauth failed",
    ],
)
def test_secrets_are_left_out(text: str) -> None:
    fault = KafkaError(KafkaError._AUTHENTICATION, text)
    error = to_error(fault, subject="Kafka", secrets=["hunter2-hunter2", ""])
    assert "hunter2" not in str(error)
    assert "***" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        'answer {"access_token": "hunter2-hunter2"}',
        "password=hunter2-hunter2, and more",
        "Authorization: Bearer hunter2-hunter2",
        "https://alice:hunter2-hunter2@tokens/oauth failed",
        "eyJhbGciOiJub25lIn0.hunter2-hunter2.x is expired",
    ],
)
def test_what_is_shaped_like_a_secret_is_left_out_unknown_as_it_is(text: str) -> None:
    assert "hunter2" not in redact(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            f'Failed to retrieve OIDC token from "https://x/token": {ANSWER} (401)',
            'Failed to retrieve OIDC token from "https://x/token" (401)',
        ),
        (
            f"Failed to acquire SASL OAUTHBEARER token: {ANSWER}",
            "Failed to acquire SASL OAUTHBEARER token",
        ),
    ],
)
def test_the_answer_of_an_endpoint_for_tokens_is_left_out(text: str, shown: str) -> None:
    said = describe_error(KafkaError(KafkaError._AUTHENTICATION, text))
    assert said == f"_AUTHENTICATION ({shown})"


def test_a_long_text_is_cut_and_stands_on_one_line() -> None:
    text = redact("first\nsecond " + "x" * 1000)
    assert text.startswith("first second xxx")
    assert len(text) == 400


def test_an_exception_gives_its_error_whatever_it_carries() -> None:
    fault = KafkaError(KafkaError._TIMED_OUT)
    assert kafka_error(KafkaException(fault)).code() == KafkaError._TIMED_OUT
    assert kafka_error(KafkaException()).code() == KafkaError._FAIL
