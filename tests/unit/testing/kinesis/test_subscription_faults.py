"""Injected faults of subscriptions, over boto3: the client sees what the guide lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError, ReadTimeoutError
from urllib3.exceptions import ProtocolError
from urllib3.exceptions import ReadTimeoutError as SocketTimeoutError

from spark_ssp.testing.kinesis import EmbeddedKinesis, KinesisState, ManualClock, UnusualAnswers
from spark_ssp.testing.kinesis.state.faults import (
    Call,
    CutSubscription,
    EmptyEvents,
    EndSubscription,
    FailSubscription,
    Refusal,
    SilenceSubscription,
    SubscriptionFault,
    by_chance,
)
from spark_ssp.testing.kinesis.state.subscription import RecordsEvent, Subscription

if TYPE_CHECKING:
    from types_boto3_kinesis import KinesisClient

FIRST = "shardId-000000000000"


class Subject:
    """A shard of the records a to d, pushed one by one."""

    def __init__(self, kinesis: EmbeddedKinesis, client: KinesisClient) -> None:
        self.kinesis, self.client = kinesis, client
        self.consumer = kinesis.state.register_consumer("orders", "etl").arn
        for text in (b"a", b"b", b"c", b"d"):
            kinesis.state.put("orders", "key", text)

    def inject(self, fault: SubscriptionFault | Refusal, **matching: Any) -> None:
        self.kinesis.faults.add(fault, operation="SubscribeToShard", **matching)

    def events(self) -> Iterator[dict[str, Any]]:
        answer = self.client.subscribe_to_shard(
            ConsumerARN=self.consumer,
            ShardId=FIRST,
            StartingPosition={"Type": "TRIM_HORIZON"},
        )
        try:
            for event in answer["EventStream"]:
                yield dict(event["SubscribeToShardEvent"])
        finally:
            answer["EventStream"].close()


@pytest.fixture
def subject() -> Iterator[Subject]:
    answers = UnusualAnswers(event_records=1)
    with EmbeddedKinesis(clock=ManualClock(), answers=answers) as kinesis:
        kinesis.state.create_stream("orders")
        config = Config(retries={"total_max_attempts": 1}, read_timeout=1)
        client = boto3.client("kinesis", config=config, **kinesis.client_settings())
        yield Subject(kinesis, client)
        client.close()


def read(events: Iterator[dict[str, Any]], found: list[bytes]) -> None:
    """Append the data of all records until the response ends or fails."""
    for event in events:
        found += [record["Data"] for record in event["Records"]]


@pytest.mark.parametrize(
    "code", ["ResourceInUseException", "InternalFailureException", "KMSThrottlingException"]
)
def test_an_error_event_ends_the_subscription(subject: Subject, code: str) -> None:
    subject.inject(FailSubscription(code=code, after_events=2))
    found: list[bytes] = []
    with pytest.raises(EventStreamError, match=code):
        read(subject.events(), found)
    assert found == [b"a", b"b"]


def test_a_connection_is_cut_within_an_event(subject: Subject) -> None:
    subject.inject(CutSubscription(after_events=2))
    found: list[bytes] = []
    with pytest.raises(ProtocolError):
        read(subject.events(), found)
    assert found == [b"a", b"b"]


def test_a_response_ends_early_without_child_shards(subject: Subject) -> None:
    subject.kinesis.state.split("orders", FIRST)
    subject.inject(EndSubscription(after_events=3))
    events = list(subject.events())
    assert [record["Data"] for event in events for record in event["Records"]] == [b"a", b"b", b"c"]
    assert not any("ChildShards" in event for event in events)


def test_a_silent_subscription_sends_nothing(subject: Subject) -> None:
    subject.inject(SilenceSubscription(after_events=1))
    found: list[bytes] = []
    with pytest.raises((ReadTimeoutError, SocketTimeoutError)):
        read(subject.events(), found)
    assert found == [b"a"]


def test_a_silence_ends_by_the_services_clock() -> None:
    clock = ManualClock()
    state = KinesisState(clock=clock)
    state.create_stream("orders")
    body = {
        "ConsumerARN": state.register_consumer("orders", "etl").arn,
        "ShardId": FIRST,
        "StartingPosition": {"Type": "TRIM_HORIZON"},
    }
    state.put("orders", "key", b"a")
    state.faults.add(SilenceSubscription(duration_ms=1000), operation="SubscribeToShard")
    subscription = state.call("SubscribeToShard", body)
    assert isinstance(subscription, Subscription)
    for passed_ms in (0, 999):
        clock.advance(passed_ms)
        step = state.next_step(subscription)
        subscription = step.subscription
        assert step.event is None
    clock.advance(1)
    event = state.next_step(subscription).event
    assert isinstance(event, RecordsEvent)
    assert [record.data for record in event.records] == [b"a"]


def test_the_continuation_moves_before_the_records(subject: Subject) -> None:
    subject.inject(EmptyEvents(count=2, after_events=1))
    events = subject.events()
    found = [next(events) for _ in range(4)]
    events.close()  # type: ignore[attr-defined]
    assert [len(event["Records"]) for event in found] == [1, 0, 0, 1]
    assert all(event["MillisBehindLatest"] > 0 for event in found[1:3])
    moves = [int(event["ContinuationSequenceNumber"]) for event in found]
    assert moves == sorted(set(moves))


def test_a_call_is_refused_with_any_code(subject: Subject) -> None:
    subject.inject(Refusal(code="LimitExceededException"), count=2)
    for _ in range(2):
        with pytest.raises(ClientError, match="LimitExceededException"):
            next(subject.events())
    events = subject.events()  # a refused call does not begin the five seconds
    assert next(events)["Records"][0]["Data"] == b"a"
    events.close()  # type: ignore[attr-defined]


def test_chance_repeats_with_its_seed_whatever_the_order_of_shards() -> None:
    def call(shard: str) -> Call:
        return Call(operation="SubscribeToShard", stream="orders", shard=shard, at_ms=0)

    def chosen(order: list[str], seed: int) -> dict[str, list[bool]]:
        condition = by_chance(0.3, seed=seed)
        found: dict[str, list[bool]] = {"one": [], "two": []}
        for shard in order:
            found[shard].append(condition(call(shard)))
        return found

    in_turn = chosen(["one", "two"] * 500, seed=7)
    assert in_turn == chosen(["two"] * 500 + ["one"] * 500, seed=7)
    assert in_turn != chosen(["one", "two"] * 500, seed=8)
    assert in_turn["one"] != in_turn["two"]
    assert 200 < sum(in_turn["one"]) + sum(in_turn["two"]) < 400
    assert not any(by_chance(0.0, seed=1)(call("one")) for _ in range(100))
    assert all(by_chance(1.0, seed=1)(call("one")) for _ in range(100))
