"""A client of a scripted HTTP server, and answers of such a server."""

from __future__ import annotations

from typing import Any

import boto3

from spark_ssp.common.aws.clients import client_config
from spark_ssp.common.aws.retries import RetrySettings
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.shard import ShardIterator, StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from tests.support.fakes.scripted_http import reply

ORDERS = StreamRef(name=StreamName("orders"))
BY_ARN = StreamRef(name=ORDERS.name, arn="arn:aws:kinesis:us-east-1:123456789012:stream/orders")
SHARD = ShardId("shardId-000000000000")
ITERATOR = ShardIterator("AAAA")
DATE = 1_700_000_000
PAGE = {
    "Records": [
        {
            "SequenceNumber": "49",
            "ApproximateArrivalTimestamp": 1_699_999_999.5,
            "Data": "aGVsbG8=",
            "PartitionKey": "k",
        }
    ],
    "NextShardIterator": "BBBB",
    "MillisBehindLatest": 0,
}
GOOD = reply(PAGE)
HTML = b"<!DOCTYPE html><html><body>Bad Gateway \xff</body></html>"
SUMMARY: dict[str, object] = {
    "StreamName": "orders",
    "StreamARN": BY_ARN.arn,
    "StreamStatus": "ACTIVE",
    "RetentionPeriodHours": 24,
    "StreamCreationTimestamp": 1_600_000_000.123,
    "OpenShardCount": 2,
    "EnhancedMonitoring": [],
}
DESCRIBED = reply({"StreamDescriptionSummary": SUMMARY})


KEYS: dict[str, Any] = {
    "region_name": "us-east-1",
    "aws_access_key_id": "test",
    "aws_secret_access_key": "test-secret",
}
SESSION = boto3.Session(**KEYS)


class Clock:
    """A local clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def client(url: str, clock: Clock | None = None, *, read_timeout_ms: int = 30_000) -> Boto3Kinesis:
    clock = clock or Clock()
    config = client_config(ConnectionOptions(read_timeout_ms=read_timeout_ms))
    return Boto3Kinesis(
        SESSION.client("kinesis", endpoint_url=url, config=config),
        retry=RetrySettings(max_attempts=4, max_backoff=1.0),
        monotonic=clock.monotonic,
        sleep=clock.sleep,
        random=lambda: 0.5,
    )


def fetch(service: Boto3Kinesis, *, retry: bool = True) -> list[bytes]:
    page = service.get_records(ORDERS, SHARD, ITERATOR, limit=10, retry=retry)
    return list(page.data)


def shard_entry(number: int) -> dict[str, object]:
    return {
        "ShardId": f"shardId-{number:012}",
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
        "SequenceNumberRange": {"StartingSequenceNumber": "49"},
    }
