"""A query that stops at the records that were the latest at its start."""

from __future__ import annotations

import pytest

from spark_ssp.common.errors import DataLossError, ServiceUnavailableError
from spark_ssp.kinesis_source.model.shard import Latest, ShardEnd, StartingPosition, TrimHorizon
from spark_ssp.kinesis_source.options.values import SlotAssignment
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits
from spark_ssp.testing.kinesis import UnusualAnswers
from spark_ssp.testing.kinesis.state.faults import InternalFailure, LateShardEnd, Throttle
from tests.support.fakes.planner_world import HOUR_MS, RETENTION_MS, World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key

LIMITS = [UNLIMITED, Limits(max_records=7), Limits(max_bytes=100)]
"""A record here takes about ten bytes."""
CALLS_PER_SECOND = 5
"""What a shard answers (Kinesis API reference, GetRecords)."""


def available_now(world: World, limits: Limits = UNLIMITED) -> list[str]:
    """One run of the query from its checkpoint, in a process of its own."""
    world.restart()
    world.planner.stop_at_latest()
    return world.drain(limits)


@pytest.mark.parametrize("limits", LIMITS)
def test_it_reads_what_was_there_and_no_more(limits: Limits) -> None:
    world = World(shards=3)
    put = world.put(60)
    world.planner.stop_at_latest()
    world.put(60)
    assert sorted(world.drain(limits)) == sorted(put)


@pytest.mark.parametrize("limits", LIMITS)
def test_run_after_run_reads_everything_once(limits: Limits) -> None:
    world = World(shards=2)
    read: list[str] = []
    put: list[str] = []
    for _ in range(5):
        put += world.put(23)
        read += available_now(world, limits)
        assert sorted(read) == sorted(put)
    assert available_now(world, limits) == []


@pytest.mark.parametrize("limits", LIMITS)
def test_a_closed_shard_that_is_slow_to_say_so_holds_nothing_up(limits: Limits) -> None:
    """All of it had been read by an earlier run, so that only its end is left to be met."""
    world = World(shards=1)
    world.put(20)
    world.drain()
    world.state.split("orders", shard_id(0))
    put = world.put(20)
    world.clock.advance(60_000)
    world.state.faults.add(LateShardEnd(), operation="GetRecords", count=None)
    assert sorted(available_now(world, limits)) == sorted(put)


@pytest.mark.parametrize("limits", LIMITS)
def test_it_goes_through_the_reshards_that_were_there(limits: Limits) -> None:
    world = World(shards=2)
    put = world.put(30)
    world.state.split("orders", shard_id(0))
    put += world.put(30)
    world.state.merge("orders", shard_id(3), shard_id(1))
    put += world.put(30)
    world.planner.stop_at_latest()
    world.put(30)
    world.state.split("orders", shard_id(4))
    world.put(30)
    assert sorted(world.drain(limits)) == sorted(put)
    assert set(world.offset.states) == {key(2), key(4)}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("is_aligned", [True, False])
@pytest.mark.parametrize("start", [TrimHorizon(), Latest()])
def test_a_long_fetch_period_ends_no_run(
    limits: Limits, is_aligned: bool, start: TrimHorizon | Latest
) -> None:
    """The children of shards that a run reads have been asked for their oldest records before."""
    world = World(
        shards=2,
        slots=4,
        slot_assignment=SlotAssignment.HASH_RANGE,
        min_fetch_period_ms=120_000,
        align_batches=is_aligned,
        starting_position=StartingPosition(default=start, by_shard={key(0): TrimHorizon()}),
    )
    put = world.put(20)
    first = {record.data.decode() for record in world.state.records("orders", shard_id(0))}
    for number in (0, 2):
        world.state.split("orders", shard_id(number))
        world.clock.advance(60_000)
    put += world.put(20)
    world.clock.advance(60_000)
    read = available_now(world, limits)
    assert set(read) >= (first if start == Latest() else set(put))
    assert len(read) == len(set(read))
    assert sum(world.slept) < 30


def test_the_rest_is_read_by_the_next_run() -> None:
    world = World(shards=1)
    put = world.put(10)
    world.planner.stop_at_latest()
    late = world.put(10)
    world.state.split("orders", shard_id(0))
    late += world.put(10)
    assert sorted(world.drain()) == sorted(put)
    assert sorted(available_now(world)) == sorted(late)
    assert set(world.offset.states) == {key(1), key(2)}


def test_children_of_a_shard_that_was_read_to_its_end_are_found_by_the_next_run() -> None:
    """The listing is fresh at each start, whatever the discovery interval."""
    world = World(shards=1, shard_discovery_interval_ms=100 * HOUR_MS)
    world.put(5)
    assert len(world.drain()) == 5
    world.state.split("orders", shard_id(0))
    put = world.put(10)
    assert sorted(available_now(world)) == sorted(put)
    assert all(not isinstance(s.position, ShardEnd) for s in world.offset.states.values())


def test_a_first_run_at_latest_anchors_and_the_next_one_reads() -> None:
    world = World(starting_position=StartingPosition(default=Latest()))
    world.put(20)
    assert available_now(world) == []
    put = world.put(20)
    assert sorted(available_now(world)) == sorted(put)


def test_it_takes_few_calls_however_much_there_is() -> None:
    world = World(shards=2)
    world.put(20_000, size=100)
    world.planner.stop_at_latest()
    batch = world.trigger()
    assert batch is not None
    assert len(batch.read) == 20_000
    assert world.trigger() is None
    calls = world.calls()
    assert calls["GetRecords"] <= 2 * 8
    assert calls["ListShards"] <= 2


@pytest.mark.parametrize("limits", LIMITS)
def test_faults_and_throttling_do_not_end_it_early(limits: Limits) -> None:
    world = World(shards=2)
    put = world.put(40)
    for fault in (Throttle(), InternalFailure()):
        for nth in (2, 9, 15, 28):
            world.state.faults.add(fault, operation="GetRecords", nth=nth)
    world.planner.stop_at_latest()
    assert sorted(world.drain(limits)) == sorted(put)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("fault", [Throttle(), InternalFailure()])
def test_a_look_that_fails_is_no_end_of_the_run(
    limits: Limits, fault: Throttle | InternalFailure
) -> None:
    world = World(shards=2)
    world.put(20)
    world.drain()
    world.restart()
    put = world.put(20)
    world.planner.stop_at_latest()
    world.state.faults.add(fault, operation="GetRecords", count=2)
    assert sorted(world.drain(limits)) == sorted(put)


# --- What was there and does not show yet ---------------------------------------------------------


def hide_and_split(world: World, hidden_ms: int) -> list[str]:
    """Split a shard whose only record cannot be seen yet; what it and its children hold."""
    visible_from = world.clock.now_ms() + hidden_ms
    world.state.put("orders", "key", b"hidden", visible_from_ms=visible_from)
    world.state.split("orders", shard_id(0))
    return ["hidden", *world.put(20)]


def read_until_it_fails(world: World, limits: Limits) -> list[str]:
    """What a run reads before it misses something."""
    read: list[str] = []
    try:
        while batch := world.trigger(limits):
            read += batch.read
    except ServiceUnavailableError:
        return read
    raise AssertionError("the run ends as if all was read")


def peak_of_calls(world: World) -> int:
    """The most GetRecords that a shard got within a second."""
    calls = world.state.calls
    shards = calls.by_shard("GetRecords")
    return max(calls.peak_per_second("GetRecords", shard=shard) for shard in shards)


@pytest.mark.parametrize("limits", LIMITS)
def test_it_waits_for_what_a_closed_shard_does_not_show_yet(limits: Limits) -> None:
    world = World(shards=1)
    put = hide_and_split(world, hidden_ms=5_000)
    assert sorted(available_now(world, limits)) == sorted(put)
    assert sum(world.slept) >= 4
    assert peak_of_calls(world) <= CALLS_PER_SECOND


@pytest.mark.parametrize("limits", LIMITS)
def test_shards_that_show_all_are_read_meanwhile(limits: Limits) -> None:
    world = World(shards=2)
    late = hide_and_split(world, hidden_ms=HOUR_MS)
    world.planner.stop_at_latest()
    read = read_until_it_fails(world, limits)
    assert read
    assert set(read) < set(late)
    world.clock.advance(HOUR_MS)
    assert sorted(read + available_now(world, limits)) == sorted(late)


@pytest.mark.parametrize("limits", LIMITS)
def test_what_never_shows_is_an_error(limits: Limits) -> None:
    world = World(shards=1)
    put = hide_and_split(world, hidden_ms=HOUR_MS)
    with pytest.raises(ServiceUnavailableError) as caught:
        available_now(world, limits)
    assert caught.value.subject == "shard orders/shardId-000000000000"
    assert 60 <= sum(world.slept) < 63
    assert peak_of_calls(world) <= CALLS_PER_SECOND
    world.clock.advance(HOUR_MS)
    assert sorted(available_now(world, limits)) == sorted(put)


@pytest.mark.parametrize("limits", LIMITS)
def test_an_ordinary_trigger_does_not_wait(limits: Limits) -> None:
    world = World(shards=1)
    put = hide_and_split(world, hidden_ms=HOUR_MS)
    for _ in range(100):
        batch = world.trigger(limits)
        assert batch is None or not batch.read
    assert max(world.slept, default=0) <= 1
    world.clock.advance(HOUR_MS)
    assert sorted(world.drain(limits)) == sorted(put)


def test_an_ordinary_trigger_leaves_such_a_shard_its_calls() -> None:
    """However often the planner is asked, for shards that it looks at by turns, as it does if none
    holds the others back."""
    world = World(shards=3, min_fetch_period_ms=300, align_batches=False)
    put = hide_and_split(world, hidden_ms=20_000)
    read = world.drain()
    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(1))
    for _ in range(50):
        assert world.trigger() is None
    assert min(world.slept) < 0.15
    assert peak_of_calls(world) <= CALLS_PER_SECOND
    world.clock.advance(20_000)
    assert sorted(read + world.drain()) == sorted(put)


def test_a_stream_that_was_recreated_meanwhile_is_left_to_the_next_run() -> None:
    world = World(shards=1, fail_on_data_loss=False)
    world.put(5)
    world.drain()
    world.put(5)
    world.state.split("orders", shard_id(0))
    world.restart()
    world.planner.stop_at_latest()
    world.state.delete_stream("orders")
    world.clock.advance(1000)
    world.state.create_stream("orders", 3)
    put = world.put(20)
    limits = Limits(max_records=7)  # so that the shard is looked at
    assert world.drain(limits) == []
    assert sorted(available_now(world, limits)) == sorted(put)


# --- Proofs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", LIMITS)
def test_regular_runs_over_a_quiet_shard_are_no_loss(limits: Limits) -> None:
    """The last record read is trimmed in time; every run proved that nothing followed it."""
    world = World(shards=1)
    world.put(5)
    available_now(world, limits)
    for _ in range(20):
        world.clock.advance(2 * HOUR_MS)
        assert available_now(world, limits) == []
    assert world.state.records("orders") == []
    put = world.put(5)
    assert sorted(available_now(world, limits)) == sorted(put)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("start", ["trim", "latest"])
def test_a_run_that_comes_too_late_says_so(limits: Limits, start: str) -> None:
    """All that was put since the last run has been trimmed: nothing is left that could tell. The
    error names every shard."""
    world = World(shards=2)
    if start == "latest":
        world.restart(starting_position=StartingPosition(default=Latest()))
    else:
        world.put(5)
    available_now(world, limits)
    world.put(5)
    world.clock.advance(RETENTION_MS + 60_000)
    with pytest.raises(DataLossError, match="shard orders/shardId-000000000000") as raised:
        available_now(world, limits)
    assert "orders/shardId-000000000001" in raised.value.found


@pytest.mark.parametrize("limits", LIMITS)
def test_a_run_that_is_too_late_may_continue_if_requested(limits: Limits) -> None:
    world = World(shards=1, fail_on_data_loss=False)
    world.put(5)
    available_now(world, limits)
    world.put(5)
    world.clock.advance(RETENTION_MS + 60_000)
    assert available_now(world, limits) == []
    put = world.put(5)
    assert sorted(available_now(world, limits)) == sorted(put)


def test_the_last_batch_of_an_available_now_run_has_no_lag() -> None:
    """Although its pages were cut by the limit, so that nothing showed that they were the last."""
    world = World(shards=2)
    put = world.put(30)
    world.clock.advance(5000)
    world.planner.stop_at_latest()
    read: list[str] = []
    while batch := world.trigger(Limits(max_records=10)):
        read += batch.read
        assert max(world.planner.lag()["orders"].values()) == 0 or len(read) < len(put)
    assert sorted(read) == sorted(put)


@pytest.mark.parametrize("limits", [UNLIMITED, Limits(max_records=7), Limits(max_bytes=1000)])
@pytest.mark.parametrize(
    "answers",
    [UnusualAnswers(zero_lag=True), UnusualAnswers(empty_pages=2), UnusualAnswers.all()],
)
def test_unusual_answers_do_not_end_a_run_early(answers: UnusualAnswers, limits: Limits) -> None:
    world = World(shards=2)
    world.state.answers = answers
    texts = world.put(100, every_ms=0) + world.put(100, every_ms=20)
    world.planner.stop_at_latest()
    assert sorted(world.drain(limits)) == sorted(texts)


@pytest.mark.parametrize("limits", LIMITS)
def test_records_about_to_be_trimmed_are_not_awaited_where_a_limit_leaves_them_out(
    limits: Limits,
) -> None:
    world = World(shards=1)
    world.clock.advance(48 * HOUR_MS)
    put = world.put(3)
    world.clock.advance(RETENTION_MS - 2 * 60_000)
    assert available_now(world, limits) in ([], put)
