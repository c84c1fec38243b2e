"""Children in the batch of their parents: the planner over the embedded service."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.model.ranges import ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    Latest,
    ShardEnd,
    ShardState,
    StartingPosition,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import SlotAssignment
from spark_ssp.kinesis_source.planning import input_partitions
from spark_ssp.kinesis_source.planning.active_shards import ActiveShards, ancestors
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits
from spark_ssp.testing.kinesis.state.page_reads import UnusualAnswers
from tests.support.fakes.planner_world import DISCOVERED_MS, HOUR_MS, Batch, World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key

DEFAULT = Limits(max_shard_bytes=256 << 20)
"""Those of a query without options."""


def trigger(world: World, limits: Limits = UNLIMITED) -> Batch:
    batch = world.trigger(limits)
    assert batch is not None
    return batch


def lineage(tasks: Sequence[SlotRange]) -> dict[str, dict[str, tuple[str, ...]]]:
    """The last digits of the shards of each task, and of those that each follows."""
    return {
        str(task.slot): {
            shard.shard[-2:]: tuple(older[-2:] for older in shard.after) for shard in task.shards
        }
        for task in tasks
    }


def test_a_child_takes_one_page_if_the_size_of_its_parents_records_is_known() -> None:
    world = World(shards=2).settle()
    put = world.put(20)
    world.clock.advance(1_000)
    assert sorted(trigger(world).read) == sorted(put)
    for parent in (0, 1):
        world.state.split("orders", shard_id(parent))
    put = world.put(40)
    world.clock.advance(DISCOVERED_MS)
    world.calls()
    end = world.plan()
    assert end is not None
    calls = world.calls()
    assert calls["GetShardIterator"] == 4, "one for each child"
    assert calls["GetRecords"] == 4
    assert sorted(world.run(end).read) == sorted(put)


def test_several_generations_are_read_by_one_task_and_then_each_shard_in_its_slot() -> None:
    world = World(shards=3).settle()
    put = world.put(30)
    world.state.split("orders", shard_id(0))  # 3, 4
    put += world.put(30)
    world.state.merge("orders", shard_id(4), shard_id(1))  # 5
    put += world.put(30)
    world.clock.advance(DISCOVERED_MS)
    batch = trigger(world)
    assert sorted(batch.read) == sorted(put)
    assert lineage(batch.ranges) == {
        "0": {"00": (), "01": (), "03": ("00",), "04": ("00",), "05": ("00", "01", "04")},
        "2": {"02": ()},
    }
    assert batch.end.assignment == {
        key(0): 0,
        key(1): 1,
        key(2): 2,
        key(3): 0,
        key(4): 0,
        key(5): 1,
    }
    put = world.put(30, every_ms=100)
    batch = trigger(world)
    assert sorted(batch.read) == sorted(put)
    assert lineage(batch.ranges) == {"0": {"03": ()}, "1": {"05": ()}, "2": {"02": ()}}
    assert batch.end.assignment == {key(2): 2, key(3): 0, key(5): 1}
    assert not any(state.follows for state in batch.end.states.values())


@pytest.mark.parametrize("limits", [Limits(max_records=1000), Limits(max_bytes=10**6)])
def test_under_a_limit_children_are_left_to_the_next_batch(limits: Limits) -> None:
    world = World(shards=1).settle()
    first = world.put(30)
    world.state.split("orders", shard_id(0))
    second = world.put(30)
    world.clock.advance(DISCOVERED_MS)
    assert sorted(trigger(world, limits).read) == sorted(first)
    world.clock.advance(1000)
    assert sorted(trigger(world, limits).read) == sorted(second)


def test_by_hash_range_only_children_in_the_slots_of_their_parents() -> None:
    by_keys = SlotAssignment.HASH_RANGE
    world = World(shards=2, slots=2, slot_assignment=by_keys, align_batches=False).settle()
    first = world.put(30)
    world.state.split("orders", shard_id(0))  # 2, 3, both in slot 0
    first += world.put(30)
    world.state.merge("orders", shard_id(3), shard_id(1))  # 4, of slots 0 and 1
    second = world.put(30)
    world.clock.advance(DISCOVERED_MS)
    batch = trigger(world)
    of_merge = {record.data.decode() for record in world.state.records("orders", shard_id(4))}
    assert set(batch.read) == {*first, *second} - of_merge
    assert lineage(batch.ranges) == {
        "0": {"00": (), "02": ("00",), "03": ("00",)},
        "1": {"01": ()},
    }
    world.clock.advance(1000)
    assert set(trigger(world).read) == of_merge


def test_a_component_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_partitions, "MAX_COMPONENT_SHARDS", 4)
    world = World(shards=1).settle()
    put = world.put(30)
    for number in range(3):
        world.state.split("orders", shard_id(2 * number))
        put += world.put(30)
    world.clock.advance(DISCOVERED_MS)
    batch = trigger(world)
    assert batch.shards.keys() == {"00", "01", "02", "03"}
    world.clock.advance(1000)
    assert sorted(batch.read + world.drain()) == sorted(put)


def test_a_line_of_shards_far_behind_is_bounded() -> None:
    """Each generation has 2 MB, and a batch reads about 4 MB of a shard that is far behind."""
    world = World(shards=1)
    put: list[str] = []
    for number in range(6):
        put += world.put(100, every_ms=36_000, size=20_000)
        if number < 5:
            world.state.split("orders", shard_id(2 * number), at=number + 1)
    read: list[str] = []
    batches = []
    while len(read) < len(put):
        batch = trigger(world, Limits(max_shard_bytes=4_000_000))
        batches.append(len(batch.read) * 20_000)
        read += batch.read
        world.clock.advance(1000)
    assert sorted(read) == sorted(put)
    assert len(batches) == 3
    assert max(batches) <= 2 * 1.5 * 4_000_000


@pytest.mark.parametrize("waits", [False, True])
def test_a_batch_that_ends_before_a_reshard_leaves_the_children_to_a_later_one(waits: bool) -> None:
    """A shard far behind holds the others back at its last record of the batch."""
    start = AtTimestamp(millis=EpochMillis(0)) if waits else TrimHorizon()
    world = World(shards=2, starting_position=StartingPosition(default=start))
    put = [f"{number:020000d}" for number in range(400)]
    for text in put:
        world.state.put("orders", "any", text.encode(), explicit_hash_key=0)
        world.clock.advance(36_000)
    more = world.put(20)
    world.state.split("orders", shard_id(1))
    more += world.put(20)
    world.restart()
    batch = trigger(world, Limits(max_shard_bytes=2_000_000))
    assert set(batch.read) < set(put)
    assert batch.end.states.keys() == {key(0), key(1)}
    assert batch.end.waiting.keys() == ({key(2), key(3)} if waits else set())
    read = batch.read
    for _ in range(10):
        world.clock.advance(1000)
        if (following := world.trigger(Limits(max_shard_bytes=2_000_000))) is not None:
            check_order(world, following.ranges)
            read += following.read
    assert sorted(read) == sorted(put + more)


@pytest.mark.parametrize("late_shard_end", [False, True])
def test_a_reshard_hours_ago_is_read_in_one_batch(late_shard_end: bool) -> None:
    world = World(shards=2).settle()
    world.state.answers = UnusualAnswers(late_shard_end=late_shard_end)
    put = world.put(30)
    world.state.split("orders", shard_id(0))
    put += world.put(30)
    world.state.split("orders", shard_id(2))
    put += world.put(30)
    world.clock.advance(10 * HOUR_MS)
    world.restart()
    assert sorted(trigger(world, DEFAULT).read) == sorted(put)


def test_an_empty_child_is_read_from_its_beginning_by_a_later_batch() -> None:
    world = World(shards=1).settle()
    put = world.put(30)
    world.state.split("orders", shard_id(0))
    put += world.put(30)
    world.state.split("orders", shard_id(2))
    world.clock.advance(DISCOVERED_MS)
    batch = trigger(world)
    assert sorted(batch.read) == sorted(put)
    for number in (3, 4):
        state = batch.end.states[key(number)]
        assert state.position == TrimHorizon()
        assert state.last_caught_up_ms is not None
        assert state.follows == (shard_id(0), shard_id(2))
    put = world.put(30, every_ms=100)
    batch = trigger(world)
    assert sorted(batch.read) == sorted(put)
    assert all(shard.after == () for task in batch.ranges for shard in task.shards)


def test_children_that_start_at_latest_are_left_to_the_second_batch() -> None:
    """The first one records their positions and reads nothing of them."""
    world = World(shards=1)
    old = world.put(30)
    world.state.split("orders", shard_id(0))
    world.put(30)
    begin = StartingPosition(default=Latest(), by_shard={key(0): TrimHorizon()})
    world.restart(starting_position=begin)
    batch = trigger(world)
    assert batch.read == old
    assert batch.end.waiting.keys() == {key(1), key(2)}
    put = world.put(30, every_ms=100)
    assert sorted(world.drain()) == sorted(put)


def test_what_a_shard_followed_belongs_to_one_batch() -> None:
    """Also where a lease table decides since then which shards are read."""
    state = ShardState(position=ShardEnd(), follows=(shard_id(0),))
    active = ActiveShards()
    world = World(shards=1).settle()
    entry = world.offset.streams[key(0).stream]
    active.add(key(0).stream, entry, {shard_id(1): state}, {shard_id(2): state})
    assert {one.follows for one in (*active.states.values(), *active.waiting.values())} == {()}


# --- Any history ----------------------------------------------------------------------------------


def check_order(world: World, tasks: Sequence[SlotRange]) -> None:
    """Assert that each shard is read by the task that reads its ancestors, and after them."""
    listing = {
        shard.shard_id: shard for shard in world.service.list_shards(world.options.streams[0])
    }
    task_of: dict[ShardKey, tuple[SlotRange, ShardRange]] = {
        shard.key: (task, shard) for task in tasks for shard in task.shards
    }
    for task, shard in task_of.values():
        for older in ancestors(listing, [shard.shard]):
            if (found := task_of.get(ShardKey(stream=shard.key.stream, shard=older))) is not None:
                assert found[0] is task
                assert older in shard.after


def reshard(world: World, places: Sequence[tuple[int, bool]]) -> list[str]:
    """Split and merge open shards, and put records before each and after the last."""
    put = world.put(12)
    for place, is_merge in places:
        opened = world.state.open_shard_ids("orders")
        shard = opened[place % len(opened)]
        following = opened[(place + 1) % len(opened)]
        if is_merge and following != opened[0]:
            world.state.merge("orders", shard, following)
        else:
            world.state.split("orders", shard)
        put += world.put(12)
    return put


places = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=10)


@given(
    shards=st.integers(1, 4),
    places=places,
    slots=st.sampled_from([None, 1, 2, 5]),
    hours=st.sampled_from([0, 1, 10]),
    how=st.sampled_from(["processing time", "once", "available now", "new query"]),
)
def test_all_records_of_a_stop_are_read_in_two_batches_however_often_it_was_resharded(
    shards: int, places: list[tuple[int, bool]], slots: int | None, hours: int, how: str
) -> None:
    """The slots are those of one generation after the other, and the second batch reads nothing
    unless the first one had no record of a shard that was to come."""
    world = World(shards=shards, slots=slots)
    if how != "new query":
        world.settle()
    put = reshard(world, places)
    world.clock.advance(hours * HOUR_MS + 1000)
    world.restart()
    if how == "available now":
        world.planner.stop_at_latest()
    limits = UNLIMITED if how == "once" else DEFAULT
    begin = world.offset
    read: list[str] = []
    for _ in range(2):
        if (batch := world.trigger(limits)) is not None:
            check_order(world, batch.ranges)
            assert len(batch.ranges) <= batch.end.slots
            read += batch.read
        world.clock.advance(1000)
    assert sorted(read) == sorted(put)

    chained = dict(world.offset.assignment)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_partitions, "MAX_COMPONENT_SHARDS", 0)
        world.offset = begin
        world.restart(align_batches=False)
        assert sorted(world.drain(limits)) == sorted(put)
    for one in world.offset.states.keys() & chained.keys():
        assert world.offset.assignment[one] == chained[one]
