"""A stream whose service chooses the shards, and one whose strategy is switched under a query."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from spark_ssp.kinesis_source.planning.shard_discovery import LONGEST_GAP_S, SETTLING_MS
from spark_ssp.testing.kinesis.state.faults import Throttle
from tests.support.simulation.query import Disturbance, Outcome, Stage
from tests.support.simulation.scene import STREAM, Scene, scene

USERS = 5


def put_aggregates(orders: Scene, count: int, *, stray: bool = False) -> None:
    for _ in range(count):
        orders.world.put(STREAM, "key-1", users=USERS, stray=stray)


def settle(orders: Scene) -> None:
    """Let the query run until it has proof that records are placed by their keys."""
    for _ in range(2 + SETTLING_MS // 20_000):
        orders.run(1)
        orders.world.pass_time(20_000)
    orders.run(1)


def delivered(orders: Scene) -> list[int]:
    """The user records that were committed, in no order."""
    return sorted(row.id for rows in orders.query.sink.values() for row in rows)


def test_a_hundred_user_records_over_two_shards(scenes: ExitStack) -> None:
    orders = scene(scenes, 2)
    orders.world.switch_distribution(STREAM)
    put_aggregates(orders, 100 // USERS)
    orders.start()
    orders.run()
    assert delivered(orders) == list(range(100))


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_switch_to_auto_and_back(scenes: ExitStack, stopped: bool) -> None:
    """Over shards that a split has made, whose aggregates look like stragglers each."""
    orders = scene(scenes)
    orders.start()
    settle(orders)
    orders.world.split(STREAM, 0)
    orders.run()
    expected = 0
    for _ in range(4):
        put_aggregates(orders, 20 // USERS)
        expected += 20
        if stopped:
            orders.query.stop()
        orders.world.switch_distribution(STREAM)
        put_aggregates(orders, 20 // USERS)
        expected += 20
        if stopped:
            orders.start()
        orders.run(2)
    orders.run()
    assert delivered(orders) == list(range(expected))


def test_records_of_an_auto_stream_are_whole_after_the_switch_back(scenes: ExitStack) -> None:
    """They stay where they are for the retention period, and no description tells of them."""
    orders = scene(scenes)
    orders.world.split(STREAM, 0)
    orders.world.switch_distribution(STREAM)
    put_aggregates(orders, 20)
    orders.world.switch_distribution(STREAM)
    orders.world.pass_time(2 * SETTLING_MS)
    orders.start(maxRecordsPerTrigger="1")
    orders.run(40)
    assert delivered(orders) == list(range(100))


def split_while_running(scenes: ExitStack) -> Scene:
    """A query that has long seen records placed by their keys, and a shard that was split."""
    orders = scene(scenes)
    orders.start()
    settle(orders)
    orders.world.split(STREAM, 0)
    orders.run()
    return orders


def test_stragglers_are_left_out_where_placement_by_key_is_proven(scenes: ExitStack) -> None:
    orders = split_while_running(scenes)
    put_aggregates(orders, 2, stray=True)
    put_aggregates(orders, 2)
    orders.run()
    assert delivered(orders) == list(range(2 * USERS, 4 * USERS))
    entries = {
        json.dumps(json.loads(end)["streams"][STREAM]["placement"]["families"])
        for end in orders.query.offset_log
        if "placement" in end
    }
    assert entries
    assert all("340282366920938463463374607431768211455" in entry for entry in entries)


def test_a_replay_leaves_out_the_same_stragglers(scenes: ExitStack) -> None:
    """Also after a switch: the decision is in the offset."""
    orders = split_while_running(scenes)
    put_aggregates(orders, 2, stray=True)
    put_aggregates(orders, 1)
    assert orders.trigger(Disturbance(dies_after=Stage.READ)) is Outcome.DIED
    orders.world.switch_distribution(STREAM)
    orders.start()
    assert orders.trigger() is Outcome.REPLAY
    assert delivered(orders) == list(range(2 * USERS, 3 * USERS))


def test_a_switch_is_noticed_by_the_batch_that_it_concerns(scenes: ExitStack) -> None:
    orders = split_while_running(scenes)
    orders.world.switch_distribution(STREAM)
    put_aggregates(orders, 20)
    orders.run()
    assert delivered(orders) == list(range(100))


@pytest.mark.parametrize("what", ["throttled", "gap"])
def test_without_proof_stragglers_are_delivered(scenes: ExitStack, what: str) -> None:
    orders = split_while_running(scenes)
    if what == "throttled":
        (life, *_) = orders.world.open_shards(STREAM)
        orders.world.inject(Throttle(), "DescribeStreamSummary", life, 1)
    else:
        orders.world.pass_time(round(LONGEST_GAP_S * 1000) + 1)
    put_aggregates(orders, 2, stray=True)
    orders.run()
    assert delivered(orders) == list(range(2 * USERS))


def test_the_cost_of_the_proof(scenes: ExitStack) -> None:
    """A call in ten seconds; after a split one for each batch, and not more than one a second."""
    orders = scene(scenes)
    orders.start()
    orders.run(10)
    calls = orders.world.state.calls
    calls.reset()
    orders.run(60)
    assert calls.count("DescribeStreamSummary") == 6
    orders.world.split(STREAM, 0)
    orders.run(12)
    calls.reset()
    before = len(orders.query.offset_log)
    for _ in range(60):  # 15 seconds
        orders.put(1)
        orders.query.step()
        orders.world.pass_time(250)
    proven = sum("placement" in end for end in orders.query.offset_log[before:])
    assert 10 < calls.count("DescribeStreamSummary") == proven <= 16
    orders.run()
    orders.check_all_read()


def test_without_deaggregation_nothing_is_asked(scenes: ExitStack) -> None:
    orders = scene(scenes, deaggregate="false")
    orders.put(1)
    orders.start()
    orders.run(2)
    orders.world.state.calls.reset()
    orders.run(60)
    assert orders.world.state.calls.count("DescribeStreamSummary") == 0
