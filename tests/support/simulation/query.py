"""Spark's part in a streaming query, simulated without Spark.

Spark's calls of a source, in order (MicroBatchExecution, and observations of it):

* A process starts: the reader is built, `initialOffset` called twice; under AvailableNow
  `prepareForTriggerAvailableNow` is called.
* A batch that is in the offset log and not in the commit log is replayed first: only
  `partitions(start, end)` is called, with the logged offsets (for batch 0 the start is requested
  again, since it is not logged).
* Otherwise `latestOffset(start, limit)`; the same text as the start means: nothing new.
* The end is written to the offset log, the tasks are read (a task may be given up midway and
  repeated), the sink writes the batch, once for each batch id, the commit log is written.

The process may die between any two of these steps. Offsets pass through JSON text each time, and
readers and partitions through pickle on their way to executors.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Any, NamedTuple, Protocol
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_ssp.common import structs
from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.common.spark.pyspark_api import ReadAllAvailable
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.client.api import KinesisService, SubscriptionError
from spark_ssp.kinesis_source.model.ranges import ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import (
    ConsumerArn,
    Position,
    RecordPage,
    SequenceNumber,
    ShardIterator,
    StreamRef,
)
from spark_ssp.kinesis_source.options.values import FanOutOptions
from spark_ssp.kinesis_source.reading import task_reader as reader_module
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.shard_retry import Clock
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from spark_ssp.kinesis_source.source import KinesisStreamReader, SlotPartition
from tests.support.fakes.scripted import FakeTime
from tests.support.simulation.world import LONGEST_HIDDEN_MS, PAYLOAD, ReadingTime, World


class Row(NamedTuple):
    """One row of a batch. `id` is the user record's number, taken from its data."""

    stream: str
    shard: str
    sequence_number: int
    sub: int
    id: int
    key: str | None
    arrival: int
    slot: int


class Trigger(StrEnum):
    PROCESSING_TIME = "processing-time"
    ONCE = "once"
    AVAILABLE_NOW = "available-now"


class Stage(StrEnum):
    """The last step of the process before it died."""

    PLANNED = "planned"
    LOGGED = "logged"
    READ = "read"
    WRITTEN = "written"


class Outcome(StrEnum):
    BATCH = "batch"
    REPLAY = "replay"
    NO_NEWS = "no news"
    DIED = "died"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """The disturbance of one batch. `torn`: tasks are given up after their first rows and repeated.
    `meanwhile` happens after the batch was logged and before it is read."""

    dies_after: Stage | None = None
    torn: bool = False
    meanwhile: Callable[[], None] | None = None


UNDISTURBED = Disturbance()


class Witness(Protocol):
    """Observes every step of a query."""

    def planning(self) -> None:
        """Called before the end of a new batch is requested."""
        ...

    def planned(self, batch: int, start: str, end: str) -> None:
        """Called after a new batch was planned; it is not logged yet."""
        ...

    def read(self, batch: int, tasks: Sequence[tuple[int, Sequence[Row]]]) -> None:
        """Called after all tasks of a batch were read, with (slot, rows) for each."""
        ...

    def committed(self, batch: int, rows: Sequence[Row]) -> None:
        """Called once a batch is in the sink and in the commit log."""
        ...


class SimulatedReader(KinesisStreamReader):
    """The stream reader, on a world's service and clock."""

    def __init__(self, raw_options: Mapping[str, str], world: World) -> None:
        super().__init__(raw_options)
        self.world: World = world
        self.hash_ranges = HashRangeCache()

    @property
    def slots(self) -> int | None:
        """The option `slots`."""
        return self._options.slots

    def _plan(self) -> BatchPlanner:
        clock = self.world.clock
        fan_out = FanOutOptions(consumer_name="simulated") if self.world.pushes else None
        if self._planner is None:
            self._planner = BatchPlanner(
                replace(self._options, fan_out=fan_out),
                self.world.service,
                monotonic=lambda: clock.now_ms() / 1000,
                # Rounded up: a wait is never shorter than asked for.
                sleep=lambda seconds: self.world.pass_time(int(seconds * 1000) + 1),
            )
        return self._planner

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read as on an executor; its waits advance the world's clock."""
        assert isinstance(partition, SlotPartition)
        shards = partition.value.shards
        time = ReadingTime(self.world.clock, shards)
        many = len(shards)
        with patch.multiple(
            reader_module,
            MAX_THREADS=many,
            MAX_SUBSCRIPTIONS=many,
            _MIN_WINDOW=1,
            ReadOrder=time.order,
        ):
            try:
                yield from self._read(partition, time.clock)
            except SspError:
                # The progress of the other shards depends on their threads. Hidden records that
                # they were shown are visible to the world now, too.
                self.world.pass_time(LONGEST_HIDDEN_MS)
                raise
        self.world.pass_time(time.longest_ms)

    def read_some(self, partition: SlotPartition) -> None:
        """Start to read and give up, while the world's time stops: the progress depends on its
        threads. If all records are hidden, the task fails instead of having a first row."""
        rows = self._read(partition, FakeTime().clock)
        with suppress(ServiceUnavailableError):
            next(rows, None)
        rows.close()

    def _read(self, partition: SlotPartition, clock: Clock) -> Generator[pa.RecordBatch]:
        rows = read_slot(
            push_some(partition.value) if self.world.pushes else partition.value,
            self._options,
            self.world.service,
            clock=clock,
            hash_ranges=self.hash_ranges,
            rates=ReadRates(),
            open_subscriber=lambda _: SimulatedSubscriber(self.world.service),
        )
        yield from rows


@dataclass(slots=True)
class SimulatedQuery:
    """A query with its checkpoint and its sink, which outlive the process that runs it."""

    world: World
    witness: Witness
    offset_log: list[str] = field(default_factory=list)
    commits: int = 0
    sink: dict[int, list[Row]] = field(default_factory=dict)
    trigger: Trigger = Trigger.PROCESSING_TIME
    reader: SimulatedReader | None = None
    error: SspError | None = None
    """The error of the last process."""

    # --- The process ------------------------------------------------------------------------------

    def start(self, options: Mapping[str, str], trigger: Trigger = Trigger.PROCESSING_TIME) -> bool:
        """Start a new process in place of the running one; return whether it started."""
        self.stop()
        self.trigger = trigger
        reader = SimulatedReader(options, self.world)
        self.reader = reader
        assert reader.initialOffset() == reader.initialOffset()
        return trigger is not Trigger.AVAILABLE_NOW or self._carefully(
            reader.prepareForTriggerAvailableNow
        )

    def stop(self) -> None:
        """Kill the process, if one runs. Nothing is saved."""
        if self.reader is not None:
            self.reader.stop()  # ends threads, as a killed process would
            self.reader = None

    def _carefully(self, ask: Callable[[], object]) -> bool:
        self.error = None
        self.world.service.listening = True
        try:
            ask()
        except SspError as error:
            self.error = pickle.loads(pickle.dumps(error))
            self.stop()
            return False
        finally:
            self.world.service.listening = False
            self.world.service.flush()
        return True

    # --- One batch --------------------------------------------------------------------------------

    def step(self, disturbance: Disturbance = UNDISTURBED) -> Outcome:
        """Replay the unfinished batch if there is one, otherwise try to plan and run the next."""
        reader = self.reader
        assert reader is not None, "no process runs"
        batch = self.commits
        replay = batch < len(self.offset_log)
        start = self._start_of(reader, batch)
        if replay:
            end = self.offset_log[batch]
        else:
            planned = self._next_end(reader, start)
            if planned is None:
                return Outcome.FAILED
            if planned == start:
                return Outcome.NO_NEWS
            end = planned
            self.witness.planned(batch, start, end)
            if self._dies(disturbance, Stage.PLANNED):
                return Outcome.DIED
            self.offset_log.append(end)
        if self._dies(disturbance, Stage.LOGGED):
            return Outcome.DIED
        if disturbance.meanwhile is not None:
            disturbance.meanwhile()
        outcome = self._run(reader, batch, start, end, disturbance)
        return Outcome.REPLAY if replay and outcome is Outcome.BATCH else outcome

    def _start_of(self, reader: SimulatedReader, batch: int) -> str:
        if batch == 0:
            return json.dumps(reader.initialOffset())
        return self.offset_log[batch - 1]

    def _next_end(self, reader: SimulatedReader, start: str) -> str | None:
        once = self.trigger is Trigger.ONCE
        limit = ReadAllAvailable() if once else reader.getDefaultReadLimit()
        answers: list[dict[str, Any]] = []
        self.witness.planning()
        if not self._carefully(
            lambda: answers.append(reader.latestOffset(json.loads(start), limit))
        ):
            return None
        reader.reportLatestOffset()
        return json.dumps(answers[0])

    def _run(
        self,
        reader: SimulatedReader,
        batch: int,
        start: str,
        end: str,
        disturbance: Disturbance,
    ) -> Outcome:
        """Read the tasks, write, commit."""
        tasks: list[tuple[int, list[Row]]] = []
        try:
            for partition in reader.partitions(json.loads(start), json.loads(end)):
                sent = pickle.loads(pickle.dumps(partition))
                assert isinstance(sent, SlotPartition)
                if disturbance.torn:
                    self._tear(reader, sent)
                tasks.append((sent.value.slot, _rows(reader.read(sent))))
        except SspError as error:
            self.error = pickle.loads(pickle.dumps(error))
            self.stop()
            return Outcome.FAILED
        self.witness.read(batch, tasks)
        if self._dies(disturbance, Stage.READ):
            return Outcome.DIED
        if batch not in self.sink:
            self.sink[batch] = [row for _, rows in tasks for row in rows]
        if self._dies(disturbance, Stage.WRITTEN):
            return Outcome.DIED
        self.commits += 1
        self.witness.committed(batch, self.sink[batch])
        return Outcome.BATCH

    def _tear(self, reader: SimulatedReader, partition: SlotPartition) -> None:
        """Start a task and give it up. Without faults, since the number that it would use up
        depends on its threads."""
        self.world.faults_on = False
        try:
            reader.read_some(partition)
        finally:
            self.world.faults_on = True

    def _dies(self, disturbance: Disturbance, stage: Stage) -> bool:
        if disturbance.dies_after is not stage:
            return False
        self.stop()
        return True


def _rows(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    rows: list[Row] = []
    for batch in batches:
        key, data, stream, shard, number, sub, arrival, slot = batch.columns
        rows.extend(
            map(
                Row,
                stream.to_pylist(),
                shard.to_pylist(),
                map(int, number.to_pylist()),
                sub.to_pylist(),
                (int(body.decode().removeprefix(PAYLOAD)) for body in data.to_pylist()),
                key.to_pylist(),
                (micros // 1000 for micros in arrival.cast(pa.int64()).to_pylist()),
                slot.to_pylist(),
            )
        )
    return rows


CONSUMER = ConsumerArn("arn:aws:kinesis:us-east-1:000000000000:stream/s/consumer/simulated:1")
_MOST_EMPTY = 3
_FAULTS = ("ResourceInUseException", "InternalFailureException", "TimeoutError", "ends early")


def push_some(slot: SlotRange) -> SlotRange:
    """Return the ranges of which most have a consumer."""
    return structs.replace(slot, shards=tuple(_pushed(each) for each in slot.shards))


def _pushed(range_: ShardRange) -> ShardRange:
    drawn = Random(f"{range_.key} {range_.start} {range_.end}").random()
    if drawn < 0.25:
        return range_
    # Without `expected`, a range of any size is worth pushing.
    return structs.replace(range_, consumer=CONSUMER, expected=None, is_polled_first=drawn < 0.5)


class SimulatedSubscriber:
    """`Subscriber` on a service in the same process: its pages as events, with faults.

    Half of all ranges are pushed, a quarter once GetRecords is throttled, and half of the
    subscriptions have a fault. All is drawn from the shard and the position: threads must not share
    a source of randomness.
    """

    def __init__(self, service: KinesisService) -> None:
        self._service = service

    def subscribe(
        self,
        consumer: ConsumerArn,
        shard: ShardKey,
        position: Position,
        *,
        inclusive: bool = False,
    ) -> _SimulatedSubscription:
        random = Random(f"{shard} {position} {inclusive}")
        fault = random.choice(_FAULTS) if random.random() < 0.5 else None
        after = random.randrange(4)
        if fault is not None and after == 0:
            raise _error(fault)
        stream = StreamRef(name=shard.stream)
        try:
            iterator = self._service.open_iterator(
                stream, shard.shard, position, inclusive=inclusive, retry=False
            )
        except SspError as error:
            raise _error(error.kind) from error
        return _SimulatedSubscription(
            self._service, shard, iterator, random=random, fault=fault, after=after
        )

    def close(self) -> None:
        """Nothing is open."""


class _SimulatedSubscription:
    def __init__(
        self,
        service: KinesisService,
        shard: ShardKey,
        iterator: ShardIterator,
        *,
        random: Random,
        fault: str | None,
        after: int,
    ) -> None:
        self._service = service
        self._shard = shard
        self._iterator: ShardIterator | None = iterator
        self._random = random
        self._fault = fault
        self._left = after
        self._page: RecordPage | None = None
        self._continuation = SequenceNumber("0")
        self._empty = 0

    def next_size(self) -> int | None:
        if self._fault is not None and self._left == 0:
            if self._fault == "ends early":
                return None
            raise _error(self._fault)
        self._left -= 1
        if self._iterator is None or self._empty == _MOST_EMPTY:
            return None
        try:
            page = self._service.get_records(
                StreamRef(name=self._shard.stream),
                self._shard.shard,
                self._iterator,
                limit=self._random.randint(1, 20),
                retry=False,
            )
        except SspError as error:
            raise _error(error.kind) from error
        self._iterator = page.next_iterator
        if len(page):
            self._continuation = page.sequence_numbers[-1]
        self._empty = 0 if len(page) else self._empty + 1
        following = None if page.next_iterator is None else ShardIterator(self._continuation)
        self._page = structs.replace(page, next_iterator=following)
        return 1_000 + sum(map(len, page.data))

    def next_page(self) -> RecordPage:
        assert self._page is not None
        return self._page

    def close(self) -> None:
        """Nothing is open."""


def _error(code: str) -> SubscriptionError:
    error = SubscriptionError("shard", found=code, expected="events", next_step="poll")
    error.code = code
    return error
