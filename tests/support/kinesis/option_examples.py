"""A valid value and wrong ones of every option of the Kinesis source, and helpers to try them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from spark_ssp.common.errors import OptionProblem
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.options.values import KINESIS_OPTIONS, InvalidOptionsError

CANARY = "Canary/wJalrXUtnFEMI+K7MDENG"
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
ROLE = "arn:aws:iam::123456789012:role/team/reader"

GOOD: dict[str, str] = {
    "streamName": "orders",
    "streamARN": ARN,
    "region": "eu-west-1",
    "endpointUrl": "http://localhost:4567",
    "startingPosition": "trim_horizon",
    "endingPosition": "at_timestamp 2026-11-01T00:00:00Z",
    "maxRecords": "1000",
    "consumerMode": "efo",
    "consumerName": "orders-query",
    "consumerArn": f"{ARN}/consumer/orders-query:1782864000",
    "consumerLifecycle": "self",
    "dropStreams": "clicks, views",
    "failOnDataLoss": "false",
    "deaggregate": "false",
    "includeRepeatKeys": "False",
    "slots": "16",
    "slotAssignment": "hash-range",
    "maxRecordsPerTrigger": "100000",
    "maxBytesPerTrigger": "1g",
    "maxBytesPerShard": "1g",
    "alignBatches": "false",
    "alignmentTimeout": "1m",
    "trigger": "ProcessingTime",
    "shardDiscoveryInterval": "30s",
    "maxRecordsPerFetch": "500",
    "minFetchPeriod": "1s",
    "maxBytesInFlight": "32MiB",
    "applicationName": "orders-etl",
    "leaseTable": "orders-leases",
    "workerId": "007",
    "processorIdGenerator": "my_company.ids.PodName",
    "failoverTime": "20s",
    "maxLeasesPerWorker": "8",
    "checkpointInterval": "1s",
    "dynamodbEndpointUrl": "http://localhost:8000",
    "leaseTableTags": "team=orders, stage=test",
    "leaseTableReadWriteCapacity": "10/5",
    "leaseMaxOutage": "1m",
    "leaseRoleArn": ROLE,
    "leaseRoleExternalId": CANARY,
    "awsProfile": "reader",
    "awsAccessKeyId": "AKIAIOSFODNN7EXAMPLE",
    "awsSecretAccessKey": CANARY,
    "awsSessionToken": CANARY,
    "credentialsProvider": "my_company.aws:credentials",
    "credentialsProviderSecretArguments": f'{{"password": "{CANARY}"}}',
    "roleArn": ROLE,
    "roleExternalId": CANARY,
    "roleSessionName": "orders-query",
    "stsEndpointUrl": "https://sts.eu-west-1.amazonaws.com",
    "retry.maxAttempts": "3",
    "retry.maxBackoff": "2s",
    "connectTimeout": "5s",
    "readTimeout": "1 minute",
}
"""A valid value of every option."""

BAD: dict[str, tuple[str, ...]] = {
    "streamName": ("my stream", "a" * 129, ARN, "orders,orders", "orders,"),
    "streamARN": ("orders", f"{ARN},{ARN}", ARN.replace("kinesis", "sqs"), f"{ARN}/consumer/x:1"),
    "region": ("eu-west-1a", "EU West", "eu_west_1", "-"),
    "endpointUrl": ("localhost:4567", "ftp://host", f"http://user:{CANARY}@host"),
    "startingPosition": ("lates", "at_timestamp", "{", '{"shardId-0": 1}'),
    "endingPosition": ("trim_horizon", "lates", '{"shardId-000000000000": "earliest"}'),
    "maxRecords": ("0", "-1", "1k"),
    "consumerMode": ("push", "efo1", "SubscribeToShard"),
    "consumerName": ("orders query", "a" * 129, f"{ARN}/consumer/orders-query:1782864000"),
    "consumerArn": ("orders-query", ARN, f"{ARN}/consumer/orders-query"),
    "consumerLifecycle": ("JOB_MANAGED", "keep"),
    "dropStreams": ("a b", "arn:aws:kinesis"),
    "failOnDataLoss": ("yes", "0"),
    "deaggregate": ("on", "2"),
    "includeRepeatKeys": ("on", "2"),
    "slots": ("0", "-1", "many", "1.5"),
    "slotAssignment": ("hash_range", "random"),
    "maxRecordsPerTrigger": ("0", "1k"),
    "maxBytesPerTrigger": ("0", "much", "1.5g"),
    "maxBytesPerShard": ("-1", "much", "1.5g"),
    "alignBatches": ("on", "1"),
    "alignmentTimeout": ("-1s", "2d", "soon"),
    "trigger": ("availableNow", "once", "10 seconds"),
    "shardDiscoveryInterval": ("10", "2d", "soon"),
    "maxRecordsPerFetch": ("0", "10001", "10_000"),
    "minFetchPeriod": ("199ms", "5m", "0.4s"),
    "maxBytesInFlight": ("1023k", "64 megs"),
    "applicationName": ("ab", "a" * 256, "orders etl", "orders/etl"),
    "leaseTable": ("ab", "a" * 256, "arn:aws:dynamodb:eu-west-1:123456789012:table/orders"),
    "workerId": ("two words", " p1 ", "p1\t", "w" * 2049, "Leader", "shardId-000000000000"),
    "processorIdGenerator": ("PodName", "my_company.", "my-company.ids", "a.b()"),
    "failoverTime": ("10", "11m", "soon"),
    "maxLeasesPerWorker": ("0", "-1", "all"),
    "checkpointInterval": ("99ms", "2h", "often"),
    "dynamodbEndpointUrl": ("localhost:8000", "ftp://host", f"http://user:{CANARY}@host"),
    "leaseTableTags": ("team", "=orders", "aws:team=orders", "a=1,a=2", "a=1,"),
    "leaseTableReadWriteCapacity": ("10", "0/5", "10/", "on demand"),
    "leaseMaxOutage": ("10", "2d", "never"),
    "leaseRoleArn": ("keeper", "null", ROLE.replace("role", "user")),
    "leaseRoleExternalId": ("x", f"{CANARY} x"),
    "awsProfile": ("a\nb", "\u00e4"),
    "awsAccessKeyId": (f"{CANARY} x",),
    "awsSecretAccessKey": (f"{CANARY}\n{CANARY}",),
    "awsSessionToken": (f"{CANARY}\u00e4",),
    "credentialsProvider": (
        "my_company.aws",
        "aws.credentials()",
        ":credentials",
        "a:b:c",
        "a:b.c",
    ),
    "credentialsProviderSecretArguments": (f'["{CANARY}"]', f"{CANARY}", "null", "{'a': 1}"),
    "roleArn": ("reader", ROLE.replace("role", "user")),
    "roleExternalId": ("x", f"{CANARY} x"),
    "roleSessionName": ("x", "orders query", "x" * 65),
    "stsEndpointUrl": (
        "sts.eu-west-1.amazonaws.com",
        "http://sts.eu-west-1.amazonaws.com",
        f"https://{CANARY}@host",
    ),
    "retry.maxAttempts": ("0", "101"),
    "retry.maxBackoff": ("10", "1h"),
    "connectTimeout": ("10", "1h"),
    "readTimeout": ("30", "1h"),
}
"""Values that are wrong for every combination with other options, by option."""

ONLY_BATCH = {"endingPosition", "maxRecords"}
"""Options that a streaming query refuses."""

NEEDS: dict[str, dict[str, str]] = {
    "awsAccessKeyId": {"awsSecretAccessKey": "secret"},
    "awsSecretAccessKey": {"awsAccessKeyId": "key"},
    "awsSessionToken": {"awsAccessKeyId": "key", "awsSecretAccessKey": "secret"},
    "credentialsProviderSecretArguments": {"credentialsProvider": "my_company.aws:credentials"},
    "roleExternalId": {"roleArn": ROLE},
    "roleSessionName": {"roleArn": ROLE},
    "stsEndpointUrl": {"roleArn": ROLE},
    "consumerMode": {"consumerName": "orders-query"},
    "consumerName": {"consumerMode": "efo", "consumerLifecycle": "self"},
    "consumerArn": {"consumerMode": "efo", "streamARN": ARN},
    "consumerLifecycle": {"consumerMode": "efo", "consumerName": "orders-query"},
    **{
        name: {"applicationName": "orders-etl"}
        for name in (
            "workerId",
            "processorIdGenerator",
            "failoverTime",
            "maxLeasesPerWorker",
            "checkpointInterval",
            "dynamodbEndpointUrl",
            "leaseTableTags",
            "leaseTableReadWriteCapacity",
            "leaseMaxOutage",
            "leaseRoleArn",
        )
    },
    "leaseRoleExternalId": {"applicationName": "orders-etl", "leaseRoleArn": ROLE},
}
"""Options without which an option is never given."""

SPECS = {spec.name: spec for spec in KINESIS_OPTIONS.options}
ALIASES = {alias.name: spec.name for spec in KINESIS_OPTIONS.options for alias in spec.aliases}
PROVIDER = {name for name in SPECS if name.startswith("credentialsProvider")}
STREAM_OPTIONS = {name for name in SPECS if name.startswith("stream")}


def with_stream(raw: dict[str, str], *, option: str = "") -> dict[str, str]:
    """Return `raw` with a stream to read, unless it (or `option`) names one."""
    named = {SPECS[option].name if option in SPECS else ALIASES.get(option, "")}
    named |= {ALIASES.get(name, name) for name in raw}
    return raw if named & STREAM_OPTIONS else {"streamName": "orders", **raw}


def problems(raw: Mapping[str, str]) -> tuple[OptionProblem, ...]:
    """Return the problems of `raw`, checked to be an error that never shows the canary."""
    with pytest.raises(InvalidOptionsError) as caught:
        parse_options(raw)
    assert "Canary" not in str(caught.value)
    assert "Canary" not in repr(caught.value)
    assert "Canary" not in repr(pickle.loads(pickle.dumps(caught.value)))
    return caught.value.problems
