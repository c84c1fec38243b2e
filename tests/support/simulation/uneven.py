"""A query that reads a backlog of shards of different rates, on simulated time: planner only, tasks
are calculated.

The service answers within the quotas of AWS for each shard. The driver's calls share 32 threads, as
in the product at first; the tasks of a batch read all shards side by side, in fetches of the sizes
that the planner expects, and Spark adds `OVERHEAD_MS`. Triggers follow one another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.client.api import ThrottledError
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH
from spark_ssp.kinesis_source.model.ranges import ShardRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Position,
    RecordPage,
    ShardIterator,
    StreamRef,
)
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.probing import probe_runner
from spark_ssp.kinesis_source.probing.batch_limits import Limits
from spark_ssp.kinesis_source.reading.fetch_pacing import FetchSizer
from spark_ssp.testing.kinesis import Limits as Quotas
from spark_ssp.testing.kinesis import ManualClock
from spark_ssp.testing.kinesis.state.errors import KinesisError
from spark_ssp.testing.kinesis.state.limits import RateLimiter
from tests.support.fakes.formula_kinesis import PAGE_BYTES, FormulaKinesis, index_of
from tests.support.simulation.catch_up import (
    BYTES_PER_MS,
    FETCHING_MS,
    OPENING_MS,
    STREAM,
    sleeping,
)

THREADS = probe_runner.MAX_PROBE_THREADS
THROTTLED_MS = 250
"""The time after which a task repeats a call that was throttled."""
OVERHEAD_MS = 300
"""The time that Spark needs for a batch, and for the start of its tasks."""

CAUGHT_UP_MS = 10_000
"""The age of the oldest unread record of a query that has caught up."""


def spread_rates(shards: int, lowest: float, highest: float) -> tuple[float, ...]:
    """Return rates, in records a second, whose logarithms are evenly spaced, in a fixed order."""
    step = math.log(highest / lowest) / max(1, shards - 1)
    return tuple(lowest * math.exp(step * (17 * number % shards)) for number in range(shards))


@dataclass(kw_only=True)
class UnevenKinesis(FormulaKinesis):
    """Shards with a rate each, in records a second. Records arrive at irregular times."""

    rates: Sequence[float]
    interval_ms: int = 0
    fetches: int = 0
    """The number of GetRecords of the driver."""
    refused: int = 0
    """The number of GetRecords that were throttled, of the driver and of tasks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        strict = Quotas.strict()
        self._quotas = RateLimiter(
            Quotas(
                get_records_per_shard=strict.get_records_per_shard,
                read_bytes_per_shard=strict.read_bytes_per_shard,
            )
        )
        self._intervals = [1000 / rate for rate in self.rates]
        self._spent = 0

    def arrival(self, shard: ShardId, index: int) -> int:
        jitter = (index * 2_654_435_761 & 0xFFFF_FFFF) / 0x1_0000_0000
        return self.created + int((index + jitter) * self._intervals[int(shard[-12:])])

    def first_from(self, shard: ShardId, time: int) -> int:
        index = max(0, int((time - self.created) / self._intervals[int(shard[-12:])]) - 1)
        while self.arrival(shard, index) < time:
            index += 1
        return index

    def open_iterator(
        self,
        stream: StreamRef,
        shard: ShardId,
        position: Position,
        *,
        inclusive: bool = False,
        retry: bool = True,
    ) -> ShardIterator:
        self._spend(OPENING_MS)
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
        self._spend(FETCHING_MS)
        self.fetches += 1
        if not self.admits(shard):
            raise ThrottledError(
                f"shard {shard}", found="throttling", expected="an answer", next_step="wait"
            )
        found = super().get_records(stream, shard, iterator, limit=limit, retry=retry)
        size = len(found.data) * self.record_bytes
        self.answer(shard, size)
        self._spend(size // BYTES_PER_MS)
        return found

    def admits(self, shard: ShardId) -> bool:
        """Count a call of GetRecords; return whether the quotas admit it."""
        try:
            self._quotas.get_records(STREAM, shard, self.clock.now_ms())
        except KinesisError:
            self.refused += 1
            return False
        return True

    def answer(self, shard: ShardId, size: int) -> None:
        """Count the bytes of an answer."""
        self._quotas.record_bytes_read(STREAM, shard, size, self.clock.now_ms())

    def _spend(self, milliseconds: int) -> None:
        """Let a call of one of the driver's threads take this time."""
        self._spent += milliseconds
        self.clock.advance(self._spent // THREADS)
        self._spent %= THREADS


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogRead:
    """The result of a run."""

    seconds: float
    batches: int
    records: int
    """Those of the backlog, and those that arrived meanwhile and were read."""
    driver_calls: int
    """GetRecords of the driver, as of the others."""
    task_calls: int
    refused: int
    """Those of both that were throttled."""

    @property
    def per_second(self) -> float:
        """The records read in a second."""
        return self.records / self.seconds

    @property
    def calls(self) -> int:
        return self.driver_calls + self.task_calls


@dataclass(kw_only=True)
class BacklogReader:
    """One query over shards of these rates, which holds `backlog_s` of records of `record_bytes`.
    They take in more while it reads."""

    options: dict[str, str]
    rates: Sequence[float]
    backlog_s: int = 3600
    record_bytes: int = 1000
    batches: list[int] = field(default_factory=list)
    """The records of each batch."""
    task_calls: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.service = UnevenKinesis(
            clock=self.clock,
            shards=len(self.rates),
            rates=self.rates,
            record_bytes=self.record_bytes,
            calls_per_second=1 << 30,
        )
        self.clock.advance(self.backlog_s * 1000)
        self.read = dict.fromkeys(self.service.shard_ids(), 0)
        """The number of records that were read of each shard."""

    def run(self) -> BacklogRead:
        """Read until the query has caught up."""
        parsed = parse_options(
            {
                "streamName": STREAM,
                "region": "us-east-1",
                "startingPosition": "trim_horizon",
                **self.options,
            }
        )
        planner = BatchPlanner(
            parsed,
            self.service,
            monotonic=lambda: self.clock.now_ms() / 1000,
            sleep=sleeping(self.clock),
        )
        limits = Limits(
            max_records=parsed.max_records_per_trigger, max_bytes=parsed.max_bytes_per_trigger
        )
        streams = {ref.name: ref for ref in parsed.streams}
        began, offset = self.clock.now_ms(), BEFORE_FIRST_BATCH
        with patch.object(probe_runner, "MAX_PROBE_THREADS", 1):
            while not self._has_caught_up():
                end = planner.next_offset(offset, limits)
                if end is None:
                    continue
                parts = plan_ranges(offset, end, streams, {}, planner.expected_sizes(end))
                self._run_tasks([shard for part in parts for shard in part.shards])
                offset = end
        planner.close()
        return BacklogRead(
            seconds=(self.clock.now_ms() - began) / 1000,
            batches=len(self.batches),
            records=sum(self.batches),
            driver_calls=self.service.fetches,
            task_calls=self.task_calls,
            refused=self.service.refused,
        )

    def _has_caught_up(self) -> bool:
        """Return whether no record is unread that is older than `CAUGHT_UP_MS`."""
        since = self.clock.now_ms() - CAUGHT_UP_MS
        return all(self.service.arrival(*part) >= since for part in self.read.items())

    def _run_tasks(self, ranges: Sequence[ShardRange]) -> None:
        """Read all shards of a batch side by side."""
        began = self.clock.advance(OVERHEAD_MS)
        ended, records = began, 0
        for shard in ranges:
            self.clock.set(began)
            records += self._read(shard)
            ended = max(ended, self.clock.now_ms())
        self.clock.set(ended)
        self.batches.append(records)

    def _read(self, shard: ShardRange) -> int:
        """Read one shard's part; return the number of its records."""
        first, end = self.read[shard.shard], shard.end
        assert isinstance(end, AfterRecord)
        count = index_of(end.sequence_number) + 1 - first
        assert count > 0
        # The record before the range is read again.
        repeated = int(first > 0)
        sizer = FetchSizer(10_000, shard.expected)
        self.clock.advance(OPENING_MS)
        while sizer.fetched < count:
            limit = sizer.record_limit(repeated=repeated)
            there = self.service.count(shard.shard) - first - sizer.fetched + repeated
            fetched = min(limit, there, PAGE_BYTES // self.record_bytes)
            size = fetched * self.record_bytes
            while True:
                self.clock.advance(FETCHING_MS)
                self.task_calls += 1
                if self.service.admits(shard.shard):
                    break
                self.clock.advance(THROTTLED_MS)
            self.service.answer(shard.shard, size)
            self.clock.advance(size // BYTES_PER_MS)
            sizer.record_page(fetched - repeated, size)
            repeated = 0
        self.read[shard.shard] = first + count
        return count
