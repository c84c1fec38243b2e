"""A query of very many full shards, whose tasks are calculated instead of run.

Planning is the real one, through the reader's interface to Spark, offsets as text. A task reads its
shards in parallel, each at the rate that the service and the sink leave it. The data-loss checks of
a real task run when it opens the shard and when it reaches the range's end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from spark_ssp.common.spark.pyspark_api import ReadAllAvailable
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.model.offset import decode
from spark_ssp.kinesis_source.model.ranges import ShardRange
from spark_ssp.kinesis_source.model.shard import AfterRecord, ShardState
from spark_ssp.kinesis_source.planning.data_loss import DataLossChecks
from spark_ssp.kinesis_source.probing.probe_rate_limiter import PAUSE_S, RETRIES
from spark_ssp.kinesis_source.source import KinesisStreamReader, SlotPartition
from tests.support.fakes.formula_kinesis import FormulaKinesis, index_of, number_of

STREAM = "orders"
SHARD_BYTES_PER_MS = 2_000
"""A shard gives 2 MB a second (Kinesis quotas)."""
OVERHEAD_MS = 3_000
"""The time that Spark needs for a batch, and for the start of its tasks."""
LAG_TOLERANCE_MS = 2_000
REPEATS_MS = RETRIES * (int(PAUSE_S * 1000) + 1)


class FleetReader(KinesisStreamReader):
    """The stream reader on the service's clock."""

    def __init__(self, raw_options: Mapping[str, str], service: FormulaKinesis) -> None:
        super().__init__(raw_options)
        self._service = service

    def _plan(self) -> BatchPlanner:
        clock = self._service.clock
        if self._planner is None:
            self._planner = BatchPlanner(
                self._options,
                self._service,
                monotonic=lambda: clock.now_ms() / 1000,
                sleep=self._sleep,
            )
        return self._planner

    def _sleep(self, seconds: float) -> None:
        self._service.clock.advance(int(seconds * 1000) + 1)

    def all_lag(self) -> Mapping[ShardId, int]:
        """The lag of every shard, also of those that a report leaves out."""
        return self._plan().lag()[STREAM]


@dataclass(kw_only=True)
class Fleet:
    """One query with its defaults. `share`: the part of a shard's rate that other consumers leave.
    `sink_bytes_per_ms`: the rate of the sink. `first_tasks_ms`: the time that the first tasks take
    to start."""

    service: FormulaKinesis
    trigger_ms: int
    first_tasks_ms: int
    sink_bytes_per_ms: Callable[[], float]
    share: Callable[[], float]
    options: Mapping[str, str] = field(default_factory=dict)
    offset: str = ""
    batches: int = 0
    longest_batch_ms: int = 0
    report_bytes: int = 0
    read: dict[ShardId, tuple[int, int]] = field(default_factory=dict)
    """The first record that was read of a shard, and the one after the last."""

    def __post_init__(self) -> None:
        self._reader = FleetReader(
            {
                "streamName": STREAM,
                "region": "us-east-1",
                "startingPosition": "trim_horizon",
                **self.options,
            },
            self.service,
        )
        self.offset = json.dumps(self._reader.initialOffset())

    def stop(self) -> None:
        """End the query."""
        self._reader.stop()

    def run_for(self, milliseconds: int) -> Iterator[None]:
        """Trigger for this time; yields after each trigger."""
        clock = self.service.clock
        until = clock.now_ms() + milliseconds
        while clock.now_ms() < until:
            began = clock.now_ms()
            self._trigger()
            yield
            clock.advance(max(0, began + self.trigger_ms - clock.now_ms()))

    def _trigger(self) -> None:
        limit = self._reader.getDefaultReadLimit()
        assert not isinstance(limit, ReadAllAvailable)
        end = json.dumps(self._reader.latestOffset(json.loads(self.offset), limit))
        self._check_lag(end)
        if end != self.offset:
            self._batch(end)
        report = json.dumps(self._reader.reportLatestOffset())
        self.report_bytes = max(self.report_bytes, len(report))

    def _batch(self, end: str) -> None:
        began = self.service.clock.now_ms()
        self._run(
            [
                shard
                for partition in self._reader.partitions(json.loads(self.offset), json.loads(end))
                if isinstance(partition, SlotPartition)
                for shard in partition.value.shards
            ]
        )
        self.offset = end
        self.batches += 1
        self.longest_batch_ms = max(self.longest_batch_ms, self.service.clock.now_ms() - began)

    # --- The tasks --------------------------------------------------------------------------------

    def _run(self, ranges: list[ShardRange]) -> None:
        """Open every shard, read all of them in parallel, and commit."""
        clock = self.service.clock
        clock.advance(OVERHEAD_MS if self.batches else self.first_tasks_ms)
        spans = {shard: self._open(shard) for shard in ranges}
        sizes = {
            shard: (last - first) * self.service.record_bytes
            for shard, (first, last) in spans.items()
        }
        rate = SHARD_BYTES_PER_MS * self.share()
        lasts = max(max(sizes.values()) / rate, sum(sizes.values()) / self.sink_bytes_per_ms())
        clock.advance(int(lasts))
        for shard, (first, last) in spans.items():
            assert last > first
            if self.service.horizon(shard.shard) >= last:
                self._loss_checks(shard).report_missing_end("nothing")
            begun = self.read.get(shard.shard)
            assert begun is None or begun[1] == first, f"{shard.key} is not read without a gap"
            self.read[shard.shard] = (first if begun is None else begun[0], last)

    def _loss_checks(self, shard: ShardRange) -> DataLossChecks:
        return DataLossChecks(range=shard, service=self.service, fail=True)

    def _open(self, shard: ShardRange) -> tuple[int, int]:
        """The first record that a task finds, and the one after the last of the range."""
        horizon = self.service.horizon(shard.shard)
        assert isinstance(shard.end, AfterRecord)
        last = index_of(shard.end.sequence_number) + 1
        begin = shard.start_state
        anchor = self._anchor(begin)
        wanted = horizon if anchor is None else anchor
        if horizon > wanted:
            found = number_of(min(horizon, last))
            self._loss_checks(shard).check_start(begin, found)
        if horizon >= last:
            self._loss_checks(shard).report_missing_end("nothing")
        first = max(horizon, wanted + isinstance(begin.position, AfterRecord))
        return first, last

    def _anchor(self, begin: ShardState) -> int | None:
        if isinstance(begin.position, AfterRecord):
            return index_of(begin.position.sequence_number)
        return None if begin.first is None else index_of(begin.first)

    # --- Lag --------------------------------------------------------------------------------------

    def _check_lag(self, end: str) -> None:
        """Check that the lag is never less than the truth; and not more, for a shard that
        answers."""
        now = self.service.clock.now_ms()
        lag = self._reader.all_lag()
        offset = decode(json.loads(end))
        for shard in self.service.shard_ids():
            state = offset.states[ShardKey(stream=StreamName(STREAM), shard=shard)]
            truth = self._true_lag(shard, state, now)
            assert lag[shard] >= truth - LAG_TOLERANCE_MS, (
                f"{shard}: a lag of {lag[shard]} ms, in truth {truth}"
            )
            if not self.service.throttled(shard) and self.batches:
                # It counts from before the first probe, and probes may be repeated.
                assert lag[shard] <= truth + LAG_TOLERANCE_MS + REPEATS_MS, (
                    f"{shard}: a lag of {lag[shard]} ms, in truth {truth}"
                )

    def _true_lag(self, shard: ShardId, state: ShardState, now: int) -> int:
        anchor = self._anchor(state)
        following = self.service.horizon(shard) if anchor is None else anchor
        following += isinstance(state.position, AfterRecord)
        if following >= self.service.count(shard):
            return 0
        return now - self.service.arrival(shard, max(following, self.service.horizon(shard)))
