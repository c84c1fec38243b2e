"""Queries that come from another source keep their options."""

from __future__ import annotations

import pytest

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import AtTimestamp, EpochMillis, StreamRef
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from tests.support.kinesis.option_examples import ROLE, problems


def test_a_query_of_databricks_source_keeps_its_options() -> None:
    options = parse_options(
        {
            "streamName": "orders,payments",
            "region": "us-west-2",
            "endpoint": "kinesis.us-west-2.amazonaws.com",
            "initialPosition": '{"at_timestamp": "06/25/2020 10:23:45 PDT", '
            '"format": "MM/dd/yyyy HH:mm:ss ZZZ"}',
            "consumerMode": "polling",
            "maxRecordsPerFetch": "5000",
            "minFetchPeriod": "400ms",
            "shardFetchInterval": "1s",
            "maxPartitions": "8",
            "awsAccessKey": "key",
            "awsSecretKey": "secret",
            "roleArn": ROLE,
            "roleExternalId": "external",
            "roleSessionName": "session",
            "stsEndpoint": "https://sts.us-west-2.amazonaws.com",
        }
    )
    assert [stream.name for stream in options.streams] == ["orders", "payments"]
    assert options.starting_position.default == AtTimestamp(millis=EpochMillis(1_593_105_825_000))
    assert (options.max_records_per_fetch, options.min_fetch_period_ms) == (5_000, 400)
    assert (options.shard_discovery_interval_ms, options.slots) == (1_000, 8)
    assert options.connection == ConnectionOptions(
        region="us-west-2",
        endpoint_url="https://kinesis.us-west-2.amazonaws.com",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        role_arn=ROLE,
        role_external_id="external",
        role_session_name="session",
        sts_endpoint_url="https://sts.us-west-2.amazonaws.com",
    )


def test_a_query_of_awslabs_connector_keeps_its_options() -> None:
    options = parse_options(
        {
            "kinesis.streamName": "orders",
            "kinesis.endpointUrl": "https://kinesis.us-east-2.amazonaws.com",
            "kinesis.consumerType": "GetRecords",
            "kinesis.startingposition": "AT_TIMESTAMP 2023-08-30T19:00:05-08:00",
            "kinesis.failOnDataLoss": "true",
            "kinesis.describeShardInterval": "50s",
            "kinesis.getRecords.numberOfRecordsPerFetch": "1000",
            "kinesis.getRecords.fetchIntervalMs": "200",
            "kinesis.clientNumRetries": "5",
            "kinesis.clientMaxRetryIntervalMs": "10000",
            "kinesis.stsRoleArn": ROLE,
            "kinesis.stsSessionName": "session",
            "kinesis.stsEndpointUrl": "https://sts.us-east-2.amazonaws.com",
            "kinesis.awsAccessKeyId": "key",
            "kinesis.awsSecretKey": "secret",
            "kinesis.sessionToken": "token",
        }
    )
    assert options.streams == (StreamRef(name=StreamName("orders")),)
    assert options.starting_position.default == AtTimestamp(millis=EpochMillis(1_693_450_805_000))
    assert (options.max_records_per_fetch, options.min_fetch_period_ms) == (1_000, 200)
    assert options.shard_discovery_interval_ms == 50_000
    assert options.connection == ConnectionOptions(
        region="us-east-2",
        endpoint_url="https://kinesis.us-east-2.amazonaws.com",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        aws_session_token="token",
        role_arn=ROLE,
        role_session_name="session",
        sts_endpoint_url="https://sts.us-east-2.amazonaws.com",
        retry_max_attempts=6,
        retry_max_backoff_ms=10_000,
    )


@pytest.mark.parametrize(
    ("raw", "option"),
    [
        ({"source.reader.type": "push"}, "source.reader.type"),
        ({"kinesis.consumerType": "push"}, "kinesis.consumerType"),
        ({"kinesis.getRecords.fetchIntervalMs": "100"}, "kinesis.getRecords.fetchIntervalMs"),
        ({"kinesis.getRecords.fetchIntervalMs": "1s"}, "kinesis.getRecords.fetchIntervalMs"),
        ({"kinesis.clientNumRetries": "-1"}, "kinesis.clientNumRetries"),
        ({"initialPosition": "at_timestamp"}, "initialPosition"),
    ],
)
def test_an_alias_is_reported_by_its_own_name(raw: dict[str, str], option: str) -> None:
    assert [p.option for p in problems({"streamName": "orders", **raw})] == [option]
