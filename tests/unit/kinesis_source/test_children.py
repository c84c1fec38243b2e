"""A child's beginning is intact as long as a parent is listed, however old the last proof is."""

from __future__ import annotations

import pytest

from spark_ssp.common.errors import DataLossError
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    ShardEnd,
    StartingPosition,
)
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits
from spark_ssp.testing.kinesis import ManualClock
from spark_ssp.testing.kinesis.dispatch import KinesisState
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.fakes.planner_world import World as PlannerWorld

HOUR_MS = 3_600_000


class World:
    """A stream of one shard, retention a day, and a query that reads it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = KinesisState(clock=self.clock)
        self.state.create_stream("orders", shards=1)
        self.planner = self.restarted()

    def restarted(self) -> BatchPlanner:
        return BatchPlanner(
            parse_options(
                {
                    "streamName": "orders",
                    "region": "us-east-1",
                    "startingPosition": "trim_horizon",
                }
            ),
            InProcessKinesis(self.state),
            monotonic=lambda: self.clock.now_ms() / 1000,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.clock.advance(round(seconds * 1000) + 1)

    def put(self, count: int = 1) -> None:
        for _ in range(count):
            self.state.put("orders", "key", b"data")
            self.clock.advance(1)

    def next(self, start: Offset, limits: Limits = UNLIMITED) -> Offset:
        end = self.planner.next_offset(start, limits)
        assert end is not None
        return end


def read_to_parents_end(world: World, *, lagging_hours: int) -> Offset:
    """At the tip once, then behind for so many hours, until the parent closes and is finished."""
    world.put(3)
    offset = world.next(BEFORE_FIRST_BATCH)
    for _ in range(lagging_hours):
        world.put(2)
        world.clock.advance(HOUR_MS)
        offset = world.next(offset, Limits(max_records=1))
    world.state.split("orders", "shardId-000000000000")
    world.put(4)
    world.planner = world.restarted()
    offset = world.next(offset, Limits(max_records=1000))
    assert all(isinstance(state.position, ShardEnd) for state in offset.states.values())
    return offset


def test_a_long_lag_behind_the_latest_record_is_no_loss_for_the_children() -> None:
    world = World()
    offset = read_to_parents_end(world, lagging_hours=30)
    after = world.next(offset)
    assert len(after.states) == 2


def test_children_left_unread_until_the_parent_expired_are_a_loss() -> None:
    world = World()
    offset = read_to_parents_end(world, lagging_hours=3)
    world.clock.advance(30 * HOUR_MS)
    world.planner = world.restarted()
    with pytest.raises(DataLossError, match="children of shard orders/shardId-000000000000"):
        world.next(offset)


@pytest.mark.parametrize("hours_ago", [0, 40])
def test_a_child_that_waits_with_a_time_to_start_at_is_no_loss(hours_ago: int) -> None:
    """In a stream that is older than its retention, as nearly all are."""
    world = PlannerWorld(shards=1)
    world.clock.advance(48 * HOUR_MS)
    begin = EpochMillis(world.clock.now_ms() - hours_ago * HOUR_MS)
    put = world.put(5)
    world.state.split("orders", "shardId-000000000000")
    put += world.put(5)
    world.clock.advance(60_000)
    world.restart(starting_position=StartingPosition(default=AtTimestamp(millis=begin)))
    assert sorted(world.drain()) == sorted(put)
