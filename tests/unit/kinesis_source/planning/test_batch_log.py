"""The log of a query: one line at the start, one for each batch that changes something."""

from __future__ import annotations

import logging

import pytest

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import SlotId
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    Latest,
    ShardEnd,
    ShardState,
    StartingPosition,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.batch_log import BatchLog, describe_tasks
from tests.support.fakes.planner_world import World
from tests.support.kinesis.shards import key

MIB = 1 << 20


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "spark_ssp.kinesis_source")
    return caplog


def test_one_line_at_the_start_and_none_while_nothing_changes(
    lines: pytest.LogCaptureFixture,
) -> None:
    world = World(2)
    for _ in range(20):
        world.put(5)
        world.trigger()
        world.clock.advance(1_000)
    (line,) = lines.messages
    assert line.startswith("query starts from TRIM_HORIZON: stream orders with 2 shards; 2 slots; ")
    assert "spark-ssp " in line
    assert "PySpark " in line
    assert "Python " in line


def test_a_reshard_is_one_line_for_each_batch(lines: pytest.LogCaptureFixture) -> None:
    world = World(2)
    world.put(10)
    world.drain()
    world.state.split("orders", "shardId-000000000000")
    world.put(10)
    seen: list[str] = []
    for _ in range(60):
        lines.clear()
        world.trigger()
        assert len(lines.messages) <= 1
        seen += lines.messages
        world.clock.advance(1_000)
    assert any("finished: orders/shardId-000000000000" in line for line in seen)
    assert any("now read: orders/shardId-000000000002 (slot" in line for line in seen)


def test_a_restart_reports_the_checkpoint_and_what_changed(
    lines: pytest.LogCaptureFixture,
) -> None:
    world = World(2)
    world.put(4)
    world.drain()
    lines.clear()
    world.restart(slots=1)
    world.put(1)
    world.trigger()
    (line,) = lines.messages
    assert "from its checkpoint: stream orders with 2 shards; 1 slot; " in line
    assert "slots: 1 instead of 2" in line


@pytest.mark.parametrize(
    ("shards", "slots", "expected"),
    [
        (2, 2, "2 slots; a task has up to 1 shard, 1 thread and 64 MiB; "),
        (20, 3, "3 slots; a task has up to 7 shards, 7 threads and 64 MiB; "),
        (300, 2, "2 slots; a task has up to 150 shards, 16 threads and 64 MiB; "),
    ],
)
def test_the_start_says_what_a_task_has_to_do(
    lines: pytest.LogCaptureFixture, shards: int, slots: int, expected: str
) -> None:
    World(shards, slots=slots).trigger()
    (line,) = lines.messages
    assert expected in line


@pytest.mark.parametrize(
    ("size", "expected"), [(1 << 30, "1,024 MiB"), (1_500_000, "1.43 MiB"), (4 * MIB, "4 MiB")]
)
def test_the_bytes_of_a_task_are_readable(size: int, expected: str) -> None:
    state = ShardState(position=TrimHorizon())
    end = Offset(slots=1, states={key(0): state}, assignment={key(0): SlotId(0)})
    assert describe_tasks(end, size, 64) == f"a task has up to 1 shard, 1 thread and {expected}"
    ended = replace(end, states={key(0): ShardState(position=ShardEnd())})
    assert describe_tasks(ended, size, 64) == ""


def test_a_wait_is_logged_once(lines: pytest.LogCaptureFixture) -> None:
    """Each search for the ends of one batch notes the same changes."""
    world = World(1)
    world.put(1)
    batch = world.trigger()
    assert batch is not None
    lines.clear()
    log = BatchLog(StartingPosition(default=Latest()), MIB)
    for _ in range(10):
        log.note(batch.start, batch.end, {})
    log.write()
    log.write()
    (line,) = lines.messages
    assert "query starts from LATEST" in line


def test_a_query_with_leases_names_its_worker_and_a_time_is_readable(
    lines: pytest.LogCaptureFixture,
) -> None:
    world = World(1)
    world.put(1)
    batch = world.trigger()
    assert batch is not None
    lines.clear()
    at = AtTimestamp(millis=EpochMillis(1_700_000_000_000))
    log = BatchLog(StartingPosition(default=at), MIB, "anne")
    log.note(batch.start, batch.end, {})
    log.write()
    (line,) = lines.messages
    assert "from AT_TIMESTAMP 2023-11-14T22:13:20Z" in line
    assert "; worker anne; " in line
