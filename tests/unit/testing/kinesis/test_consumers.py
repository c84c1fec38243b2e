"""The embedded service's consumers of enhanced fan-out, and its SubscribeToShard without HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ssp.testing.kinesis import Delays, KinesisState, Limits, ManualClock
from spark_ssp.testing.kinesis.state.subscription import (
    HEARTBEAT_MS,
    LIFE_MS,
    TAKEOVER_MS,
    ErrorEvent,
    Event,
    RecordsEvent,
    Subscription,
)
from tests.support.kinesis.embedded_calls import FIRST, ORDERS, answered, iterator, outcome, read
from tests.support.kinesis.embedded_calls import texts as page_texts

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
RECORDS = [(1_699_999_999_000, b"a"), (1_699_999_999_001, b"b"), (1_699_999_999_002, b"c")]
ETL = {"StreamARN": ARN, "ConsumerName": "etl"}
ONE_MORE = {"StreamARN": ARN, "ConsumerName": "one-more"}
IN_USE, LIMIT = "ResourceInUseException", "LimitExceededException"
NOT_FOUND, INVALID = "ResourceNotFoundException", "InvalidArgumentException"


def service(clock: ManualClock, **settings: Any) -> KinesisState:
    found = KinesisState(clock=clock, **settings)
    found.create_stream("orders")
    return found


def register(state: KinesisState, name: str = "etl") -> dict[str, Any]:
    answer = answered(state, "RegisterStreamConsumer", StreamARN=ARN, ConsumerName=name)
    found = answer["Consumer"]
    assert isinstance(found, dict)
    return found


def status(state: KinesisState, name: str = "etl") -> str:
    answer = answered(state, "DescribeStreamConsumer", StreamARN=ARN, ConsumerName=name)
    return str(answer["ConsumerDescription"]["ConsumerStatus"])


# --- Consumers ------------------------------------------------------------------------------------


def test_a_consumer_is_creating_active_deleting_and_gone(clock: ManualClock) -> None:
    state = service(clock, delays=Delays(register_ms=500, deregister_ms=700))
    consumer = register(state)
    assert consumer == {
        "ConsumerName": "etl",
        "ConsumerARN": f"{ARN}/consumer/etl:{clock.now_ms() // 1000}",
        "ConsumerStatus": "CREATING",
        "ConsumerCreationTimestamp": clock.now_ms() / 1000,
    }
    assert outcome(state, "SubscribeToShard", position(consumer["ConsumerARN"])) == IN_USE
    assert outcome(state, "RegisterStreamConsumer", ETL) == IN_USE
    clock.advance(500)
    found = answered(state, "DescribeStreamConsumer", ConsumerARN=consumer["ConsumerARN"])
    assert found["ConsumerDescription"] == consumer | {
        "ConsumerStatus": "ACTIVE",
        "StreamARN": ARN,
    }
    answered(state, "DeregisterStreamConsumer", ConsumerARN=consumer["ConsumerARN"])
    assert status(state) == "DELETING"
    assert outcome(state, "SubscribeToShard", position(consumer["ConsumerARN"])) == IN_USE
    clock.advance(700)
    by_arn = {"ConsumerARN": consumer["ConsumerARN"]}
    assert outcome(state, "DescribeStreamConsumer", by_arn) == NOT_FOUND
    again = register(state)
    assert again["ConsumerARN"] != consumer["ConsumerARN"]
    assert outcome(state, "DescribeStreamConsumer", by_arn) == NOT_FOUND


def test_a_consumer_registered_in_the_second_of_its_predecessor_has_another_arn(
    state: KinesisState,
) -> None:
    first = register(state)["ConsumerARN"]
    answered(state, "DeregisterStreamConsumer", StreamARN=ARN, ConsumerName="etl")
    assert register(state)["ConsumerARN"] != first


def test_the_parameters_of_a_consumer_must_not_conflict(state: KinesisState) -> None:
    arn = register(state)["ConsumerARN"]
    answered(state, "DescribeStreamConsumer", ConsumerARN=arn, StreamARN=ARN, ConsumerName="etl")
    for conflicting in (
        {"ConsumerARN": arn, "ConsumerName": "other"},
        {"ConsumerARN": arn, "StreamARN": ARN + "x"},
        {"ConsumerName": "etl"},
        {},
    ):
        assert outcome(state, "DescribeStreamConsumer", conflicting) == INVALID
    other = {"StreamARN": ARN, "ConsumerName": "other"}
    assert outcome(state, "DeregisterStreamConsumer", other) == NOT_FOUND


def test_consumers_are_listed_in_pages(state: KinesisState, clock: ManualClock) -> None:
    for name in ("c", "a", "b"):
        register(state, name)
    page = answered(state, "ListStreamConsumers", StreamARN=ARN, MaxResults=2)
    token = page["NextToken"]
    rest = answered(state, "ListStreamConsumers", StreamARN=ARN, NextToken=token)
    names = [c["ConsumerName"] for c in page["Consumers"] + rest["Consumers"]]
    assert names == ["a", "b", "c"]
    assert "NextToken" not in rest
    clock.advance(300_001)
    expired = outcome(state, "ListStreamConsumers", {"StreamARN": ARN, "NextToken": token})
    assert expired == "ExpiredNextTokenException"


def test_a_stream_with_consumers_is_deleted_only_on_demand(state: KinesisState) -> None:
    register(state)
    summary = answered(state, "DescribeStreamSummary", StreamName="orders")
    assert summary["StreamDescriptionSummary"]["ConsumerCount"] == 1
    assert outcome(state, "DeleteStream", ORDERS) == IN_USE
    answered(state, "DeleteStream", StreamName="orders", EnforceConsumerDeletion=True)
    state.create_stream("orders")
    assert answered(state, "ListStreamConsumers", StreamARN=ARN)["Consumers"] == []


def test_a_stream_has_at_most_twenty_consumers(clock: ManualClock) -> None:
    state = service(clock, limits=Limits(consumers_per_stream=20))
    for number in range(20):
        register(state, f"consumer-{number}")
    assert outcome(state, "RegisterStreamConsumer", ONE_MORE) == LIMIT
    answered(state, "DeregisterStreamConsumer", StreamARN=ARN, ConsumerName="consumer-7")
    register(state, "one-more")


def test_five_consumers_are_creating_at_most(clock: ManualClock) -> None:
    limits = Limits(creating_consumers_per_stream=5)
    state = service(clock, limits=limits, delays=Delays(register_ms=1000))
    for number in range(5):
        register(state, f"consumer-{number}")
    assert outcome(state, "RegisterStreamConsumer", ONE_MORE) == LIMIT
    clock.advance(1000)
    register(state, "one-more")


def test_the_calls_on_consumers_are_limited(clock: ManualClock) -> None:
    state = service(clock, limits=Limits.strict())
    for number in range(5):
        register(state, f"consumer-{number}")
    assert outcome(state, "RegisterStreamConsumer", ETL) == LIMIT
    named = {"StreamARN": ARN, "ConsumerName": "consumer-0"}
    for _ in range(20):
        answered(state, "DescribeStreamConsumer", **named)
    assert outcome(state, "DescribeStreamConsumer", named) == LIMIT
    for _ in range(5):
        answered(state, "ListStreamConsumers", StreamARN=ARN)
    assert outcome(state, "ListStreamConsumers", {"StreamARN": ARN}) == LIMIT
    for number in range(5):
        name = f"consumer-{number}"
        answered(state, "DeregisterStreamConsumer", StreamARN=ARN, ConsumerName=name)
    clock.advance(1000)
    register(state)
    assert status(state) == "ACTIVE"


# --- Subscriptions --------------------------------------------------------------------------------


def position(arn: str, kind: str = "TRIM_HORIZON", **more: Any) -> dict[str, Any]:
    return {"ConsumerARN": arn, "ShardId": FIRST, "StartingPosition": {"Type": kind} | more}


def subscribe(
    state: KinesisState, arn: str, kind: str = "TRIM_HORIZON", **more: Any
) -> Subscription:
    found = state.call("SubscribeToShard", position(arn, kind, **more))
    assert isinstance(found, Subscription)
    return found


def due(state: KinesisState, subscription: Subscription) -> tuple[Subscription, list[Event]]:
    """The events due now, and the subscription after them."""
    events: list[Event] = []
    while not subscription.ended:
        step = state.next_step(subscription)
        subscription = step.subscription
        if step.event is None:
            break
        events.append(step.event)
    return subscription, events


def codes(state: KinesisState, subscription: Subscription) -> list[str]:
    """The codes of the events due now; "ok" for one that is no error."""
    events = due(state, subscription)[1]
    return [event.code if isinstance(event, ErrorEvent) else "ok" for event in events]


def texts(events: list[Event]) -> str:
    return b"".join(
        record.data
        for event in events
        if isinstance(event, RecordsEvent)
        for record in event.records
    ).decode()


@pytest.fixture
def consumer(state: KinesisState) -> str:
    return state.register_consumer("orders", "etl").arn


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("TRIM_HORIZON", "abc"),
        ("AT_SEQUENCE_NUMBER", "bc"),
        ("AFTER_SEQUENCE_NUMBER", "c"),
        ("AT_TIMESTAMP", "bc"),
        ("LATEST", ""),
    ],
)
def test_a_subscription_starts_at_its_position(
    state: KinesisState, clock: ManualClock, consumer: str, kind: str, expected: str
) -> None:
    _, second, _ = (state.put("orders", "key", text, arrival_ms=at) for at, text in RECORDS)
    more: dict[str, Any] = {}
    if "SEQUENCE" in kind:
        more = {"SequenceNumber": second.sequence_number}
    if kind == "AT_TIMESTAMP":
        more = {"Timestamp": second.arrival_ms / 1000}
    subscription, events = due(state, subscribe(state, consumer, kind, **more))
    assert texts(events) == expected
    state.put("orders", "key", b"d")
    assert texts(due(state, subscription)[1]) == "d"


def test_the_starting_position_is_checked(state: KinesisState, consumer: str) -> None:
    number = state.put("orders", "key", b"a").sequence_number
    without = {"ConsumerARN": consumer, "ShardId": FIRST}
    assert outcome(state, "SubscribeToShard", without) == "ValidationException"
    for expected, kind, more in (
        ("ValidationException", "SOMEWHERE", {}),
        (INVALID, "AFTER_SEQUENCE_NUMBER", {}),
        (INVALID, "AFTER_SEQUENCE_NUMBER", {"SequenceNumber": "42"}),
        (INVALID, "LATEST", {"SequenceNumber": number}),
        (INVALID, "LATEST", {"Timestamp": 1.0}),
        (INVALID, "AT_TIMESTAMP", {}),
    ):
        body = position(consumer, kind, **more)
        assert outcome(state, "SubscribeToShard", body) == expected, (kind, more)
    absent = position(consumer) | {"ShardId": "shardId-000000000009"}
    assert outcome(state, "SubscribeToShard", absent) == NOT_FOUND
    dry = position(consumer) | {"DryRun": True}
    assert outcome(state, "SubscribeToShard", dry) == "DryRunOperationException"
    subscribe(state, consumer)  # none of them counts as a successful call


def test_an_idle_subscription_sends_events_whose_continuation_moves(
    state: KinesisState, clock: ManualClock, consumer: str
) -> None:
    subscription, events = due(state, subscribe(state, consumer))
    continuations = []
    for _ in range(3):
        (event,) = events
        assert isinstance(event, RecordsEvent)
        assert (event.records, event.millis_behind_latest) == ([], 0)
        assert event.continuation is not None
        continuations.append(int(event.continuation))
        clock.advance(HEARTBEAT_MS - 1)
        assert due(state, subscription) == (subscription, [])
        clock.advance(1)
        subscription, events = due(state, subscription)
    assert continuations == sorted(set(continuations))
    state.put("orders", "key", b"a")
    for number in continuations:
        after = iterator(state, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=str(number))
        assert page_texts(read(state, after)) == "a"


def test_a_subscription_ends_after_five_minutes(
    state: KinesisState, clock: ManualClock, consumer: str
) -> None:
    subscription = subscribe(state, consumer)
    clock.advance(LIFE_MS - 1)
    subscription, _ = due(state, subscription)
    assert state.subscriptions("orders") == [subscription]
    clock.advance(1)
    subscription, events = due(state, subscription)
    assert (subscription.ended, events, state.subscriptions("orders")) == (True, [], [])


def test_a_subscription_ends_with_its_consumer_or_stream(
    state: KinesisState, consumer: str
) -> None:
    other = state.register_consumer("orders", "other").arn
    first, second = subscribe(state, consumer), subscribe(state, other)
    state.deregister_consumer("orders", "etl")
    assert codes(state, first) == [NOT_FOUND]
    assert codes(state, second) == ["ok"]
    state.delete_stream("orders")
    assert codes(state, second) == [NOT_FOUND]
    # Within the same second, another stream and consumer of these names.
    state.create_stream("orders")
    again = subscribe(state, state.register_consumer("orders", "other").arn)
    assert codes(state, second) == [NOT_FOUND]
    state.close_subscription(second)
    assert state.subscriptions("orders") == [again]


def test_the_limit_of_calls_comes_before_the_five_seconds(clock: ManualClock) -> None:
    state = service(clock, limits=Limits.strict())
    arn = state.register_consumer("orders", "etl").arn
    subscribe(state, arn)
    assert outcome(state, "SubscribeToShard", position(arn)) == LIMIT
    clock.advance(1000)
    assert outcome(state, "SubscribeToShard", position(arn)) == IN_USE
    clock.advance(TAKEOVER_MS - 1000)
    subscribe(state, arn)


def test_pushed_bytes_are_not_shared_with_get_records(clock: ManualClock) -> None:
    state = service(clock, limits=Limits.strict())
    mib = 1024 * 1024
    for _ in range(4):
        state.put("orders", "", bytes(mib))
    arns = [state.register_consumer("orders", name).arn for name in ("one", "two")]
    one, two = (subscribe(state, arn) for arn in arns)
    read(state, iterator(state))  # takes all of a second
    sent = [0, 0]
    for _ in range(20):
        for index, subscription in enumerate((one, two)):
            after, events = due(state, subscription)
            one, two = (after, two) if index == 0 else (one, after)
            sent[index] += len(texts(events))
        clock.advance(50)
    assert sent == [2 * mib, 2 * mib]
