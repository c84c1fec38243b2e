"""The planner over the embedded service: slots, and the proofs of the tip."""

from __future__ import annotations

import logging

import pytest

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import SlotId, StreamName
from spark_ssp.kinesis_source.model.shard import EpochMillis, StreamRef
from spark_ssp.kinesis_source.options.values import SlotAssignment
from tests.support.fakes.planner_world import DISCOVERED_MS, RETENTION_MS, World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key

ORDERS, CLICKS = StreamRef(name=StreamName("orders")), StreamRef(name=StreamName("clicks"))


# --- Slots ----------------------------------------------------------------------------------------


def test_the_number_of_slots_is_fixed_for_a_run_and_follows_the_shards_at_a_restart() -> None:
    world = World(shards=2).settle()
    world.state.split("orders", shard_id(0))
    world.state.split("orders", shard_id(1))
    for _ in range(6):
        world.put(50)
        world.clock.advance(10_000)
        batch = world.trigger()
        assert batch is not None
        assert batch.end.slots == 2
        assert len(batch.ranges) <= 2
    assert len(set(world.offset.assignment)) == 4
    world.restart()
    world.put(50)
    batch = world.trigger()
    assert batch is not None
    assert batch.end.slots == 4
    assert sorted(batch.end.assignment.values()) == [0, 1, 2, 3]
    assert len(batch.ranges) == 4


def test_one_shard_to_a_slot_after_a_restart_even_if_it_is_quiet_at_first() -> None:
    world = World(shards=2).settle()
    together = {key(0): SlotId(0), key(1): SlotId(0)}
    world.offset = replace(world.offset, assignment=together)
    world.restart()
    assert world.trigger() is None
    world.put(20)
    batch = world.trigger()
    assert batch is not None
    assert batch.end.assignment == {key(0): 0, key(1): 1}


def test_within_a_run_no_shard_moves() -> None:
    world = World(shards=2).settle()
    world.offset = replace(world.offset, assignment={key(0): SlotId(1), key(1): SlotId(0)})
    world.put(20)
    batch = world.trigger()
    assert batch is not None
    assert batch.end.assignment == {key(0): 1, key(1): 0}


def test_within_a_run_no_shard_moves_where_several_share_a_slot() -> None:
    """From scratch, shard 1 would come to slot 0."""
    world = World(shards=2).settle()
    world.state.split("orders", "shardId-000000000000")
    for _ in range(5):
        world.put(20)
        world.clock.advance(10_000)
        world.trigger()
    assert world.offset.assignment == {key(1): 1, key(2): 0, key(3): 0}


def test_the_option_fixes_the_number_of_slots() -> None:
    world = World(shards=5, slots=2)
    put = world.put(50)
    batch = world.trigger()
    assert batch is not None
    assert sorted(batch.read) == sorted(put)
    assert batch.end.slots == 2
    assert [len(part.shards) for part in batch.ranges] == [3, 2]
    world.restart(slots=7)
    world.put(50)
    batch = world.trigger()
    assert batch is not None
    assert (batch.end.slots, len(batch.ranges)) == (7, 5)


def test_slots_by_hash_range() -> None:
    world = World(shards=4, slots=2, slot_assignment=SlotAssignment.HASH_RANGE)
    world.put(50)
    batch = world.trigger()
    assert batch is not None
    assert batch.end.assignment == {key(0): 0, key(1): 0, key(2): 1, key(3): 1}


def test_several_streams_share_the_slots() -> None:
    world = World(shards=2, streams=(CLICKS, ORDERS))
    world.state.create_stream("clicks", 1)
    put = world.put(20) + world.put(20, stream="clicks")
    batch = world.trigger()
    assert batch is not None
    assert sorted(batch.read) == sorted(put)
    assert batch.end.slots == 3
    assert sorted(batch.end.assignment.values()) == [0, 1, 2]


# --- Proofs ---------------------------------------------------------------------------------------


def test_the_proof_of_the_latest_record_is_renewed_eight_times_a_retention_and_no_oftener() -> None:
    world = World(shards=2).settle()
    world.put(10)
    world.drain()
    written = len(world.texts)
    for _ in range(24 * 6):
        batch = world.trigger()
        if batch is not None:
            assert batch.ranges == ()
            assert {state.last_caught_up_ms for state in batch.end.states.values()} == {
                EpochMillis(world.clock.now_ms())
            }
        world.clock.advance(10 * 60_000)
    assert len(world.texts) - written == 8 - 1


def test_a_proof_is_renewed_however_seldom_shards_are_to_be_listed() -> None:
    world = World(shards=1, shard_discovery_interval_ms=RETENTION_MS)
    world.put(1)
    world.settle()
    for _ in range(23 * 6):
        world.trigger()
        world.clock.advance(10 * 60_000)
    seen = world.state_of(0).last_caught_up_ms
    assert seen is not None
    assert world.clock.now_ms() - seen <= RETENTION_MS // 8 + 30 * 60_000


def test_a_proof_is_not_renewed_before_its_time() -> None:
    world = World().settle()
    seen = max(state.last_caught_up_ms or 0 for state in world.offset.states.values())
    world.clock.set(seen + RETENTION_MS // 8 - 1)
    assert world.trigger() is None
    world.clock.set(seen + RETENTION_MS // 8 + DISCOVERED_MS)
    batch = world.trigger()
    assert batch is not None
    assert batch.ranges == ()


def test_a_shard_without_a_proof_gets_one_when_it_first_reaches_the_latest_record() -> None:
    world = World(shards=1).settle()
    position = world.offset.states[key(0)].position
    world.offset = replace(
        world.offset,
        states={
            key(0): replace(world.offset.states[key(0)], position=position, last_caught_up_ms=None)
        },
    )
    world.clock.advance(DISCOVERED_MS)
    batch = world.trigger()
    assert batch is not None
    assert batch.end.states[key(0)].last_caught_up_ms == world.clock.now_ms()


def test_what_belongs_to_the_first_batch_is_not_carried_along() -> None:
    world = World(shards=1)
    world.put(5)
    first = world.trigger()
    assert first is not None
    assert first.end.states[key(0)].first is not None
    assert first.end.streams[ORDERS.name].start is not None
    world.clock.advance(RETENTION_MS // 8)
    second = world.trigger()
    assert second is not None
    assert second.end.states[key(0)].first is None
    assert second.end.streams[ORDERS.name].start is None


def test_without_the_option_many_shards_share_64_slots_and_keep_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(shards=100)
    world.put(500)
    with caplog.at_level(logging.WARNING, logger="spark_ssp"):
        batch = world.trigger()
    assert batch is not None
    assert (batch.end.slots, len(batch.ranges)) == (64, 64)
    assert "100 open shards share 64 slots" in caplog.text
    before = batch.end.assignment
    world.restart()
    world.put(500)
    batch = world.trigger()
    assert batch is not None
    assert batch.end.assignment == before


def test_a_query_that_had_a_slot_for_each_of_many_shards_gets_64_at_its_restart() -> None:
    world = World(shards=100, slots=100).settle()
    world.put(500)
    world.restart(slots=None)
    put = world.put(500)
    batch = world.trigger()
    assert batch is not None
    assert batch.end.slots == 64
    assert set(put) <= set(batch.read)
