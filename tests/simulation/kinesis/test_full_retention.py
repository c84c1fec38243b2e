"""A stream that has been written for longer than its retention: its oldest record is trimmed at
every moment, also between the planning of a batch and its reading."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from spark_ssp.common.errors import DataLossError
from tests.support.simulation.query import Disturbance, Outcome, Stage
from tests.support.simulation.scene import STREAM, Scene, scene
from tests.support.simulation.world import HOUR_MS

EVERY_MS = 20_000


def write(orders: Scene, milliseconds: int) -> None:
    """Put a record into each shard every `EVERY_MS`."""
    for _ in range(0, milliseconds, EVERY_MS):
        orders.world.pass_time(EVERY_MS)
        for life in orders.world.open_shards(STREAM):
            orders.world.put(STREAM, "key-1", into=life.shard)


def full(scenes: ExitStack, shards: int = 2, since_ms: int | None = None, **options: str) -> Scene:
    """A stream with full retention, and a query that has just been started on it."""
    orders = scene(scenes, shards, **options)
    write(orders, 25 * HOUR_MS)
    return begun(orders, since_ms)


def resharded(scenes: ExitStack, splits: int, split_ms: int, since_ms: int | None = None) -> Scene:
    """The same, with a limit, of a stream whose first shard was split `splits` times, once every
    `EVERY_MS` from the time on that is `split_ms` after the horizon."""
    orders = scene(scenes, 1, maxRecordsPerTrigger="20")
    write(orders, HOUR_MS + split_ms)
    for _ in range(splits):
        orders.world.split(STREAM, 0)
        write(orders, EVERY_MS)
    write(orders, 24 * HOUR_MS - split_ms - splits * EVERY_MS)
    return begun(orders, since_ms)


def begun(orders: Scene, since_ms: int | None) -> Scene:
    """Start the query at the horizon, or at the time `since_ms` ago."""
    if since_ms is not None:
        time = orders.world.clock.now_ms() - since_ms
        orders.options["startingPosition"] = f"at_timestamp {time}"
    orders.start()
    return orders


@pytest.mark.parametrize("options", [{}, {"maxBytesPerShard": "0"}, {"maxRecordsPerTrigger": "20"}])
@pytest.mark.parametrize("since_ms", [None, 24 * HOUR_MS])
@pytest.mark.parametrize("delay_ms", [2_000, 40_000, 200_000])
def test_a_query_that_starts_at_the_horizon_catches_up(
    scenes: ExitStack, delay_ms: int, since_ms: int | None, options: dict[str, str]
) -> None:
    """However long after planning its first tasks begin."""
    orders = full(scenes, 2, since_ms, **options)

    def meanwhile() -> None:
        write(orders, delay_ms)

    assert orders.trigger(Disturbance(meanwhile=meanwhile)) is Outcome.BATCH, orders.query.error
    for _ in range(10):
        write(orders, EVERY_MS)
        assert orders.trigger() is not Outcome.FAILED, orders.query.error
    orders.start(maxRecordsPerTrigger="10000")
    orders.run()
    orders.check_all_read()


@pytest.mark.parametrize("shard_size", ["0", "256m"])
def test_a_first_batch_that_is_replayed_reads_what_is_left_of_it(
    scenes: ExitStack, shard_size: str
) -> None:
    orders = full(scenes, maxBytesPerShard=shard_size)
    assert orders.trigger(Disturbance(dies_after=Stage.READ)) is Outcome.DIED
    write(orders, 2 * HOUR_MS)
    orders.start()
    orders.run()
    orders.check_all_read()


def test_a_first_batch_of_which_nothing_is_left_is_data_loss(scenes: ExitStack) -> None:
    orders = full(scenes, maxBytesPerShard="0")
    assert orders.trigger(Disturbance(dies_after=Stage.LOGGED)) is Outcome.DIED
    write(orders, 25 * HOUR_MS)
    orders.start()
    assert isinstance(orders.failure(), DataLossError)


def test_what_follows_a_committed_record_is_promised(scenes: ExitStack) -> None:
    orders = full(scenes, maxRecordsPerTrigger="40")
    assert orders.trigger() is Outcome.BATCH
    write(orders, HOUR_MS)
    assert isinstance(orders.failure(), DataLossError)


def test_a_shard_that_waits_behind_a_limit_begins_with_the_oldest_record_left(
    scenes: ExitStack,
) -> None:
    orders = full(scenes, shards=4, maxRecordsPerTrigger="1")
    for _ in range(3):
        assert orders.trigger() is Outcome.BATCH, orders.query.error
    orders.start(maxRecordsPerTrigger="10000")
    write(orders, EVERY_MS)
    orders.run()
    orders.check_all_read()


@pytest.mark.parametrize(
    ("splits", "delay_ms"),
    [(1, 0), (2, 0), (1, 100_000)],
    ids=["one generation", "two generations", "the parent has expired"],
)
@pytest.mark.parametrize("since_ms", [None, 24 * HOUR_MS])
def test_children_of_a_shard_of_which_nothing_was_read_begin_with_the_oldest_records_left(
    scenes: ExitStack, since_ms: int | None, splits: int, delay_ms: int
) -> None:
    """The limit leaves out all records of the parents."""
    orders = resharded(scenes, splits, 60_000, since_ms)
    assert orders.trigger() is Outcome.BATCH, orders.query.error
    write(orders, delay_ms)
    for _ in range(3):
        slow = Disturbance(meanwhile=lambda: write(orders, 120_000))
        assert orders.trigger(slow) is Outcome.BATCH, orders.query.error
        orders.start()
    orders.start(maxRecordsPerTrigger="10000")
    orders.run()
    orders.check_all_read()


@pytest.mark.parametrize("delay_ms", [500_000, 25 * HOUR_MS])
def test_children_of_a_shard_of_which_a_record_was_read_are_promised(
    scenes: ExitStack, delay_ms: int
) -> None:
    orders = resharded(scenes, 1, 400_000)
    assert orders.trigger() is Outcome.BATCH
    write(orders, delay_ms)
    assert isinstance(orders.failure(), DataLossError)
