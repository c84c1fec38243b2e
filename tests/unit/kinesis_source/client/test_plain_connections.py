"""Connections that others on the network can read or impersonate: one warning, or a refusal."""

from __future__ import annotations

import logging

import pytest

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.common.options.values import is_readable_on_the_way
from spark_ssp.kafka_source.options.parse import parse_options as parse_kafka_options
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.kinesis_source.options.parse import parse_options as parse_kinesis_options

BROKERS = {"kafka.bootstrap.servers": "host1:9092"}
LEASED = {"streamName": "orders", "region": "eu-west-1", "applicationName": "orders-etl"}
OAUTH = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "kafka.sasl.oauthbearer.method": "oidc",
}


@pytest.mark.parametrize(
    ("url", "readable"),
    [
        ("http://kinesis:4567", True),
        ("HTTP://10.0.0.7", True),
        ("http://127.0.0.1.example.com", True),
        ("http://[2001:db8::1]:80", True),
        ("http://localhost:4567", False),
        ("http://kinesis.localhost:4567", False),
        ("http://127.0.0.53:80", False),
        ("http://[::1]:80", False),
        ("https://kinesis.eu-west-1.amazonaws.com", False),
        ("", False),
    ],
)
def test_plain_http_to_another_machine_is_readable(url: str, readable: bool) -> None:
    assert is_readable_on_the_way(url) is readable


@pytest.mark.parametrize("name", ["endpointUrl", "dynamodbEndpointUrl"])
def test_kinesis_warns_once_of_plain_http(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_kinesis_options({**LEASED, name: "http://localhost:4567"})
        assert caplog.messages == []
        parse_kinesis_options({**LEASED, name: "http://kinesis:4567"})
    (message,) = caplog.messages
    assert message.startswith("plain http to another machine")
    assert message.endswith(name)


@pytest.mark.parametrize("name", ["stsEndpointUrl", "stsEndpoint", "kinesis.stsEndpointUrl"])
def test_credentials_are_not_fetched_by_plain_http(name: str) -> None:
    role = {**LEASED, "roleArn": "arn:aws:iam::123456789012:role/reader"}
    parse_kinesis_options({**role, name: "http://localhost:4567"})
    parse_kinesis_options({**role, name: "https://sts.eu-west-1.amazonaws.com"})
    with pytest.raises(InvalidOptionsError, match="http:// to another machine"):
        parse_kinesis_options({**role, name: "http://sts.eu-west-1.amazonaws.com"})


@pytest.mark.parametrize(
    "raw",
    [
        {"kafka.enable.ssl.certificate.verification": "false"},
        {"kafka.ssl.endpoint.identification.algorithm": ""},
        {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"},
        {**OAUTH, "kafka.sasl.oauthbearer.token.endpoint.url": "http://tokens.example.com/"},
    ],
    ids=lambda raw: list(raw)[-1],
)
def test_kafka_warns_once_of_what_is_not_protected(
    raw: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    (name,) = {*raw} - {*OAUTH} or {"kafka.security.protocol"}
    for parse in (
        lambda: parse_kafka_options({**BROKERS, "subscribe": "orders", **raw}),
        lambda: parse_sink_options({**BROKERS, "topic": "orders", **raw}),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            parse()
        (message,) = caplog.messages
        assert message.startswith(f"option {name} is ")


def test_kafka_does_not_warn_of_what_is_protected(caplog: pytest.LogCaptureFixture) -> None:
    raw = {**OAUTH, "kafka.sasl.oauthbearer.token.endpoint.url": "https://tokens.example.com/"}
    with caplog.at_level(logging.WARNING):
        parse_kafka_options({**BROKERS, "subscribe": "orders", **raw})
    assert caplog.messages == []
