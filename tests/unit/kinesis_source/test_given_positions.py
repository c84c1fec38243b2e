"""Positions that a query is given, and that its shard cannot have: the same verdict in every
trigger, and with `failOnDataLoss=false` all that is left is read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from spark_ssp.common.errors import DataLossError
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.batch_read import plan_read
from spark_ssp.kinesis_source.client.api import InvalidPositionError
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Position,
    SequenceNumber,
    ShardEnd,
    ShardIterator,
    ShardState,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits
from spark_ssp.kinesis_source.probing.given_positions import DOUBT_MS
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.fakes.planner_world import RETENTION_MS, World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key


class TolerantKinesis(InProcessKinesis):
    """Opens an iterator at any sequence number, as some emulators do."""

    def open_iterator(
        self,
        stream: StreamRef,
        shard: ShardId,
        position: Position,
        *,
        inclusive: bool = False,
        retry: bool = True,
    ) -> ShardIterator:
        if isinstance(position, AfterRecord):
            wanted = int(position.sequence_number) + (not inclusive)
            records = self._state.records(stream.name, shard)
            after = [r for r in records if int(r.sequence_number) >= wanted]
            inclusive = bool(after)
            if after or records:
                number = (after or records[-1:])[0].sequence_number
                position = AfterRecord(sequence_number=SequenceNumber(number))
            else:
                position = TrimHorizon()
        return super().open_iterator(stream, shard, position, inclusive=inclusive, retry=retry)


def _processing_time(world: World, limits: Limits = UNLIMITED) -> list[str]:
    read: list[str] = []
    for _ in range(8):  # a position may be in doubt for some triggers
        read += world.drain(limits)
        world.clock.advance(1000)
    return read


def _limited(world: World) -> list[str]:
    return _processing_time(world, Limits(max_records=7))


def _available_now(world: World) -> list[str]:
    world.planner.stop_at_latest()
    return world.drain()


def _available_now_limited(world: World) -> list[str]:
    world.planner.stop_at_latest()
    return world.drain(Limits(max_records=7))


def _once(world: World) -> list[str]:
    end = world.planner.next_offset_of_all(world.offset)
    return [] if end is None else world.run(end).read


def _batch(world: World) -> list[str]:
    ranges = plan_read(world.options, world.service, monotonic=world.monotonic, sleep=world.sleep)
    return world.read(ranges)


Trigger = Callable[[World], list[str]]
STREAMING = [_processing_time, _limited, _available_now, _available_now_limited, _once]

SHARD = key(0)


def _above(world: World) -> str:
    """The latest record of another shard of the stream, above all records of this one."""
    return world.state.records("orders", shard_id(1))[-1].sequence_number


def _above_all(world: World) -> str:
    return str(int(_latest(world)) + (1 << 120))


def _latest(world: World) -> str:
    return world.state.records("orders", shard_id(0))[-1].sequence_number


def _below(world: World) -> str:
    """A record of a stream that was deleted."""
    return str(int(_latest(world)) - (1 << 160))


def _other_stream(world: World) -> str:
    world.state.create_stream("others", 1)
    world.clock.advance(60_000)
    world.state.put("others", "a", b"x")
    (record,) = world.state.records("others", shard_id(0))
    return record.sequence_number


FOREIGN = [_above, _above_all, _below, _other_stream]


def _world(service: type[InProcessKinesis], *, fail: bool) -> tuple[World, list[str]]:
    world = World(shards=2, fail_on_data_loss=fail)
    world.service = service(world.state, attempts=3)
    world.restart()
    return world, world.put(60)


def _given_by_option(world: World, number: str) -> None:
    world.restart(
        starting_position=StartingPosition(
            default=TrimHorizon(),
            by_shard={SHARD: AfterRecord(sequence_number=SequenceNumber(number))},
        )
    )


def _given_by_checkpoint(world: World, number: str) -> None:
    """The checkpoint of a query that has read nothing of the other shard."""
    end = world.plan()
    assert end is not None
    foreign = AfterRecord(sequence_number=SequenceNumber(number))
    world.offset = replace(
        end,
        streams={name: replace(entry, start=None) for name, entry in end.streams.items()},
        states={
            **dict.fromkeys(end.states, ShardState(position=TrimHorizon())),
            SHARD: ShardState(position=foreign),
        },
    )
    world.restart()


CASES = [
    pytest.param(trigger, give, id=f"{trigger.__name__[1:]}-{name}")
    for give, name, triggers in (
        (_given_by_option, "option", [*STREAMING, _batch]),
        (_given_by_checkpoint, "checkpoint", STREAMING),
    )
    for trigger in triggers
]


@pytest.mark.parametrize("service", [InProcessKinesis, TolerantKinesis])
@pytest.mark.parametrize("number", FOREIGN)
@pytest.mark.parametrize(("trigger", "give"), CASES)
def test_a_foreign_position_is_refused_or_all_of_the_shard_is_read(
    trigger: Trigger,
    give: Callable[[World, str], None],
    number: Callable[[World], str],
    service: type[InProcessKinesis],
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, _ = _world(service, fail=True)
    give(world, number(world))
    with pytest.raises(InvalidPositionError) as caught:
        trigger(world)
    assert str(SHARD) in caught.value.subject
    by_option = give is _given_by_option
    assert ("startingPosition" in caught.value.next_step) is by_option
    assert ("new checkpoint location" in caught.value.next_step) is not by_option

    world, put = _world(service, fail=False)
    give(world, number(world))
    with caplog.at_level(logging.WARNING, logger="spark_ssp"):
        assert sorted(trigger(world)) == sorted(put)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert str(SHARD) in warning
    assert "oldest record left" in warning


@pytest.mark.parametrize("service", [InProcessKinesis, TolerantKinesis])
@pytest.mark.parametrize(("trigger", "give"), CASES)
def test_a_trimmed_position_is_a_loss_or_the_rest_is_read(
    trigger: Trigger, give: Callable[[World, str], None], service: type[InProcessKinesis]
) -> None:
    def trimmed(*, fail: bool) -> tuple[World, list[str]]:
        world, _ = _world(service, fail=fail)
        first = world.state.records("orders", shard_id(0))[2].sequence_number
        world.clock.advance(RETENTION_MS + 60_000)
        left = world.put(20)
        give(world, first)
        return world, left

    world, _ = trimmed(fail=True)
    with pytest.raises(DataLossError) as caught:
        trigger(world)
    assert str(SHARD) in caught.value.subject
    world, left = trimmed(fail=False)
    assert sorted(trigger(world)) == sorted(left)


class RecreatedKinesis(InProcessKinesis):
    """Deletes the stream, and creates one of a single shard, before the first iterator is
    opened."""

    def open_iterator(self, *arguments: Any, **options: Any) -> ShardIterator:
        if len(self._state.stream("orders").shards(self._state.clock.now_ms())) > 1:
            self._state.delete_stream("orders")
            self._state.create_stream("orders", 1)
            for number in range(5):
                self._state.put("orders", "a", f"new-{number}".encode())
        return super().open_iterator(*arguments, **options)


@pytest.mark.parametrize("trigger", [*STREAMING, _batch])
@pytest.mark.parametrize("fail", [True, False])
def test_a_stream_recreated_while_positions_are_verified_is_a_loss(
    trigger: Trigger, fail: bool
) -> None:
    """The checks of its shards fail in two ways: one shard is missing, one refuses its position."""
    world = World(shards=2, fail_on_data_loss=fail)
    world.put(60)
    last = {
        key(number): AfterRecord(
            sequence_number=SequenceNumber(
                world.state.records("orders", shard_id(number))[-1].sequence_number
            )
        )
        for number in range(2)
    }
    if trigger is _batch:
        position = StartingPosition(default=TrimHorizon(), by_shard=last)
        world.restart(starting_position=position)
    else:
        assert len(world.drain()) == 60
    world.service = RecreatedKinesis(world.state, attempts=3)
    world.restart()
    if fail:
        with pytest.raises(DataLossError) as caught:
            trigger(world)
        assert "orders" in caught.value.subject
    else:
        assert trigger(world) == ([] if trigger is _batch else [f"new-{n}" for n in range(5)])


@pytest.mark.parametrize("service", [InProcessKinesis, TolerantKinesis])
@pytest.mark.parametrize(("trigger", "give"), CASES)
@pytest.mark.parametrize("fail", [True, False])
def test_a_good_position_is_read_from(
    trigger: Trigger,
    give: Callable[[World, str], None],
    fail: bool,
    service: type[InProcessKinesis],
) -> None:
    world, put = _world(service, fail=fail)
    records = world.state.records("orders", shard_id(0))
    passed = {record.data.decode() for record in records[:10]}
    give(world, records[9].sequence_number)
    assert sorted(trigger(world)) == sorted(set(put) - passed)


@pytest.mark.parametrize(("trigger", "give"), CASES)
@pytest.mark.parametrize("service", [InProcessKinesis, TolerantKinesis])
def test_the_numbers_of_the_listing_are_positions(
    trigger: Trigger, give: Callable[[World, str], None], service: type[InProcessKinesis]
) -> None:
    """The StartingSequenceNumber is before all of the shard, the EndingSequenceNumber after it."""
    for attribute in ("first_sequence_number", "ending_sequence_number"):
        world, put = _world(service, fail=True)
        older = {r.data.decode() for r in world.state.records("orders", shard_id(0))}
        world.state.split("orders", shard_id(0))
        younger = world.put(30)
        world.clock.advance(10_000)
        listing = {s.shard_id: s for s in world.service.list_shards(world.options.streams[0])}
        give(world, getattr(listing[shard_id(0)], attribute))
        read = trigger(world)
        if trigger is _once:  # the children wait for their parent
            read += trigger(world)
        left = set(put) if attribute == "first_sequence_number" else set(put) - older
        assert sorted(read) == sorted([*left, *younger])
        assert (
            _batch is trigger
            or SHARD not in world.offset.states
            or (world.offset.states[SHARD].position == ShardEnd())
        )


@pytest.mark.parametrize("trigger", [_processing_time, _available_now, _once])
def test_a_batch_from_a_replaced_position_is_replayed_from_the_same_record(
    trigger: Trigger,
) -> None:
    world, put = _world(InProcessKinesis, fail=False)
    _given_by_checkpoint(world, _above(world))
    begin = world.offset
    if trigger is _available_now:
        world.planner.stop_at_latest()
    end = world.planner.next_offset_of_all(begin) if trigger is _once else world.plan()
    assert end is not None
    once = world.run(end).read
    world.put(20)
    world.restart()
    world.offset = begin
    assert world.run(end).read == once
    assert sorted(once) == sorted(put)


def test_each_position_is_verified_once_and_no_trigger_costs_a_further_call() -> None:
    world, _ = _world(InProcessKinesis, fail=True)
    world.settle()
    for _ in range(5):
        put = world.put(10)
        world.clock.advance(1000)
        batch = world.trigger()
        assert batch is not None
        assert sorted(batch.read) == sorted(put)
        calls = world.calls()
        assert calls.get("GetShardIterator", 0) <= 2, "searches by time, none for a position"
    world.clock.advance(1000)
    world.restart()
    assert world.trigger() is None
    calls = world.calls()
    assert calls["GetShardIterator"] == 2, "one for each shard"
    assert calls["GetRecords"] == 4


def test_a_start_from_a_checkpoint_takes_two_pages_of_a_shard() -> None:
    """One has the record of the position, whose size decides how many records the other has."""
    world, _ = _world(InProcessKinesis, fail=True)
    world.settle()
    put = world.put(20)
    world.clock.advance(1000)
    world.restart()
    world.calls()
    end = world.plan()
    assert end is not None
    calls = world.calls()
    assert calls["GetShardIterator"] == 2, "one for each shard"
    assert calls["GetRecords"] == 4
    assert sorted(world.run(end).read) == sorted(put)


def test_an_idle_run_to_the_latest_records_verifies_nothing() -> None:
    """Its search for the latest records has found those of the positions."""
    world, _ = _world(InProcessKinesis, fail=True)
    world.settle()
    world.restart()
    world.planner.stop_at_latest()
    world.calls()
    assert world.trigger() is None
    assert not {"GetRecords", "GetShardIterator"} & world.calls().keys()


@pytest.mark.parametrize("is_first", [False, True])
def test_a_record_that_is_not_visible_yet_is_neither_wrong_nor_lost(is_first: bool) -> None:
    """A producer's answer may name a record before it can be read, also the first of a shard."""
    world, _ = _world(TolerantKinesis, fail=True)
    number = _above_all(world)
    if is_first:
        world.clock.advance(RETENTION_MS + 60_000)
    _given_by_option(world, number)
    assert world.trigger() is None
    world.clock.advance(1000)
    assert world.trigger() is None
    world.clock.advance(DOUBT_MS)
    with pytest.raises(DataLossError if is_first else InvalidPositionError):
        world.trigger()


@pytest.mark.parametrize("trigger", STREAMING)
def test_a_bad_position_of_a_child_is_corrected_as_the_error_advises(trigger: Trigger) -> None:
    """It is verified once its parents are read, and under a limit it is in the checkpoint by
    then."""
    world, put = _world(InProcessKinesis, fail=True)
    world.state.split("orders", shard_id(0))
    put += world.put(20)
    child = key(2)
    foreign = AfterRecord(sequence_number=SequenceNumber(_latest(world)))
    begin = StartingPosition(default=TrimHorizon(), by_shard={child: foreign})
    world.restart(starting_position=begin)
    with pytest.raises(InvalidPositionError) as caught:
        trigger(world)
    assert str(child) in caught.value.subject
    assert "startingPosition" in caught.value.next_step
    is_in_checkpoint = world.offset != BEFORE_FIRST_BATCH
    assert ("new checkpoint location" in caught.value.next_step) == is_in_checkpoint
    assert is_in_checkpoint == (trigger in (_limited, _available_now_limited))
    world.offset = BEFORE_FIRST_BATCH
    world.restart(starting_position=StartingPosition(default=TrimHorizon()))
    assert sorted(_processing_time(world)) == sorted(put)


@pytest.mark.parametrize("trigger", STREAMING)
def test_a_child_with_a_bad_position_is_read_after_its_parents_from_its_beginning(
    trigger: Trigger,
) -> None:
    world, put = _world(InProcessKinesis, fail=False)
    world.state.split("orders", shard_id(0))
    put += world.put(20)
    foreign = AfterRecord(sequence_number=SequenceNumber(_latest(world)))
    world.restart(
        starting_position=StartingPosition(default=TrimHorizon(), by_shard={key(2): foreign})
    )
    assert sorted(trigger(world)) == sorted(put)
