"""A task's shards read side by side: threads, memory, batches, aggregates, errors, early ends."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections import Counter, deque
from contextlib import AbstractContextManager
from random import Random

import pyarrow as pa
import pytest

from spark_ssp.common.columns import Column
from spark_ssp.common.errors import AccessError, DataLossError
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import HashRange, ShardId, SlotId
from spark_ssp.kinesis_source.client.api import KinesisService, ThrottledError
from spark_ssp.kinesis_source.model.ranges import (
    MAX_THREADS,
    ExpectedSize,
    ShardRange,
    SlotRange,
    Stragglers,
)
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    RecordPage,
    Shard,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.reading import page_rows
from spark_ssp.kinesis_source.reading.arrow_batches import ROW_OVERHEAD_BYTES
from spark_ssp.kinesis_source.reading.fetch_buffer import FetchBuffer, Reservation
from spark_ssp.kinesis_source.reading.process_wide import MAX_KEPT, HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.shard_retry import Clock
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from spark_ssp.kinesis_source.source import spark_schema
from tests.support.fakes.scripted import (
    CREATED,
    Do,
    Empty,
    Fail,
    FakeTime,
    OneThread,
    Page,
    Rec,
    ScriptedService,
    ScriptedShard,
    Step,
    expire,
    recs,
    throttle,
)
from tests.support.kcl.kpl import WHOLE, Put, aggregate
from tests.support.kinesis.reading import (
    LOCAL,
    A,
    B,
    Row,
    options,
    read,
    rows_of,
    sequences,
    shard_range,
    slot_of,
)
from tests.support.kinesis.shards import after

DEADLINE = 20.0


def denied() -> AccessError:
    return AccessError("a call", found="no permission", expected="it", next_step="ask")


def reader_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("kinesis-read-")]


def many(count: int, records: int = 3) -> list[ScriptedShard]:
    return [
        ScriptedShard(
            shard_id=ShardId(f"shardId-{number:012}"),
            records=recs(*range(1, records + 1)),
            closed=True,
        )
        for number in range(count)
    ]


def test_the_service_of_the_tests_is_one() -> None:
    service: KinesisService = ScriptedService([])
    assert service.list_shards(options().streams[0]) == ()


def test_a_slot_range_survives_pickling() -> None:
    the_slot = slot_of(shard_range(A, after(1, 2), after(7), seen=EpochMillis(5), first=9))
    assert pickle.loads(pickle.dumps(the_slot)) == the_slot


def test_an_empty_slot_gives_nothing() -> None:
    assert read(ScriptedService([])) == []


def test_thousands_of_shards_take_a_bounded_number_of_threads_and_big_batches() -> None:
    shards = many(2_000)
    most: list[int] = []
    service = ScriptedService(shards, before_fetch=lambda _: most.append(len(reader_threads())))
    small = ExpectedSize(records=3, size_bytes=30)
    ranges = [shard_range(shard.shard_id, expected=small) for shard in shards]
    batches = list(
        read_slot(slot_of(*ranges), options(), service, rates=ReadRates(), clock=FakeTime().clock)
    )
    assert max(most) <= MAX_THREADS
    assert sum(batch.num_rows for batch in batches) == 6_000
    assert len(batches) == 1
    assert batches[0].schema.names == spark_schema(include_repeat_keys=False).names
    rows = rows_of(batches)
    for shard in shards:
        assert sequences(rows, shard.shard_id) == [1, 2, 3]
    assert reader_threads() == []


def test_small_pages_are_gathered() -> None:
    shard = ScriptedShard(shard_id=A, records=recs(*range(25_000)), closed=True)
    shard.script = deque([Page(100)] * 250)
    batches = list(
        read_slot(slot_of(shard_range()), options(), ScriptedService([shard]), rates=ReadRates())
    )
    assert all(10_000 <= batch.num_rows <= 65_536 for batch in batches[:-1])
    assert len(batches) <= 3
    assert sequences(rows_of(batches)) == list(range(25_000))


# --- First calls of one thread --------------------------------------------------------------------


def near_the_latest(chance: Random) -> tuple[list[ScriptedShard], list[ShardRange]]:
    """Shards of a few records, some of whose calls fail, and ranges of them: most with an iterator
    that follows their start, some to be read after another."""
    shards: list[ScriptedShard] = []
    ranges: list[ShardRange] = []
    events: list[Step] = [throttle(), expire(), Empty(), Page(1), Page(2)]
    for number in range(chance.randrange(2, 90)):
        shard_id, last = ShardId(f"shardId-{number:012}"), 2 + chance.randrange(4)
        script = deque(chance.choice(events) for _ in range(chance.choice([0, 0, 0, 1, 2])))
        shards.append(
            ScriptedShard(shard_id=shard_id, records=recs(*range(1, last + 3)), script=script)
        )
        planned = shard_range(
            shard_id,
            after(1),
            after(last),
            expected=ExpectedSize(records=last - 1, size_bytes=50),
            iterator="2" if chance.random() < 0.8 else None,
        )
        if planned.iterator is not None and chance.random() < 0.1:
            script.appendleft(Fail(denied()))  # the iterator is good for the driver alone
        older = chance.choice(ranges).shard if ranges and chance.random() < 0.1 else None
        ranges.append(planned if older is None else replace(planned, after=(older,)))
    return shards, ranges


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("chance_to_begin", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("memory", [1, 3 << 20, 64 << 20])
def test_rows_are_the_same_if_one_thread_makes_the_first_calls(
    seed: int, chance_to_begin: float, memory: int
) -> None:
    shards, ranges = near_the_latest(Random(seed))
    draw = Random(seed)
    together = OneThread(shards, draw, lambda: draw.random() < chance_to_begin)
    found = rows_by_shard(read(together, *ranges, max_bytes_in_flight=memory))
    apart = ScriptedService(near_the_latest(Random(seed))[0])
    assert found == rows_by_shard(read(apart, *ranges))
    assert together.closed == (sum(_is_first(each) for each in ranges) > 1)
    assert Counter(together.fetched) == Counter(apart.fetched)
    assert not reader_threads()


def _is_first(range_: ShardRange) -> bool:
    return range_.iterator is not None and not range_.after


def rows_by_shard(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.shard, []).append(row)
    return found


def test_a_first_call_that_ends_the_task_is_its_error() -> None:
    """The end of a range is missing, and the shard is closed."""
    shards = many(50)
    lost = shard_range(
        shards[7].shard_id, after(1), after(9), expected=ExpectedSize(records=8), iterator="2"
    )
    ranges = [
        lost
        if shard.shard_id == lost.shard
        else shard_range(shard.shard_id, after(1), after(3), iterator="2")
        for shard in shards
    ]
    with pytest.raises(DataLossError):
        read(OneThread(shards, Random(1), lambda: True), *ranges)
    assert not reader_threads()


def test_the_slot_number_is_a_column() -> None:
    shard = ScriptedShard(shard_id=A, records=recs(1), closed=True)
    the_slot = SlotRange(slot=SlotId(7), shards=(shard_range(),))
    (batch,) = read_slot(the_slot, options(), ScriptedService([shard]), rates=ReadRates())
    assert batch["ssp"].to_pylist() == [7]


def test_a_slot_whose_stream_was_removed_has_no_rows() -> None:
    empty = SlotRange(slot=SlotId(7), shards=())
    assert list(read_slot(empty, options(), ScriptedService([]), rates=ReadRates())) == []


# --- Memory ---------------------------------------------------------------------------------------

PAGE_BYTES = 3 << 20


@pytest.mark.parametrize("limit", [1, 4 << 20, 10 << 20, 64 << 20])
def test_memory_in_flight_is_bounded_under_a_slow_consumer(limit: int) -> None:
    """Counted at the service: the bytes returned minus those that the consumer had taken."""
    lock = threading.Lock()
    given = taken = 0
    highest = 0
    shards = [
        ScriptedShard(
            shard_id=ShardId(f"shardId-{number:012}"),
            records=recs(1, 2, 3, 4, data=lambda _: bytes(PAGE_BYTES)),
            closed=True,
            script=deque([Page(1)] * 4),
        )
        for number in range(6)
    ]

    def count(_: ShardId, page: RecordPage) -> None:
        nonlocal given, highest
        with lock:
            given += sum(map(len, page.data))
            highest = max(highest, given - taken)

    service = ScriptedService(shards, after_fetch=count)
    batches = read_slot(
        slot_of(*(shard_range(shard.shard_id) for shard in shards)),
        options(max_bytes_in_flight=limit),
        service,
        rates=ReadRates(),
    )
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        with lock:
            taken += pa.compute.sum(pa.compute.binary_length(batch["data"])).as_py()
    assert rows == 24
    assert highest <= max(limit, PAGE_BYTES)
    if limit == 1:
        assert highest == PAGE_BYTES


def test_a_slot_of_150_shards_goes_on_within_its_memory_while_some_are_throttled() -> None:
    """All threads but one are refused until the other shards are fetched: they hold no memory
    between two tries, so no shard waits for them."""
    size, records, limit = 16 << 10, 4, 256 << 10
    shards = [
        ScriptedShard(
            shard_id=ShardId(f"shardId-{number:012}"),
            records=recs(*range(1, records + 1), data=lambda _: bytes(size)),
            closed=True,
            script=deque([Page(1)] * records),
        )
        for number in range(150)
    ]
    throttled = {shard.shard_id for shard in shards[: MAX_THREADS - 1]}
    others_fetched = threading.Event()
    lock = threading.Lock()
    fetched: Counter[ShardId] = Counter()
    given = taken = highest = refused = 0

    def refuse(shard: ShardId) -> None:
        nonlocal refused
        if shard in throttled and not others_fetched.is_set():
            refused += 1
            assert refused < 100_000, "the other shards wait"
            raise ThrottledError("a call", found="a rate", expected="less", next_step="wait")

    def count(shard: ShardId, page: RecordPage) -> None:
        nonlocal given, highest
        with lock:
            fetched[shard] += 1
            given += sum(map(len, page.data))
            highest = max(highest, given - taken)
            if len(fetched) == len(shards) - len(throttled):
                others_fetched.set()

    def wait(stopping: threading.Event, seconds: float) -> None:
        others_fetched.wait(0.01)

    batches = read_slot(
        slot_of(
            *(
                shard_range(
                    shard.shard_id,
                    expected=ExpectedSize(records=records, size_bytes=records * size),
                )
                for shard in shards
            )
        ),
        options(max_bytes_in_flight=limit),
        ScriptedService(shards, before_fetch=refuse, after_fetch=count),
        rates=ReadRates(),
        clock=Clock(wait=wait, random=lambda: 0.0),
    )
    rows: list[Row] = []
    for batch in batches:
        rows += rows_of([batch])
        with lock:
            taken += batch.num_rows * size
    assert refused
    assert highest <= limit
    for shard in shards:
        assert sequences(rows, shard.shard_id) == list(range(1, records + 1))


def test_a_fetch_sets_aside_what_its_answer_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [0, 3 << 20, 0, 11 << 20, 0]
    records = [Rec(sequence=n, data=bytes(size)) for n, size in enumerate(sizes)]
    reserved: list[int] = []
    original = FetchBuffer.reservation

    def spied(self: FetchBuffer, size: int) -> AbstractContextManager[Reservation]:
        reserved.append(size)
        return original(self, size)

    monkeypatch.setattr(FetchBuffer, "reservation", spied)

    def reservations(expected: ExpectedSize | None) -> list[int]:
        reserved.clear()
        shard = ScriptedShard(shard_id=A, records=records, closed=True, script=deque([Page(1)] * 5))
        rows = read(ScriptedService([shard]), shard_range(expected=expected))
        assert sequences(rows) == list(range(5))
        return list(reserved)

    # The largest page that the API allows, then double the largest so far.
    most = (10 << 20) + 10_000 * ROW_OVERHEAD_BYTES
    doubled = 2 * ((3 << 20) + len("k") + ROW_OVERHEAD_BYTES)
    assert reservations(None) == [most, 1 << 20, doubled, doubled, most]
    # The expected size of the range; the largest page of the rest.
    hinted = reservations(ExpectedSize(records=5, size_bytes=8 << 20))
    assert hinted[0] == (8 << 20) + 5 * ROW_OVERHEAD_BYTES
    assert hinted[-1] == (10 << 20) + ROW_OVERHEAD_BYTES


# --- Ends before the end --------------------------------------------------------------------------


def test_nothing_starts_before_the_first_row_is_asked_for() -> None:
    service = ScriptedService(many(2))
    batches = read_slot(
        slot_of(shard_range(A), shard_range(B)), options(), service, rates=ReadRates()
    )
    assert reader_threads() == []
    del batches
    assert service.opened == []


def test_closing_the_generator_ends_all_threads() -> None:
    shards = many(20, records=50)
    for shard in shards:
        shard.script = deque([Page(1)] * 50)
    service = ScriptedService(shards)
    batches = read_slot(
        slot_of(*(shard_range(shard.shard_id) for shard in shards)),
        options(max_bytes_in_flight=1),
        service,
        rates=ReadRates(),
        clock=FakeTime().clock,
    )
    assert next(batches).num_rows >= 1
    assert reader_threads() != []
    batches.close()  # type: ignore[attr-defined]
    assert reader_threads() == []


def test_closing_ends_threads_that_wait_for_the_latest_record() -> None:
    waiting = threading.Event()
    shard = ScriptedShard(shard_id=A, records=recs(1, 2), hidden=1)
    ready = ScriptedShard(shard_id=B, records=recs(*range(10_000)), closed=True)
    shard.script = deque([Page(1), Page(1), Do(waiting.set)])
    batches = read_slot(
        slot_of(shard_range(A, TrimHorizon(), after(2)), shard_range(B)),
        options(min_fetch_period_ms=1),
        ScriptedService([shard, ready]),
        rates=ReadRates(),
    )
    assert next(batches).num_rows >= 10_000
    assert waiting.wait(DEADLINE)
    batches.close()  # type: ignore[attr-defined]
    assert reader_threads() == []


def test_one_failing_shard_fails_the_task_though_others_could_go_on() -> None:
    """The other shard waits for an end that does not come: only the error can end the task."""
    failing = ScriptedShard(shard_id=A, records=recs(1), script=deque([Page(1), Fail(denied())]))
    endless = ScriptedShard(shard_id=B, records=recs(1, 2), hidden=1)
    service = ScriptedService([failing, endless])
    batches = read_slot(
        slot_of(shard_range(A), shard_range(B, TrimHorizon(), after(2))),
        options(),
        service,
        rates=ReadRates(),
    )
    with pytest.raises(AccessError):
        list(batches)
    assert reader_threads() == []


def test_an_unforeseen_error_is_never_taken_for_the_end() -> None:
    def broken(_: ShardId) -> None:
        raise RuntimeError("a bug")

    service = ScriptedService(many(3), before_fetch=broken)
    with pytest.raises(RuntimeError, match="a bug"):
        read(service, shard_range(A))
    assert reader_threads() == []


# --- Aggregated records ---------------------------------------------------------------------------


def aggregated(sequence: int, users: int) -> Rec:
    puts = [
        Put(partition_key=f"user-{number}", data=f"{sequence}.{number}".encode())
        for number in range(users)
    ]
    return Rec(sequence=sequence, data=aggregate(puts), key="aggregate")


def user_row(sequence: int, sub: int) -> Row:
    return Row(A, sequence, sub, f"user-{sub}", f"{sequence}.{sub}".encode())


def plain_row(sequence: int) -> Row:
    return Row(A, sequence, 0, f"key-{sequence}", str(sequence).encode())


def mixed() -> ScriptedShard:
    records = [*recs(1), aggregated(2, 3), *recs(3), aggregated(4, 4), *recs(5)]
    return ScriptedShard(shard_id=A, records=records)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(
            after(1), after(3), [user_row(2, 0), user_row(2, 1), user_row(2, 2), plain_row(3)],
            id="whole",
        ),
        pytest.param(
            after(2, 1), after(4, 0), [user_row(2, 2), plain_row(3), user_row(4, 0)], id="parts"
        ),
        pytest.param(after(4, 0), after(4, 2), [user_row(4, 1), user_row(4, 2)], id="within-one"),
        pytest.param(after(4, 3), after(5), [plain_row(5)], id="after-the-last-user-record"),
    ],
)  # fmt: skip
def test_aggregates_are_split_within_the_bounds(
    start: AfterRecord, end: AfterRecord, expected: list[Row]
) -> None:
    the_range = shard_range(A, start, end)
    assert read(ScriptedService([mixed()]), the_range) == expected


def test_aggregates_pass_whole_when_not_asked_for() -> None:
    service = ScriptedService([mixed()])
    rows = read(service, shard_range(A, after(1), after(4, 3)), deaggregate=False)
    assert [(row.sequence, row.sub, row.key) for row in rows] == [
        (2, 0, "aggregate"),
        (3, 0, "key-3"),
        (4, 0, "aggregate"),
    ]
    assert service.listed == 0


def test_a_record_that_only_has_aggregate_magic_is_one_row() -> None:
    data = mixed().records[1].data[:-1] + b"?"
    shard = ScriptedShard(shard_id=A, records=[*recs(1), Rec(sequence=2, data=data), *recs(3)])
    rows = read(ScriptedService([shard]), shard_range(A, after(1), after(3)))
    assert rows == [Row(A, 2, 0, "k", data), plain_row(3)]
    rows = read(ScriptedService([shard]), shard_range(A, after(2), after(3)))
    assert rows == [plain_row(3)]


def test_repeat_keys_are_read_only_if_they_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed for each user record, and take memory."""
    the_slot = slot_of(shard_range(A, TrimHorizon(), after(5)))
    all_ = options(include_repeat_keys=True)

    def names(columns: list[Column] | None) -> list[str]:
        (batch,) = read_slot(
            the_slot, all_, ScriptedService([mixed()]), rates=ReadRates(), columns=columns
        )
        return list(batch.schema.names)

    assert names(None) == spark_schema(include_repeat_keys=True).names
    monkeypatch.setattr(page_rows, "repeat_keys", None)
    assert names([Column("ssp"), Column("data")]) == ["ssp", "data"]


STRAGGLERS = Stragglers(since=EpochMillis(0), family=WHOLE)


def test_user_records_are_left_out_only_where_the_range_says_so() -> None:
    shard = mixed()
    shard.hash_range = HashRange(first=0, last=0)
    service = ScriptedService([shard])
    the_range = shard_range(A, TrimHorizon(), after(5), stragglers=STRAGGLERS)
    assert read(service, the_range) == [plain_row(1), plain_row(3), plain_row(5)]
    assert len(read(service, shard_range(A, TrimHorizon(), after(5)))) == 10


def test_hash_ranges_are_asked_for_once_and_only_if_needed() -> None:
    plain = ScriptedShard(shard_id=B, records=recs(1), closed=True)
    shard = mixed()
    shard.closed = True
    shard.script = deque([Page(1)] * 5)
    service = ScriptedService([shard, plain])
    hash_ranges = HashRangeCache()

    def run(*ids: ShardId) -> None:
        the_slot = slot_of(*(shard_range(each, stragglers=STRAGGLERS) for each in ids))
        list(read_slot(the_slot, options(), service, rates=ReadRates(), hash_ranges=hash_ranges))

    run(B)
    assert service.listed == 0
    run(A, B)
    run(A)
    assert service.listed == 1


def test_a_newer_shard_or_a_recreated_stream_is_asked_for_again() -> None:
    service = ScriptedService([mixed()])
    hash_ranges = HashRangeCache()
    connection = options().connection
    hash_ranges.get(shard_range(A), connection, service)
    service.shards = {**service.shards, B: ScriptedShard(shard_id=B)}
    hash_ranges.get(shard_range(B), connection, service)
    assert service.listed == 2
    hash_ranges.get(shard_range(A), connection, service)
    assert service.listed == 2
    recreated = replace(shard_range(A), created=EpochMillis(CREATED + 1))
    hash_ranges.get(recreated, connection, service)
    assert service.listed == 3


def test_hash_ranges_of_a_bounded_number_of_connections_are_kept() -> None:
    service = ScriptedService([mixed()])
    hash_ranges = HashRangeCache()
    for session in range(MAX_KEPT + 1):
        connection = dataclasses.replace(LOCAL, aws_session_token=str(session))
        hash_ranges.get(shard_range(A), connection, service)
    assert service.listed == len(hash_ranges._kept) + 1 == MAX_KEPT + 1
    hash_ranges.get(shard_range(A), connection, service)
    assert service.listed == MAX_KEPT + 1


def test_an_unlisted_shard_has_expired() -> None:
    class Forgetful(ScriptedService):
        def list_shards(self, stream: StreamRef) -> tuple[Shard, ...]:
            return ()

    with pytest.raises(DataLossError, match="shard-not-found"):
        read(
            Forgetful([mixed()]),
            shard_range(A, TrimHorizon(), after(5), stragglers=STRAGGLERS),
        )


def test_no_row_is_repeated_over_many_shards_with_pages_of_one() -> None:
    shards = many(40, records=25)
    for shard in shards:
        shard.script = deque([Page(1)] * 25)
    rows = read(
        ScriptedService(shards, created=CREATED),
        *(shard_range(shard.shard_id) for shard in shards),
        max_bytes_in_flight=2_000,
    )
    assert set(Counter(rows).values()) == {1}
    for shard in shards:
        assert sequences(rows, shard.shard_id) == list(range(1, 26))
