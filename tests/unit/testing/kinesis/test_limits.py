"""The embedded service's limits per second, its counters, and its refusals."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ssp.testing.kinesis import KinesisState, Limits, ManualClock
from spark_ssp.testing.kinesis.state.page_reads import RecordsPage
from tests.support.kinesis.embedded_calls import FIRST, ORDERS, SECOND, answered, iterator, outcome

LATEST = ORDERS | {"ShardId": FIRST, "ShardIteratorType": "LATEST"}
RATE = "ProvisionedThroughputExceededException"
MIB = 1024 * 1024


@pytest.fixture
def strict(clock: ManualClock) -> KinesisState:
    service = KinesisState(clock=clock, limits=Limits.strict())
    service.create_stream("orders", 2)
    return service


def outcomes(state: KinesisState, times: int, operation: str, body: dict[str, Any]) -> list[str]:
    return [outcome(state, operation, body) for _ in range(times)]


def test_five_reads_per_shard_and_second(strict: KinesisState, clock: ManualClock) -> None:
    body = {"ShardIterator": iterator(strict)}
    other = {"ShardIterator": iterator(strict, ShardId=SECOND)}
    assert outcomes(strict, 6, "GetRecords", body) == ["ok"] * 5 + [RATE]
    assert outcome(strict, "GetRecords", other) == "ok"
    clock.advance(999)
    assert outcome(strict, "GetRecords", body) == RATE
    clock.advance(1)
    assert outcomes(strict, 6, "GetRecords", body) == ["ok"] * 5 + [RATE]


def test_a_ten_mebibyte_answer_blocks_the_shard_for_five_seconds(
    strict: KinesisState, clock: ManualClock
) -> None:
    for _ in range(11):
        strict.put("orders", "k", b"x" * (MIB - 1), explicit_hash_key=0)
    body = {"ShardIterator": iterator(strict)}
    page = strict.call("GetRecords", body)
    assert isinstance(page, RecordsPage)
    assert page.size == 10 * MIB
    for _ in range(5):
        assert outcome(strict, "GetRecords", body) == RATE
        clock.advance(1000)
    assert outcome(strict, "GetRecords", body) == "ok"


def test_two_mebibytes_per_shard_and_second(strict: KinesisState, clock: ManualClock) -> None:
    for _ in range(4):
        strict.put("orders", "k", b"x" * (MIB - 1), explicit_hash_key=0)
    body = {"ShardIterator": iterator(strict), "Limit": 1}
    assert outcomes(strict, 3, "GetRecords", body) == ["ok", "ok", RATE]
    clock.advance(1000)
    assert outcome(strict, "GetRecords", body) == "ok"


@pytest.mark.parametrize(
    ("operation", "body", "allowed", "refusal"),
    [
        ("GetShardIterator", LATEST, 5, RATE),
        ("ListShards", ORDERS, 1000, "LimitExceededException"),
        ("DescribeStream", ORDERS, 10, "LimitExceededException"),
        ("DescribeStreamSummary", ORDERS, 20, "LimitExceededException"),
        ("ListStreams", {}, 5, "LimitExceededException"),
        ("DescribeLimits", {}, 1, "LimitExceededException"),
    ],
)
def test_rates_of_calls(
    strict: KinesisState,
    clock: ManualClock,
    operation: str,
    body: dict[str, Any],
    allowed: int,
    refusal: str,
) -> None:
    expected = ["ok"] * allowed + [refusal]
    assert outcomes(strict, allowed + 1, operation, body) == expected
    clock.advance(1000)
    assert outcome(strict, operation, body) == "ok"


def test_a_thousand_puts_per_shard_and_second(strict: KinesisState, clock: ManualClock) -> None:
    def batch(hash_key: int) -> int:
        record = {"PartitionKey": "k", "Data": b"x", "ExplicitHashKey": str(hash_key)}
        answer = strict.call("PutRecords", ORDERS | {"Records": [record] * 400})
        assert isinstance(answer, dict)
        codes = {r["ErrorCode"] for r in answer["Records"] if "ErrorCode" in r}
        assert codes <= {RATE}
        failed = answer["FailedRecordCount"]
        assert isinstance(failed, int)
        return failed

    assert [batch(0) for _ in range(4)] == [0, 0, 200, 400]
    assert batch(1 << 127) == 0
    assert dict(strict.calls.refused) == {RATE: 600}
    clock.advance(1000)
    assert batch(0) == 0


def test_a_mebibyte_of_puts_per_shard_and_second(strict: KinesisState) -> None:
    body = ORDERS | {"PartitionKey": "k", "Data": b"x" * (512 * 1024 - 1), "ExplicitHashKey": "0"}
    assert outcomes(strict, 3, "PutRecord", body) == ["ok", "ok", RATE]


def test_scaling_by_more_than_two_at_once_is_refused(strict: KinesisState) -> None:
    def scale(target: int) -> str:
        body = ORDERS | {"TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}
        return outcome(strict, "UpdateShardCount", body)

    assert [scale(5), scale(4), scale(1), scale(2), scale(1)] == [
        "LimitExceededException",
        "ok",
        "LimitExceededException",
        "ok",
        "ok",
    ]


def test_there_are_no_rates_unless_asked_for(clock: ManualClock) -> None:
    state = KinesisState(clock=clock)
    state.create_stream("orders")
    body = {"ShardIterator": iterator(state)}
    assert set(outcomes(state, 200, "GetRecords", body)) == {"ok"}
    state.set_limits(Limits(get_records_per_shard=1))
    assert outcomes(state, 2, "GetRecords", body) == ["ok", RATE]


def test_calls_are_counted(clock: ManualClock) -> None:
    state = KinesisState(clock=clock)
    state.create_stream("orders", 2)
    tokens = [iterator(state), iterator(state, ShardId=SECOND)]
    for token in tokens * 3:
        state.call("GetRecords", {"ShardIterator": token})
        clock.advance(400)
    arn = state.stream("orders").arn
    state.call("ListShards", {"StreamARN": arn})
    assert outcome(state, "Nonsense", {}) == "UnknownOperationException"
    calls = state.calls
    assert calls.by_operation() == {
        "GetRecords": 6,
        "GetShardIterator": 2,
        "ListShards": 1,
        "Nonsense": 1,
    }
    assert calls.by_shard("GetRecords", stream="orders") == {FIRST: 3, SECOND: 3}
    assert calls.count("ListShards", stream="orders") == 1
    assert calls.count(stream="orders", shard=FIRST) == 4
    assert calls.peak_per_second("GetRecords") == 3
    assert calls.peak_per_second("GetRecords", shard=FIRST) == 2
    assert [call.operation for call in calls.recent("ListShards")] == ["ListShards"]
    assert dict(calls.refused) == {"UnknownOperationException": 1}
    calls.reset()
    assert (calls.count(), calls.peak_per_second("GetRecords")) == (0, 0)


# --- Refusals without limits ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "body", "code"),
    [
        ("CreateStream", ORDERS | {"ShardCount": 1}, "ResourceInUseException"),
        ("CreateStream", {"StreamName": "a b", "ShardCount": 1}, "ValidationException"),
        ("CreateStream", {"StreamName": "new"}, "ValidationException"),
        ("CreateStream", {"StreamName": "new", "ShardCount": 0}, "ValidationException"),
        ("CreateStream", {"ShardCount": 1}, "ValidationException"),
        ("DescribeStreamSummary", {}, "InvalidArgumentException"),
        ("DescribeStreamSummary", {"StreamName": 7}, "SerializationException"),
        ("DescribeStreamSummary", {"StreamARN": "arn:nonsense"}, "ValidationException"),
        (
            "DescribeStreamSummary",
            {"StreamARN": "arn:aws:kinesis:eu-west-1:000000000000:stream/orders"},
            "ResourceNotFoundException",
        ),
        (
            "DescribeStreamSummary",
            ORDERS | {"StreamARN": "arn:aws:kinesis:us-east-1:000000000000:stream/other"},
            "InvalidArgumentException",
        ),
        ("ListShards", ORDERS | {"MaxResults": 0}, "ValidationException"),
        ("ListShards", {"NextToken": "nonsense"}, "InvalidArgumentException"),
        ("ListShards", ORDERS | {"ShardFilter": {"Type": "X"}}, "ValidationException"),
        (
            "ListShards",
            ORDERS | {"ShardFilter": {"Type": "AT_TIMESTAMP"}},
            "InvalidArgumentException",
        ),
        ("ListShards", ORDERS | {"StreamCreationTimestamp": 1}, "InvalidArgumentException"),
        ("GetShardIterator", ORDERS | {"ShardId": FIRST}, "ValidationException"),
        ("GetShardIterator", LATEST | {"ShardIteratorType": "X"}, "ValidationException"),
        ("GetShardIterator", LATEST | {"StartingSequenceNumber": "1"}, "InvalidArgumentException"),
        ("GetShardIterator", LATEST | {"StartingSequenceNumber": "x"}, "ValidationException"),
        ("GetShardIterator", LATEST | {"Timestamp": 1}, "InvalidArgumentException"),
        ("GetShardIterator", LATEST | {"Timestamp": "1"}, "SerializationException"),
        ("GetRecords", {}, "ValidationException"),
        ("PutRecord", ORDERS | {"Data": b"x"}, "ValidationException"),
        ("PutRecord", ORDERS | {"PartitionKey": "k"}, "ValidationException"),
        ("PutRecord", ORDERS | {"PartitionKey": "k" * 257, "Data": b""}, "ValidationException"),
        ("PutRecord", ORDERS | {"PartitionKey": "", "Data": b""}, "ValidationException"),
        (
            "PutRecord",
            ORDERS | {"PartitionKey": "k", "Data": b"x" * MIB},
            "InvalidArgumentException",
        ),
        ("PutRecords", ORDERS | {"Records": []}, "ValidationException"),
        ("PutRecords", ORDERS, "ValidationException"),
        (
            "PutRecords",
            ORDERS | {"Records": [{"PartitionKey": "k", "Data": b"x" * (MIB - 1)}] * 11},
            "InvalidArgumentException",
        ),
        (
            "UpdateShardCount",
            ORDERS | {"TargetShardCount": 2, "ScalingType": "X"},
            "ValidationException",
        ),
        ("EnableEnhancedMonitoring", {}, "UnknownOperationException"),
    ],
)
def test_what_cannot_be_is_refused(
    clock: ManualClock, operation: str, body: dict[str, Any], code: str
) -> None:
    state = KinesisState(clock=clock)
    state.create_stream("orders")
    assert outcome(state, operation, body) == code
    assert state.records("orders") == []
    assert state.stream_names() == ["orders"]


def test_larger_records_where_the_stream_allows_them(clock: ManualClock) -> None:
    state = KinesisState(clock=clock)
    body = {"StreamName": "large", "ShardCount": 1, "MaxRecordSizeInKiB": 10_240}
    state.call("CreateStream", body)
    put = {"StreamName": "large", "PartitionKey": "k", "Data": b"x" * (10 * MIB - 1)}
    assert outcome(state, "PutRecord", put) == "ok"
    state.call("UpdateMaxRecordSize", {"StreamName": "large", "MaxRecordSizeInKiB": 1024})
    assert outcome(state, "PutRecord", put) == "InvalidArgumentException"


def test_ten_thousand_shards_are_listed_by_pages(clock: ManualClock) -> None:
    state = KinesisState(clock=clock)
    state.create_stream("wide", 10_000)
    seen: list[str] = []
    body: dict[str, Any] = {"StreamName": "wide", "MaxResults": 5000}
    while True:
        answer = state.call("ListShards", body)
        assert isinstance(answer, dict)
        assert len(answer["Shards"]) == 1000
        seen += [shard["ShardId"] for shard in answer["Shards"]]
        if "NextToken" not in answer:
            break
        body = {"NextToken": answer["NextToken"]}
    assert len(set(seen)) == 10_000
    assert seen == sorted(seen)


def test_shards_and_streams_are_described_by_pages_of_a_hundred(clock: ManualClock) -> None:
    state = KinesisState(clock=clock)
    state.create_stream("wide", 250)
    for number in range(204):
        state.create_stream(f"stream-{number:03d}")
    counts: list[int] = []
    body: dict[str, Any] = {"StreamName": "wide", "Limit": 10_000}
    more = True
    while more:
        page = answered(state, "DescribeStream", **body)["StreamDescription"]
        counts.append(len(page["Shards"]))
        body["ExclusiveStartShardId"] = page["Shards"][-1]["ShardId"]
        more = page["HasMoreShards"]
    assert counts == [100, 100, 50]
    seen: list[str] = []
    body, more = {"Limit": 10_000}, True
    while more:
        answer = answered(state, "ListStreams", **body)
        assert len(answer["StreamNames"]) <= 100
        seen += answer["StreamNames"]
        body = {"ExclusiveStartStreamName": seen[-1], "Limit": 10_000}
        more = answer["HasMoreStreams"]
    assert seen == state.stream_names()


def test_an_iterator_fits_the_apis_512_characters(clock: ManualClock) -> None:
    state = KinesisState(clock=clock)
    state.create_stream("n" * 128)
    answer = state.call("GetShardIterator", LATEST | {"StreamName": "n" * 128})
    assert isinstance(answer, dict)
    assert len(answer["ShardIterator"]) <= 512
