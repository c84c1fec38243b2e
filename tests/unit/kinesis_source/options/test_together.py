"""The options of the Kinesis source in combination, and their secrets."""

from __future__ import annotations

import dataclasses
import logging
import pickle
from typing import Any

import pytest

from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.options.values import (
    KINESIS_OPTIONS,
    ConnectionOptions,
    KinesisOptions,
    LeaseOptions,
    LeaseRole,
)
from tests.support.kinesis.option_examples import (
    ARN,
    BAD,
    CANARY,
    GOOD,
    NEEDS,
    PROVIDER,
    ROLE,
    SPECS,
    problems,
    with_stream,
)


def parse(**raw: str) -> KinesisOptions:
    return parse_options(with_stream(raw))


# --- Streams and their region --------------------------------------------------------------------


def test_several_streams_are_sorted_by_name() -> None:
    assert [s.name for s in parse(streamName="b, a ,C").streams] == ["C", "a", "b"]
    both = f"{ARN},{ARN.replace('orders', 'clicks')}"
    assert [s.name for s in parse(streamARN=both).streams] == ["clicks", "orders"]


@pytest.mark.parametrize(
    ("raw", "option", "found"),
    [
        ({}, "streamName", "neither streamName nor streamARN"),
        ({"streamName": "a,b", "dropStreams": "b"}, "dropStreams", "that the query reads: b"),
        ({"streamName": "a", "streamARN": ARN}, "streamName", "together with streamARN"),
        (
            {"streamARN": f"{ARN},{ARN.replace('eu-west-1', 'us-east-1')}"},
            "streamARN",
            "2 streams named orders",
        ),
        (
            {"streamARN": f"{ARN},{ARN.replace('123456789012', '210987654321')}"},
            "streamARN",
            "2 streams named orders",
        ),
        (
            {"streamARN": f"{ARN},{ARN.replace('eu-west-1', 'us-east-1').replace('ord', 'bord')}"},
            "streamARN",
            "streams in eu-west-1 and us-east-1",
        ),
        ({"streamARN": ARN, "region": "us-east-1"}, "region", "while streamARN is in eu-west-1"),
        (
            {"streamARN": ARN, "endpointUrl": "https://kinesis.us-east-1.amazonaws.com"},
            "endpointUrl",
            "an endpoint of us-east-1, while the streams are in eu-west-1",
        ),
        (
            {"streamName": "a", "region": "eu-west-1", "endpoint": "kinesis.us-east-1.api.aws"},
            "endpoint",
            "an endpoint of us-east-1",
        ),
        (
            {"streamName": "a", "includeRepeatKeys": "true", "deaggregate": "false"},
            "includeRepeatKeys",
            "true with deaggregate=false",
        ),
        (
            {"streamName": "a", "startingPosition": '{"b": {"shardId-0": "latest"}}'},
            "startingPosition",
            "the stream 'b', which this query does not read",
        ),
    ],
)
def test_options_that_contradict_each_other(raw: dict[str, str], option: str, found: str) -> None:
    problem = problems(raw)[0]
    assert problem.option == option
    assert found in problem.found


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("kinesis.eu-west-1.amazonaws.com", "eu-west-1"),
        ("kinesis-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("kinesis.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("kinesis.eu-west-1.api.aws", "eu-west-1"),
        ("123456789012.data-kinesis.eu-west-1.amazonaws.com", "eu-west-1"),
        ("vpce-0a1b-c2d3.kinesis.eu-west-1.vpce.amazonaws.com", "eu-west-1"),
        ("localhost", None),
        ("kinesis.eu-west-1.example.org", None),
    ],
)
def test_an_endpoint_of_aws_names_the_region(host: str, region: str | None) -> None:
    assert parse(endpointUrl=f"https://{host}").connection.region == region


def test_an_arn_names_the_region_also_beside_a_local_endpoint() -> None:
    options = parse(streamARN=ARN, endpointUrl="http://localhost:4567")
    assert options.connection.region == "eu-west-1"


# --- Credentials ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "options"),
    [
        ({"awsAccessKeyId": CANARY}, ["awsAccessKeyId"]),
        ({"awsSecretKey": CANARY}, ["awsSecretKey"]),
        ({"awsSessionToken": CANARY}, ["awsSessionToken"]),
        ({"awsSessionToken": CANARY, "awsAccessKey": CANARY}, ["awsAccessKey"]),
        (
            {"awsProfile": "p", "awsAccessKeyId": CANARY, "awsSecretAccessKey": CANARY},
            ["awsProfile"],
        ),
        ({"roleExternalId": CANARY}, ["roleExternalId"]),
        ({"roleSessionName": "session"}, ["roleSessionName"]),
        ({"stsEndpoint": "sts.eu-west-1.amazonaws.com"}, ["stsEndpoint"]),
    ],
)
def test_credentials_that_do_not_fit_together(raw: dict[str, str], options: list[str]) -> None:
    assert [p.option for p in problems({"streamName": "orders", **raw})] == options


SECRETS = {
    "awsAccessKeyId": CANARY,
    "awsSecretAccessKey": CANARY,
    "awsSessionToken": CANARY,
    "credentialsProviderSecretArguments": f'{{"password": "{CANARY}"}}',
    "roleExternalId": CANARY,
    "leaseRoleExternalId": CANARY,
}


def test_secrets_are_kept_but_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        options = parse_options(
            {"streamName": "orders", "roleArn": ROLE, "path": CANARY, "fetchBufferSize": CANARY}
            | {"applicationName": "orders-etl", "leaseRoleArn": ROLE}
            | {name: SECRETS[name] for name in SECRETS if name not in PROVIDER}
        )
        provided = parse_options({"streamName": "orders"} | {name: GOOD[name] for name in PROVIDER})
    for text in (repr(options), str(options), f"{options.connection}", caplog.text):
        assert "Canary" not in text
    assert "Canary" not in repr(provided)
    assert repr(options.connection).count("=***") == len(SECRETS) - 2
    assert options.leases is not None
    assert options.leases.role == LeaseRole(arn=ROLE, external_id=CANARY)
    assert "Canary" not in repr(options.leases.connection(options.connection))
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    assert copy.connection.aws_secret_access_key == CANARY
    assert hash(copy.connection) == hash(options.connection)


def test_every_secret_of_the_table_is_hidden_in_the_values() -> None:
    secret = {spec.name for spec in KINESIS_OPTIONS.options if spec.secret}
    assert secret == set(SECRETS)
    for field in dataclasses.fields(ConnectionOptions):
        values: dict[str, Any] = {field.name: "canary"}
        shown = repr(ConnectionOptions(**values))
        name = field.name.replace("_", "")
        assert ("canary" not in shown) is (name in {text.lower() for text in secret})


@pytest.mark.parametrize("name", list(SPECS))
def test_a_secret_never_reaches_an_error_whatever_else_is_wrong(name: str) -> None:
    problems({**SECRETS, name: BAD[name][0], "streamName": "orders,orders"})


# --- Leases --------------------------------------------------------------------------------------


def test_without_an_application_there_are_no_leases() -> None:
    assert parse().leases is None


def test_the_application_names_its_table() -> None:
    assert parse(applicationName="orders-etl").leases == LeaseOptions(
        application="orders-etl", table="orders-etl"
    )


def test_a_table_alone_names_the_application() -> None:
    assert parse(leaseTable="orders-leases").leases == LeaseOptions(
        application="orders-leases", table="orders-leases"
    )


def test_an_outage_is_ridden_out_for_the_failover_time() -> None:
    leases = parse(applicationName="orders-etl", failoverTime="30s").leases
    assert leases is not None
    assert leases.max_outage_ms == 30_000


NEED_LEASES = sorted(name for name, needs in NEEDS.items() if "applicationName" in needs)


def test_options_about_leases_need_an_application() -> None:
    raw = {name: GOOD[name] for name in NEED_LEASES}
    found = problems({"streamName": "orders", **raw})
    assert sorted(problem.option for problem in found) == NEED_LEASES
    assert {problem.found.split()[1:][0] for problem in found} == {"without"}
    assert [p.option for p in problems({"streamName": "a", "failoverTimeMillis": "9000"})] == [
        "failoverTimeMillis"
    ]


def test_names_of_the_kcl_mean_the_same() -> None:
    leases = parse(
        applicationName="orders-etl",
        workerId="7",
        failoverTimeMillis="9000",
        maxLeasesForWorker="3",
        dynamoDBEndpoint="localhost:8000",
    ).leases
    assert leases == LeaseOptions(
        application="orders-etl",
        table="orders-etl",
        worker_id="7",
        failover_ms=9_000,
        max_leases=3,
        dynamodb_endpoint_url="https://localhost:8000",
        max_outage_ms=9_000,
    )
