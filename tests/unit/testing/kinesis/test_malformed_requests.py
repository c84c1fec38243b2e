"""Requests of clients that are not an AWS SDK: every value of any type is answered, if only with an
error of the service."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

import pytest

from spark_ssp.testing.kinesis import KinesisState, ManualClock
from spark_ssp.testing.kinesis.dispatch import OPERATIONS
from tests.support.kinesis.embedded_calls import FIRST, ORDERS, SECOND, outcome

ARN: Final = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
NUMBER: Final = "49590338271490256608559692538361571095921575989136588898"
STREAM: Final = ORDERS | {"StreamARN": ARN}
LISTING: Final = {"MaxResults": 10, "NextToken": "x", "StreamCreationTimestamp": 1}
CONSUMER: Final = {"StreamARN": ARN, "ConsumerARN": f"{ARN}/consumer/etl:1", "ConsumerName": "etl"}
RECORD: Final = {"PartitionKey": "k", "Data": "eA==", "ExplicitHashKey": "7"}
MODE: Final = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
FILTER: Final = {"Type": "AFTER_SHARD_ID", "ShardId": FIRST, "Timestamp": 1}
POSITION: Final = {"Type": "TRIM_HORIZON", "SequenceNumber": NUMBER, "Timestamp": 1}
AUTO: Final = {"RecordDistributionStrategy": "AUTO"}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "AddTagsToStream": STREAM | {"Tags": {"a": "1"}},
    "CreateStream": {"StreamName": "new", "ShardCount": 1, "MaxRecordSizeInKiB": 1024}
    | {"Tags": {"a": "1"}}
    | MODE
    | AUTO,
    "DecreaseStreamRetentionPeriod": STREAM | {"RetentionPeriodHours": 24},
    "DeleteStream": STREAM | {"EnforceConsumerDeletion": True},
    "DeregisterStreamConsumer": CONSUMER,
    "DescribeLimits": {},
    "DescribeStream": STREAM | {"Limit": 1, "ExclusiveStartShardId": FIRST},
    "DescribeStreamConsumer": CONSUMER,
    "DescribeStreamSummary": STREAM,
    "GetRecords": {"ShardIterator": "x", "Limit": 1, "StreamARN": ARN, "DryRun": True},
    "GetShardIterator": STREAM
    | {"ShardId": FIRST, "ShardIteratorType": "AT_SEQUENCE_NUMBER", "DryRun": True}
    | {"StartingSequenceNumber": NUMBER, "Timestamp": 1},
    "IncreaseStreamRetentionPeriod": STREAM | {"RetentionPeriodHours": 48},
    "ListShards": STREAM | LISTING | {"ExclusiveStartShardId": FIRST, "ShardFilter": FILTER},
    "ListStreamConsumers": {"StreamARN": ARN} | LISTING,
    "ListStreams": {"Limit": 1, "ExclusiveStartStreamName": "orders", "NextToken": "x"},
    "ListTagsForStream": STREAM | {"ExclusiveStartTagKey": "a", "Limit": 1},
    "MergeShards": STREAM | {"ShardToMerge": FIRST, "AdjacentShardToMerge": SECOND},
    "PutRecord": STREAM | RECORD | {"SequenceNumberForOrdering": NUMBER, "DryRun": True},
    "PutRecords": STREAM | {"Records": [RECORD], "DryRun": True},
    "RegisterStreamConsumer": {"StreamARN": ARN, "ConsumerName": "etl", "Tags": {"a": "1"}},
    "RemoveTagsFromStream": STREAM | {"TagKeys": ["a"]},
    "SplitShard": STREAM | {"ShardToSplit": FIRST, "NewStartingHashKey": "7"},
    "SubscribeToShard": {"ConsumerARN": CONSUMER["ConsumerARN"], "ShardId": FIRST}
    | {"StartingPosition": POSITION, "DryRun": True},
    "UpdateMaxRecordSize": STREAM | {"MaxRecordSizeInKiB": 1024},
    "UpdateShardCount": STREAM | {"TargetShardCount": 2, "ScalingType": "UNIFORM_SCALING"},
    "UpdateStreamMode": {"StreamARN": ARN} | MODE,
    "UpdateStreamRecordDistributionStrategy": {"StreamARN": ARN} | AUTO,
}
VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -7,
    1.5,
    1e308,
    "",
    "\u00e9",
    "x",
    [],
    [7],
    ["x"],
    {},
    {"x": 7},
)


def service() -> KinesisState:
    state = KinesisState(clock=ManualClock(1000))
    state.create_stream("orders", 2)
    state.register_consumer("orders", "etl")
    return state


def bodies(operation: str) -> Iterator[dict[str, Any]]:
    """Return bodies in which one value is any other and, so that it is looked at, some others are
    left out."""
    whole = BODIES[operation]
    for path in paths(whole):
        for value in VALUES:
            body = deepcopy(whole)
            at: Any = body
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = value
            yield body
            for other in whole:
                if other != path[0]:
                    yield {name: found for name, found in body.items() if name != other}
        yield {path[0]: whole[path[0]]}


def paths(value: Any) -> Iterator[tuple[Any, ...]]:
    """Return the ways to all values of an object or list."""
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    for step, below in steps:
        yield (step,)
        if isinstance(below, dict | list):
            yield from ((step, *rest) for rest in paths(below))


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_value_of_any_type_is_answered(operation: str) -> None:
    for body in bodies(operation):
        outcome(service(), operation, body)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("AddTagsToStream", ORDERS | {"Tags": ["a"]}),
        ("CreateStream", {"StreamName": "new", "ShardCount": 1, "Tags": ["a"]}),
        ("CreateStream", {"StreamName": "new", "StreamModeDetails": "ON_DEMAND"}),
        ("GetShardIterator", ORDERS | {"ShardId": FIRST, "ShardIteratorType": 7}),
        ("ListShards", ORDERS | {"ShardFilter": "AT_LATEST"}),
        ("PutRecord", ORDERS | RECORD | {"Data": "\u00e9"}),
        ("PutRecord", ORDERS | RECORD | {"ExplicitHashKey": 7}),
        ("RemoveTagsFromStream", ORDERS | {"TagKeys": "a"}),
    ],
)
def test_a_value_of_another_type_is_a_serialization_error(
    operation: str, body: dict[str, Any]
) -> None:
    state = service()
    assert outcome(state, operation, body) == "SerializationException"
    assert (state.records("orders"), state.stream_names()) == ([], ["orders"])
