"""The plan of a batch read, and the rows of its tasks, over generated histories of a stream."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common import structs
from spark_ssp.common.errors import (
    DataLossError,
    InvalidOptionsError,
    ServiceUnavailableError,
    StreamNotFoundError,
)
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.batch_read import plan_read
from spark_ssp.kinesis_source.model.ranges import SlotRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    SequenceNumber,
    Shard,
    StartingPosition,
    StartPoint,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.options.values import QueryKind, SlotAssignment
from spark_ssp.kinesis_source.probing import batch_limits
from spark_ssp.kinesis_source.probing.end_offset_finder import EndOffsetFinder
from spark_ssp.kinesis_source.probing.fixed_targets import FixedTargets
from spark_ssp.kinesis_source.probing.given_positions import VerifiedStates
from spark_ssp.kinesis_source.probing.initial_positions import UnnamedShardError
from spark_ssp.kinesis_source.probing.instant_probe import EndPoint
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from spark_ssp.testing.kinesis.state.faults import Refusal
from tests.support.fakes.planner_world import HOUR_MS, World
from tests.support.fakes.scripted import FakeTime
from tests.support.kcl.kpl import Put, aggregate
from tests.support.kinesis.shards import key


class Read(NamedTuple):
    """One row."""

    task: int
    shard: str
    key: str
    text: str


def position(
    default: StartPoint | None, by_shard: Mapping[int, StartPoint] | None = None
) -> StartingPosition:
    shards = {key(number): point for number, point in (by_shard or {}).items()}
    return StartingPosition(default=default, by_shard=shards)


def at(millis: int) -> AtTimestamp:
    return AtTimestamp(millis=EpochMillis(millis))


def plan(
    world: World,
    start: StartPoint | StartingPosition = TrimHorizon(),  # noqa: B008 - frozen
    end: StartPoint | StartingPosition = Latest(),  # noqa: B008 - frozen
    **changes: Any,
) -> tuple[SlotRange, ...]:
    options = replace(
        world.options,
        starting_position=start if isinstance(start, StartingPosition) else position(start),
        ending_position=end if isinstance(end, StartingPosition) else position(end),
        **changes,
    )
    return plan_read(options, world.service, monotonic=world.monotonic, sleep=world.sleep)


def rows(world: World, tasks: tuple[SlotRange, ...], **changes: Any) -> list[Read]:
    """Return the rows of all tasks; the order within each task is its own."""
    return [
        Read(
            row["ssp"],
            row["shardId"],
            row["partitionKey"],
            bytes(row["data"]).decode(errors="replace"),
        )
        for task in tasks
        for batch in read_slot(
            task,
            replace(world.options, **changes),
            world.service,
            clock=FakeTime().clock,
            hash_ranges=HashRangeCache(),
            rates=ReadRates(),
        )
        for row in batch.to_pylist()
    ]


def texts(world: World, *bounds: StartPoint | StartingPosition, **changes: Any) -> list[str]:
    return sorted((row.text for row in rows(world, plan(world, *bounds, **changes))), key=int)


def history(seed: int, shards: int) -> tuple[World, list[str], list[int]]:
    """Return a stream with puts, splits and merges in any order; its records; and the times at
    which something happened."""
    rng = random.Random(seed)
    world = World(shards=shards)
    put: list[str] = []
    times = [world.clock.now_ms()]
    for _ in range(rng.randint(1, 8)):
        open_shards = world.state.open_shard_ids("orders")
        match rng.choice(("put", "put", "split", "merge", "wait")):
            case "put":
                put += world.put(rng.randint(1, 12), every_ms=rng.choice((0, 1, 700)))
            case "split":
                world.state.split("orders", rng.choice(open_shards))
            case "merge" if len(open_shards) > 1:
                ordered = sorted(
                    open_shards,
                    key=lambda one: world.state.shard("orders", one).hash_range.first,
                )
                place = rng.randrange(len(ordered) - 1)
                world.state.merge("orders", ordered[place], ordered[place + 1])
            case _:
                world.clock.advance(rng.choice((1, 3000, HOUR_MS)))
        times.append(world.clock.now_ms())
    world.clock.advance(5000)
    return world, put, times


@given(
    seed=st.integers(0, 10**6),
    shards=st.integers(1, 3),
    slots=st.integers(1, 4),
    assignment=st.sampled_from(SlotAssignment),
    data=st.data(),
)
def test_adjoining_reads_give_every_record_once_and_keys_in_order(
    seed: int, shards: int, slots: int, assignment: SlotAssignment, data: st.DataObject
) -> None:
    world, put, times = history(seed, shards)
    middle = at(data.draw(st.sampled_from(times)) + data.draw(st.integers(-1, 1)))
    read: list[str] = []
    for start, end in ((TrimHorizon(), middle), (middle, Latest())):
        tasks = plan(world, start, end, slots=slots, slot_assignment=assignment)
        assert len(tasks) <= slots
        first = rows(world, tasks)
        later = world.state.open_shard_ids("orders")[0]
        world.put(3)
        world.state.split("orders", later)
        assert Counter(rows(world, tasks)) == Counter(first), "a task that runs again"
        of_key: dict[tuple[int, str], list[int]] = {}
        for row in first:
            of_key.setdefault((row.task, row.key), []).append(int(row.text))
        assert all(numbers == sorted(numbers) for numbers in of_key.values())
        read += [row.text for row in first if int(row.text) < len(put)]
    assert sorted(read, key=int) == put


@given(seed=st.integers(0, 10**6), shards=st.integers(1, 3), most=st.integers(1, 60))
def test_a_limit_is_met_exactly_by_small_reads(seed: int, shards: int, most: int) -> None:
    world, put, _ = history(seed, shards)
    assert len(texts(world, max_records=most)) == min(most, len(put))


def test_a_limit_of_many_records_is_met_roughly() -> None:
    world = World(shards=2)
    world.put(20_000, every_ms=5, size=100)
    world.clock.advance(5000)
    assert 4000 <= len(texts(world, max_records=6000)) <= 6600


@pytest.mark.parametrize(
    ("count", "size", "late"),
    [(4_000, 5, 0), (4_000, 5, 10), (2_500, 1_000, 0)],
    ids=["in one page", "written meanwhile", "in two pages"],
)
def test_shards_that_reach_their_ends_count_towards_the_limit(
    count: int, size: int, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with more records than are kept of one."""
    monkeypatch.setattr(batch_limits, "KEPT_RECORDS", 4_000)
    world = World(shards=4)
    begin = world.clock.now_ms()
    for number, most in enumerate((count, count, count, 20_000)):
        for place in range(most):
            text = f"{place:0{size}d}".encode()
            shard, arrival = key(number).shard, begin + 5 * place
            world.state.put("orders", "key", text, shard_id=shard, arrival_ms=arrival)
    world.clock.advance(200_000)
    fix = FixedTargets.fix

    def fix_and_put(targets: FixedTargets, ends: Mapping[ShardKey, EndPoint]) -> None:
        fix(targets, ends)
        world.put(late * 4)
        world.clock.advance(5000)

    monkeypatch.setattr(FixedTargets, "fix", fix_and_put)
    assert 18_000 <= len(texts(world, max_records=20_000)) <= 22_000


def test_shards_follow_their_parents_through_reshards_with_one_task() -> None:
    world = World(shards=1)
    put: list[str] = []
    for target in (1, 4, 2, 3):
        world.state.scale("orders", target)
        put += world.put(300)
    (task,) = plan(world, slots=1)
    read = rows(world, (structs.replace(task, shards=task.shards[::-1]),))
    assert sorted((row.text for row in read), key=int) == put
    first = {row.shard: place for place, row in reversed(list(enumerate(read)))}
    last = {row.shard: place for place, row in enumerate(read)}

    def check_descendants(shard: str, descendants: set[str]) -> None:
        for parent in world.state.shard("orders", shard).parents:
            check_descendants(parent, descendants | {shard})
        later = [first[one] for one in descendants if one in first]
        assert shard not in last or all(last[shard] < place for place in later)

    for shard in world.state.open_shard_ids("orders"):
        check_descendants(shard, set())
    assert len(first) == sum((1, 4, 2, 3))


def test_every_slot_has_a_part_of_each_generation() -> None:
    world = World(shards=4)
    world.put(40)
    world.state.scale("orders", 8)
    world.put(80)
    tasks = plan(world, slots=4)
    assert [len(task.shards) for task in tasks] == [3, 3, 3, 3]


def test_an_end_by_time_excludes_the_records_of_that_time() -> None:
    world = World(shards=1)
    begin = world.clock.now_ms()
    world.put(10, every_ms=1000)
    assert texts(world, TrimHorizon(), at(begin + 4000)) == ["0", "1", "2", "3"]
    assert texts(world, at(begin + 4000), at(begin + 6000)) == ["4", "5"]
    assert texts(world, at(begin + 4500), at(begin + 4600)) == []
    assert texts(world, at(begin + 4000), at(begin + 4000)) == []


def test_arrival_times_that_go_back_are_read_by_one_of_two_adjoining_reads() -> None:
    world = World(shards=1)
    begin = world.clock.now_ms()
    for number, offset in enumerate((0, 3000, 1000, 4000, 2000, 5000)):
        arrival = begin + offset
        world.state.put("orders", "key", b"%d" % number, arrival_ms=arrival)
    world.clock.advance(10_000)
    before, after = texts(world, TrimHorizon(), at(begin + 2500)), texts(world, at(begin + 2500))
    assert sorted(before + after) == list("012345")
    assert before


def test_an_end_at_a_record_includes_it_and_a_read_after_it_goes_on() -> None:
    world = World(shards=2)
    world.put(40)
    records = world.state.records("orders", key(0).shard)
    number = SequenceNumber(records[4].sequence_number)
    bound = position(Latest(), {0: AfterRecord(sequence_number=number)})
    upto = texts(world, TrimHorizon(), bound)
    rest = texts(world, position(TrimHorizon(), {0: AfterRecord(sequence_number=number)}))
    own = [record.data.decode() for record in records]
    assert [text for text in upto if text in own] == own[:5]
    assert [text for text in rest if text in own] == own[5:]


@pytest.mark.parametrize("deaggregate", [True, False])
def test_reads_that_meet_at_an_aggregate_read_each_row_once(deaggregate: bool) -> None:
    world = World(shards=1)
    puts = [Put(partition_key="k", data=b"%d" % sub) for sub in range(3)]
    for data in (b"first", aggregate(puts), b"last"):
        world.state.put("orders", "k", data)
    world.clock.advance(5000)
    number = world.state.records("orders")[1].sequence_number
    read: list[str] = []
    for bounds in ("startingPosition", "endingPosition"):
        options = parse_options(
            {
                "streamName": "orders",
                "region": "us-east-1",
                "deaggregate": str(deaggregate),
                bounds: json.dumps({key(0).shard: {"after_sequence_number": number}}),
            },
            QueryKind.BATCH,
        )
        assert options.ending_position is not None
        tasks = plan(world, options.starting_position, options.ending_position)
        read += [row.text for row in rows(world, tasks, deaggregate=deaggregate)]
    whole = rows(world, plan(world), deaggregate=deaggregate)
    assert Counter(read) == Counter(row.text for row in whole)
    assert len(whole) == (5 if deaggregate else 3)


@pytest.mark.parametrize("max_records", [None, 10])
@pytest.mark.parametrize("start", [0, 1, 2, 3])
@pytest.mark.parametrize("end", [1, 2, 3, 9])
def test_start_and_end_may_be_in_one_aggregate_or_after_its_last_user_record(
    start: int, end: int, max_records: int | None
) -> None:
    world = World(shards=1)
    puts = [Put(partition_key="k", data=b"%d" % sub) for sub in range(3)]
    world.state.put("orders", "k", aggregate(puts))
    world.clock.advance(5000)
    number = SequenceNumber(world.state.records("orders")[0].sequence_number)
    bounds = [
        position(default, {0: AfterRecord(sequence_number=number, sub=sub)})
        for default, sub in ((TrimHorizon(), start), (Latest(), end))
    ]
    read = texts(world, *bounds, max_records=max_records)
    assert read == [str(sub) for sub in range(3) if start < sub <= end]


def test_an_end_that_is_trimmed_is_a_loss() -> None:
    world = World(shards=1)
    world.put(10)
    number = SequenceNumber(world.state.records("orders")[3].sequence_number)
    world.state.trim("orders", key(0).shard, before_sequence_number=str(int(number) + 1))
    end = position(Latest(), {0: AfterRecord(sequence_number=number)})
    with pytest.raises(DataLossError, match="endingPosition"):
        plan(world, TrimHorizon(), end)
    assert texts(world, TrimHorizon(), end, fail_on_data_loss=False) == []


def refuse(world: World, number: int, expired: pytest.MonkeyPatch | None) -> None:
    """Refuse to open a shard, which is no longer listed from then on if it has `expired`."""
    shard = key(number).shard
    refusal = Refusal(code="ResourceNotFoundException")
    world.state.faults.add(refusal, operation="GetShardIterator", shard=shard, count=None)
    list_shards = world.service.list_shards

    def list_until_refused(stream: StreamRef) -> tuple[Shard, ...]:
        is_gone = world.state.calls.by_operation().get("GetShardIterator", 0) > 0
        return tuple(one for one in list_shards(stream) if one.shard_id != shard or not is_gone)

    if expired is not None:
        expired.setattr(world.service, "list_shards", list_until_refused)


@pytest.mark.parametrize(
    ("cause", "fail", "error"),
    [
        ("refused", True, StreamNotFoundError),
        ("refused", False, None),
        ("expired", True, DataLossError),
        ("expired", False, None),
    ],
)
def test_a_start_that_cannot_be_verified_is_left_out_or_ends_the_read(
    cause: str, fail: bool, error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(shards=2, fail_on_data_loss=fail)
    world.put(20)
    first, rest = (world.state.records("orders", key(number).shard) for number in range(2))
    refuse(world, 0, monkeypatch if cause == "expired" else None)
    number = SequenceNumber(first[0].sequence_number)
    start = position(TrimHorizon(), {0: AfterRecord(sequence_number=number)})
    if error is not None:
        with pytest.raises(error):
            plan(world, start)
    else:
        assert texts(world, start) == [record.data.decode() for record in rest]
    assert sum(world.slept) < 90


@pytest.mark.parametrize("number", [0, 2], ids=["root", "child"])
@pytest.mark.parametrize("is_timed", [False, True], ids=["latest", "time"])
@pytest.mark.parametrize("max_records", [None, 1000])
@pytest.mark.parametrize("fail", [True, False])
def test_a_closed_shard_that_expires_while_the_read_is_planned_is_a_loss_if_it_is_promised(
    number: int,
    is_timed: bool,
    max_records: int | None,
    fail: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As that of a child is, whose parent was listed."""
    world = World(shards=2, fail_on_data_loss=fail)
    put = world.put(20)
    for closed in (0, 2):
        world.state.split("orders", key(closed).shard)
        put += world.put(20)
    world.clock.advance(5000)
    end = at(world.clock.now_ms()) if is_timed else Latest()
    lost = [record.data.decode() for record in world.state.records("orders", key(number).shard)]
    refuse(world, number, monkeypatch)
    if fail and number == 2:
        with pytest.raises(DataLossError):
            plan(world, TrimHorizon(), end, max_records=max_records)
    else:
        read = texts(world, TrimHorizon(), end, max_records=max_records)
        assert read == [text for text in put if text not in lost]
        assert any(key(number).shard in message for message in caplog.messages)
    assert lost
    assert sum(world.slept) < 30


@pytest.mark.parametrize(
    ("rounds", "is_read"),
    [([2, 1, 0], True), ([2, 2, 0], False)],
    ids=["fewer are left each time", "none was answered for a minute"],
)
def test_starts_are_verified_until_none_was_answered_for_a_minute(
    rounds: list[int], is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of one round may be repeated for longer than that."""
    world = World(shards=2)
    world.put(20)
    records = [world.state.records("orders", key(number).shard) for number in range(2)]
    verify, left = EndOffsetFinder.verify_positions, list(rounds)

    def slow(finder: EndOffsetFinder, *given: Any) -> VerifiedStates:
        world.clock.advance(70_000)
        verified = verify(finder, *given)
        verified.pending |= {key(number) for number in range(left.pop(0))}
        return verified

    monkeypatch.setattr(EndOffsetFinder, "verify_positions", slow)
    numbers = {n: SequenceNumber(of[0].sequence_number) for n, of in enumerate(records)}
    start = position(None, {n: AfterRecord(sequence_number=one) for n, one in numbers.items()})
    if is_read:
        assert len(texts(world, start)) == 18
    else:
        with pytest.raises(ServiceUnavailableError) as raised:
            plan(world, start)
        assert "startingPosition" in raised.value.subject
        assert len(left) == 1


@pytest.mark.parametrize("fail", [True, False])
def test_records_of_a_child_trimmed_after_planning_are_a_loss(fail: bool) -> None:
    world = World(shards=1)
    world.clock.advance(25 * HOUR_MS)
    world.put(10)
    world.state.split("orders", key(0).shard)
    world.put(20)
    world.clock.advance(2000)
    tasks = plan(world, slots=1)
    (child,) = [one for one in tasks[0].shards if one.shard == key(1).shard]
    gone = world.state.records("orders", child.shard)
    world.state.trim("orders", child.shard, before_sequence_number=gone[2].sequence_number)
    task = (structs.replace(tasks[0], shards=(child,)),)
    if fail:
        with pytest.raises(DataLossError):
            rows(world, task)
    else:
        read = [row.text for row in rows(world, task, fail_on_data_loss=False)]
        assert read == [record.data.decode() for record in gone[2:]]


def test_a_time_in_the_future_is_refused_and_one_just_ahead_is_awaited() -> None:
    world = World(shards=1)
    world.put(3)
    now = world.service.service_time()
    for bounds in ((at(now + 60_000), Latest()), (TrimHorizon(), at(now + 60_000))):
        with pytest.raises(InvalidOptionsError, match="has passed"):
            plan(world, *bounds)
    assert texts(world, TrimHorizon(), at(now + 1500)) == ["0", "1", "2"]
    assert world.service.service_time() >= now + 1500


def test_a_reshard_while_an_end_is_awaited_is_part_of_the_read() -> None:
    world = World(shards=1)
    put = world.put(3)
    end, sleep = at(world.service.service_time() + 1500), world.sleep

    def reshard(seconds: float) -> None:
        world.sleep = sleep  # type: ignore[method-assign]
        world.state.split("orders", world.state.open_shard_ids("orders")[0])
        put.extend(world.put(4))
        sleep(seconds)

    world.sleep = reshard  # type: ignore[method-assign]
    before = texts(world, TrimHorizon(), end)
    put += world.put(2)
    world.clock.advance(5_000)
    assert before == put[:-2]
    assert texts(world, end) == put[-2:]


def test_unnamed_and_unknown_shards_are_errors() -> None:
    world = World(shards=2)
    with pytest.raises(UnnamedShardError, match="endingPosition"):
        plan(world, TrimHorizon(), position(None, {0: Latest()}))
    with pytest.raises(UnnamedShardError, match="endingPosition"):
        plan(world, TrimHorizon(), position(Latest(), {7: Latest()}))


def test_an_empty_stream_has_no_tasks() -> None:
    world = World(shards=3)
    world.state.split("orders", key(0).shard)
    assert plan(world) == ()


def test_a_read_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_ssp.kinesis_source")
    world = World(shards=3)
    world.put(1)
    plan(world, at(5_000))
    (line,) = caplog.messages
    assert line.startswith(
        "batch read from AT_TIMESTAMP 1970-01-01T00:00:05Z to LATEST: stream orders with 3 "
        "shards; 1 shard with records to read; 1 task; spark-ssp "
    )


def test_several_streams_share_the_tasks() -> None:
    world = World(shards=2)
    world.state.create_stream("returns", 2)
    world.clock.advance(60_000)
    world.restart(
        streams=tuple(
            structs.replace(world.options.streams[0], name=n)
            for n in (StreamName("orders"), StreamName("returns"))
        )
    )
    put = world.put(30) + world.put(30, stream="returns")
    assert texts(world, slots=3) == put
