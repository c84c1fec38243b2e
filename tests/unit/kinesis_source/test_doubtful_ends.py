"""An answer without a NextShardIterator for a shard that is open: it must not end the shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.batch_read import plan_read
from spark_ssp.kinesis_source.model.shard import (
    Latest,
    RecordPage,
    ShardEnd,
    ShardIterator,
    StartingPosition,
    StreamRef,
)
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.fakes.planner_world import World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key


class EndingKinesis(InProcessKinesis):
    """Leaves out the iterator of one answer for each shard, the `nth`."""

    nth = 1

    def get_records(
        self,
        stream: StreamRef,
        shard: ShardId,
        iterator: ShardIterator,
        *,
        limit: int,
        retry: bool = True,
    ) -> RecordPage:
        page = super().get_records(stream, shard, iterator, limit=limit, retry=retry)
        counts = self.__dict__.setdefault("counts", {})
        counts[shard] = counts.get(shard, 0) + 1
        return replace(page, next_iterator=None) if counts[shard] == self.nth else page


def _world(nth: int, **changes: Any) -> World:
    world = World(shards=2, **changes)
    world.service = EndingKinesis(world.state, attempts=3)
    world.service.nth = nth
    world.restart()
    return world


def _triggers(world: World, limits: Limits = UNLIMITED) -> list[str]:
    read: list[str] = []
    for _ in range(6):
        batch = world.trigger(limits)
        read += batch.read if batch is not None else []
        world.clock.advance(1000)
    return read


def _limited(world: World) -> list[str]:
    return _triggers(world, Limits(max_records=100))


def _available_now(world: World) -> list[str]:
    world.planner.stop_at_latest()
    return world.drain()


def _batch(world: World) -> list[str]:
    ranges = plan_read(world.options, world.service, monotonic=world.monotonic, sleep=world.sleep)
    return world.read(ranges)


@pytest.mark.parametrize("nth", range(1, 8))
@pytest.mark.parametrize("trigger", [_triggers, _limited, _available_now, _batch])
def test_an_open_shard_is_read_on(trigger: Callable[[World], list[str]], nth: int) -> None:
    world = _world(nth)
    put = world.put(60)
    assert sorted(trigger(world)) == sorted(put)
    assert not any(isinstance(s.position, ShardEnd) for s in world.offset.states.values())
    if trigger is not _batch:
        world.restart()
        put = world.put(10)
        assert sorted(_triggers(world)) == sorted(put)


@pytest.mark.parametrize("nth", [1, 2])
def test_latest_of_an_open_shard_is_no_end(nth: int) -> None:
    world = _world(nth, starting_position=StartingPosition(default=Latest()))
    world.put(10)
    assert _triggers(world) == []
    put = world.put(10)
    assert sorted(_triggers(world)) == sorted(put)


def test_a_shard_that_was_split_ends() -> None:
    world = _world(nth=0)
    put = world.put(20)
    assert sorted(_triggers(world)) == sorted(put)
    world.state.split("orders", shard_id(0))
    put = world.put(20)
    assert sorted(_triggers(world)) == sorted(put)
    assert set(world.offset.states) == {key(1), key(2), key(3)}
