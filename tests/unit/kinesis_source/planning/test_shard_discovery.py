"""What streams and shards exist: how often the service is asked, and what failures do."""

from __future__ import annotations

import logging

import pytest

from spark_ssp.common.errors import AccessError, ServiceUnavailableError, StreamNotFoundError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import StreamDescription, StreamRef
from spark_ssp.kinesis_source.planning.shard_discovery import (
    DESCRIBE_INTERVAL_MS,
    FAILING_INTERVALS,
    UNDISCOVERED_INTERVAL_MS,
    ShardDiscovery,
)
from spark_ssp.testing.kinesis import KinesisState, ManualClock
from spark_ssp.testing.kinesis.state.faults import AccessDenied, InternalFailure, Throttle
from tests.support.fakes.in_process import InProcessKinesis

ORDERS, CLICKS = StreamRef(name=StreamName("orders")), StreamRef(name=StreamName("clicks"))
INTERVAL_MS = 10_000


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = KinesisState(clock=self.clock)
        for ref in (ORDERS, CLICKS):
            self.state.create_stream(ref.name, 2)
        self.service = InProcessKinesis(self.state, attempts=2)
        self.discovery = ShardDiscovery(
            self.service,
            interval_ms=INTERVAL_MS,
            monotonic=lambda: self.clock.now_ms() / 1000,
        )

    def shards(self) -> list[int]:
        return [int(shard[-12:]) for shard in sorted(self.discovery.shards(ORDERS))]

    def counts(self) -> tuple[int, int]:
        """Calls since the last time: (ListShards, DescribeStreamSummary)."""
        calls = self.state.calls
        counted = calls.count("ListShards"), calls.count("DescribeStreamSummary")
        calls.reset()
        return counted

    def split(self, number: int = 0) -> None:
        self.state.split("orders", f"shardId-{number:012d}")


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_asked_before_the_first_use(world: World) -> None:
    assert world.counts() == (0, 0)


def test_a_stream_is_described_once_and_listed_once_an_interval(world: World) -> None:
    assert world.shards() == [0, 1]
    assert world.discovery.description(ORDERS).name == ORDERS.name
    assert world.counts() == (1, 1)
    world.split()
    world.clock.advance(INTERVAL_MS - 1)
    assert world.shards() == [0, 1]
    assert world.counts() == (0, 0)
    world.clock.advance(1)
    assert world.shards() == [0, 1, 2, 3]
    assert world.counts() == (1, 0)
    for _ in range(10):
        world.clock.advance(INTERVAL_MS)
        world.shards()
    assert world.counts() == (10, 0)


def test_another_retention_is_noticed_in_time(world: World) -> None:
    world.shards()
    before = world.discovery.description(ORDERS).retention_ms
    world.state.set_retention_hours("orders", 48)
    world.counts()
    world.clock.advance(DESCRIBE_INTERVAL_MS - 1)
    world.shards()
    assert (world.discovery.description(ORDERS).retention_ms, world.counts()) == (before, (1, 0))
    world.state.faults.add(InternalFailure(), operation="DescribeStreamSummary", count=1)
    world.clock.advance(INTERVAL_MS)
    world.shards()
    assert world.discovery.description(ORDERS).retention_ms == before
    world.clock.advance(INTERVAL_MS)
    world.shards()
    assert world.discovery.description(ORDERS).retention_ms == 2 * before
    world.counts()
    world.clock.advance(INTERVAL_MS)
    world.shards()
    assert world.counts() == (1, 0)


def test_a_raised_retention_counts_for_records_put_within_the_old_one(world: World) -> None:
    """What was trimmed before does not return; a lower one counts at once."""
    hour = 3_600_000
    assert world.discovery.kept_ms(ORDERS) == 24 * hour
    world.state.set_retention_hours("orders", 48)
    world.clock.advance(DESCRIBE_INTERVAL_MS)
    world.shards()
    assert world.discovery.kept_ms(ORDERS) == 24 * hour
    world.clock.advance(hour)
    assert world.discovery.kept_ms(ORDERS) == 25 * hour
    world.shards()
    assert world.discovery.kept_ms(ORDERS) == 25 * hour
    world.clock.advance(24 * hour)
    assert world.discovery.kept_ms(ORDERS) == 48 * hour
    world.state.set_retention_hours("orders", 24)
    world.shards()
    assert world.discovery.kept_ms(ORDERS) == 24 * hour


@pytest.mark.parametrize("fault", [InternalFailure(), AccessDenied(), Throttle()])
def test_a_query_continues_without_a_new_description(
    world: World,
    caplog: pytest.LogCaptureFixture,
    fault: InternalFailure | AccessDenied | Throttle,
) -> None:
    """Throttling of DescribeStreamSummary, whose limit is that of the account, may last."""
    world.shards()
    world.state.faults.add(fault, operation="DescribeStreamSummary", count=None)
    world.clock.advance(DESCRIBE_INTERVAL_MS)
    with caplog.at_level(logging.WARNING):
        assert world.shards() == [0, 1]
    assert "could not describe orders, using the old description" in caplog.text


def test_a_description_is_never_newer_than_the_listing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is created again while it is described."""
    world.shards()
    before = world.discovery.description(ORDERS)
    service = world.service
    describe = service.describe

    def recreate_and_describe(stream: StreamRef, *, retry: bool = True) -> StreamDescription:
        monkeypatch.setattr(service, "describe", describe)
        world.state.delete_stream("orders")
        world.state.create_stream("orders", 3)
        return describe(stream, retry=retry)

    monkeypatch.setattr(service, "describe", recreate_and_describe)
    world.clock.advance(DESCRIBE_INTERVAL_MS)
    assert world.shards() == [0, 1, 2]
    assert world.discovery.description(ORDERS).created != before.created


def test_streams_are_listed_each_by_itself(world: World) -> None:
    world.shards()
    world.clock.advance(INTERVAL_MS // 2)
    world.discovery.shards(CLICKS)
    world.clock.advance(INTERVAL_MS // 2)
    world.state.calls.reset()
    world.shards()
    world.discovery.shards(CLICKS)
    assert world.state.calls.count("ListShards", stream="orders") == 1
    assert world.state.calls.count("ListShards", stream="clicks") == 0


def test_a_listing_is_renewed_ahead_of_time_but_not_all_the_time(world: World) -> None:
    world.shards()
    world.split()
    world.counts()
    world.clock.advance(UNDISCOVERED_INTERVAL_MS - 1)
    world.discovery.refresh(ORDERS)
    assert (world.shards(), world.counts()) == ([0, 1], (0, 0))
    world.clock.advance(1)
    world.discovery.refresh(ORDERS)
    world.discovery.refresh(ORDERS)
    assert (world.shards(), world.counts()) == ([0, 1, 2, 3], (1, 0))


def test_doubt_asks_for_everything_at_once(world: World) -> None:
    world.shards()
    world.split()
    world.counts()
    world.discovery.refresh(ORDERS, doubt=True)
    assert (world.shards(), world.counts()) == ([0, 1, 2, 3], (1, 1))


def test_frozen_lists_once_more_and_never_again(world: World) -> None:
    world.shards()
    world.clock.advance(1)
    world.split()
    world.discovery.freeze([ORDERS, CLICKS])
    world.split(1)
    world.counts()
    world.clock.advance(10 * INTERVAL_MS)
    assert world.discovery.frozen
    assert (world.shards(), world.counts()) == ([0, 1, 2, 3], (0, 0))


def test_a_look_beside_the_listing_changes_nothing(world: World) -> None:
    world.shards()
    world.discovery.freeze([ORDERS])
    world.split()
    world.counts()
    shown = world.discovery.list_now(ORDERS)
    assert shown is not None
    assert len(shown) == 4
    assert world.shards() == [0, 1]
    assert world.discovery.list_now(ORDERS) is None  # a moment ago
    world.clock.advance(UNDISCOVERED_INTERVAL_MS)
    world.state.faults.add(InternalFailure(), operation="ListShards", count=2)
    assert world.discovery.list_now(ORDERS) is None
    assert world.counts() == (3, 0)


def test_a_listing_is_another_object_only_if_the_service_has_answered(world: World) -> None:
    first = world.discovery.shards(ORDERS)
    world.state.faults.add(InternalFailure(), operation="ListShards", count=2)
    for is_first in (True, False):
        world.clock.advance(INTERVAL_MS)
        assert (world.discovery.shards(ORDERS) is first) is is_first


# --- Failures -------------------------------------------------------------------------------------


def test_the_first_listing_must_succeed(world: World) -> None:
    world.state.faults.add(InternalFailure(), operation="ListShards", count=2)
    with pytest.raises(ServiceUnavailableError):
        world.shards()
    assert world.shards() == [0, 1]


def test_a_listing_that_fails_keeps_the_old_one_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.shards()
    world.split()
    world.clock.advance(INTERVAL_MS)
    world.state.faults.add(InternalFailure(), operation="ListShards", count=2)
    with caplog.at_level(logging.WARNING, logger="spark_ssp"):
        assert world.shards() == [0, 1]
    (warning,) = caplog.records
    assert "could not list the shards of orders, using the old listing" in warning.getMessage()
    world.counts()
    assert (world.shards(), world.counts()) == ([0, 1], (0, 0))  # not asked again at once
    world.clock.advance(INTERVAL_MS)
    assert world.shards() == [0, 1, 2, 3]


def test_listings_that_go_on_failing_are_an_error_in_the_end(world: World) -> None:
    world.shards()
    world.state.faults.add(InternalFailure(), operation="ListShards", count=None)
    for _ in range(FAILING_INTERVALS + 1):
        world.clock.advance(INTERVAL_MS)
        assert world.shards() == [0, 1]
    world.clock.advance(INTERVAL_MS)
    with pytest.raises(ServiceUnavailableError):
        world.shards()
    world.state.faults.clear()
    world.clock.advance(INTERVAL_MS)
    world.shards()
    world.state.faults.add(InternalFailure(), operation="ListShards", count=None)
    world.clock.advance(INTERVAL_MS)
    assert world.shards() == [0, 1]  # a success in between, and all begins anew


def test_an_error_that_retrying_cannot_mend_is_raised_at_once(world: World) -> None:
    world.shards()
    world.clock.advance(INTERVAL_MS)
    world.state.faults.add(AccessDenied(), operation="ListShards")
    with pytest.raises(AccessError):
        world.shards()
    world.clock.advance(INTERVAL_MS)
    world.state.delete_stream("orders")
    with pytest.raises(StreamNotFoundError):
        world.shards()


def test_a_recreated_stream_is_noticed_by_its_shards(world: World) -> None:
    world.shards()
    before = world.discovery.description(ORDERS).created
    world.state.delete_stream("orders")
    world.clock.advance(5000)
    world.state.create_stream("orders", 3)
    world.clock.advance(INTERVAL_MS)
    world.counts()
    assert world.shards() == [0, 1, 2]
    assert world.counts() == (1, 1)
    assert world.discovery.description(ORDERS).created > before


def test_new_shards_are_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.shards()
    world.split()
    world.clock.advance(INTERVAL_MS)
    with caplog.at_level(logging.DEBUG, logger="spark_ssp"):
        world.shards()
    (told,) = [r.getMessage() for r in caplog.records if "new shards" in r.getMessage()]
    assert "orders" in told
    assert "shardId-000000000003" in told
