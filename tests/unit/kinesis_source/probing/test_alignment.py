"""Batches that end at one instant across shards, the shards that others do not wait for, and the
status of both."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import EpochMillis
from spark_ssp.kinesis_source.probing.alignment import Alignment, arrival_spread
from spark_ssp.kinesis_source.probing.batch_limits import Limits
from spark_ssp.kinesis_source.reader_activity import alignment_entry
from spark_ssp.testing.kinesis.state.faults import Throttle
from tests.support.fakes.planner_world import World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key

TIMEOUT_MS = 60_000


@pytest.mark.parametrize(
    ("newest", "unread", "expected"),
    [(None, [5], 0), (50, [], 0), (50, [50, 90], 0), (50, [20, 90], 30)],
)
def test_the_spread_is_from_the_oldest_unread_record_to_the_newest_that_is_read(
    newest: int | None, unread: list[int], expected: int
) -> None:
    since = [EpochMillis(time) for time in unread]
    assert arrival_spread(None if newest is None else EpochMillis(newest), since) == expected


def outcome(world: World) -> Alignment:
    found = world.planner.alignment.outcome
    assert found is not None
    return found


def seconds(world: World, count: int, **limits: Any) -> list[Alignment]:
    """The outcomes of triggers of a second each, in which each shard gets records."""
    found = []
    for _ in range(count):
        world.put(4, every_ms=250)
        world.trigger(Limits(**limits))
        found.append(outcome(world))
    return found


def test_a_query_that_keeps_up_has_no_spread() -> None:
    world = World()
    assert world.planner.alignment.outcome is None
    together = Alignment(spread_ms=0, holds_back=None, left_behind=frozenset())
    assert seconds(world, 30) == [together] * 30


def test_a_limit_causes_no_spread() -> None:
    world = World()
    world.put(400, every_ms=100)
    assert {one.spread_ms for one in seconds(world, 30, max_records=20)} == {0}


def test_a_shard_that_cannot_be_read_holds_others_back_until_the_timeout() -> None:
    world = World(alignment_timeout_ms=TIMEOUT_MS)
    put = world.put(20)
    read = world.drain()
    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(0), count=None)
    rows_at: list[int] = []
    outcomes: list[Alignment] = []
    for second in range(120):
        put += world.put(4, every_ms=250)
        batch = world.trigger()
        outcomes.append(outcome(world))
        if batch is not None:
            read += batch.read
            rows_at.append(second)
    assert not [second for second in rows_at if 10 <= second < 60]
    assert {(one.holds_back, one.left_behind) for one in outcomes[10:50]} == {
        (key(0), frozenset[ShardKey]())
    }
    assert max(one.spread_ms for one in outcomes[:50]) <= 7_000, "the tolerance, and a trigger"
    assert len([second for second in rows_at if second >= 80]) > 20
    assert {(one.holds_back, one.left_behind) for one in outcomes[80:]} == {
        (None, frozenset({key(0)}))
    }
    spreads = [one.spread_ms for one in outcomes[80:]]
    assert spreads == sorted(spreads)
    assert spreads[-1] > 100_000
    world.state.faults.clear()
    world.clock.advance(1000)
    batch = world.trigger(Limits(max_records=20))
    assert batch is not None
    assert outcome(world).spread_ms > 100_000, "the others wait, and are still ahead"
    assert sorted(read + batch.read + world.drain(Limits(max_records=20))) == sorted(put)
    assert outcome(world).spread_ms == 0


def test_the_children_of_a_shard_that_is_left_behind_hold_nothing_back() -> None:
    world = World(alignment_timeout_ms=TIMEOUT_MS)
    world.put(20)
    world.drain()
    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(0), count=None)
    world.put(8)
    world.state.split("orders", shard_id(0))
    last = seconds(world, 80, max_records=100)[-1]
    assert (last.holds_back, last.left_behind) == (None, frozenset(map(key, (0, 2, 3))))
    assert world.trigger(Limits(max_records=100)) is None, "read to the latest record"
    assert last.spread_ms > TIMEOUT_MS


def test_the_entry_of_a_stream_has_its_own_shards_and_the_spread_of_all() -> None:
    other = StreamName("clicks")
    alignment = Alignment(
        spread_ms=90, holds_back=key(1), left_behind=frozenset({key(2), key(3), key(4, other)})
    )
    assert alignment_entry(StreamName("orders"), alignment) == {
        "alignment": {"spreadMillis": 90, "leftBehind": 2, "holdsBack": shard_id(1)}
    }
    assert alignment_entry(other, alignment) == {"alignment": {"spreadMillis": 90, "leftBehind": 1}}
