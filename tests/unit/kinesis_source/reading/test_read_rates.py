"""The reader's use of a shard's rates: calls, bytes, and the lifetime of iterators."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import pytest

from spark_ssp.common.options.values import is_loopback
from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.client.api import ThrottledError
from spark_ssp.kinesis_source.model.ranges import MAX_THREADS, ExpectedSize, ShardRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    RecordPage,
    SequenceNumber,
    ShardIterator,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import ConnectionOptions, KinesisOptions
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.shard_retry import Clock
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from spark_ssp.testing.kinesis import KinesisState, Limits, ManualClock
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.fakes.scripted import (
    NOW,
    STREAM,
    Empty,
    FakeTime,
    ScriptedService,
    ScriptedShard,
    expire,
    page_of,
    recs,
    throttle,
)
from tests.support.kinesis.reading import (
    A,
    Row,
    options,
    read,
    rows_of,
    shard_range,
    slot_of,
    timing_of,
)
from tests.support.kinesis.shards import after

REAL = ConnectionOptions(region="us-east-1")


class Counting(InProcessKinesis):
    """Counts the GetRecords calls, those that were throttled, and the bytes that came."""

    def __init__(self, state: KinesisState) -> None:
        super().__init__(state)
        self.counts: Counter[str] = Counter()
        self.bytes = 0

    def get_records(self, *args: Any, **named: Any) -> RecordPage:
        self.counts["calls"] += 1
        try:
            page = super().get_records(*args, **named)
        except ThrottledError:
            self.counts["throttled"] += 1
            raise
        self.bytes += sum(map(len, page.data))
        return page


class Scene:
    """Shards of one stream of equal records on the embedded service, and a clock moved by waits."""

    def __init__(self, *, shards: int = 1, records: int, size: int) -> None:
        self.clock = ManualClock()
        state = KinesisState(clock=self.clock)
        state.create_stream(STREAM.name, shards)
        self.numbers: dict[ShardId, list[SequenceNumber]] = {
            ShardId(shard): [] for shard in state.open_shard_ids(STREAM.name)
        }
        width = (1 << 128) // shards
        for place, numbers in enumerate(self.numbers.values()):
            for _ in range(records):
                put = state.put(STREAM.name, "key", b"x" * size, explicit_hash_key=place * width)
                numbers.append(SequenceNumber(put.sequence_number))
        self.clock.advance(60_000)
        state.set_limits(Limits.strict())
        self.service = Counting(state)
        self.rates = ReadRates()
        self._created = self.service.describe(STREAM).created

    def range(
        self, shard: ShardId, start: int, end: int, expected: ExpectedSize | None = None
    ) -> ShardRange:
        """The records `start` to `end` (excluded) of a shard."""
        numbers = self.numbers[shard]
        return ShardRange(
            stream=STREAM,
            shard=shard,
            hash_range=None,
            created=self._created,
            start=AfterRecord(sequence_number=numbers[start - 1]) if start else TrimHorizon(),
            start_caught_up_ms=None,
            expect_first=None if start else numbers[0],
            end=AfterRecord(sequence_number=numbers[end - 1]),
            expected=expected,
        )

    def read(self, *ranges: ShardRange, using: KinesisOptions, sink: int | None = None) -> int:
        """Read the ranges by one task, into a sink with this rate in bytes; return the rows."""
        rows = 0
        for batch in read_slot(
            slot_of(*ranges),
            using,
            self.service,
            clock=timing_of(self.clock),
            hash_ranges=HashRangeCache(),
            rates=self.rates,
        ):
            rows += batch.num_rows
            if sink is not None:
                self.clock.advance(batch.nbytes * 1000 // sink)
        return rows


# --- Requests of a batch --------------------------------------------------------------------------


@pytest.mark.parametrize("records", [1_000, 4_500, 9_000])
def test_batches_of_a_known_size_take_one_call_each_and_are_never_throttled(records: int) -> None:
    size, total = 1_000, 18_000
    scene = Scene(records=total, size=size)
    began = scene.clock.now_ms()
    known = ExpectedSize(records=records, size_bytes=records * (size + len("key")))
    for start in range(0, total, records):
        the_range = scene.range(A, start, start + records, known)
        assert scene.read(the_range, using=options(connection=REAL)) == records
    assert scene.service.counts == {"calls": total // records}
    seconds = (scene.clock.now_ms() - began) / 1000
    in_time = total - records  # the last batch need not be waited for
    assert in_time * size / seconds >= 1_800_000


@pytest.mark.parametrize("known", [1, 7, 999, 1_001, 30_000])
def test_a_wrong_size_costs_a_few_calls_and_no_record(known: int) -> None:
    scene = Scene(records=1_000, size=10)
    the_range = scene.range(A, 0, 1_000, ExpectedSize(records=known))
    assert scene.read(the_range, using=options()) == 1_000
    assert scene.service.counts["calls"] - scene.service.counts["throttled"] <= 11


def test_a_size_that_is_a_little_too_small_costs_few_bytes_beyond_the_end() -> None:
    """Eight batches of 2,000 records, of which the driver expects 1,900."""
    scene = Scene(records=16_000, size=1_000)
    for start in range(0, 16_000, 2_000):
        expected = ExpectedSize(records=1_900, size_bytes=1_900 * 1_003)
        the_range = scene.range(A, start, start + 2_000, expected)
        assert scene.read(the_range, using=options(connection=REAL)) == 2_000
    assert scene.service.counts["calls"] == 8 * 2
    assert scene.service.bytes < 16_000_000 * 1.08


def test_the_start_record_comes_in_addition_to_those_expected() -> None:
    limits: list[int] = []

    class Watching(ScriptedService):
        def get_records(self, *args: Any, limit: int, **named: Any) -> RecordPage:
            limits.append(limit)
            return super().get_records(*args, limit=limit, **named)

    service = Watching([ScriptedShard(shard_id=A, records=recs(*range(1, 90)))])
    read(service, shard_range(A, after(3), after(9), expected=ExpectedSize(records=6)))
    read(service, shard_range(A, TrimHorizon(), after(9), expected=ExpectedSize(records=9)))
    assert limits == [7, 9]


# --- How fast -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_a_backlog_of_unknown_size_is_read_at_what_the_shard_grants(size: int) -> None:
    total = 40_000_000 // size
    scene = Scene(records=total, size=size)
    began = scene.clock.now_ms()
    assert scene.read(scene.range(A, 0, total), using=options(connection=REAL)) == total
    assert scene.service.counts["throttled"] == 0
    pages = scene.service.counts["calls"]
    assert pages <= 5
    seconds = (scene.clock.now_ms() - began) / 1000
    assert total * size * (pages - 1) / pages / seconds >= 1_800_000


def test_a_local_service_is_read_at_full_speed_until_it_throttles_the_stream() -> None:
    def script(shard: ScriptedShard) -> ScriptedService:
        return ScriptedService([shard])

    rates = ReadRates()

    def waits(shard: ScriptedShard) -> list[float]:
        time = FakeTime()
        batches = read_slot(
            slot_of(shard_range(A, TrimHorizon(), after(40))),
            options(max_records_per_fetch=10),
            script(shard),
            clock=time.clock,
            rates=rates,
        )
        assert len(rows_of(list(batches))) == 40
        return time.waits

    records = recs(*range(1, 60))
    assert waits(ScriptedShard(shard_id=A, records=records)) == []
    throttled = ScriptedShard(shard_id=A, records=records)
    throttled.script.append(throttle())
    assert waits(throttled) == pytest.approx([0.1, 0.25, 0.25, 0.25])
    assert waits(ScriptedShard(shard_id=A, records=records))[-3:] == pytest.approx([0.25] * 3)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (None, False),
        ("https://kinesis.us-east-1.amazonaws.com", False),
        ("https://vpce-1.kinesis.us-east-1.vpce.amazonaws.com", False),
        ("http://10.0.0.7:4566", False),
        ("http://localhost.example.com", False),
        ("http://localhost:4566", True),
        ("http://kinesis.localhost:4566", True),
        ("http://127.8.0.1:4567", True),
        ("http://[::1]:4567", True),
    ],
)
def test_only_endpoints_of_this_machine_may_grant_any_rate(url: str | None, expected: bool) -> None:
    assert is_loopback(url) is expected


# --- Slow sinks -----------------------------------------------------------------------------------


def test_a_slow_sink_outlives_iterators_of_all_the_shards_that_wait_for_memory() -> None:
    """Sixteen shards take turns, and a turn comes every quarter of an hour."""
    scene = Scene(shards=16, records=60, size=50_000)
    ranges = [scene.range(shard, 0, 60) for shard in scene.numbers]
    using = options(connection=REAL, max_records_per_fetch=20, max_bytes_in_flight=1 << 20)
    began = scene.clock.now_ms()
    assert scene.read(*ranges, using=using, sink=20_000) == 16 * 60
    assert scene.clock.now_ms() - began > 2_000_000
    # Three pages of a shard, each of the later ones behind a record fetched again as the anchor.
    assert scene.service.counts == {"calls": 16 * 4}


def test_many_shards_are_followed_through_their_gaps_at_once() -> None:
    """No shard waits for another one's gap, although full pages of all would not fit."""
    together = threading.Barrier(MAX_THREADS)
    fetched: Counter[ShardId] = Counter()

    def meet(shard: ShardId) -> None:
        fetched[shard] += 1
        if fetched[shard] == 2:
            together.wait(20)

    shards = [
        ScriptedShard(
            shard_id=ShardId(f"shard-{number:02}"),
            records=recs(1, 2, 3),
            closed=True,
            script=deque([Empty(), Empty()]),
        )
        for number in range(MAX_THREADS)
    ]
    service = ScriptedService(shards, before_fetch=meet)
    rows = read(service, *(shard_range(shard.shard_id) for shard in shards))
    assert len(rows) == 3 * MAX_THREADS


class Gappy(ScriptedService):
    """Shards of which a call passes a hundred sequence numbers; iterators live for five minutes."""

    def __init__(self, shards: Sequence[ScriptedShard], clock: ManualClock) -> None:
        super().__init__(shards)
        self._clock = clock

    def open_iterator(self, *args: Any, **named: Any) -> ShardIterator:
        return self._issue(super().open_iterator(*args, **named))

    def get_records(
        self,
        stream: StreamRef,
        shard: ShardId,
        iterator: ShardIterator,
        *,
        limit: int,
        retry: bool = True,
    ) -> RecordPage:
        place, issued = map(int, iterator.split("@"))
        if self._clock.now_ms() - issued > 300_000:
            raise expire().error
        records = [
            record
            for record in self.shards[shard].records
            if place <= record.sequence < place + 100
        ]
        return page_of(records, self._issue(str(place + 100)), 100_000 - place, NOW)

    def _issue(self, place: str) -> ShardIterator:
        return ShardIterator(f"{place}@{self._clock.now_ms()}")


def test_the_way_through_empty_pages_is_not_lost_in_waits_for_memory() -> None:
    """Each page takes the sink ten minutes. One shard has a gap of many pages, others have none."""
    clock = ManualClock()

    def shard(name: str, *sequences: int) -> ScriptedShard:
        big = recs(*sequences, data=lambda _: bytes(600 << 10))
        return ScriptedShard(shard_id=ShardId(name), records=big)

    busy = range(1, 2_000, 100)
    shards = [shard("gap", 1, 5_000), shard("one", *busy), shard("two", *busy)]

    def wait(_: threading.Event, seconds: float) -> None:
        clock.advance(int(seconds * 1000) + 1)

    rows: list[Row] = []
    for batch in read_slot(
        slot_of(
            *(
                shard_range(each.shard_id, TrimHorizon(), after(each.records[-1].sequence))
                for each in shards
            )
        ),
        options(max_bytes_in_flight=1 << 20),
        Gappy(shards, clock),
        clock=Clock(monotonic=lambda: clock.now_ms() / 1000, wait=wait, random=lambda: 0.0),
        rates=ReadRates(),
    ):
        rows += rows_of([batch])
        clock.advance(600_000)
    assert Counter(row.shard for row in rows) == {"gap": 2, "one": 20, "two": 20}
    place = [(row.shard, row.sequence) for row in rows].index(("gap", 5_000))
    assert place < 10, "it takes its turn like the others"
