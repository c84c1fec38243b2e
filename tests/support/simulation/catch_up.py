"""A query that catches up with a shard on simulated time: planner and reader, without Spark. The
service is the embedded one with the limits of AWS. Its shard makes records when they are read, so
that an hour of them needs no memory, and takes in more while the query runs."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.client.api import ThrottledError
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH
from spark_ssp.kinesis_source.model.shard import Position, RecordPage, ShardIterator, StreamRef
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.probing.batch_limits import Limits as TriggerLimits
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.shard_retry import Clock
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from spark_ssp.testing.kinesis import KinesisState, Limits, ManualClock
from spark_ssp.testing.kinesis.state.stream import (
    Record,
    RecordLog,
    Slice,
    base_number,
    compose_number,
    decode_number,
)
from tests.support.fakes.in_process import InProcessKinesis

_KEY = "k"
STREAM = "orders"
SHARD = "shardId-000000000000"
MEGABYTE = 1_000_000
OPENING_MS = 10
FETCHING_MS = 20
BYTES_PER_MS = 100_000
"""The rate at which answers are transferred."""

Arrivals = Callable[[int], int]
"""The arrival of record number n, in milliseconds after the first; never earlier than n - 1."""


def steady(per_second: int) -> Arrivals:
    """One record after the other."""
    return lambda n: n * 1000 // per_second


def in_clumps(per_second: int, clump: int) -> Arrivals:
    """`clump` records at a time, as PutRecords of several producers make them."""
    return lambda n: n // clump * clump * 1000 // per_second


def up_and_down(per_second: int, every_s: int) -> Arrivals:
    """`per_second` records for half the time, a quarter as many in the other half, by turns."""
    fast, slow = per_second * every_s // 2, per_second * every_s // 8

    def arrival(n: int) -> int:
        turns, place = divmod(n, fast + slow)
        begin = turns * every_s * 1000
        if place < fast:
            return begin + place * 1000 // per_second
        return begin + every_s * 500 + (place - fast) * 4000 // per_second

    return arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The records of a shard. `arrivals` as above, `size` returns the bytes of the first n records
    of `count`."""

    arrivals: Arrivals
    size: Callable[[int], int]
    count: int = 1 << 40
    largest: int

    @classmethod
    def even(cls, arrivals: Arrivals, record_bytes: int) -> Feed:
        """Return records of one size, without end."""
        return cls(arrivals=arrivals, size=lambda n: n * record_bytes, largest=record_bytes)

    @classmethod
    def of(cls, arrivals: Sequence[int], sizes: Sequence[int]) -> Feed:
        """Return records that arrive at these times, in milliseconds, and have these sizes."""
        return cls(
            arrivals=arrivals.__getitem__,
            size=[0, *accumulate(sizes)].__getitem__,
            count=len(sizes),
            largest=max(sizes),
        )


class MadeLog(RecordLog):
    """The records of `feed`. `begin_ms` is the time from which their arrivals count."""

    def __init__(self, base: int, feed: Feed, begin_ms: int) -> None:
        super().__init__()
        self._number_base = base
        self._feed = feed
        self._begin_ms = begin_ms
        self._data = b"x" * feed.largest
        self.now_ms = begin_ms

    @property
    def horizon(self) -> int:
        return 0

    @property
    def end(self) -> int:
        return self.at_time(self.now_ms + 1)

    def visible_end(self, now_ms: int) -> int:
        self.now_ms = max(self.now_ms, now_ms)
        return self.end

    def at_time(self, millis: int) -> int:
        feed = self._feed
        return bisect_left(range(feed.count), millis - self._begin_ms, key=feed.arrivals)

    def at_number(self, number: int) -> int:
        decoded = decode_number(number)
        assert decoded is not None
        return decoded.index - 1

    def after_number(self, number: int) -> int:
        return self.at_number(number) + 1

    def at(self, ordinal: int) -> Record | None:
        return self._record(ordinal) if 0 <= ordinal < self.end else None

    def slice(self, start: int, end: int, *, limit: int, max_bytes: int) -> Slice:
        size = self._feed.size
        most = range(start, max(start, min(end, start + limit)) + 1)
        fitting = bisect_right(most, size(start) + max_bytes, key=size) - 1
        last = start + max(min(1, len(most) - 1), fitting)
        records = [self._record(n) for n in range(start, last)]
        return Slice(records=records, size=size(last) - size(start), next_ordinal=last)

    def trim_before_time(self, millis: int) -> int:
        return 0

    def _record(self, ordinal: int) -> Record:
        arrival = self._begin_ms + self._feed.arrivals(ordinal)
        number = compose_number(self._number_base, ordinal + 1, arrival // 1000)
        size = self._feed.size(ordinal + 1) - self._feed.size(ordinal)
        return Record(str(number), _KEY, self._data[: size - len(_KEY)], arrival)


class _Timed(InProcessKinesis):
    """Calls take time, and are counted."""

    def __init__(self, state: KinesisState, clock: ManualClock) -> None:
        super().__init__(state, attempts=1)
        self._clock = clock
        self.fetches = 0
        self.throttled = 0

    def open_iterator(
        self,
        stream: StreamRef,
        shard: ShardId,
        position: Position,
        *,
        inclusive: bool = False,
        retry: bool = True,
    ) -> ShardIterator:
        self._clock.advance(OPENING_MS)
        return super().open_iterator(stream, shard, position, inclusive=inclusive, retry=retry)

    def get_records(
        self,
        stream: StreamRef,
        shard: ShardId,
        iterator: ShardIterator,
        *,
        limit: int,
        retry: bool = True,
    ) -> RecordPage:
        self._clock.advance(FETCHING_MS)
        self.fetches += 1
        try:
            page = super().get_records(stream, shard, iterator, limit=limit, retry=retry)
        except ThrottledError:
            self.throttled += 1
            raise
        self._clock.advance(sum(map(len, page.data)) // BYTES_PER_MS)
        return page


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """The result of a run."""

    seconds: float
    size: int
    """Bytes read, of keys and data."""
    fetches: int
    batches: tuple[int, ...]
    """The bytes of each batch."""
    behind_ms: int
    """The age of the first record that was not read."""
    throttled: int
    """The number of GetRecords that the service refused."""

    @property
    def megabytes_per_second(self) -> float:
        return self.size / MEGABYTE / self.seconds

    @property
    def share_of_calls(self) -> float:
        """Of the five GetRecords that a shard answers in a second."""
        return self.fetches / (5 * self.seconds)


def create_full_stream(state: KinesisState, feed: Feed, begin_ms: int) -> MadeLog:
    """Create a stream of one shard, with the records of `feed`. It is never written to."""
    state.create_stream(STREAM, 1)
    shard = state.shard(STREAM, SHARD)
    base = base_number(shard.era, shard.index)
    shard.log = log = MadeLog(base, feed, begin_ms)
    shard.last_number = compose_number(base, 1 << 60, 0)
    return log


def catch_up(
    options: dict[str, str],
    *,
    arrivals: Arrivals | Feed,
    backlog_s: int = 3600,
    seconds: float | None = None,
    record_bytes: int = 1000,
) -> CaughtUp:
    """Read for `seconds`, or until a second behind the latest record, with back-to-back triggers.
    `record_bytes` is the size of the records, unless a feed has theirs."""
    feed = arrivals if isinstance(arrivals, Feed) else Feed.even(arrivals, record_bytes)
    clock = ManualClock()
    state = KinesisState(clock=clock)
    log = create_full_stream(state, feed, clock.now_ms())
    clock.advance(backlog_s * 1000)
    state.set_limits(Limits.strict())
    service = _Timed(state, clock)
    parsed = parse_options(
        {"streamName": STREAM, "region": "x", "startingPosition": "trim_horizon", **options}
    )
    planner = BatchPlanner(
        parsed,
        service,
        monotonic=lambda: clock.now_ms() / 1000,
        sleep=sleeping(clock),
    )
    timing = Clock(
        monotonic=lambda: clock.now_ms() / 1000, wait=_waiting(clock), random=lambda: 0.5
    )
    bounds = TriggerLimits(
        max_records=parsed.max_records_per_trigger,
        max_bytes=parsed.max_bytes_per_trigger,
        max_shard_bytes=parsed.max_bytes_per_shard or None,
    )
    streams = {ref.name: ref for ref in parsed.streams}
    rates = ReadRates()
    began, offset, batches = clock.now_ms(), BEFORE_FIRST_BATCH, list[int]()
    behind, count = backlog_s * 1000, 0
    while (clock.now_ms() - began) / 1000 < (seconds or 1e9) and behind > 1000:
        end = planner.next_offset(offset, bounds)
        if end is None:
            continue
        before = count
        for part in plan_ranges(offset, end, streams, {}, planner.expected_sizes(end)):
            read = read_slot(
                part, parsed, service, clock=timing, hash_ranges=HashRangeCache(), rates=rates
            )
            count += sum(batch.num_rows for batch in read)
        batches.append(feed.size(count) - feed.size(before))
        offset = end
        following = log.at(count)
        behind = 0 if following is None else clock.now_ms() - following.arrival_ms
    planner.close()
    return CaughtUp(
        seconds=(clock.now_ms() - began) / 1000,
        size=sum(batches),
        fetches=service.fetches,
        batches=tuple(batches),
        behind_ms=behind,
        throttled=service.throttled,
    )


def sleeping(clock: ManualClock) -> Callable[[float], None]:
    """Return a sleep that only advances the clock."""

    def sleep(seconds: float) -> None:
        clock.advance(math.ceil(seconds * 1000))

    return sleep


def _waiting(clock: ManualClock) -> Callable[[threading.Event, float], None]:
    def wait(_: threading.Event, seconds: float) -> None:
        clock.advance(round(seconds * 1000) + 1)

    return wait
