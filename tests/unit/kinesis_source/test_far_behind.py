"""Shards that are far behind, without any option: several batches of a bounded size."""

from __future__ import annotations

from spark_ssp.kinesis_source.probing.batch_limits import Limits
from spark_ssp.kinesis_source.probing.intake_rate import INTAKE_BYTES_PER_MS
from spark_ssp.kinesis_source.source import TriggerInterval
from spark_ssp.testing.kinesis.state.page_reads import UnusualAnswers
from tests.support.fakes.planner_world import HOUR_MS, RETENTION_MS, World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key

SHARD_BYTES = 4_000_000
DEFAULT = Limits(max_shard_bytes=SHARD_BYTES)
RECORD_BYTES = 20_000


def backlog(shards: int = 2, hours: int = 5) -> tuple[World, list[str]]:
    """About a record in 36 seconds and shard: 10 MB each."""
    world = World(shards=shards)
    put = world.put(hours * 200, every_ms=18_000, size=RECORD_BYTES)
    return world, put


def test_a_long_backlog_is_read_in_batches_of_a_bounded_size() -> None:
    world, put = backlog()
    sizes: list[int] = []
    read: list[str] = []
    for _ in range(50):
        batch = world.trigger(DEFAULT)
        if batch is not None:
            read += batch.read
            sizes.append(len(batch.read) * RECORD_BYTES)
        world.clock.advance(1000)
    assert sorted(read) == sorted(put)
    assert max(sizes) <= 2 * 1.5 * SHARD_BYTES
    assert len(sizes) >= 3


def test_a_closed_shard_is_no_exception() -> None:
    world, put = backlog(shards=1)
    world.state.split("orders", "shardId-000000000000")
    world.clock.advance(20_000)
    batch = world.trigger(DEFAULT)
    assert batch is not None
    assert len(batch.read) * RECORD_BYTES <= 1.5 * SHARD_BYTES
    read = batch.read + drained(world)
    assert sorted(read) == sorted(put)


def drained(world: World) -> list[str]:
    read: list[str] = []
    for _ in range(40):
        world.clock.advance(1000)
        batch = world.trigger(DEFAULT)
        read += batch.read if batch else []
    return read


def test_a_query_with_a_long_interval_catches_up_all_the_same() -> None:
    """A trigger an hour, of shards that take in ten times the bound in it."""
    world, put = backlog(hours=10)
    world.clock.advance(-world.clock.now_ms() % HOUR_MS)
    interval = TriggerInterval(world.monotonic)
    read: list[str] = []
    for _ in range(30):
        limits = Limits(max_shard_bytes=SHARD_BYTES // 20).for_interval(interval.begin())
        batch = world.trigger(limits)
        read += batch.read if batch else []
        put += world.put(199, every_ms=18_000, size=RECORD_BYTES)
        world.clock.advance(-world.clock.now_ms() % HOUR_MS)
    assert max(world.planner.lag()["orders"].values()) <= HOUR_MS
    assert len(read) == len(set(read))
    assert set(read) >= set(put[:-600]), "but for the last hours"


def test_a_shard_that_keeps_up_is_read_to_its_latest_record() -> None:
    world, _ = backlog()
    drained(world)
    put = world.put(50, every_ms=1, size=RECORD_BYTES)
    world.clock.advance(int(SHARD_BYTES / INTAKE_BYTES_PER_MS) // 2)
    batch = world.trigger(DEFAULT)
    assert batch is not None
    assert sorted(batch.read) == sorted(put)


def test_an_available_now_run_is_one_batch() -> None:
    world, put = backlog()
    world.planner.stop_at_latest()
    batch = world.trigger(DEFAULT)
    assert batch is not None
    assert sorted(batch.read) == sorted(put)


def test_a_way_through_empty_pages_that_avoids_the_horizon_is_kept() -> None:
    """More empty pages than one look follows: the next look continues behind them, and does not
    begin with records that are about to be trimmed."""
    world = World(shards=1)
    world.clock.advance(48 * HOUR_MS)
    world.put(3)
    world.clock.advance(RETENTION_MS - 2 * 60_000)
    world.put(3)
    world.clock.advance(60_000)
    world.state.answers = UnusualAnswers(empty_pages=25)
    first = None
    for _ in range(16):
        end = world.plan(DEFAULT)
        first = first or (end and end.states[key(0)].first)
        world.clock.advance(1000)
    numbers = [record.sequence_number for record in world.state.records("orders", shard_id(0))]
    assert first == numbers[3]
