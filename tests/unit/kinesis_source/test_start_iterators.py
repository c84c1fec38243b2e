"""Which iterators the planner hands over: those after the record at which a range starts, of shards
that were at their latest record."""

from __future__ import annotations

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kinesis_source.model.shard import ShardIterator, TrimHorizon
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.probing.batch_limits import Limits
from tests.support.fakes.planner_world import World
from tests.support.kinesis.shards import key


def handed_over(world: World, end: Offset) -> list[ShardIterator]:
    """Return the iterators of a batch's ranges."""
    streams = {ref.name: ref for ref in world.options.streams}
    iterators = world.planner.start_iterators(world.offset)
    ranges = plan_ranges(world.offset, end, streams, iterators=iterators)
    return [shard.iterator for part in ranges for shard in part.shards if shard.iterator]


def planned(world: World, limits: Limits | None = None) -> Offset:
    world.clock.advance(1000)
    end = world.plan() if limits is None else world.plan(limits)
    assert end is not None
    return end


def test_an_iterator_gives_the_records_after_the_start() -> None:
    world = World(1)
    world.put(3)
    end = planned(world)
    assert handed_over(world, end) == []
    world.run(end)
    for _ in range(3):
        texts = world.put(2)
        end = planned(world)
        (iterator,) = handed_over(world, end)
        (ref,) = world.options.streams
        page = world.service.get_records(ref, key(0).shard, iterator, limit=100)
        assert [data.decode() for data in page.data] == texts
        world.run(end)


def test_a_shard_that_is_behind_hands_none_over() -> None:
    """Records after its start may be older than the retention before they are read."""
    world = World(1)
    world.put(9)
    limits = Limits(max_records=2)
    for _ in range(3):
        end = planned(world, limits)
        assert handed_over(world, end) == []
        world.run(end)


def test_a_shard_without_new_records_hands_none_over() -> None:
    """An empty page does not show which record its iterator follows."""
    world = World(1)
    world.put(3)
    world.settle()
    world.put(2)
    assert handed_over(world, planned(world)) == []


def test_an_old_iterator_is_not_handed_over() -> None:
    world = World(1)
    world.put(3)
    world.run(planned(world))
    world.put(2)
    world.clock.advance(600_000)
    assert handed_over(world, planned(world)) == []


def test_a_range_that_ends_with_its_shard_has_none() -> None:
    world = World(1)
    world.put(3)
    world.run(planned(world))
    world.put(2)
    world.state.split("orders", key(0).shard)
    world.clock.advance(20_000)
    assert handed_over(world, planned(world)) == []


def test_another_start_has_no_iterators() -> None:
    world = World(1)
    world.put(3)
    world.run(planned(world))
    world.put(2)
    end = planned(world)
    assert world.planner.start_iterators(BEFORE_FIRST_BATCH) == {}
    assert world.planner.start_iterators(end) == {}
    other = replace(world.state_of(0), position=TrimHorizon())
    taken_over = replace(end, states={key(0): replace(end.states[key(0)], resume_from=other)})
    assert handed_over(world, taken_over) == []
    assert len(handed_over(world, end)) == 1
