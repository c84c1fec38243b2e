"""A query that stops at the tip as it was at its start."""

from __future__ import annotations

import pytest

from embedded_kinesis.faults import InternalFailure, LateShardEnd, Throttle
from kinesis_source.limits import UNLIMITED, Limits
from kinesis_source.model import Latest, ShardEnd, StartingPosition
from ssp_common.errors import DataLossError
from tests.support.planner_world import HOUR_MS, RETENTION_MS, World
from tests.support.planning import shard_id
from tests.support.shards import key

LIMITS = [UNLIMITED, Limits(records=7), Limits(size=100)]
"""A record here takes about ten bytes."""


def available_now(world: World, limits: Limits = UNLIMITED) -> list[str]:
    """One run of the query from its checkpoint, in a process of its own."""
    world.restart()
    world.planner.stop_at_tip()
    return world.drain(limits)


@pytest.mark.parametrize("limits", LIMITS)
def test_it_reads_what_was_there_and_no_more(limits: Limits) -> None:
    world = World(shards=3)
    put = world.put(60)
    world.planner.stop_at_tip()
    world.put(60)
    assert sorted(world.drain(limits)) == sorted(put)


@pytest.mark.parametrize("limits", LIMITS)
def test_run_after_run_reads_everything_once(limits: Limits) -> None:
    world = World(shards=2)
    read: list[str] = []
    put: list[str] = []
    for _ in range(5):
        put += world.put(23)
        read += available_now(world, limits)
        assert sorted(read) == sorted(put)
    assert available_now(world, limits) == []


@pytest.mark.parametrize("limits", LIMITS)
def test_a_closed_shard_that_is_slow_to_say_so_holds_nothing_up(limits: Limits) -> None:
    """All of it had been read by an earlier run, so that only its end is left to be met."""
    world = World(shards=1)
    world.put(20)
    world.drain()
    world.state.split("orders", shard_id(0))
    put = world.put(20)
    world.clock.advance(60_000)
    world.state.faults.add(LateShardEnd(), operation="GetRecords", count=None)
    assert sorted(available_now(world, limits)) == sorted(put)


@pytest.mark.parametrize("limits", LIMITS)
def test_it_goes_through_the_reshards_that_were_there(limits: Limits) -> None:
    world = World(shards=2)
    put = world.put(30)
    world.state.split("orders", shard_id(0))
    put += world.put(30)
    world.state.merge("orders", shard_id(3), shard_id(1))
    put += world.put(30)
    world.planner.stop_at_tip()
    world.put(30)
    world.state.split("orders", shard_id(4))
    world.put(30)
    assert sorted(world.drain(limits)) == sorted(put)
    assert set(world.offset.states) == {key(2), key(4)}


def test_the_rest_is_read_by_the_next_run() -> None:
    world = World(shards=1)
    put = world.put(10)
    world.planner.stop_at_tip()
    late = world.put(10)
    world.state.split("orders", shard_id(0))
    late += world.put(10)
    assert sorted(world.drain()) == sorted(put)
    assert sorted(available_now(world)) == sorted(late)
    assert set(world.offset.states) == {key(1), key(2)}


def test_children_of_a_shard_that_was_read_to_its_end_are_found_by_the_next_run() -> None:
    """The listing is fresh at each start, whatever the discovery interval."""
    world = World(shards=1, shard_discovery_interval_ms=100 * HOUR_MS)
    world.put(5)
    assert len(world.drain()) == 5
    world.state.split("orders", shard_id(0))
    put = world.put(10)
    assert sorted(available_now(world)) == sorted(put)
    assert all(not isinstance(s.position, ShardEnd) for s in world.offset.states.values())


def test_a_first_run_at_latest_anchors_and_the_next_one_reads() -> None:
    world = World(starting_position=StartingPosition(default=Latest()))
    world.put(20)
    assert available_now(world) == []
    put = world.put(20)
    assert sorted(available_now(world)) == sorted(put)


def test_it_takes_few_calls_however_much_there_is() -> None:
    world = World(shards=2)
    world.put(20_000, size=100)
    world.planner.stop_at_tip()
    batch = world.trigger()
    assert batch is not None
    assert len(batch.read) == 20_000
    assert world.trigger() is None
    calls = world.calls()
    assert calls["GetRecords"] <= 2 * 8
    assert calls["ListShards"] <= 2


@pytest.mark.parametrize("limits", LIMITS)
def test_faults_and_throttling_do_not_end_it_early(limits: Limits) -> None:
    world = World(shards=2)
    put = world.put(40)
    for fault in (Throttle(), InternalFailure()):
        for nth in (2, 9, 15, 28):
            world.state.faults.add(fault, operation="GetRecords", nth=nth)
    world.planner.stop_at_tip()
    assert sorted(world.drain(limits)) == sorted(put)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("fault", [Throttle(), InternalFailure()])
def test_a_look_that_fails_is_no_end_of_the_run(
    limits: Limits, fault: Throttle | InternalFailure
) -> None:
    world = World(shards=2)
    world.put(20)
    world.drain()
    world.restart()
    put = world.put(20)
    world.planner.stop_at_tip()
    world.state.faults.add(fault, operation="GetRecords", count=2)
    assert sorted(world.drain(limits)) == sorted(put)


# --- Proofs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", LIMITS)
def test_regular_runs_over_a_quiet_shard_are_no_loss(limits: Limits) -> None:
    """The last record read is trimmed in time; every run proved that nothing followed it."""
    world = World(shards=1)
    world.put(5)
    available_now(world, limits)
    for _ in range(20):
        world.clock.advance(2 * HOUR_MS)
        assert available_now(world, limits) == []
    assert world.state.records("orders") == []
    put = world.put(5)
    assert sorted(available_now(world, limits)) == sorted(put)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("start", ["trim", "latest"])
def test_a_run_that_comes_too_late_says_so(limits: Limits, start: str) -> None:
    """All that was put since the last run has been trimmed: nothing is left that could tell."""
    world = World(shards=1)
    if start == "latest":
        world.restart(starting_position=StartingPosition(default=Latest()))
    else:
        world.put(5)
    available_now(world, limits)
    world.put(5)
    world.clock.advance(RETENTION_MS + 60_000)
    with pytest.raises(DataLossError, match="shard orders/shardId-000000000000"):
        available_now(world, limits)


@pytest.mark.parametrize("limits", LIMITS)
def test_a_run_that_comes_too_late_may_be_told_to_go_on(limits: Limits) -> None:
    world = World(shards=1, fail_on_data_loss=False)
    world.put(5)
    available_now(world, limits)
    world.put(5)
    world.clock.advance(RETENTION_MS + 60_000)
    assert available_now(world, limits) == []
    put = world.put(5)
    assert sorted(available_now(world, limits)) == sorted(put)
