"""A batch that may be the only one of a run: PySpark before 4.2 does not report the trigger."""

from __future__ import annotations

import pytest

from spark_ssp.kinesis_source.planning import input_partitions
from spark_ssp.kinesis_source.probing.batch_limits import Limits
from tests.support.fakes.planner_world import World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key


def run_of_one_batch(world: World) -> list[str]:
    """Run the query from its checkpoint with availableNow, and return the records read."""
    world.restart()
    end = world.planner.next_offset_of_all(world.offset)
    return [] if end is None else world.run(end).read


def test_each_run_reads_all_records_in_one_batch() -> None:
    world = World(shards=3)
    read: list[str] = []
    put: list[str] = []
    for _ in range(4):
        put += world.put(3000, every_ms=7)
        read += run_of_one_batch(world)
        assert sorted(read) == sorted(put)
    assert run_of_one_batch(world) == []


def test_the_batch_waits_for_a_shard_whose_records_do_not_show_yet() -> None:
    world = World(shards=2)
    visible_from = world.clock.now_ms() + 5000
    world.state.put("orders", "key", b"hidden", visible_from_ms=visible_from)
    world.state.split("orders", shard_id(0))
    put = world.put(20)
    read = run_of_one_batch(world)
    assert "hidden" in read
    assert set(read) & set(put), "of the other shard"
    assert sorted(read + run_of_one_batch(world)) == sorted([*put, "hidden"])


def test_the_next_batches_go_on_with_new_records_and_new_shards() -> None:
    world = World(shards=1)
    put = world.put(20)
    read = run_of_one_batch(world)
    world.state.split("orders", shard_id(0))
    put += world.put(30)
    world.clock.advance(60_000)
    read += world.drain(Limits(max_records=7))
    assert sorted(read) == sorted(put)
    assert set(world.offset.states) == {key(1), key(2)}


def test_shards_that_follow_a_split_are_read_after_it_or_by_the_next_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(shards=1)
    put = world.put(20)
    world.state.split("orders", shard_id(0))
    put += world.put(20)
    assert sorted(run_of_one_batch(world)) == sorted(put)
    monkeypatch.setattr(input_partitions, "MAX_COMPONENT_SHARDS", 1)
    world.state.split("orders", shard_id(1))
    second = world.put(20)
    read = run_of_one_batch(world)
    assert read
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "the rest of 1 shards" in warning
    assert str(key(1)) in warning
    caplog.clear()
    assert sorted(read + run_of_one_batch(world)) == sorted(second)
    assert not [one for one in caplog.records if one.levelname == "WARNING"]
