"""The planner when things go wrong: throttling, faults, and records, shards or streams that go."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_ssp.common.errors import (
    NEW_CHECKPOINT,
    AccessError,
    DataLossError,
    IncompatibleStateError,
    ServiceUnavailableError,
    StreamNotFoundError,
)
from spark_ssp.common.structs import replace
from spark_ssp.common.times import time_text
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.client.api import InvalidPositionError, ShardNotFoundError
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Latest,
    Position,
    SequenceNumber,
    Shard,
    ShardEnd,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.batch_limits import Limits
from spark_ssp.kinesis_source.probing.probe_rate_limiter import RETRY_AFTER_FAULTS
from spark_ssp.testing.kinesis.state.faults import (
    AccessDenied,
    DropConnection,
    EmptyPage,
    ExpiredIterator,
    InternalFailure,
    Throttle,
)
from tests.support.fakes.planner_world import RETENTION_MS, World, hide_shard
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key

NEXT_STEP = (
    "set failOnDataLoss to false to continue after the gap, or start a new query with "
    f"{NEW_CHECKPOINT}"
)


def running(shards: int = 2, **changes: Any) -> World:
    """A query that has read all there is, a second ago."""
    world = World(shards, **changes)
    world.put(20)
    world.drain()
    world.clock.advance(1000)
    return world


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def _trigger_often(world: World, times: int = 4) -> list[str]:
    read: list[str] = []
    for _ in range(times):
        batch = world.trigger()
        read += batch.read if batch else []
        world.clock.advance(1000)
    return read


# --- No news --------------------------------------------------------------------------------------


def test_a_throttled_shard_has_no_news_and_the_others_go_on() -> None:
    world = running()
    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(0))
    put = world.put(20)
    before = world.state_of(0)
    batch = world.trigger()
    assert batch is not None
    assert set(batch.shards) == {"01"}
    assert batch.end.states[key(0)].position == before.position
    world.clock.advance(1000)
    assert sorted(batch.read + world.drain()) == sorted(put)


def test_a_throttled_shard_is_left_alone_for_a_second() -> None:
    world = running(shards=1)
    world.state.faults.add(Throttle(), operation="GetRecords", count=None)
    world.calls()
    for _ in range(10):
        assert world.trigger() is None
    assert world.state.calls.peak_per_second("GetRecords") <= 2
    assert sum(world.slept) >= 8.5


def test_a_shard_that_has_ended_is_no_reason_to_ask_at_once() -> None:
    """It waits for the other parent of its child."""
    world = running()
    world.state.merge("orders", shard_id(0), shard_id(1))
    world.clock.advance(10_000)
    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(1), count=None)
    batch = world.trigger(Limits(max_records=100))
    assert batch is not None
    assert batch.end.states[key(0)].position == ShardEnd()
    world.slept.clear()
    for _ in range(5):
        assert world.trigger(Limits(max_records=100)) is None
    assert sum(world.slept) >= 4


def test_throttling_alone_never_fails_a_query() -> None:
    world = running(shards=1)
    world.state.faults.add(Throttle(), operation="GetRecords", count=50)
    put = world.put(10)
    assert sorted(_trigger_often(world, 60)) == sorted(put)


def test_a_throttled_shard_lags_more_and_more_and_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For longer than any retry would last; the others have no lag meanwhile."""
    world = running()
    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(0), count=None)
    lags: list[int] = []
    with caplog.at_level(logging.INFO, logger="spark_ssp"):
        for _ in range(600):
            world.trigger()
            world.clock.advance(1000)
            lag = world.planner.lag()["orders"]
            lags.append(lag[shard_id(0)])
            assert lag[shard_id(1)] == 0
    assert lags == sorted(lags)
    assert lags[-1] - lags[0] >= 590_000
    told = [text for text in warnings(caplog) if "could not be probed for" in text]
    assert all(text.startswith(f"shard orders/{shard_id(0)} ") for text in told)
    assert 9 <= len(told) <= 11, "once a minute"
    assert "raise minFetchPeriod" in told[0]
    world.state.faults.clear()
    put = world.put(20)
    assert sorted(world.drain()) == sorted(put)
    assert set(world.planner.lag()["orders"].values()) == {0}


def test_a_shard_that_was_never_seen_lags_with_the_age_of_its_stream() -> None:
    world = World(shards=1)
    world.state.faults.add(Throttle(), operation="GetRecords", count=None)
    world.clock.advance(60_000)
    world.trigger()
    age = world.clock.now_ms() - world.state.stream("orders").created_ms
    assert world.planner.lag()["orders"] == {shard_id(0): age}


def test_a_stream_whose_start_is_not_verified_lags_with_its_age() -> None:
    """It is not read before the starts of all its shards are."""
    world = World(shards=2)
    world.put(20)
    numbers = {
        key(n): world.state.records("orders", key(n).shard)[0].sequence_number for n in range(2)
    }
    points = {
        shard: AfterRecord(sequence_number=SequenceNumber(number))
        for shard, number in numbers.items()
    }
    world.restart(starting_position=StartingPosition(default=None, by_shard=points))
    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(0), count=None)
    for _ in range(3):
        world.clock.advance(60_000)
        assert world.trigger() is None
        age = world.clock.now_ms() - world.state.stream("orders").created_ms
        lag = world.planner.lag()["orders"]
        assert lag.keys() == {shard_id(0), shard_id(1)}
        assert all(age - 5_000 <= one <= age for one in lag.values())
    world.state.faults.clear()
    world.clock.advance(60_000)
    assert len(world.drain()) == 18
    assert set(world.planner.lag()["orders"].values()) == {0}


@pytest.mark.parametrize(
    "fault", [InternalFailure(), DropConnection(), InternalFailure(status=503)]
)
def test_faults_are_ridden_out_then_retried_then_an_error(
    fault: InternalFailure | DropConnection, caplog: pytest.LogCaptureFixture
) -> None:
    world = running(shards=1)
    world.put(10)
    world.state.faults.add(fault, operation="GetRecords", count=None)
    world.calls()
    with caplog.at_level(logging.WARNING, logger="spark_ssp"):
        for _ in range(RETRY_AFTER_FAULTS):
            assert world.trigger() is None
            assert world.calls()["GetRecords"] == 1
            world.clock.advance(1000)
    assert (
        len([text for text in warnings(caplog) if "could not probe orders/" in text])
        == RETRY_AFTER_FAULTS
    )
    with pytest.raises(ServiceUnavailableError):
        world.trigger()
    assert world.calls()["GetRecords"] == 3  # as often as a patient call tries


def test_a_patient_look_that_helps_goes_on_as_before() -> None:
    world = running(shards=1)
    put = world.put(10)
    world.state.faults.add(InternalFailure(), operation="GetRecords", count=RETRY_AFTER_FAULTS + 2)
    for _ in range(RETRY_AFTER_FAULTS):
        assert world.trigger() is None
        world.clock.advance(1000)
    batch = world.trigger()
    assert batch is not None
    assert sorted(batch.read) == sorted(put)


def test_an_error_of_access_is_raised_at_once() -> None:
    world = running()
    world.state.faults.add(AccessDenied(), operation="GetRecords")
    with pytest.raises(AccessError):
        world.trigger()


def test_expired_iterators_and_empty_pages_lose_nothing() -> None:
    world = running()
    put = world.put(30)
    world.state.faults.add(ExpiredIterator(), operation="GetRecords", count=2)
    world.state.faults.add(EmptyPage(), operation="GetRecords", nth=3, count=15)
    assert sorted(_trigger_often(world, 5)) == sorted(put)


# --- Trimmed --------------------------------------------------------------------------------------


def test_a_start_record_that_is_gone_is_no_loss_while_the_proof_is_fresh() -> None:
    world = running(shards=1)
    world.state.trim("orders", shard_id(0))
    put = world.put(5)
    world.restart()
    batch = world.trigger()
    assert batch is not None
    assert sorted(batch.read) == sorted(put)


@pytest.mark.parametrize("records_left", [0, 5])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_start_record_that_is_gone_for_too_long_is_loss(
    records_left: int, restarted: bool
) -> None:
    """Also for a driver that slept through it, and where nothing is left to be read."""
    world = running(shards=1)
    seen = world.state_of(0).last_caught_up_ms
    world.put(5)
    world.clock.advance(RETENTION_MS + 60_000)
    world.put(records_left)
    if restarted:
        world.restart()
    with pytest.raises(DataLossError) as caught:
        world.trigger()
    assert seen is not None
    error = caught.value
    assert (error.subject, error.next_step) == ("shard orders/shardId-000000000000", NEXT_STEP)
    assert time_text(seen) in error.found
    assert "(24 h)" in error.expected


def test_tolerated_loss_is_reported_once_and_reading_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = running(shards=1, fail_on_data_loss=False)
    world.put(5)
    world.clock.advance(RETENTION_MS + 60_000)
    left = world.put(5)
    world.restart()
    with caplog.at_level(logging.WARNING, logger="spark_ssp"):
        assert sorted(world.drain()) == sorted(left)
    (told,) = warnings(caplog)
    assert told.startswith(
        "data loss in shard orders/shardId-000000000000, tolerated by failOnDataLoss=false"
    )


# --- Shards that expired --------------------------------------------------------------------------


def _stopped_too_long(world: World) -> list[str]:
    """Stop the query, split its shard, and come back when the shard has expired unread."""
    world.put(10)
    world.state.split("orders", shard_id(0))
    world.clock.advance(RETENTION_MS + 60_000)
    return world.put(20)


def test_a_shard_that_expired_unread_is_loss() -> None:
    world = running(shards=1)
    _stopped_too_long(world)
    world.restart()
    with pytest.raises(DataLossError) as caught:
        world.trigger()
    assert str(caught.value) == (
        "[data-loss] shard orders/shardId-000000000000: found the shard missing from ListShards, "
        "expired before it was read to its end; expected a shard that is listed for the stream's "
        f"retention. Next step: {NEXT_STEP}"
    )


@pytest.mark.parametrize("restarted", [False, True])
def test_a_tolerated_loss_of_a_shard_goes_on_with_its_children(
    restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = running(shards=1, fail_on_data_loss=False)
    left = _stopped_too_long(world)
    if restarted:
        world.restart()
    with caplog.at_level(logging.WARNING, logger="spark_ssp"):
        assert sorted(_trigger_often(world)) == sorted(left)
    assert set(world.offset.states) == {key(1), key(2)}
    assert any("data loss in shard orders/shardId-000000000000" in w for w in warnings(caplog))


def test_a_shard_that_was_read_to_its_end_may_expire() -> None:
    world = running(shards=1)
    world.state.split("orders", shard_id(0))
    world.drain()
    world.clock.advance(RETENTION_MS - 10_000)
    world.trigger()
    world.clock.advance(20_000)
    put = world.put(10)
    assert sorted(world.drain()) == sorted(put)


# --- Streams that go ------------------------------------------------------------------------------


def _recreate(world: World, shards: int = 2) -> list[str]:
    world.state.delete_stream("orders")
    world.clock.advance(5000)
    world.state.create_stream("orders", shards)
    world.clock.advance(5000)
    return world.put(20)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("interval_ms", [1000, 3_600_000])
def test_a_recreated_stream_is_loss(restarted: bool, interval_ms: int) -> None:
    """Whether its listing tells first, or a cursor of the old stream that is refused."""
    world = running(shard_discovery_interval_ms=interval_ms)
    before = world.offset.streams[StreamName("orders")].created
    _recreate(world)
    if restarted:
        world.restart()
    with pytest.raises(DataLossError) as caught:
        _trigger_often(world)
    now = world.state.stream("orders").created_ms
    assert str(caught.value) == (
        f"[data-loss] stream orders: found the stream deleted and created again at "
        f"{time_text(now)}; "
        f"expected the stream that was created at {time_text(before)}. Next step: {NEXT_STEP}"
    )


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("interval_ms", [1000, 3_600_000])
@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("start", [Latest(), TrimHorizon()])
def test_a_tolerated_recreated_stream_is_read_from_its_beginning(
    restarted: bool, interval_ms: int, shards: int, start: Latest | TrimHorizon
) -> None:
    """Wherever the query began once: all that is in the new stream came after that."""
    world = running(
        shard_discovery_interval_ms=interval_ms,
        fail_on_data_loss=False,
        starting_position=StartingPosition(default=start),
    )
    put = _recreate(world, shards)
    if restarted:
        world.restart()
    assert sorted(_trigger_often(world)) == sorted(put)
    assert len(world.offset.states) == shards


def test_a_child_is_not_begun_in_a_recreated_stream_with_shards_of_the_same_ids() -> None:
    """The listing of the old stream is still valid, and no cursor of it is used any more."""
    world = running(shard_discovery_interval_ms=3_600_000, fail_on_data_loss=False)
    world.state.merge("orders", key(0).shard, key(1).shard)
    while {state.position for state in world.offset.states.values()} != {ShardEnd()}:
        world.trigger(Limits(max_records=100))
        world.clock.advance(1000)
    world.state.delete_stream("orders")
    world.state.create_stream("orders", 2)
    world.state.merge("orders", key(0).shard, key(1).shard)
    put = world.put(5)
    read = _trigger_often(world)
    world.clock.advance(3_600_000)
    assert sorted(read + _trigger_often(world)) == sorted(put)


def test_a_deleted_stream_is_an_error_even_if_loss_is_tolerated() -> None:
    world = running(fail_on_data_loss=False)
    world.state.delete_stream("orders")
    with pytest.raises(StreamNotFoundError):
        world.trigger()


def test_a_stream_that_never_was() -> None:
    world = World(streams=(StreamRef(name=StreamName("none")),))
    with pytest.raises(StreamNotFoundError):
        world.trigger()


def test_a_position_that_the_shard_cannot_have_is_an_error() -> None:
    """An edited checkpoint: the stream is what it was, and so is the shard."""
    world = running(shards=1)
    foreign = AfterRecord(sequence_number=SequenceNumber("12"))
    world.offset = replace(
        world.offset, states={key(0): replace(world.state_of(0), position=foreign)}
    )
    world.restart()
    with pytest.raises(InvalidPositionError):
        world.trigger()


def test_a_start_that_expired_before_the_first_batch_is_no_loss() -> None:
    """TRIM_HORIZON is whatever is there when the query starts."""
    world = World(shards=1, starting_position=StartingPosition(default=TrimHorizon()))
    world.put(5)
    world.clock.advance(RETENTION_MS + 60_000)
    put = world.put(5)
    assert sorted(world.drain()) == sorted(put)


@pytest.mark.parametrize("to_latest", [False, True])
def test_a_stream_that_is_not_found_once_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, to_latest: bool
) -> None:
    world = running()
    put = world.put(5)
    answers = [True, True]
    list_shards = world.service.list_shards

    def not_found_twice(stream: StreamRef) -> tuple[Shard, ...]:
        if answers:
            answers.pop()
            raise StreamNotFoundError(
                "stream orders", found="nothing", expected="a stream", next_step="wait"
            )
        return list_shards(stream)

    def begin() -> None:
        world.restart()
        if to_latest:
            world.planner.stop_at_latest()

    monkeypatch.setattr(world.service, "list_shards", not_found_twice)
    begin()
    assert sorted(world.drain()) == sorted(put)
    answers += [True] * 3
    with pytest.raises(StreamNotFoundError):  # noqa: PT012 - a run to the latest records begins
        begin()
        world.trigger()


@pytest.mark.parametrize("tolerated", [False, True])
@pytest.mark.parametrize("to_latest", [False, True])
def test_a_shard_that_is_missing_from_a_listing_or_two_is_not_gone(
    monkeypatch: pytest.MonkeyPatch, tolerated: bool, to_latest: bool
) -> None:
    """Also in a run whose listing is fixed: the shard is read up to its latest record, too."""
    world = running(fail_on_data_loss=not tolerated)
    put = world.put(10)
    hide_shard(world.service, monkeypatch, times=2)
    world.restart()
    if to_latest:
        world.planner.stop_at_latest()
    assert sorted(world.drain()) == sorted(put)


@pytest.mark.parametrize("tolerated", [False, True])
@pytest.mark.parametrize("to_latest", [False, True])
@pytest.mark.parametrize("refusals", [2, None])
def test_a_listed_shard_that_is_not_found_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, tolerated: bool, to_latest: bool, refusals: int | None
) -> None:
    world = running(fail_on_data_loss=not tolerated)
    put = world.put(10)
    left = [key(0).shard] * (1000 if refusals is None else refusals)
    open_iterator = world.service.open_iterator

    def refusing(stream: StreamRef, shard: ShardId, position: Position, **how: bool) -> Any:
        if left and shard == left[-1]:
            left.pop()
            raise ShardNotFoundError(
                f"shard {shard}", found="no shard", expected="a shard", next_step="wait"
            )
        return open_iterator(stream, shard, position, **how)

    monkeypatch.setattr(world.service, "open_iterator", refusing)
    world.restart()

    def read() -> list[str]:
        if to_latest:
            world.planner.stop_at_latest()
            return world.drain()
        return _trigger_often(world, 8)

    if refusals is None and not tolerated:
        with pytest.raises(ShardNotFoundError):
            read()
    elif refusals is None:
        assert len(read()) < len(put)
    else:
        assert sorted(read()) == sorted(put)


# --- Streams that the query no longer reads -------------------------------------------------------


ORDERS, CLICKS = (StreamRef(name=StreamName(name)) for name in ("orders", "clicks"))


def of_two_streams(**changes: Any) -> World:
    """A query that has read `orders` and `clicks`, of which `clicks` is deleted with unread
    records."""
    world = World()
    world.state.create_stream("clicks", 2)
    world.clock.advance(60_000)
    world.restart(streams=(CLICKS, ORDERS))
    world.put(20)
    world.put(20, stream="clicks")
    world.drain()
    world.put(5, stream="clicks")
    world.state.delete_stream("clicks")
    world.restart(**changes)
    return world


@pytest.mark.parametrize("tolerated", [False, True])
def test_one_of_several_streams_is_deleted_and_dropped(
    tolerated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = of_two_streams(fail_on_data_loss=not tolerated)
    with pytest.raises(StreamNotFoundError, match="clicks") as gone:
        world.trigger()
    assert "name it in dropStreams" in gone.value.next_step
    world.restart(streams=(ORDERS,))
    if not tolerated:
        with pytest.raises(IncompatibleStateError) as refused:
            world.trigger()
        assert "set dropStreams to clicks" in refused.value.next_step
        world.restart(drop_streams=(CLICKS.name,))
    batch = world.trigger()
    assert batch is not None
    assert batch.read == []
    assert {key.stream for key in world.offset.states} == {"orders"}
    assert list(world.offset.streams) == ["orders"]
    assert "removed from the checkpoint" in caplog.text
    put = world.put(5)
    world.restart()
    assert sorted(world.drain()) == sorted(put)


def test_a_batch_that_was_planned_before_is_read_without_the_dropped_stream() -> None:
    world = of_two_streams()
    world.state.create_stream("clicks", 1)
    world.clock.advance(60_000)
    world.restart(fail_on_data_loss=False)
    world.put(5, stream="clicks")
    put = world.put(5)
    end = world.plan()
    assert end is not None
    world.restart(streams=(ORDERS,), fail_on_data_loss=True, drop_streams=(CLICKS.name,))
    reader = world.planner
    world.offset = reader.without_removed(world.offset)
    assert sorted(world.run(reader.without_removed(end)).read) == sorted(put)


def test_not_all_streams_can_be_dropped() -> None:
    world = running()
    world.state.create_stream("clicks", 1)
    world.restart(streams=(CLICKS,), drop_streams=(ORDERS.name,))
    with pytest.raises(IncompatibleStateError) as caught:
        world.trigger()
    assert caught.value.next_step == f"add orders, or start on {NEW_CHECKPOINT}"
