"""Ends of shards whose GetRecords other readers use up, in a query with enhanced fan-out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    SequenceNumber,
    ShardState,
)
from spark_ssp.kinesis_source.options.values import FanOutOptions
from spark_ssp.kinesis_source.probing.batch_end_probe import PEEK_RECORDS, probe, probe_starved
from spark_ssp.kinesis_source.probing.probe_protocol import PROBE_RECORDS, ShardCursor
from spark_ssp.kinesis_source.probing.probe_rate_limiter import RETRIES
from spark_ssp.testing.kinesis.state.faults import Refusal, Throttle
from tests.support.fakes.planner_world import World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.probes import (
    DAY_MS,
    FRESH,
    KNOWN,
    NOW,
    QUIET,
    TRIM,
    ModelShard,
    P,
    at,
    fetched,
    opened,
    page,
    play,
    row,
)
from tests.support.kinesis.shards import key

NEAR = (opened(at(-FRESH.window_ms)), "near"), fetched("near", PROBE_RECORDS)


def test_one_page_finds_an_end_near_the_latest_record() -> None:
    steps = probe_starved(QUIET, FRESH, NOW, DAY_MS)
    rows = row(200, -400), row(201, -399)
    found = play(steps, NEAR[0], (NEAR[1], page(rows, behind=300)))
    assert found.end == rows[-1]
    assert found.has_more


def test_a_page_that_ends_with_the_start_has_no_end() -> None:
    steps = probe_starved(QUIET, FRESH, NOW, DAY_MS)
    found = play(steps, NEAR[0], (NEAR[1], page([row(100, -400)])))
    assert (found.end, found.at_latest) == (None, True)


def test_a_quiet_shard_is_probed_from_its_start() -> None:
    steps = probe_starved(QUIET, KNOWN, NOW, DAY_MS)
    rows = row(100, -5000), row(101, -4000)
    found = play(
        steps,
        NEAR[0],
        (NEAR[1], page()),
        (opened(P, inclusive=True), "start"),
        (fetched("start", PEEK_RECORDS + 1), page(rows)),
    )
    assert found.end == rows[-1]


@given(
    arrivals=st.lists(st.integers(-3_000, -1), min_size=1, max_size=40).map(sorted),
    start=st.integers(0, 39),
    subs=st.lists(st.integers(0, 2), min_size=40, max_size=40),
    begun=st.integers(0, 2),
    closed=st.booleans(),
)
def test_an_end_is_a_record_after_the_start(
    arrivals: list[int], start: int, subs: list[int], begun: int, closed: bool
) -> None:
    """Nor is it taken for lost by the next probe, also if the shard was never caught up with."""
    rows = [row(100 + place, arrival, sub=subs[place]) for place, arrival in enumerate(arrivals)]
    first = rows[min(start, len(rows) - 1)]
    position = AfterRecord(sequence_number=first.sequence_number, sub=min(begun, first.last_sub))
    shard = ModelShard(rows=rows, closed=closed)
    found = shard.run(probe_starved(ShardState(position=position), ShardCursor(), NOW, DAY_MS))
    later = [each for each in rows if (each.order, each.last_sub) > (first.order, position.sub)]
    assert found.end in later if found.end is not None else not later
    if found.at_latest or found.closed:
        assert found.end == (later[-1] if later else None)
    reached = ShardState(position=position if found.end is None else found.end.position)
    assert not found.start_lost
    for kind in probe, probe_starved:
        assert not shard.run(kind(reached, found.cursor, NOW, DAY_MS)).start_lost


@given(
    arrivals=st.lists(st.integers(-30_000, -1), max_size=10).map(sorted),
    memory=st.sampled_from([FRESH, KNOWN, replace(KNOWN, window_ms=60_000)]),
    periods=st.lists(st.integers(1_001, 60_000), min_size=1, max_size=4),
)
def test_a_quiet_shard_costs_one_call(
    arrivals: list[int], memory: ShardCursor, periods: list[int]
) -> None:
    """From the second probe on that finds nothing: the first keeps its iterator."""
    rows = [row(100, -60_000)]
    rows += [row(101 + place, arrival) for place, arrival in enumerate(arrivals)]
    shard = ModelShard(rows=rows)
    state, cursor = QUIET, memory
    is_quiet = False
    for period in [0, 0, 0, *periods]:
        shard.now = EpochMillis(shard.now + period)
        before = shard.calls
        found = shard.run(probe_starved(state, cursor, shard.now, DAY_MS))
        cursor = found.cursor
        if is_quiet and period:
            assert found.at_latest
            assert shard.calls - before == 1
        is_quiet = found.end is None and period > 0
        if found.end is not None:
            state = replace(state, position=found.end.position)
    assert state.position == rows[-1].position


def test_a_start_that_is_no_record_is_probed_as_ever() -> None:
    rows = [row(100, -10)]
    found = ModelShard(rows=rows).run(probe_starved(TRIM, FRESH, NOW, DAY_MS))
    assert found.first == SequenceNumber("100")


# --- Repeated probes ------------------------------------------------------------------------------


def reading() -> World:
    """Return a query that has read all records, a second ago."""
    world = World(2, fan_out=FanOutOptions(consumer_name="etl"))
    world.put(20)
    world.drain()
    world.clock.advance(1000)
    return world


def test_throttled_probes_are_repeated_within_the_trigger() -> None:
    world = reading()
    world.state.faults.add(
        Throttle(), operation="GetRecords", shard=shard_id(0), count=RETRIES // 2
    )
    put = world.put(20)
    batch = world.trigger()
    assert batch is not None
    assert set(batch.shards) == {"00", "01"}
    assert sorted(batch.read) == sorted(put)


def test_a_refused_probe_is_left_to_a_later_trigger() -> None:
    """Three refusals at short intervals would count as those of a shard that cannot be read."""
    world = reading()
    put = world.put(20)
    faults = world.state.faults
    faults.add(Throttle(), operation="GetRecords", shard=shard_id(0))
    refusal = Refusal(code="ResourceNotFoundException")
    faults.add(refusal, operation="GetRecords", shard=shard_id(0), nth=2, count=None)
    batch = world.trigger()
    assert batch is not None
    assert set(batch.shards) == {"01"}
    faults.clear()
    world.clock.advance(1000)
    assert sorted(batch.read + world.drain()) == sorted(put)


def test_a_shard_without_any_call_does_not_stop_the_others() -> None:
    world = reading()
    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(0), count=None)
    world.put(20)
    before = world.state_of(0)
    batch = world.trigger()
    assert batch is not None
    assert set(batch.shards) == {"01"}
    assert batch.end.states[key(0)].position == before.position
    assert sum(world.slept) < 5
