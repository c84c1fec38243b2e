"""The Kinesis API reference, asserted over boto3: consumers and SubscribeToShard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, EventStreamError

from spark_ssp.operations.acceptance import rules
from tests.contract.services import FIRST, MIDDLE, Quirk, Service, refusal

if TYPE_CHECKING:
    from botocore.eventstream import EventStream
    from types_boto3_kinesis.type_defs import (
        SubscribeToShardEventStreamTypeDef,
        SubscribeToShardEventTypeDef,
    )

TAKEOVER_MS = 5_000
LIFE_MS = 300_000


class FanOut:
    """A stream of `service` with a consumer."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._open: list[EventStream[SubscribeToShardEventStreamTypeDef]] = []
        self.stream = service.stream()
        self.stream_arn = service.summary(self.stream)["StreamARN"]
        self.consumer_arn = self.register("etl")

    def register(self, name: str) -> str:
        """The ARN of a new, active consumer."""
        client = self.service.client
        answer = client.register_stream_consumer(StreamARN=self.stream_arn, ConsumerName=name)
        self.service.until(lambda: self.describe(name)["ConsumerStatus"] == "ACTIVE")
        return answer["Consumer"]["ConsumerARN"]

    def describe(self, name: str) -> dict[str, Any]:
        answer = self.service.client.describe_stream_consumer(
            StreamARN=self.stream_arn, ConsumerName=name
        )
        return dict(answer["ConsumerDescription"])

    def subscribe(
        self, kind: str = "TRIM_HORIZON", *, shard: str = FIRST, consumer: str = "", **more: Any
    ) -> Iterator[SubscribeToShardEventTypeDef]:
        answer = self.service.client.subscribe_to_shard(
            ConsumerARN=consumer or self.consumer_arn,
            ShardId=shard,
            StartingPosition={"Type": kind, **more},  # type: ignore[typeddict-item]
        )
        self._open.append(answer["EventStream"])
        return (event["SubscribeToShardEvent"] for event in answer["EventStream"])

    def close(self) -> None:
        """Close the connections of the subscriptions."""
        for events in self._open:
            events.close()


@pytest.fixture
def fan_out(fan_out_service: Service) -> Iterator[FanOut]:
    found = FanOut(fan_out_service)
    yield found
    found.close()


def read_until(text: str, events: Iterable[SubscribeToShardEventTypeDef]) -> str:
    """Read events until their records end with `text`; the ContinuationSequenceNumber then."""
    found = ""
    for event in events:
        found += "".join(record["Data"].decode() for record in event["Records"])
        if found.endswith(text):
            assert found == text
            return event["ContinuationSequenceNumber"]
    raise AssertionError(f"found {found!r}, expected {text!r}")


def test_records_are_pushed(fan_out: FanOut) -> None:
    numbers = fan_out.service.put(fan_out.stream, "a", "b")
    events = fan_out.subscribe()
    assert read_until("ab", events) == numbers[-1]
    (number,) = fan_out.service.put(fan_out.stream, "c")
    assert read_until("c", events) == number


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("TRIM_HORIZON", "abcd"),
        ("AT_SEQUENCE_NUMBER", "bcd"),
        ("AFTER_SEQUENCE_NUMBER", "cd"),
        ("LATEST", "d"),
    ],
)
def test_a_subscription_starts_at_its_position(fan_out: FanOut, kind: str, expected: str) -> None:
    _, second, _ = fan_out.service.put(fan_out.stream, "a", "b", "c")
    more = {"SequenceNumber": second} if "SEQUENCE" in kind else {}
    events = fan_out.subscribe(kind, **more)
    fan_out.service.put(fan_out.stream, "d")
    read_until(expected, events)


def test_a_subscription_continues_after_a_continuation(fan_out: FanOut) -> None:
    fan_out.service.put(fan_out.stream, "a")
    continuation = read_until("a", fan_out.subscribe())
    fan_out.service.put(fan_out.stream, "b")
    other = fan_out.register("other")
    after = {"SequenceNumber": continuation}
    read_until("b", fan_out.subscribe("AFTER_SEQUENCE_NUMBER", consumer=other, **after))
    iterator = fan_out.service.iterator(
        fan_out.stream, kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=continuation
    )
    assert [r["Data"] for r in fan_out.service.page(iterator)["Records"]] == [b"b"]


def test_consumers_do_not_disturb_each_other(fan_out: FanOut) -> None:
    fan_out.service.put(fan_out.stream, "a", "b")
    subscriptions = [fan_out.subscribe(consumer=fan_out.register(n)) for n in ("one", "two")]
    for events in subscriptions:
        read_until("ab", events)


def test_a_second_subscription_takes_over_after_five_seconds(fan_out: FanOut) -> None:
    first = fan_out.subscribe()
    next(first)
    with pytest.raises(ClientError) as refused:
        fan_out.subscribe()
    assert refused.value.response["Error"]["Code"] in rules.IN_USE
    fan_out.service.advance(TAKEOVER_MS)
    fan_out.service.put(fan_out.stream, "a")
    read_until("a", fan_out.subscribe())
    with pytest.raises(EventStreamError, match="ResourceInUseException"):
        list(first)


def test_a_subscription_ends_at_the_end_of_the_shard(fan_out: FanOut) -> None:
    fan_out.service.put(fan_out.stream, "a")
    fan_out.service.split(fan_out.stream, FIRST, MIDDLE)
    if fan_out.service.has(Quirk.CLOSED_SHARD_IS_GONE):
        assert refusal(fan_out.subscribe) == "ResourceNotFoundException"
        return
    events = list(fan_out.subscribe())
    assert [r["Data"] for event in events for r in event["Records"]] == [b"a"]
    last: dict[str, Any] = dict(events[-1])
    assert last.get("ContinuationSequenceNumber") is None
    shards = fan_out.service.listing(fan_out.stream)
    assert list(rules.children_are_announced(FIRST, last["ChildShards"], shards)) == []


@pytest.mark.parametrize("fan_out_service", ["embedded"], indirect=True)
def test_a_subscription_ends_after_five_minutes(fan_out: FanOut) -> None:
    events = fan_out.subscribe()
    next(events)
    fan_out.service.advance(LIFE_MS)
    assert not any(event["Records"] for event in events)


def test_what_does_not_exist_is_not_found(fan_out: FanOut) -> None:
    client = fan_out.service.client
    position = {"Type": "LATEST"}
    absent = fan_out.consumer_arn.replace("/etl:", "/absent:")
    for consumer, shard in ((absent, FIRST), (fan_out.consumer_arn, "shardId-000000000009")):
        found = refusal(
            client.subscribe_to_shard,
            ConsumerARN=consumer,
            ShardId=shard,
            StartingPosition=position,
        )
        assert found == "ResourceNotFoundException"


def test_consumers_are_registered_listed_and_deregistered(fan_out: FanOut) -> None:
    client, stream = fan_out.service.client, fan_out.stream_arn
    assert fan_out.consumer_arn.startswith(f"{stream}/consumer/etl:")
    fan_out.register("other")
    listed = client.list_stream_consumers(StreamARN=stream)["Consumers"]
    assert sorted(c["ConsumerName"] for c in listed) == ["etl", "other"]
    again = refusal(client.register_stream_consumer, StreamARN=stream, ConsumerName="other")
    assert again == "ResourceInUseException"
    client.deregister_stream_consumer(ConsumerARN=fan_out.consumer_arn)

    def is_gone() -> bool:
        listed = client.list_stream_consumers(StreamARN=stream)["Consumers"]
        return [c["ConsumerName"] for c in listed] == ["other"]

    fan_out.service.until(is_gone)
    assert fan_out.register("etl").startswith(f"{stream}/consumer/etl:")
