"""Batches that end at one instant across shards, the shards that others do not wait for, and the
status of both."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ssp.grouping.identifiers import SequenceNumber, ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    ShardIterator,
    ShardState,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.alignment import Alignment, arrival_spread
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits
from spark_ssp.kinesis_source.probing.instant_probe import find_last_until
from spark_ssp.kinesis_source.probing.probe_protocol import (
    OpenIterator,
    PageView,
    ProbeResult,
    RecordRef,
    Request,
    Response,
    ShardCursor,
)
from spark_ssp.kinesis_source.reader_activity import alignment_entry
from spark_ssp.testing.kinesis.state.faults import Call, EmptyPage, Refusal, Throttle
from tests.support.fakes.planner_world import HOUR_MS, World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key

TIMEOUT_MS = 60_000
DAY_MS = 86_400_000


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


def test_a_trigger_ends_without_a_call_while_a_shard_has_to_wait() -> None:
    world = World(min_fetch_period_ms=5_000)
    put = world.put(100, every_ms=100)
    few = Limits(max_records=20)
    read: list[str] = []
    idle = in_vain = 0
    for trigger in range(60):
        if trigger == 1:  # From now on one shard may be read earlier than the other.
            world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(0), count=3)
        world.calls()
        world.slept.clear()
        batch = world.trigger(few)
        assert sum(world.slept) < 2, "Spark can end the query in between"
        if batch is None:
            idle += 1
            in_vain += world.calls().get("GetRecords", 0)
        else:
            read += batch.read
        if len(read) == len(put):
            break
    assert sorted(read) == sorted(put)
    assert idle >= 10
    assert in_vain == 0


def test_a_shard_that_cannot_be_read_holds_others_back_until_the_timeout() -> None:
    world = World(alignment_timeout_ms=TIMEOUT_MS)
    put = world.put(20)
    read = world.drain()
    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(0), count=None)
    rows_at: list[int] = []
    outcomes: dict[int, Alignment] = {}
    began = world.clock.now_ms()
    while (second := (world.clock.now_ms() - began) // 1000) < 120:
        put += world.put(4, every_ms=250)
        batch = world.trigger()
        outcomes[second] = outcome(world)
        if batch is not None:
            read += batch.read
            rows_at.append(second)
    assert not [second for second in rows_at if 10 <= second < 60]
    held = [one for second, one in outcomes.items() if 10 <= second < 50]
    assert {(one.holds_back, one.left_behind) for one in held} == {(key(0), frozenset[ShardKey]())}
    assert max(one.spread_ms for one in held) <= 8_000, "the tolerance, and a trigger"
    assert len([second for second in rows_at if second >= 80]) > 20
    later = [one for second, one in outcomes.items() if second >= 80]
    assert {(one.holds_back, one.left_behind) for one in later} == {(None, frozenset({key(0)}))}
    spreads = [one.spread_ms for one in later]
    assert spreads == sorted(spreads)
    assert spreads[-1] > 100_000
    world.state.faults.clear()
    world.clock.advance(1000)
    batch = world.trigger(Limits(max_records=20))
    assert batch is not None
    assert outcome(world).spread_ms > 100_000, "the others wait, and are still ahead"
    assert sorted(read + batch.read + world.drain(Limits(max_records=20))) == sorted(put)
    assert outcome(world).spread_ms == 0


@pytest.mark.parametrize("limits", [UNLIMITED, Limits(max_bytes=1 << 20)])
@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "restarts"])
def test_a_throttled_call_leaves_no_batch_after_a_long_interval_without_records(
    limits: Limits, restarts: bool
) -> None:
    """Each shard counts as unread since the batch before, an interval ago."""
    world = World(shards=4)
    world.put(40)
    world.settle()
    for number in range(4):
        put = world.put(60, every_ms=1000)
        world.clock.advance(HOUR_MS)
        if restarts:
            world.restart()
        world.state.faults.add(
            Throttle(), operation="GetRecords", shard=shard_id(number), count=number + 1
        )
        batch = world.trigger(limits)
        assert batch is not None
        assert sorted(batch.read) == sorted(put)


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


def test_a_child_that_shows_no_record_does_not_hold_back_its_parents() -> None:
    """After a long silence a child answers empty pages before its first record."""
    world = World()
    world.put(10)
    world.drain()
    for n in range(9):
        world.state.put("orders", "k", b"of the parent %d" % n, explicit_hash_key=0)
    world.clock.advance(1000)
    world.state.split("orders", shard_id(0))
    world.clock.advance(6 * 3_600_000)
    world.put(20)
    world.state.faults.add(EmptyPage(), operation="GetRecords", shard=shard_id(2), count=None)
    read: list[str] = []
    for _ in range(20):
        world.clock.advance(1000)
        batch = world.trigger()
        read += [] if batch is None else batch.read
    assert {f"of the parent {n}" for n in range(9)} <= set(read)


def test_a_shard_that_is_listed_and_cannot_be_opened_holds_nothing_back() -> None:
    world = World(shards=3, fail_on_data_loss=False)
    world.put(60)
    world.state.split("orders", shard_id(0))
    world.put(60)
    world.clock.advance(60_000)
    refusal = Refusal(code="ResourceNotFoundException")
    world.state.faults.add(refusal, operation="GetShardIterator", shard=shard_id(0), count=None)
    world.planner.stop_at_latest()
    began, read = world.clock.now_ms(), 0
    while (batch := world.trigger()) is not None:
        read += len(batch.read)
    assert read > 60
    assert world.clock.now_ms() - began < 60_000


def test_a_search_ends_although_records_are_not_in_the_order_of_their_arrivals() -> None:
    arrivals = (0, 100_000, 50_000, 300_000)
    records = [
        RecordRef(
            sequence_number=SequenceNumber(str(1000 + n)),
            last_sub=0,
            arrival=EpochMillis(arrival),
            size_bytes=40_000,
        )
        for n, arrival in enumerate(arrivals)
    ]
    found = _last_until(records, after=records[1], until=200_000, record_bytes=40_000)
    assert found.end == records[2]


def test_a_task_is_told_the_size_of_a_range_that_was_cut_by_time() -> None:
    """Without it the task requests a page of 10 MB, which blocks the shard for five seconds."""
    records = [
        RecordRef(
            sequence_number=SequenceNumber(str(1000 + n)),
            last_sub=0,
            arrival=EpochMillis(10 * n),
            size_bytes=1_000,
        )
        for n in range(10_000)
    ]
    found = _last_until(records, after=records[0], until=50_000, record_bytes=1_000)
    assert found.end is not None
    assert 49_000 <= found.end.arrival <= 50_000
    count = found.end.order - records[0].order
    assert found.expected is not None
    assert count <= found.expected.records <= 1.1 * count
    assert found.expected.size_bytes is not None
    assert 1_000 * count <= found.expected.size_bytes <= 1_100 * count


def _last_until(
    records: list[RecordRef], *, after: RecordRef, until: int, record_bytes: float
) -> ProbeResult:
    """Search a shard of these records for the last one until a time."""
    start, now = ShardState(position=after.position), EpochMillis(400_000)
    steps = find_last_until(
        start,
        ShardCursor(record_bytes=record_bytes),
        now,
        DAY_MS,
        EpochMillis(until - 1_000),
        EpochMillis(until),
    )
    request = next(steps)
    for _ in range(100):
        try:
            request = steps.send(_answer(request, records, now))
        except StopIteration as ended:
            found: ProbeResult = ended.value
            return found
    raise AssertionError("the search does not end")


def _answer(request: Request, records: list[RecordRef], now: EpochMillis) -> Response:
    if isinstance(request, OpenIterator):
        position = request.position
        if isinstance(position, AtTimestamp):
            found = (n for n, row in enumerate(records) if row.arrival >= position.millis)
        else:
            assert isinstance(position, AfterRecord)
            order = int(position.sequence_number) + (not request.inclusive)
            found = (n for n, row in enumerate(records) if row.order >= order)
        return ShardIterator(str(next(found, len(records))))
    begin = int(request.iterator)
    rows = tuple(records[begin : begin + request.limit])
    return PageView(
        records=rows,
        next_iterator=ShardIterator(str(begin + len(rows))),
        millis_behind=int(begin + len(rows) < len(records)),
        time=now,
        limit=request.limit,
    )


def test_a_waiting_child_of_which_nothing_is_known_is_left_behind_after_the_timeout() -> None:
    """Under a limit a child is not read with its parents, so its first record is searched."""
    world = World(alignment_timeout_ms=TIMEOUT_MS)
    world.put(20)
    world.drain()
    world.put(200, every_ms=100)
    world.state.split("orders", shard_id(0))
    world.put(200, every_ms=100)
    for child in (2, 3):
        world.state.faults.add(
            EmptyPage(), operation="GetRecords", shard=shard_id(child), count=None
        )
    read = 0
    for _ in range(200):
        world.clock.advance(1000)
        batch = world.trigger(Limits(max_records=40))
        read += 0 if batch is None else len(batch.read)
    assert read > 200
    assert outcome(world).left_behind == frozenset({key(2), key(3)})


@pytest.mark.parametrize("limits", [Limits(), Limits(max_records=1_000)])
def test_a_shard_that_was_asked_long_before_another_is_unread_since_then(limits: Limits) -> None:
    world = World().settle()
    put: list[str] = []

    def frozen(call: Call) -> bool:
        if put or not world.state.calls.by_shard("GetRecords").get(shard_id(0)):
            return False
        put.extend(world.put(600, every_ms=100))
        return False

    world.state.faults.add(Throttle(), operation="GetRecords", shard=shard_id(1), when=frozen)
    batch = world.trigger(limits)
    assert put
    read = [] if batch is None else batch.read
    assert all(int(text) - int(put[0]) < 100 for text in read), "ten seconds"
    assert sorted(read + world.drain(limits)) == sorted(put)


def test_shards_that_were_cut_are_probed_on_without_another_iterator() -> None:
    world = World(shards=4).settle()
    get_records = world.service.get_records
    pauses = [0, 0, 0, 10]

    def slow(*given: Any, **named: Any) -> Any:
        if pauses:
            world.put(10 * pauses.pop(0), every_ms=1000)
        return get_records(*given, **named)

    world.put(8)
    world.service.get_records = slow  # type: ignore[method-assign]
    world.trigger()
    assert not pauses
    assert outcome(world).holds_back is not None
    world.clock.advance(1000)
    world.calls()
    world.trigger()
    assert "GetShardIterator" not in world.calls()
    assert outcome(world).holds_back is None


def test_a_stream_that_begins_at_latest_is_unread_since_then() -> None:
    world = World(shards=1)
    world.put(3)
    world.settle()
    world.state.create_stream("added", 1)
    both = tuple(StreamRef(name=StreamName(name)) for name in ("orders", "added"))
    world.restart(streams=both, starting_position=StartingPosition(default=Latest()))
    get_records = world.service.get_records
    put: list[str] = []

    def slow(stream: StreamRef, *given: Any, **named: Any) -> Any:
        if stream.name == "orders" and not put:
            for _ in range(100):
                put.extend([*world.put(stream="added", every_ms=50), *world.put(every_ms=50)])
        return get_records(stream, *given, **named)

    world.service.get_records = slow  # type: ignore[method-assign]
    first = world.trigger()
    assert first is None or not first.read
    assert outcome(world).holds_back == key(0, "added")
    assert sorted(world.drain()) == sorted(put)


@pytest.mark.parametrize(
    "limits", [Limits(max_records=10), Limits(max_bytes=100), Limits(max_shard_bytes=30)]
)
@pytest.mark.parametrize("days", [1, 7])
def test_only_a_stream_of_shorter_retention_is_read_on_before_it_expires(
    limits: Limits, days: int
) -> None:
    world = World(shards=1, fail_on_data_loss=True)
    world.state.set_retention_hours("orders", 24 * days)
    world.state.create_stream("history", 1)
    world.state.set_retention_hours("history", 168)
    world.clock.advance(60_000)
    put = world.put(2)
    read = world.drain()
    for _ in range(140):
        put += world.put(1, stream="history", every_ms=HOUR_MS)
        world.trigger()
    world.clock.advance(5_000)
    world.restart(streams=tuple(StreamRef(name=StreamName(n)) for n in ("orders", "history")))
    overdue: list[int] = []
    for hour in range(0, 40, 2):
        put += world.put(2)
        batch = world.trigger(limits)
        read += [] if batch is None else batch.read
        if world.planner.alignment.overdue:
            assert world.planner.alignment.overdue == {key(0)}
            overdue.append(hour)
        world.clock.advance(2 * HOUR_MS)
    read += world.drain(limits)
    assert sorted(read) == sorted(put)
    assert overdue[:1] == ([12] if days == 1 else [])


def test_an_old_listing_holds_nothing_back_at_the_start() -> None:
    begin = StartingPosition(default=TrimHorizon(), by_shard={key(0, "added"): Latest()})
    world = World(shards=1, shard_discovery_interval_ms=600_000, starting_position=begin)
    world.state.create_stream("added", 1)
    world.clock.advance(60_000)
    both = tuple(StreamRef(name=StreamName(name)) for name in ("orders", "added"))
    world.restart(streams=both)
    for stream in both:
        world.planner.retention_ms(stream.name)  # both are listed
    put = world.put(6, every_ms=10_000)
    batch = world.trigger()
    assert batch is not None
    assert sorted(batch.read) == sorted(put)
    assert outcome(world).holds_back is None
