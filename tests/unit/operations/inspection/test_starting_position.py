"""The options of a query that starts where another one has stopped."""

from __future__ import annotations

import json
from collections.abc import Collection

import pytest

from spark_ssp.common.errors import DataLossError, UnsupportedError
from spark_ssp.grouping.identifiers import EpochMillis, ShardId, StreamName
from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.topic import Assign, Subscribe, partition_of
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset
from spark_ssp.kinesis_source.model.shard import AtTimestamp, StreamDescription, TrimHorizon
from spark_ssp.kinesis_source.options import parse as kinesis_options
from spark_ssp.operations.inspection.starting_position import (
    StartOptions,
    kafka_start,
    kinesis_positions,
    kinesis_start,
    proofs_of,
    without_expired_records,
)
from spark_ssp.operations.inspection.streams import ListedStream
from tests.support.fakes.planner_world import HOUR_MS, RETENTION_MS, World
from tests.support.kinesis.planning import listed

ORDERS, CLICKS = StreamName("orders"), StreamName("clicks")
BROKERS = {"kafka.bootstrap.servers": "localhost:9092"}
FOUND = {name: TopicDescription(partition_count=4) for name in (ORDERS, CLICKS)}


def _start(orders: Collection[int], clicks: Collection[int], *, asks_brokers: bool) -> StartOptions:
    ssps = [partition_of(ORDERS, n) for n in orders] + [partition_of(CLICKS, n) for n in clicks]
    offset = SparkOffset(positions={ssp: 100 + ssp.partition for ssp in ssps})
    return kafka_start(offset, [ORDERS, CLICKS], FOUND if asks_brokers else None)


@pytest.mark.parametrize("asks_brokers", [False, True])
@pytest.mark.parametrize("orders", [(0, 2), (1,), (1, 2)])
def test_a_query_of_some_partitions_starts_with_the_same_ones(
    orders: tuple[int, ...], asks_brokers: bool
) -> None:
    """Of the other topic too, of which it has the first ones."""
    start = _start(orders, (0, 1), asks_brokers=asks_brokers)
    expected = [(CLICKS, 0), (CLICKS, 1), *((ORDERS, n) for n in orders)]
    assert parse_options({**BROKERS, **start.options}).selection == Assign(
        partitions=tuple(partition_of(name, number) for name, number in expected)
    )
    assert json.loads(start.options["startingOffsets"]) == {
        "clicks": {"0": 100, "1": 101},
        "orders": {str(number): 100 + number for number in orders},
    }
    assert len(start.notes) == (0 if asks_brokers else 1)


@pytest.mark.parametrize("asks_brokers", [False, True])
def test_a_query_of_whole_topics_subscribes(asks_brokers: bool) -> None:
    start = _start((0, 1), range(4), asks_brokers=asks_brokers)
    assert parse_options({**BROKERS, **start.options}).selection == Subscribe(
        topics=(CLICKS, ORDERS)
    )
    added = {"2": -2, "3": -2} if asks_brokers else {}
    assert json.loads(start.options["startingOffsets"])["orders"] == {"0": 100, "1": 101, **added}
    assert len(start.notes) == (1 if asks_brokers else 2)


def test_a_stream_named_as_the_default_of_the_option_has_to_be_alone() -> None:
    """Beside others, its positions would be read as the start of all other shards."""

    def start(*names: str) -> StartOptions:
        found = {StreamName(name): _stream(name) for name in names}
        positions = {name: {ShardId("shardId-000000000000"): TrimHorizon()} for name in found}
        return kinesis_start(positions, found, {})

    alone = json.loads(start("default").options["startingPosition"])
    assert alone.keys() == {"shardId-000000000000", "default"}
    both = json.loads(start("orders", "clicks").options["startingPosition"])
    assert both.keys() == {"clicks", "orders", "default"}
    with pytest.raises(UnsupportedError):
        start("orders", "default")


def _stream(name: str) -> ListedStream:
    description = StreamDescription(
        name=StreamName(name), arn=f"arn:{name}", created=EpochMillis(1), retention_ms=1
    )
    return ListedStream(description=description, shards=(listed(0),))


@pytest.mark.parametrize("quiet_hours", [0, 20, 26])
@pytest.mark.parametrize("stopped_hours", [0, 5, 25])
def test_a_query_continues_after_another_one_if_nothing_was_lost(
    quiet_hours: int, stopped_hours: int
) -> None:
    """Shards that were quiet while the query ran, and got records after it was stopped."""
    world = World(shards=2)
    world.put(20)
    world.drain()
    for _ in range(quiet_hours):
        world.clock.advance(HOUR_MS)
        world.drain()
    world.clock.advance(1000)
    rest = world.put(6)
    world.clock.advance(stopped_hours * HOUR_MS)
    other = _continued(world)
    if stopped_hours * HOUR_MS >= RETENTION_MS:
        with pytest.raises(DataLossError):
            _read(other)
        return
    rest += world.put(6)
    assert sorted(_read(other)) == sorted(rest)
    last_expired = (quiet_hours + stopped_hours) * HOUR_MS >= RETENTION_MS
    starts = other.options.starting_position.by_shard.values()
    assert {isinstance(start, AtTimestamp) for start in starts} == {last_expired}


def _read(world: World) -> list[str]:
    read: list[str] = []
    for _ in range(8):  # a position may be in doubt for some triggers
        read += world.drain()
        world.clock.advance(1000)
    return read


def _continued(world: World) -> World:
    """Another query, after the committed position of the one of `world`."""
    stream = world.options.streams[0]
    description, shards = world.service.describe(stream), world.service.list_shards(stream)
    found = {stream.name: description}
    positions = kinesis_positions(world.offset, found)
    proofs = proofs_of(world.offset, positions, found, world.service.service_time())
    first = {}
    for key, proof in proofs.items():
        iterator = world.service.open_iterator(stream, key.shard, proof.position, inclusive=True)
        page = world.service.get_records(stream, key.shard, iterator, limit=1)
        first[key] = next(iter(page.sequence_numbers), None)
    positions, _ = without_expired_records(positions, proofs, first)
    start = kinesis_start(
        positions, {stream.name: ListedStream(description=description, shards=shards)}, {}
    )
    options = kinesis_options.parse_options({**start.options, "region": "us-east-1"})
    return World(state=world.state, clock=world.clock, starting_position=options.starting_position)
