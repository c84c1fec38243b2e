"""Ranges read by the real client's subscriptions: every fault ends in the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from embedded_kinesis import EmbeddedKinesis
from embedded_kinesis.core.faults import AccessDenied, Fault, Refusal
from embedded_kinesis.core.subscription_faults import (
    CutSubscription,
    EmptyEvents,
    EndSubscription,
    FailSubscription,
    SilenceSubscription,
)
from embedded_kinesis.http.event_stream import encode_message
from embedded_kinesis.state.page_reads import UnusualAnswers
from kinesis_source.client.api import SubscriptionError
from kinesis_source.client.boto3_client import connect, disconnect
from kinesis_source.client.subscriptions import open_subscriber
from kinesis_source.model.ranges import ShardRange, SlotRange
from kinesis_source.model.shard import AfterRecord, ConsumerArn, SequenceNumber, TrimHorizon
from kinesis_source.options.values import ConnectionOptions
from kinesis_source.reading.shared_read_rates import ReadRates
from kinesis_source.reading.task_reader import read_slot
from task_grouping.identifiers import ShardId, ShardKey
from tests.support.fakes.scripted import STREAM
from tests.support.fakes.scripted_http import Reply, ScriptedHttp
from tests.support.kinesis.reading import Row, options, rows_of, slot_of

RECORDS = 40
FAULTS: list[Fault] = [
    FailSubscription(code="ResourceInUseException", after_events=1),
    FailSubscription(code="KMSThrottlingException"),
    CutSubscription(after_events=2),
    EndSubscription(after_events=1),
    EmptyEvents(count=3, after_events=1),
    Refusal(code="ResourceInUseException"),
    Refusal(code="LimitExceededException"),
    AccessDenied(),
]


class Reading:
    """A stream of two shards with a consumer, read between its first and last records."""

    def __init__(self, kinesis: EmbeddedKinesis) -> None:
        self.kinesis = kinesis
        state = kinesis.state
        state.answers = UnusualAnswers(event_records=3)
        state.create_stream(STREAM.name, shards=2)
        last: dict[str, str] = {}
        for number in range(RECORDS):
            shard = state.stream(STREAM.name).route(f"key-{number}", None).shard_id
            last[shard] = state.put(STREAM.name, f"key-{number}", b"%d" % number).sequence_number
        self.consumer = ConsumerArn(state.register_consumer(STREAM.name, "etl").arn)
        self.connection = ConnectionOptions(
            region="us-east-1",
            endpoint_url=kinesis.endpoint_url,
            aws_access_key_id="local",
            aws_secret_access_key="local",
            read_timeout_ms=1_000,
        )
        self.service = connect(self.connection)
        created = self.service.describe(STREAM).created
        self.slot = slot_of(
            *(
                ShardRange(
                    stream=STREAM,
                    shard=ShardId(shard),
                    hash_range=None,
                    created=created,
                    start=TrimHorizon(),
                    start_caught_up_ms=None,
                    expect_first=None,
                    end=AfterRecord(sequence_number=SequenceNumber(last[shard])),
                    consumer=self.consumer,
                )
                for shard in sorted(last)
            )
        )

    def rows(self, slot: SlotRange) -> list[Row]:
        batches = read_slot(
            slot,
            options(connection=self.connection),
            self.service,
            rates=ReadRates(),
            open_subscriber=lambda window: open_subscriber(self.connection, window=window),
        )
        return sorted(rows_of(list(batches)))

    def polled(self) -> list[Row]:
        return self.rows(
            replace(
                self.slot, shards=tuple(replace(each, consumer=None) for each in self.slot.shards)
            )
        )

    def calls(self, operation: str) -> int:
        return self.kinesis.calls.count(operation)


@pytest.fixture
def reading() -> Iterator[Reading]:
    with EmbeddedKinesis() as kinesis:
        yield Reading(kinesis)
        disconnect()


def test_a_pushed_range_needs_no_getrecords(reading: Reading) -> None:
    rows = reading.rows(reading.slot)
    assert len(rows) == RECORDS
    assert (reading.calls("SubscribeToShard"), reading.calls("GetRecords")) == (2, 0)
    assert rows == reading.polled()


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_a_fault_of_every_subscription_changes_no_row(reading: Reading, fault: Fault) -> None:
    reading.kinesis.faults.add(fault, operation="SubscribeToShard", count=None)
    rows = reading.rows(reading.slot)
    reading.kinesis.faults.clear()
    assert rows == reading.polled()
    assert len(rows) == RECORDS


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"<html></html>" * 20, encode_message({":event-type": "other"}, b"{}")],
    ids=["empty", "json", "html", "other event"],
)
def test_a_response_of_another_form_is_a_fault_of_the_subscription(body: bytes) -> None:
    with ScriptedHttp(Reply(body=body)) as server:
        connection = ConnectionOptions(
            region="us-east-1",
            endpoint_url=server.url,
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        subscriber = open_subscriber(connection, window=1 << 20)
        shard = ShardKey(stream=STREAM.name, shard=ShardId("shardId-000000000000"))
        with pytest.raises(SubscriptionError):
            subscriber.subscribe(ConsumerArn("arn"), shard, TrimHorizon())
    disconnect()


def test_a_silent_subscription_is_replaced_after_the_read_timeout(reading: Reading) -> None:
    silence = SilenceSubscription(after_events=1)
    reading.kinesis.faults.add(silence, operation="SubscribeToShard", count=None)
    rows = reading.rows(reading.slot)
    assert reading.calls("GetRecords") > 0
    reading.kinesis.faults.clear()
    assert rows == reading.polled()
    assert len(rows) == RECORDS


def test_an_end_that_does_not_come_is_left_to_getrecords(reading: Reading) -> None:
    """As a record that is not visible yet: the subscription lives on without it."""
    empty = EmptyEvents(count=100)
    reading.kinesis.faults.add(empty, operation="SubscribeToShard", count=None)
    rows = reading.rows(reading.slot)
    assert reading.calls("GetRecords") > 0
    reading.kinesis.faults.clear()
    assert rows == reading.polled()


def test_a_shard_that_was_closed_is_read_to_its_end(reading: Reading) -> None:
    state = reading.kinesis.state
    first = reading.slot.shards[0]
    state.split(STREAM.name, first.shard)
    rows = reading.rows(reading.slot)
    assert rows == reading.polled()
    assert len(rows) == RECORDS
