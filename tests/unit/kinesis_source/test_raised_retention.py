"""A retention that is raised keeps what is left; what was trimmed before stays lost, for a query
that runs meanwhile and for one that does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import DataLossError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.offset import decode, encode
from spark_ssp.kinesis_source.model.shard import EpochMillis, Retention, StreamRef
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.planning.shard_discovery import DESCRIBE_INTERVAL_MS
from spark_ssp.kinesis_source.reading.data_loss_checks import DataLossChecks
from tests.support.fakes.planner_world import HOUR_MS, World
from tests.support.kinesis.shards import key

ORDERS = StreamName("orders")
_HOURS = (24, 30, 48, 168)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("raised_after_h", [23, 25])
def test_a_raised_retention_hides_no_loss_and_makes_none(
    raised_after_h: int, *, stopped: bool
) -> None:
    """The query hangs or is stopped for 26 hours; the record put in its first minute is kept for 24
    of them."""
    world = World(shards=1, fail_on_data_loss=True)
    world.put(3)
    assert len(world.drain()) == 3
    world.clock.advance(60_000)
    world.put(1)
    world.clock.advance(raised_after_h * HOUR_MS)
    world.state.set_retention_hours(ORDERS, 168)
    world.clock.advance((26 - raised_after_h) * HOUR_MS)
    world.put(1)
    if stopped:
        world.restart()
    if raised_after_h > 24:
        with pytest.raises(DataLossError):
            world.drain()
    else:
        assert len(world.drain()) == 2


@given(
    steps=st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from([1, 26, 60]),
            st.sampled_from([None, 24, 168]),
            st.sampled_from(["running", "restarted", "available now"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_change_of_the_retention_hides_a_loss(
    steps: list[tuple[bool, int, int | None, str]],
) -> None:
    """Every record is read, or the query fails with data loss. In each step records are put or not,
    hours pass, the retention is set or not, and the query reads to the end. A running query sees
    each retention before the next."""
    world = World(shards=2, fail_on_data_loss=True)
    put, read = world.put(4), world.drain()
    try:
        for puts, hours, retention, how in steps:
            put += world.put(3) if puts else []
            world.clock.advance(hours * HOUR_MS)
            if retention is not None:
                world.state.set_retention_hours(ORDERS, retention)
            if how == "running":
                world.clock.advance(DESCRIBE_INTERVAL_MS)
            else:
                world.restart()
            if how == "available now":
                world.planner.stop_at_latest()
            read += world.drain()
    except DataLossError:
        return
    assert sorted(read) == sorted(put)


def test_a_task_knows_what_expired_before_the_retention_was_raised() -> None:
    """Its batch was planned before; the task runs, or runs again, a day later."""
    world = World(shards=1, fail_on_data_loss=True)
    world.put(3)
    world.drain()
    world.clock.advance(60_000)
    world.put(2)
    before, end = world.offset, world.plan()
    assert end is not None
    world.clock.advance(25 * HOUR_MS)
    world.state.set_retention_hours(ORDERS, 168)
    world.put(1)
    stored = decode(json.loads(json.dumps(encode(end))))
    (slot,) = plan_ranges(before, stored, {ORDERS: StreamRef(name=ORDERS)})
    (planned,) = slot.shards
    checks = DataLossChecks(range=planned, service=world.service, fail=True)
    with pytest.raises(DataLossError):
        checks.check_start(before.states[key(0)], None)
    unknown = replace(planned, retention=None)
    assert DataLossChecks(range=unknown, service=world.service, fail=True).check_start(
        before.states[key(0)], None
    )


@given(
    changes=st.lists(st.tuples(st.integers(0, 200 * HOUR_MS), st.sampled_from(_HOURS)), min_size=1),
    later=st.integers(0, 200 * HOUR_MS),
)
def test_records_are_kept_for_at_most_what_every_retention_since_allows(
    changes: list[tuple[int, int]], later: int
) -> None:
    """The model keeps the time of the oldest record that can be left, seen change by change."""
    now, oldest, known = 1_000 * HOUR_MS, 0, None
    for pause, hours in changes:
        now += pause
        if known is not None:
            oldest = max(oldest, now - known.millis)
        known = Retention.described(hours * HOUR_MS, now=EpochMillis(now), before=known)
        oldest = max(oldest, now - known.millis)
    assert known is not None
    now += later
    oldest = max(oldest, now - known.millis)
    assert now - known.kept_ms(EpochMillis(now)) == oldest
    assert known == Retention.described(known.millis, now=EpochMillis(now), before=known)
