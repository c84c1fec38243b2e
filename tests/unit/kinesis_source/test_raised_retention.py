"""A retention that is raised keeps what is left; what was trimmed before stays lost, for a query
that runs meanwhile and for one that does not."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ssp.common.errors import DataLossError
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.offset import decode, encode
from spark_ssp.kinesis_source.model.ranges import SlotRange
from spark_ssp.kinesis_source.model.shard import EpochMillis, Retention, StreamRef
from spark_ssp.kinesis_source.planning.data_loss import DataLossChecks
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.planning.shard_discovery import DESCRIBE_INTERVAL_MS
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from tests.support.fakes.planner_world import HOUR_MS, Batch, World
from tests.support.kinesis.reading import rows_of, timing_of
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


class ReadWorld(World):
    """A query whose batches are read by the reader of its tasks, which checks for lost records."""

    def read(self, ranges: Sequence[SlotRange]) -> list[str]:
        return [
            row.data.decode()
            for part in ranges
            for row in rows_of(
                list(
                    read_slot(
                        part,
                        self.options,
                        self.service,
                        clock=timing_of(self.clock),
                        hash_ranges=HashRangeCache(),
                        rates=ReadRates(),
                    )
                )
            )
        ]


@given(
    drained=st.booleans(),
    limits=st.sampled_from([UNLIMITED, Limits(max_records=2)]),
    steps=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from([1, 26, 60]),
            st.sampled_from([None, 24, 168]),
            st.sampled_from([0, 30]),
            st.sampled_from(["running", "idle", "restarted", "replayed", "available now"]),
        ),
        min_size=1,
        max_size=6,
    ),
)
@example(drained=False, limits=Limits(max_records=2), steps=[(2, 1, 168, 30, "restarted")])
@example(
    drained=True,
    limits=UNLIMITED,
    steps=[(1, 1, 168, 0, "running"), (0, 1, 24, 0, "idle"), (2, 26, 168, 0, "restarted")],
)
def test_no_change_of_the_retention_hides_a_loss(
    *, drained: bool, limits: Limits, steps: list[tuple[int, int, int | None, int, str]]
) -> None:
    """Every record that was there to be read is read, or the query fails with data loss. In each
    step records are put, hours pass, the retention is set or not, hours pass, and the query runs. A
    running query sees each retention before the next."""
    world = ReadWorld(shards=2, fail_on_data_loss=True)
    world.clock.advance(48 * HOUR_MS)
    first = world.put(12)
    promised, read = [], world.drain(limits) if drained else _read(world.trigger(limits))
    try:
        for puts, hours, retention, more_hours, how in steps:
            promised += world.put(puts)
            world.clock.advance(hours * HOUR_MS)
            if retention is not None:
                world.state.set_retention_hours(ORDERS, retention)
            world.clock.advance(more_hours * HOUR_MS)
            match how:
                case "running" | "idle":
                    world.clock.advance(DESCRIBE_INTERVAL_MS)
                case "replayed":
                    read += _replayed(world, limits)
                case "available now":
                    world.restart()
                    world.planner.stop_at_latest()
                case _:
                    world.restart()
            read += _read(world.trigger(limits)) if how == "idle" else world.drain(limits)
            if how == "available now":
                world.restart()
        for _ in range(4):  # A shard is probed once a second.
            world.clock.advance(1000)
            read += world.drain(limits)
    except DataLossError:
        return
    left = [
        record.data.decode()
        for number in (0, 1)
        for record in world.state.records(ORDERS, key(number).shard)
    ]
    assert set(left) <= set(read)
    if drained:  # A shard of which nothing was read may begin after its oldest records.
        assert {*first, *promised} <= set(read)
    assert len(read) == len(set(read))


def _read(batch: Batch | None) -> list[str]:
    return [] if batch is None else batch.read


def _replayed(world: World, limits: Limits) -> list[str]:
    """Plan a batch, which is in Spark's log when the process ends; the next one runs it first."""
    end = world.plan(limits)
    start = world.offset
    world.restart()
    if end is None:
        return []
    stored = decode(json.loads(json.dumps(encode(end))))
    world.planner.check_replay(start, stored)
    return world.run(stored).read


def test_a_batch_that_runs_again_has_the_newest_retention() -> None:
    """The retention was cut while the batch was planned, and is raised when it runs again."""
    world = World(shards=1)
    world.state.set_retention_hours(ORDERS, 168)
    world.drain()
    world.put(1)
    end = world.plan()
    assert end is not None
    cut = replace(end.streams[ORDERS], retention=Retention(millis=24 * HOUR_MS))
    world.restart()
    world.planner.check_replay(world.offset, replace(end, streams={ORDERS: cut}))
    world.offset = end
    world.put(1)
    batch = world.trigger()
    assert batch is not None
    retention = batch.end.streams[ORDERS].retention
    assert retention is not None
    assert (retention.millis, retention.kept_since is None) == (168 * HOUR_MS, False)


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
