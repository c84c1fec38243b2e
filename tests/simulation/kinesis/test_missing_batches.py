"""Checkpoints in which batches are missing, as Spark's asynchronous progress tracking leaves them.
A restart replays from an offset that is several batches older than the end."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from spark_ssp.common.errors import DataLossError
from tests.support.simulation.judge import Judge
from tests.support.simulation.query import Outcome, SimulatedQuery, SimulatedReader
from tests.support.simulation.scene import STREAM, Scene, scene


def read_through_reshards(scenes: ExitStack) -> Scene:
    """Two generations of shards, each read in several small batches."""
    orders = scene(scenes, maxRecordsPerTrigger="2")
    orders.start()
    for generation in range(3):
        orders.put(7)
        if generation < 2:
            orders.world.split(STREAM, generation)
            orders.world.pass_time(20_000)
    for _ in range(30):
        assert orders.trigger() is not Outcome.FAILED, orders.query.error
    orders.check_all_read()
    return orders


def restarted(orders: Scene, *, fail: bool = True) -> SimulatedReader:
    orders.start(failOnDataLoss=str(fail).lower())
    assert orders.query.reader is not None
    return orders.query.reader


def rows_between(orders: Scene, first: str, last: str) -> int | None:
    """How many rows a replay between two offsets reads; None if it is refused as data loss."""
    reader = restarted(orders)
    try:
        partitions = reader.partitions(json.loads(first), json.loads(last))
    except DataLossError:
        return None
    return sum(int(rows.num_rows) for partition in partitions for rows in reader.read(partition))


def test_a_replay_over_missing_batches_reads_them_or_is_refused(scenes: ExitStack) -> None:
    orders = read_through_reshards(scenes)
    log, sink = orders.query.offset_log, orders.query.sink
    refused = 0
    for first in range(len(log)):
        for last in range(first + 1, len(log)):
            rows = rows_between(orders, log[first], log[last])
            expected = sum(len(sink[batch]) for batch in range(first + 1, last + 1))
            # Batches that follow each other are never refused.
            assert rows == expected or (rows is None and last > first + 1)
            refused += rows is None
    assert refused


def test_a_replay_over_missing_batches_is_tolerated_when_asked_for(scenes: ExitStack) -> None:
    orders = read_through_reshards(scenes)
    first, last = (json.loads(orders.query.offset_log[index]) for index in (0, -1))
    with pytest.raises(DataLossError, match="leave out asyncProgressTrackingEnabled"):
        restarted(orders).partitions(first, last)
    assert not orders.judge.losses
    assert restarted(orders, fail=False).partitions(first, last)
    assert orders.judge.losses


def test_a_new_checkpoint_at_an_earlier_time_reads_the_missing_batches(scenes: ExitStack) -> None:
    """As the error advises."""
    orders = read_through_reshards(scenes)
    orders.query.stop()
    orders.judge = Judge(orders.world, page=10_000)
    orders.query = SimulatedQuery(world=orders.world, witness=orders.judge)
    scenes.callback(orders.query.stop)
    begin = min(life.created for life in orders.world.entries)
    orders.start(startingPosition=f"at_timestamp {begin}", maxRecordsPerTrigger="1000")
    orders.run(12)
    orders.check_all_read()
    assert sum(map(len, orders.query.sink.values())) == 21
