"""Ranges read by the real client's subscriptions: every fault ends in the same rows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from spark_ssp.common import structs
from spark_ssp.grouping.identifiers import ShardId, ShardKey
from spark_ssp.kinesis_source.client.api import SubscriptionError
from spark_ssp.kinesis_source.client.boto3_client import connect, disconnect
from spark_ssp.kinesis_source.client.subscriptions import open_subscriber
from spark_ssp.kinesis_source.model.shard import ConsumerArn, TrimHorizon
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.server import encode_message
from spark_ssp.testing.kinesis.state.faults import (
    AccessDenied,
    CutSubscription,
    EmptyEvents,
    EndSubscription,
    FailSubscription,
    Fault,
    Refusal,
    SilenceSubscription,
    Throttle,
)
from spark_ssp.testing.kinesis.state.page_reads import UnusualAnswers
from spark_ssp.testing.kinesis.state.subscription import TAKEOVER_MS
from tests.support.fakes.clocks import ShiftedClock
from tests.support.fakes.scripted import STREAM
from tests.support.fakes.scripted_http import Reply, ScriptedHttp
from tests.support.kinesis.http2 import Http2Kinesis
from tests.support.kinesis.pushed_stream import PushedStream, connection_to, put_numbers
from tests.support.kinesis.reading import Row, slot_of
from tests.support.waiting import until

RECORDS = 40
SHARDS = 2
WAIT_S = 20
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


@dataclass(kw_only=True)
class Service:
    """An embedded service, reached by one version of HTTP."""

    kinesis: EmbeddedKinesis
    clock: ShiftedClock
    connection: ConnectionOptions
    _numbers: count[int] = field(default_factory=count)

    def stream(self) -> PushedStream:
        """Return a new stream of `RECORDS` records."""
        name = f"stream-{next(self._numbers)}"
        self.kinesis.state.create_stream(name, shards=SHARDS)
        last = put_numbers(connect(self.connection).client, name, RECORDS)  # type: ignore[arg-type]
        consumer = self.kinesis.state.register_consumer(name, "etl").arn
        return PushedStream.of(name, consumer, last, self.connection)

    def rows(self, stream: PushedStream, fault: Fault) -> list[Row]:
        """Return the rows of a task whose subscriptions all have the fault."""
        self.kinesis.faults.add(fault, operation="SubscribeToShard", count=None)
        try:
            return stream.rows()
        finally:
            self.kinesis.faults.clear()

    def calls(self, operation: str, stream: PushedStream) -> int:
        return self.kinesis.calls.count(operation, stream=stream.name)


@pytest.fixture(scope="module", params=["HTTP/1.1", "HTTP/2"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with ExitStack() as resources:
        clock = ShiftedClock()
        kinesis = resources.enter_context(EmbeddedKinesis(clock=clock))
        kinesis.state.answers = UnusualAnswers(event_records=3)
        url, server = kinesis.endpoint_url, None
        if request.param == "HTTP/2":
            server = resources.enter_context(Http2Kinesis(kinesis.state))
            environment = resources.enter_context(pytest.MonkeyPatch.context())
            environment.setenv("AWS_CA_BUNDLE", str(server.authority))
            url = server.endpoint_url
        yield Service(kinesis=kinesis, clock=clock, connection=connection_to(url, timeout_ms=1_000))
        disconnect()
        assert server is None or server.traffic.streams > 0


def test_a_pushed_range_needs_no_getrecords(service: Service) -> None:
    stream = service.stream()
    rows = stream.rows()
    assert len(rows) == RECORDS
    assert service.calls("SubscribeToShard", stream) == SHARDS
    assert service.calls("GetRecords", stream) == 0
    assert rows == stream.polled()


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_a_fault_of_every_subscription_changes_no_row(service: Service, fault: Fault) -> None:
    stream = service.stream()
    rows = service.rows(stream, fault)
    assert rows == stream.polled()
    assert len(rows) == RECORDS


@pytest.mark.parametrize(
    "code",
    ["InvalidSignatureException", "UnrecognizedClientException", "ResourceNotFoundException"],
)
def test_a_fault_that_does_not_pass_is_a_warning_and_ends_the_subscriptions_of_a_range(
    service: Service, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = service.stream()
    rows = service.rows(stream, Refusal(code=code))
    assert service.calls("SubscribeToShard", stream) == SHARDS
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert any(code in text for text in warnings)
    assert rows == stream.polled()
    assert len(rows) == RECORDS


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"<html></html>" * 20, encode_message({":event-type": "other"}, b"{}")],
    ids=["empty", "json", "html", "other event"],
)
def test_a_response_of_another_form_is_a_fault_of_the_subscription(body: bytes) -> None:
    with ScriptedHttp(Reply(body=body)) as server:
        subscriber = open_subscriber(connection_to(server.url, timeout_ms=1_000), window=1 << 20)
        shard = ShardKey(stream=STREAM.name, shard=ShardId("shardId-000000000000"))
        with pytest.raises(SubscriptionError):
            subscriber.subscribe(ConsumerArn("arn"), shard, TrimHorizon())


def test_a_silent_subscription_is_replaced_after_the_read_timeout(service: Service) -> None:
    stream = service.stream()
    rows = service.rows(stream, SilenceSubscription(after_events=1))
    assert service.calls("GetRecords", stream) > 0
    assert rows == stream.polled()
    assert len(rows) == RECORDS


def test_an_end_that_does_not_come_is_left_to_getrecords(service: Service) -> None:
    """As a record that is not visible yet: the subscription lives on without it."""
    stream = service.stream()
    rows = service.rows(stream, EmptyEvents(count=100))
    assert service.calls("GetRecords", stream) > 0
    assert rows == stream.polled()


def test_a_shard_that_was_closed_is_read_to_its_end(service: Service) -> None:
    stream = service.stream()
    service.kinesis.state.split(stream.name, stream.slot.shards[0].shard)
    rows = stream.rows()
    assert rows == stream.polled()
    assert len(rows) == RECORDS


def test_a_shard_that_was_subscribed_just_before_is_polled(service: Service) -> None:
    stream = service.stream()
    rows = stream.rows()
    assert service.calls("GetRecords", stream) == 0
    assert stream.rows() == rows
    assert service.calls("SubscribeToShard", stream) == 2 * SHARDS
    assert service.calls("GetRecords", stream) > 0


def test_a_polled_range_is_pushed_once_others_use_up_its_getrecords(service: Service) -> None:
    stream = service.stream()
    polled_first = replace(
        stream,
        slot=slot_of(*(structs.replace(each, is_polled_first=True) for each in stream.slot.shards)),
    )
    service.kinesis.faults.add(Throttle(), operation="GetRecords", count=None)
    rows = polled_first.rows()
    service.kinesis.faults.clear()
    assert service.calls("SubscribeToShard", stream) == SHARDS
    assert rows == stream.polled()
    assert len(rows) == RECORDS


def test_a_range_whose_subscription_is_taken_over_is_continued(service: Service) -> None:
    stream = service.stream()
    found: list[list[Row]] = []
    silence = SilenceSubscription(after_events=1)
    reading = threading.Thread(target=lambda: found.append(service.rows(stream, silence)))
    reading.start()
    until(
        lambda: service.calls("SubscribeToShard", stream) >= SHARDS,
        "each shard is subscribed",
        within_s=WAIT_S,
    )
    service.clock.advance(TAKEOVER_MS)
    position = {"Type": "LATEST"}
    for each in stream.slot.shards:
        request = {"ConsumerARN": each.consumer, "ShardId": each.shard}
        service.kinesis.state.call("SubscribeToShard", request | {"StartingPosition": position})
    reading.join()
    assert found == [stream.polled()]
