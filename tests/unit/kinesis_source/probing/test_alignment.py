"""Batches that end at one instant across shards, and the shards that others do not wait for."""

from __future__ import annotations

from spark_ssp.testing.kinesis.state.faults import Throttle
from tests.support.fakes.planner_world import World
from tests.support.kinesis.planning import shard_id

TIMEOUT_MS = 60_000


def test_a_shard_that_cannot_be_read_holds_others_back_until_the_timeout() -> None:
    world = World(alignment_timeout_ms=TIMEOUT_MS)
    put = world.put(20)
    read = world.drain()
    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(0), count=None)
    rows_at: list[int] = []
    for second in range(120):
        put += world.put(4, every_ms=250)
        batch = world.trigger()
        if batch is not None:
            read += batch.read
            rows_at.append(second)
    assert not [second for second in rows_at if 10 <= second < 60]
    assert len([second for second in rows_at if second >= 80]) > 20
    world.state.faults.clear()
    world.clock.advance(1000)
    assert sorted(read + world.drain()) == sorted(put)
