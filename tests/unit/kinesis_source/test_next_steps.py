"""The advice of an error about options, followed: what it asks for is taken."""

from __future__ import annotations

import json
import re

import pytest

from spark_ssp.common.aws.error_translation import no_credentials
from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.kinesis_source.options.parse import parse_options

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
OTHER_ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/clicks"
ROLE = "arn:aws:iam::123456789012:role/reader"
LEASED = {"applicationName": "orders-etl"}
KEYS = {"awsAccessKeyId": "test", "awsSecretAccessKey": "test"}
NUMBER = "49669128418227452913016471318402834613158341258493886466"

Options = dict[str, str]


def _start(value: object) -> Options:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"startingPosition": text}


def _shard(point: object) -> Options:
    return _start({"shardId-000000000000": point, "default": "latest"})


CASES: list[tuple[Options, str, Options]] = [
    # Names.
    ({"slots": "2", "SLOTS": "3"}, "remove all but one of the spellings", {"slots": "2"}),
    ({"slots": " "}, "give a value, or leave the option out", {}),
    ({"slot": "2"}, "did you mean slots?", {"slots": "2"}),
    (
        {"slots": "2", "minPartitions": "2"},
        "remove it: use slots",
        {"slots": "2"},
    ),
    (
        {"stsEndpoint": "sts.example.com", "stsEndpointUrl": "https://sts.example.com"},
        "keep stsEndpointUrl and remove stsEndpoint",
        {"roleArn": ROLE, "stsEndpointUrl": "https://sts.example.com"},
    ),
    # Values.
    ({"minFetchPeriod": "soon"}, "write a whole number and a unit", {"minFetchPeriod": "1s"}),
    ({"maxRecordsPerTrigger": "ten"}, "write only digits", {"maxRecordsPerTrigger": "10"}),
    ({"slots": "0"}, "give a larger one", {"slots": "1"}),
    ({"failOnDataLoss": "perhaps"}, "write true or false", {"failOnDataLoss": "false"}),
    ({"slotAssignment": "freee"}, "did you mean free?", {"slotAssignment": "free"}),
    ({"slotAssignment": "x"}, "write one of the expected values", {"slotAssignment": "hash-range"}),
    (
        {"endpointUrl": "https://user:word@kinesis.example.com"},
        "write scheme, host and, if need be, port and path",
        {"endpointUrl": "https://kinesis.example.com:443/path"},
    ),
    (
        {"roleArn": ROLE, "stsEndpointUrl": "http://sts.example.com"},
        "write https://",
        {"roleArn": ROLE, "stsEndpointUrl": "https://sts.example.com"},
    ),
    # Streams and regions.
    ({"streamName": "orders,orders"}, "remove the repetitions", {"streamName": "orders"}),
    ({"streamName": ARN}, "use streamARN for an ARN", {"streamName": "", "streamARN": ARN}),
    ({"streamName": ""}, "name the stream to read", {"streamName": "orders"}),
    ({"streamARN": ARN}, "remove streamName or streamARN", {"streamName": "", "streamARN": ARN}),
    (
        {"streamName": "", "region": "", "streamARN": f"{ARN},{OTHER_ARN}"},
        "read them in separate queries",
        {"streamName": "", "region": "", "streamARN": OTHER_ARN},
    ),
    (
        {"streamName": "", "streamARN": ARN, "region": "us-east-1"},
        "remove it: the ARN names the region",
        {"streamName": "", "streamARN": ARN, "region": ""},
    ),
    (
        {"endpointUrl": "https://kinesis.us-east-1.amazonaws.com"},
        "remove it where AWS's own endpoint is meant",
        {},
    ),
    ({"consumerMode": "efo"}, "set consumerName", {"consumerMode": "efo", "consumerName": "etl"}),
    ({"consumerName": "etl"}, "set consumerMode=efo too", {}),
    (
        {"consumerMode": "efo", "consumerArn": f"{ARN}/consumer/etl:1", "consumerLifecycle": "job"},
        "remove it, or give consumerName in place of the ARN",
        {"consumerMode": "efo", "consumerArn": f"{ARN}/consumer/etl:1"},
    ),
    (
        {"consumerMode": "efo", "consumerArn": f"{ARN}/consumer/etl:1", "consumerName": "etl"},
        "remove consumerName or consumerArn",
        {"consumerMode": "efo", "consumerArn": f"{ARN}/consumer/etl:1"},
    ),
    (
        {"consumerMode": "efo", "consumerArn": f"{OTHER_ARN}/consumer/etl:1"},
        "give the ARN of one consumer for each stream",
        {"consumerMode": "efo", "consumerArn": f"{ARN}/consumer/etl:1"},
    ),
    # As whom.
    ({"awsAccessKeyId": "test"}, "give awsSecretAccessKey too", KEYS),
    (
        {"awsSessionToken": "test"},
        "give awsAccessKeyId and awsSecretAccessKey too",
        {"awsSessionToken": "test", **KEYS},
    ),
    ({"awsProfile": "etl", **KEYS}, "remove the profile or the keys", {"awsProfile": "etl"}),
    (
        {"roleSessionName": "etl"},
        "give roleArn too, or remove it",
        {"roleSessionName": "etl", "roleArn": ROLE},
    ),
    (
        {"credentialsProvider": "a:b", **KEYS},
        "keep credentialsProvider and remove awsAccessKeyId and awsSecretAccessKey",
        {"credentialsProvider": "a:b"},
    ),
    (
        {"credentialsProvider": "a:b", "awsProfile": "etl"},
        "remove awsProfile, or the reverse",
        {"awsProfile": "etl"},
    ),
    (
        {"credentialsProviderSecretArguments": "{}"},
        "give credentialsProvider too, or remove them",
        {"credentialsProviderSecretArguments": "{}", "credentialsProvider": "a:b"},
    ),
    (
        {"credentialsProvider": "a.b"},
        "write the module, a colon and the function",
        {"credentialsProvider": "a:b", "roleArn": ROLE},
    ),
    (
        {"serviceCredential": "reader"},
        "use credentialsProvider with a function",
        {"credentialsProvider": "a:b"},
    ),
    # Leases.
    (
        {"workerId": "anne"},
        "set applicationName too, or remove it",
        {"workerId": "anne", **LEASED},
    ),
    (
        {**LEASED, "workerId": "two words"},
        "use - or _ instead",
        {**LEASED, "workerId": "two-words"},
    ),
    ({**LEASED, "workerId": "w" * 2049}, "shorten it", {**LEASED, "workerId": "w" * 2048}),
    ({**LEASED, "workerId": "Leader"}, "choose another", {**LEASED, "workerId": "leader"}),
    (
        {**LEASED, "leaseTableTags": "team"},
        "write key=value, without AWS's own keys (aws:)",
        {**LEASED, "leaseTableTags": "team=orders"},
    ),
    (
        {**LEASED, "leaseTableTags": ",".join(f"k{n}=v" for n in range(51))},
        "keep at most",
        {**LEASED, "leaseTableTags": ",".join(f"k{n}=v" for n in range(50))},
    ),
    (
        {**LEASED, "leaseTableReadWriteCapacity": "10"},
        "write two whole numbers of 1 or more",
        {**LEASED, "leaseTableReadWriteCapacity": "10/5"},
    ),
    (
        {**LEASED, "processorIdGenerator": "PodName"},
        "write the module, a dot and the class",
        {**LEASED, "processorIdGenerator": "my_company.ids.PodName"},
    ),
    # Where to start.
    (_start("latst"), "did you mean latest?", _start("latest")),
    (
        _start("yesterday"),
        "for a time, write at_timestamp 2026-01-01T00:00:00Z",
        _start("at_timestamp 2026-01-01T00:00:00Z"),
    ),
    (
        _start("{"),
        'compare with {"shardId-000000000000": "trim_horizon", "default": "latest"}',
        _start('{"shardId-000000000000": "trim_horizon", "default": "latest"}'),
    ),
    (_start({}), "name a shard or a default", _start({"default": "latest"})),
    (
        _start({"orders": {}, "shardId-000000000000": "latest"}),
        "put the shards inside their stream",
        _start({"orders": {"shardId-000000000000": "latest"}}),
    ),
    (
        _start({"orders": "latest"}),
        'write "default" for the start of several shards',
        _start({"default": "latest"}),
    ),
    (
        _start({"orders": {"default": "latest"}}),
        'there is one "default", at the top, for all streams',
        _start({"orders": {"shardId-000000000000": "latest"}, "default": "latest"}),
    ),
    (
        {"streamName": "orders,clicks", **_start({"shardId-000000000000": "latest"})},
        'write {"clicks": {"shardId-…": …}, "default": …}',
        {
            "streamName": "orders,clicks",
            **_start({"clicks": {"shardId-000000000000": "latest"}, "default": "latest"}),
        },
    ),
    (
        _start({"order": {"shardId-000000000000": "latest"}}),
        "did you mean orders?",
        _start({"orders": {"shardId-000000000000": "latest"}}),
    ),
    (
        _shard({"at_sequence_number": NUMBER}),
        "name the record before it with after_sequence_number, or a time",
        _shard({"after_sequence_number": NUMBER}),
    ),
    (
        _shard({"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": NUMBER}),
        'write AFTER_SEQUENCE_NUMBER as {"after_sequence_number": "<iteratorPosition>"',
        _shard({"after_sequence_number": NUMBER, "sub_sequence_number": 3}),
    ),
    (
        _shard({"after_sequence_number": 4966}),
        "copy it in full and put it in quotes",
        _shard({"after_sequence_number": NUMBER}),
    ),
    (
        _shard({"after_sequence_number": NUMBER, "sub_sequence_number": -1}),
        "remove it for records that are not aggregated",
        _shard({"after_sequence_number": NUMBER}),
    ),
    (_shard(7), "write one of the expected values", _shard("trim_horizon")),
    (
        _start("at_timestamp"),
        "write at_timestamp 2026-01-01T00:00:00Z",
        _start("at_timestamp 2026-01-01T00:00:00Z"),
    ),
    (
        _start("at_timestamp 2026-01-01T00:00:00"),
        "add the offset: Z for UTC, or for instance +02:00",
        _start("at_timestamp 2026-01-01T00:00:00+02:00"),
    ),
    (
        _start("at_timestamp 1767225600"),
        "multiply a time in seconds by 1000",
        _start("at_timestamp 1767225600000"),
    ),
    (
        _start("at_timestamp 1767225600000000"),
        "use milliseconds",
        _start("at_timestamp 1767225600000"),
    ),
    (
        _start({"at_timestamp": True}),
        "write it in quotes",
        _start({"at_timestamp": "2026-01-01T00:00:00Z"}),
    ),
    (
        _start({"at_timestamp": 20260101, "format": "yyyyMMddZ"}),
        "put both in quotes",
        _start({"at_timestamp": "20260101+0000", "format": "yyyyMMddZ"}),
    ),
    (
        _start({"at_timestamp": "2026-01-01", "format": "yyyy-MM-dd"}),
        "ISO 8601",
        _start({"at_timestamp": "2026-01-01T00:00:00Z"}),
    ),
]


def _options(changes: Options) -> Options:
    raw = {"streamName": "orders", "region": "eu-west-1", **changes}
    absent = {name for name in ("streamName", "region") if not raw[name]}
    return {name: raw[name] for name in raw if name not in absent}


@pytest.mark.parametrize(("wrong", "advice", "right"), CASES, ids=[case[1][:50] for case in CASES])
def test_the_advice_is_right(wrong: Options, advice: str, right: Options) -> None:
    with pytest.raises(InvalidOptionsError) as refusal:
        parse_options(_options(wrong))
    steps = [problem.next_step for problem in refusal.value.problems]
    assert any(advice in step for step in steps), steps
    parse_options(_options(right))


def test_a_local_service_takes_the_credentials_that_are_advised() -> None:
    step = no_credentials("none").next_step
    keys = dict(re.findall(r"(aws\w+)=(\w+)", step))
    assert parse_options(_options(keys)).connection.aws_secret_access_key == "test"
