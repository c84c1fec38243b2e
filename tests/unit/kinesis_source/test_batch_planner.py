"""The planner over the embedded service: starts, calls, slots, proofs, limits, lag."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from spark_ssp.common.errors import (
    NEW_CHECKPOINT,
    DataLossError,
    IncompatibleStateError,
    InvalidOptionsError,
)
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    RecordPage,
    SequenceNumber,
    ShardEnd,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.batch_limits import Limits
from tests.support.fakes.planner_world import HOUR_MS, World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key

LATEST = StartingPosition(default=Latest())
ORDERS, CLICKS = StreamRef(name=StreamName("orders")), StreamRef(name=StreamName("clicks"))


# --- Replays --------------------------------------------------------------------------------------


def test_a_replay_after_a_loss_that_was_tolerated_names_the_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The query was killed before the commit, and started again without the option."""
    world = World()
    world.put(20)
    world.drain()
    world.state.split("orders", shard_id(0))
    world.put(20)
    world.clock.advance(30 * HOUR_MS)
    world.restart(fail_on_data_loss=False)
    end = world.plan()
    assert end is not None
    assert key(0) not in end.states
    world.restart(fail_on_data_loss=True)
    with pytest.raises(DataLossError) as raised:
        world.planner.check_replay(world.offset, end)
    assert raised.value.subject == f"shard {key(0)}"
    assert "failOnDataLoss" in raised.value.next_step
    assert "asyncProgress" not in str(raised.value)
    world.restart(fail_on_data_loss=False)
    caplog.clear()
    world.planner.check_replay(world.offset, end)
    (warning,) = caplog.messages
    assert str(key(0)) in warning


# --- Where a query starts -------------------------------------------------------------------------


def test_latest_anchors_in_a_batch_that_reads_nothing() -> None:
    world = World(starting_position=LATEST)
    world.put(50, every_ms=0)
    first = world.trigger()
    assert first is not None
    assert (first.ranges, first.read) == ((), [])
    later = world.put(50, every_ms=0)  # within the same millisecond
    assert sorted(world.drain()) == sorted(later)


def test_latest_anchors_shards_that_hold_nothing_too() -> None:
    world = World(starting_position=LATEST)
    first = world.trigger()
    assert first is not None
    now = EpochMillis(world.clock.now_ms())
    assert {state.position for state in first.end.states.values()} == {AtTimestamp(millis=now)}
    later = world.put(9, every_ms=0)
    assert sorted(world.drain()) == sorted(later)


def test_what_comes_while_latest_is_looked_for_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(shards=1, starting_position=LATEST)
    world.put(5)
    get_records = world.service.get_records
    late: list[str] = []

    def and_then_put(*args: Any, **kwargs: Any) -> RecordPage:
        page = get_records(*args, **kwargs)
        if page.millis_behind_latest == 0 and not late:
            late.extend(world.put(3))
        return page

    monkeypatch.setattr(world.service, "get_records", and_then_put)
    assert sorted(world.drain()) == sorted(late)
    assert late


def test_trim_horizon_reads_unread_closed_shards_parents_first() -> None:
    world = World()
    before = world.put(40)
    world.state.split("orders", shard_id(0))
    before += world.put(40)
    world.state.split("orders", shard_id(2))
    before += world.put(40)
    seen: list[str] = []
    read: list[str] = []
    while (batch := world.trigger()) is not None:
        seen += batch.shards
        read += batch.read
        world.clock.advance(1000)
    assert sorted(read) == sorted(before)
    assert [seen.index(shard) for shard in ("00", "02", "04")] == sorted(
        seen.index(shard) for shard in ("00", "02", "04")
    )


def test_a_timestamp_starts_every_shard_there() -> None:
    world = World()
    world.put(40, every_ms=10)
    world.state.split("orders", shard_id(0))
    start = world.clock.now_ms()
    later = world.put(40, every_ms=10)
    world.restart(
        starting_position=StartingPosition(default=AtTimestamp(millis=EpochMillis(start)))
    )
    assert sorted(world.drain()) == sorted(later)


def test_a_start_by_shard_keeps_children_behind_parents() -> None:
    world = World(shards=1)
    old = world.put(10)
    world.state.split("orders", shard_id(0))
    skipped = world.put(30)
    marks = {
        number: world.state.records("orders", shard_id(number))[-1].sequence_number
        for number in (1, 2)
    }
    later = world.put(30)
    world.restart(
        starting_position=StartingPosition(
            default=None,
            by_shard={
                key(0): TrimHorizon(),
                **{
                    key(n): AfterRecord(sequence_number=SequenceNumber(mark))
                    for n, mark in marks.items()
                },
            },
        )
    )
    first = world.trigger()
    assert first is not None
    assert sorted(first.read) == sorted(old + later)
    assert first.read[: len(old)] == old
    (task,) = first.ranges
    assert {one.key: one.after for one in task.shards} == {
        key(0): (),
        key(1): (shard_id(0),),
        key(2): (shard_id(0),),
    }
    assert not first.end.waiting
    assert world.drain() == []
    assert skipped


def test_a_start_in_the_future_is_refused_with_the_option_named() -> None:
    world = World()
    ahead = EpochMillis(world.clock.now_ms() + 60_000)
    world.restart(starting_position=StartingPosition(default=AtTimestamp(millis=ahead)))
    with pytest.raises(InvalidOptionsError, match=r"startingPosition: found a start at \S+Z for"):
        world.plan()


def test_a_stream_may_be_added_later_and_starts_as_the_option_says() -> None:
    world = World()
    orders = world.put(20)
    assert sorted(world.drain()) == sorted(orders)
    world.state.create_stream("clicks", 1)
    clicks = world.put(20, stream="clicks")
    world.restart(streams=(CLICKS, ORDERS))
    more = world.put(20)
    batch = world.trigger()
    assert batch is not None
    assert sorted(batch.read) == sorted(clicks + more)
    assert batch.end.streams[CLICKS.name].start == StartingPosition(default=TrimHorizon())
    assert batch.end.streams[ORDERS.name].start is None


def test_the_checkpoint_of_another_stream_is_refused_by_the_options_name() -> None:
    world = World()
    world.drain()
    world.state.create_stream("clicks", 1)
    world.restart(streams=(CLICKS,))
    with pytest.raises(IncompatibleStateError) as caught:
        world.plan()
    assert str(caught.value) == (
        "[incompatible-state] option streamName (or streamARN): found clicks; the checkpoint is "
        "of orders; expected every stream of the checkpoint (more may be added). Next step: add "
        f"orders, or start on {NEW_CHECKPOINT}"
    )


# --- Calls ----------------------------------------------------------------------------------------


def test_a_query_starts_with_few_calls() -> None:
    world = World(shards=4)
    world.trigger()
    assert world.calls() == {
        "DescribeStreamSummary": 2,
        "GetRecords": 4,
        "GetShardIterator": 4,
        "ListShards": 1,
    }


def test_a_trigger_over_quiet_shards_costs_one_call_each() -> None:
    world = World(shards=16).settle()
    for _ in range(5):
        assert world.trigger() is None
        assert world.calls() == {"GetRecords": 16}
        world.clock.advance(1000)


def test_a_few_records_cost_no_call_more() -> None:
    world = World(shards=4)
    world.put(20)
    world.settle()
    for _ in range(5):
        put = world.put(20)
        batch = world.trigger()
        assert batch is not None
        assert sorted(batch.read) == sorted(put)
        assert world.calls() == {"GetRecords": 4}
        world.clock.advance(1000)


def test_busy_shards_cost_a_few_calls_each() -> None:
    world = World(shards=2).settle()
    put: list[str] = []
    read: list[str] = []
    for _ in range(10):
        put += world.put(1000, size=1000)
        batch = world.trigger()
        assert batch is not None
        read += batch.read
        calls = world.calls()
        assert calls["GetRecords"] <= 2 * 3
        assert calls["GetShardIterator"] <= 2 * 2
        assert len(put) - len(read) <= 600
    assert sorted(read + world.drain()) == sorted(put)


def test_the_service_is_asked_no_oftener_than_it_allows() -> None:
    """Spark asks again at once: the planner waits by itself. Bursts are the worst case for it."""
    world = World(shards=2)
    world.put(20)
    world.settle()
    for number in range(40):
        world.put(400 if number % 2 else 0, every_ms=1, size=2000)
        world.trigger()
    assert sum(world.slept) > 0
    for number in (0, 1):
        assert world.state.calls.peak_per_second("GetRecords", shard=shard_id(number)) <= 5
        assert world.state.calls.peak_per_second("GetShardIterator", shard=shard_id(number)) <= 5


def test_shards_are_listed_once_an_interval_and_streams_described_every_ten_seconds() -> None:
    world = World().settle()
    for _ in range(120):
        world.trigger()
        world.clock.advance(1000)
    calls = world.calls()
    assert calls["ListShards"] == 12
    assert calls["DescribeStreamSummary"] == 12


def test_children_that_are_not_listed_yet_are_asked_for() -> None:
    """The shard's last page told that it is closed; the interval need not pass."""
    world = World(shards=1, shard_discovery_interval_ms=HOUR_MS).settle()
    world.state.split("orders", shard_id(0))
    put = world.put(20)
    ended = world.trigger()
    assert ended is not None
    assert world.state_of(0).position == ShardEnd()
    world.clock.advance(1000)
    children = world.trigger()
    assert children is not None
    assert set(children.end.states) == {key(1), key(2)}
    assert sorted(children.read) == sorted(put)
    assert world.calls()["ListShards"] == 2, "of the end, which has the children, and before them"


def test_a_cursor_that_expired_is_opened_again() -> None:
    world = World()
    world.put(10)
    world.settle()
    world.clock.advance(5 * 60_000)
    assert world.trigger() is None
    assert world.calls() == {
        "DescribeStreamSummary": 1,
        "GetRecords": 2,
        "GetShardIterator": 2,
        "ListShards": 1,
    }


# --- Limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7, 30, 1000])
def test_no_batch_holds_more_records_than_the_limit(limit: int) -> None:
    world = World(shards=3)
    put = world.put(100)
    read: list[str] = []
    for _ in range(-(-100 // limit) + 2):
        batch = world.trigger(Limits(max_records=limit))
        if batch is None:
            break
        assert len(batch.read) <= limit
        read += batch.read
        world.clock.advance(1000)
    assert sorted(read) == sorted(put)
    assert len(world.texts) <= -(-100 // limit) + 1


def test_no_batch_holds_more_bytes_than_the_limit() -> None:
    world = World(shards=3)
    put = world.put(90, size=1000)
    read: list[str] = []
    sizes: list[int] = []
    while (batch := world.trigger(Limits(max_bytes=12_500))) is not None:
        sizes.append(len(batch.read))
        read += batch.read
        world.clock.advance(1000)
    assert sorted(read) == sorted(put)
    assert max(sizes) * 1006 <= 12_500
    assert len([size for size in sizes if size]) <= 12


def test_a_record_above_the_limit_is_read_by_itself() -> None:
    world = World(shards=1)
    put = world.put(3, size=5000)
    batches = []
    while (batch := world.trigger(Limits(max_bytes=100))) is not None:
        batches.append(batch.read)
        world.clock.advance(1000)
    assert [read for read in batches if read] == [[text] for text in put]


def test_what_one_shard_does_not_use_goes_to_the_others() -> None:
    world = World(shards=2).settle()
    for number in range(40):
        world.state.put("orders", "k", b"%d" % number, explicit_hash_key=0)
    world.state.put("orders", "k", b"alone", explicit_hash_key=1 << 127)
    batch = world.trigger(Limits(max_records=30))
    assert batch is not None
    assert len(batch.read) == 30
    assert "alone" in batch.read


def test_a_steady_stream_in_one_shard_does_not_starve_another() -> None:
    world = World(shards=2).settle()
    for number in range(20):
        world.state.put("orders", "k", b"%d" % number, explicit_hash_key=0)
    world.clock.advance(1)
    world.state.put("orders", "k", b"waiting", explicit_hash_key=1 << 127)
    read: list[str] = []
    for number in range(60):
        world.clock.advance(1000)
        world.state.put("orders", "k", b"%d" % (20 + number), explicit_hash_key=0)
        batch = world.trigger(Limits(max_records=1))
        assert batch is not None
        read += batch.read
    assert "waiting" in read[:25]


def test_a_shard_that_falls_silent_does_not_stop_the_others_under_a_limit() -> None:
    world = World(shards=2)
    limits = Limits(max_bytes=4 << 20)

    def put(shard: int) -> str:
        text = f"{shard}-{next(serial)}".ljust(10_000, ".")
        world.state.put("orders", "k", text.encode(), explicit_hash_key=shard << 127)
        return text

    serial = count()
    written = []
    for moment in range(3_000):
        world.clock.advance(10)
        if moment % 10 < 9:
            written += [put(0), put(1)]
    read: list[str] = []
    for _ in range(300):
        written.append(put(1))
        batch = world.trigger(limits)
        read += [] if batch is None else batch.read
        world.clock.advance(300)
    assert sorted(read + world.drain(limits)) == sorted(written)
    assert len(read) > len(written) - 600


@pytest.mark.parametrize("gap_ms", [0, 2_000, 60_000])
def test_a_gap_in_a_backlog_is_passed_under_a_limit(gap_ms: int) -> None:
    world = World(shards=1)
    put = world.put(1_500, size=10_000)
    world.clock.advance(gap_ms)
    put += world.put(1_500, size=10_000)
    world.clock.advance(60_000)
    assert sorted(world.drain(Limits(max_bytes=850_000))) == sorted(put)


# --- Lag ------------------------------------------------------------------------------------------


def test_lag_is_reported_by_stream_and_shard() -> None:
    world = World(shards=2, streams=(CLICKS, ORDERS))
    world.state.create_stream("clicks", 1)
    assert world.planner.lag() == {"clicks": {}, "orders": {}}
    world.put(10, every_ms=0)
    world.clock.advance(5000)
    world.trigger(Limits(max_records=1))
    lag = world.planner.lag()
    assert list(lag) == ["clicks", "orders"]
    assert lag["clicks"] == {shard_id(0): 0}
    assert lag["orders"] == {shard_id(0): 5000, shard_id(1): 5000}
    world.drain()
    assert world.planner.lag()["orders"] == {shard_id(0): 0, shard_id(1): 0}


def test_a_shard_that_has_left_has_no_lag() -> None:
    world = World(shards=1).settle()
    world.state.split("orders", shard_id(0))
    world.clock.advance(10_000)
    for _ in range(3):
        world.trigger()
        world.clock.advance(1000)
    assert set(world.planner.lag()["orders"]) == {shard_id(1), shard_id(2)}


def test_a_waiting_shard_lags_with_what_its_parent_hides() -> None:
    world = World(shards=1).settle()
    world.state.split("orders", shard_id(0))
    world.clock.advance(10_000)
    world.put(5)
    world.clock.advance(20_000)
    batch = world.trigger(Limits(max_records=10))
    assert batch is not None
    assert batch.end.states[key(0)].position == ShardEnd()
    lag = world.planner.lag()["orders"]
    assert lag[shard_id(0)] == 0, "nothing is left of it behind the batch"
    assert min(lag[shard_id(1)], lag[shard_id(2)]) >= 20_000
    world.drain()
    assert set(world.planner.lag()["orders"].values()) == {0}
