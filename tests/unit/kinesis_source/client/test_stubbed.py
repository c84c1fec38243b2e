"""Requests and answers, checked against the SDK's model of the API by its Stubber."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from spark_ssp.common.aws.service_calls import RetrySettings
from spark_ssp.grouping.identifiers import HashRange, ShardId, StreamName
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    SequenceNumber,
    Shard,
    ShardEnd,
    ShardIterator,
    StreamDescription,
    StreamRef,
    TrimHorizon,
)
from tests.support.kinesis.pages import page

ORDERS = StreamRef(name=StreamName("orders"))
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
SHARD = ShardId("shardId-000000000000")
LAST_KEY = (1 << 128) - 1
RANGE = {"StartingHashKey": "0", "EndingHashKey": str(LAST_KEY)}
HEARD = {"HTTPHeaders": {"date": "Tue, 14 Nov 2023 22:13:20 GMT"}, "HTTPStatusCode": 200}
AFTER = AfterRecord(sequence_number=SequenceNumber("4959"), sub=3)


class Stubbed:
    """A client with scripted answers, each with its expected request."""

    def __init__(self) -> None:
        client = boto3.client(
            "kinesis",
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self._stubber = Stubber(client)
        self.service = Boto3Kinesis(
            client,
            retry=RetrySettings(max_attempts=1, max_backoff=0),
            monotonic=lambda: 0.0,
            sleep=lambda _: None,
            random=lambda: 0.0,
        )
        self._stubber.activate()

    def expect(self, method: str, asked: dict[str, Any], answer: dict[str, Any]) -> None:
        self._stubber.add_response(method, answer | {"ResponseMetadata": HEARD}, asked)

    def done(self) -> None:
        self._stubber.assert_no_pending_responses()


@pytest.fixture
def stubbed() -> Iterator[Stubbed]:
    made = Stubbed()
    yield made
    made.done()


@pytest.mark.parametrize(
    ("position", "inclusive", "asked"),
    [
        (TrimHorizon(), False, {"ShardIteratorType": "TRIM_HORIZON"}),
        (
            AFTER,
            False,
            {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": "4959"},
        ),
        (
            AFTER,
            True,
            {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "4959"},
        ),
        (
            AtTimestamp(millis=EpochMillis(1_700_000_000_001)),
            False,
            {
                "ShardIteratorType": "AT_TIMESTAMP",
                "Timestamp": datetime(2023, 11, 14, 22, 13, 20, 1000, tzinfo=UTC),
            },
        ),
    ],
)
def test_positions(
    stubbed: Stubbed, position: Position, inclusive: bool, asked: dict[str, Any]
) -> None:
    where = {"StreamName": "orders", "ShardId": SHARD}
    stubbed.expect("get_shard_iterator", where | asked, {"ShardIterator": "AAAA"})
    opened = stubbed.service.open_iterator(ORDERS, SHARD, position, inclusive=inclusive)
    assert opened == "AAAA"


def test_the_end_of_a_shard_is_no_place_to_read_from(stubbed: Stubbed) -> None:
    with pytest.raises(ValueError, match="nothing follows"):
        stubbed.service.open_iterator(ORDERS, SHARD, ShardEnd())


def test_records_that_the_sdk_parsed(stubbed: Stubbed) -> None:
    arrived = datetime(2023, 11, 14, 22, 13, 19, 999000, tzinfo=UTC)
    record = {
        "SequenceNumber": "4959",
        "ApproximateArrivalTimestamp": arrived,
        "Data": b"\x00\xff",
        "PartitionKey": "ключ",
        "EncryptionType": "KMS",
    }
    child = {"ShardId": "shardId-000000000001", "ParentShards": [SHARD], "HashKeyRange": RANGE}
    stubbed.expect(
        "get_records",
        {"ShardIterator": "AAAA", "Limit": 7},
        {"Records": [record], "MillisBehindLatest": 5, "ChildShards": [child]},
    )
    found = stubbed.service.get_records(ORDERS, SHARD, ShardIterator("AAAA"), limit=7)
    assert found == page(
        [b"\x00\xff"],
        keys=["ключ"],
        numbers=["4959"],
        arrivals=[1_699_999_999_999],
        behind=5,
        now=1_700_000_000_000,
    )


def test_shards(stubbed: Stubbed) -> None:
    merged = {
        "ShardId": "shardId-000000000002",
        "ParentShardId": "shardId-000000000001",
        "AdjacentParentShardId": SHARD,
        "HashKeyRange": RANGE,
        "SequenceNumberRange": {"StartingSequenceNumber": "50", "EndingSequenceNumber": "51"},
    }
    stubbed.expect("list_shards", {"StreamName": "orders"}, {"Shards": [merged]})
    assert stubbed.service.list_shards(ORDERS) == (
        Shard(
            shard_id=ShardId("shardId-000000000002"),
            parents=(SHARD, ShardId("shardId-000000000001")),
            hash_range=HashRange(first=0, last=LAST_KEY),
            first_sequence_number=SequenceNumber("50"),
            closed=True,
            ending_sequence_number=SequenceNumber("51"),
        ),
    )


def test_a_description(stubbed: Stubbed) -> None:
    summary = {
        "StreamName": "orders",
        "StreamARN": ARN,
        "StreamStatus": "UPDATING",
        "RetentionPeriodHours": 48,
        "StreamCreationTimestamp": datetime(2023, 11, 14, 22, 13, 20, 500000, tzinfo=UTC),
        "EnhancedMonitoring": [],
        "OpenShardCount": 3,
    }
    stubbed.expect(
        "describe_stream_summary", {"StreamARN": ARN}, {"StreamDescriptionSummary": summary}
    )
    assert stubbed.service.describe(StreamRef(name=ORDERS.name, arn=ARN)) == StreamDescription(
        name=ORDERS.name,
        arn=ARN,
        created=EpochMillis(1_700_000_000_500),
        retention_ms=172_800_000,
    )
