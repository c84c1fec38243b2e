"""What a task believes of brokers that are behind: against a scripted consumer and old metadata."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pytest

from spark_ssp.common.errors import DataLossError, ServiceUnavailableError, StreamNotFoundError
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.api import (
    KafkaService,
    OffsetSpec,
    TimedOffset,
    TopicDescription,
)
from spark_ssp.kafka_source.client.error_translation import ErrorKind
from spark_ssp.kafka_source.model.ranges import PartitionRange
from spark_ssp.kafka_source.model.topic import LogicalOffset, Selection, TopicId
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.reading.arrow_batches import (
    RecordColumns,
    all_columns,
    binary_column,
    numeric_column,
    rows_within,
)
from spark_ssp.kafka_source.reading.consumer_api import Event, PartitionEof, ReadError, RecordRun
from spark_ssp.kafka_source.reading.progress import CONFIRM_INTERVAL_S, CONFIRMATIONS, RangeProgress
from spark_ssp.kafka_source.reading.task_reader import (
    MAX_SERVICES,
    POLL_BYTES,
    VALID_S,
    GenerationReader,
    TopicIdChecker,
    _check_topic_ids,
)
from tests.support.fakes.clocks import ManualTime
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.driving import kafka_options
from tests.support.kafka.reading import part, task

T = TypeVar("T")

ALL = all_columns(include_headers=False, include_task=False)
PLANNED = part("orders", 0, 0, 100, topic_id="new")
SECOND = part("orders", 1, 0, 100, topic_id="new")


def fault(kind: ErrorKind, ssp: SystemStreamPartition | None = PLANNED.ssp) -> ReadError:
    error = StreamNotFoundError("a", found="b", expected="c", next_step="d")
    return ReadError(ssp=ssp, kind=kind, error=error)


@dataclass
class Brokers:
    """Describe the topic with these ids in turn, the last one for ever; None: it is not there."""

    ids: list[str | None]
    looks: int = 0

    def describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        topic_id = self.ids[min(self.looks, len(self.ids) - 1)]
        self.looks += 1
        if topic_id is None:
            return {}
        name = StreamName("orders")
        return {name: TopicDescription(topic_id=TopicId(topic_id), partition_count=1)}

    def list_offsets(
        self,
        partitions: Collection[SystemStreamPartition],
        point: OffsetSpec,
        *,
        uncommitted: bool = False,
    ) -> Mapping[SystemStreamPartition, int | None]:
        logs = {ssp: self.log(ssp) for ssp in partitions}
        return {ssp: log[0 if point is LogicalOffset.EARLIEST else 1] for ssp, log in logs.items()}

    def log(self, ssp: SystemStreamPartition) -> tuple[int, int]:
        """Return the begin and the end of a partition's log."""
        return 0, 100

    def first_records(
        self, partitions: Collection[SystemStreamPartition], since_ms: EpochMillis
    ) -> Mapping[SystemStreamPartition, TimedOffset | None]:
        raise AssertionError("a task does not ask for times")


@dataclass
class Consumer:
    """Has nothing until the brokers were asked `after` times and the partition was placed so often,
    then the end of the log."""

    brokers: Brokers
    time: ManualTime
    after: int
    fault: ReadError
    placements: int = 1
    ssp: SystemStreamPartition = PLANNED.ssp
    buffered_rows: int = 0
    buffered_bytes: int = 0
    placed: list[int] = field(default_factory=list)

    def assign(
        self, positions: Mapping[SystemStreamPartition, int], *, headers: bool = False
    ) -> None:
        self.placed += positions.values()

    def seek(self, ssp: SystemStreamPartition, offset: int) -> None:
        self.placed.append(offset)

    def unassign(self, ssps: Sequence[SystemStreamPartition]) -> None:
        raise AssertionError("one range alone is read")

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        self.time.now += wait_s
        if self.brokers.looks < self.after or len(self.placed) < self.placements:
            return [self.fault]
        return [PartitionEof(ssp=self.ssp, offset=100)]

    def keep(self, run: RecordRun, kept: slice) -> None:
        raise AssertionError("there are no records")

    def take(self, most: int, columns: Collection[str]) -> RecordColumns:
        raise AssertionError("there are no records")

    def last_error(self) -> str | None:
        return None

    def close(self) -> None:
        pass


@dataclass
class Paused(Brokers):
    """A broker that was paused and does not know the new leader answers the first requests; all of
    them if `stale` is None."""

    stale: int | None = 0
    growth: int = 0
    """Records that it accepts before each request: it is not behind then, but was truncated."""

    def log(self, ssp: SystemStreamPartition) -> tuple[int, int]:
        is_stale = self.stale is None or self.looks <= self.stale
        return 0, 15 + self.growth * self.looks if is_stale else 100


def read(
    brokers: Brokers,
    time: ManualTime,
    *,
    after: int,
    kind: ErrorKind = ErrorKind.MISSING,
    fail: str = "true",
    placements: int = 1,
    timeout: str = "60s",
    ssp: SystemStreamPartition | None = PLANNED.ssp,
    planned: PartitionRange = PLANNED,
) -> list[int]:
    """The offsets from which the partition was read."""
    consumer = Consumer(brokers, time, after, fault(kind, ssp), placements, planned.ssp)
    wave = reader_of(consumer, planned, pollTimeout=timeout, failOnDataLoss=fail)
    assert list(wave.read()) == []
    return consumer.placed


def reader_of(consumer: Consumer, *ranges: PartitionRange, **options: str) -> GenerationReader:
    return GenerationReader(
        task=task(*ranges),
        options=kafka_options(**options),
        columns=ALL,
        progress=RangeProgress(ranges),
        consumer=consumer,
        service=lambda: consumer.brokers,
        monotonic=consumer.time.monotonic,
        sleep=consumer.time.sleep,
    )


def at_once(function: Callable[[], T]) -> Future[T]:
    """As `run_in_thread`, without a thread."""
    future: Future[T] = Future()
    future.set_result(function())
    return future


@pytest.mark.parametrize("ssp", [None, PLANNED.ssp])
def test_only_errors_that_do_not_keep_from_reading_are_passed_over(
    ssp: SystemStreamPartition | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are of the partition or of the brokers."""
    monkeypatch.setattr("spark_ssp.kafka_source.reading.task_reader.run_in_thread", at_once)
    for kind in (ErrorKind.TRANSIENT, ErrorKind.GROUP_ACCESS):
        assert read(Brokers(["new"]), ManualTime(), after=1, kind=kind, ssp=ssp) == [0]
    brokers = Brokers(["new"])
    for kind in (ErrorKind.ACCESS, ErrorKind.PERMANENT):
        with pytest.raises(StreamNotFoundError):
            read(brokers, ManualTime(), after=1, kind=kind, ssp=ssp)
    assert brokers.looks == 0, "they are raised at once"


def test_an_end_before_the_position_is_a_loss_once_it_is_confirmed_or_if_tolerated_it_stays(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ssp.kafka_source.reading.task_reader.run_in_thread", at_once)
    planned = part("orders", 0, 50, 100, topic_id="new")

    def placed(fail: str, stale: int | None, time: ManualTime, growth: int = 0) -> list[int]:
        brokers = Paused(["new"], stale=stale, growth=growth)
        again = 10_000 if stale is None else stale + 2
        kind = ErrorKind.OUT_OF_RANGE
        return read(brokers, time, after=0, kind=kind, fail=fail, placements=again, planned=planned)

    for stale in range(CONFIRMATIONS):
        assert placed("true", stale, ManualTime()) == [50] * (stale + 2)
    with pytest.raises(DataLossError):
        placed("true", CONFIRMATIONS, ManualTime())
    for stale in range(5 * CONFIRMATIONS):
        assert placed("false", stale, ManualTime()) == [50] * (stale + 2)
    assert not caplog.messages
    time = ManualTime()
    began = time.now
    assert set(placed("false", None, time)) == {50}
    assert "an end at 15" in caplog.text
    assert time.now - began >= 60
    caplog.clear()
    for stale in range(CONFIRMATIONS):
        assert placed("false", stale, ManualTime(), growth=1) == [50] * (stale + 2)
    assert not caplog.messages
    # The log passes the position later, and is read on from there.
    stale = CONFIRMATIONS + 1
    assert placed("false", stale, ManualTime(), growth=5) == [50] * (stale + 2)
    (message,) = caplog.messages
    assert f"an end at {15 + 5 * CONFIRMATIONS}" in message


def test_records_cut_off_before_the_position_are_lost_though_the_log_has_grown_past_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ssp.kafka_source.reading.task_reader.run_in_thread", at_once)

    def placed(kind: ErrorKind, fail: str) -> list[int]:
        return read(Brokers(["new"]), ManualTime(), after=1, kind=kind, fail=fail, placements=2)

    assert placed(ErrorKind.OUT_OF_RANGE, "true") == [0, 0], "a broker that was behind"
    with pytest.raises(DataLossError, match="truncated and written again"):
        placed(ErrorKind.TRUNCATED, "true")
    assert not caplog.messages
    assert placed(ErrorKind.TRUNCATED, "false") == [0, 0], "what is there now is read"
    (line,) = caplog.messages
    assert "truncated and written again" in line


@dataclass
class Ahead(Consumer):
    """Has fetched the records of a second partition before they were deleted."""

    kept: int = 0

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        if len(self.placed) <= 2:
            return [self.fault]
        second = RecordRun(ssp=SECOND.ssp, begin=0, offsets=range(100))
        return [second, PartitionEof(ssp=PLANNED.ssp, offset=100)]

    def keep(self, run: RecordRun, kept: slice) -> None:
        self.kept += kept.stop - kept.start

    def unassign(self, ssps: Sequence[SystemStreamPartition]) -> None:
        pass


class Trimmed(Brokers):
    """The first 50 records of the second partition are not in the log any more."""

    def describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        (name, _), *_ = super().describe(selection).items()
        return {name: TopicDescription(topic_id=TopicId("new"), partition_count=2)}

    def log(self, ssp: SystemStreamPartition) -> tuple[int, int]:
        return {PLANNED.ssp: 0, SECOND.ssp: 50}[ssp], 100


def test_records_that_were_fetched_before_they_were_deleted_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault of one partition has all of them looked at."""
    monkeypatch.setattr("spark_ssp.kafka_source.reading.task_reader.run_in_thread", at_once)
    consumer = Ahead(Trimmed(["new"]), ManualTime(), 0, fault(ErrorKind.OUT_OF_RANGE))
    assert list(reader_of(consumer, PLANNED, SECOND).read()) == []
    assert consumer.kept == 100


def test_time_is_over_where_nothing_comes_unless_it_is_raised_as_the_error_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a range ends in aborted transactions that take longer to pass than `pollTimeout`:
    the client reports nothing of them."""
    monkeypatch.setattr("spark_ssp.kafka_source.reading.task_reader.run_in_thread", at_once)

    def looks_for(timeout: str) -> int:
        brokers = Brokers(["new"])
        read(brokers, ManualTime(), after=40, kind=ErrorKind.TRANSIENT, timeout=timeout)
        return brokers.looks

    with pytest.raises(ServiceUnavailableError, match="raise pollTimeout") as caught:
        looks_for("60s")
    assert "isolation.level" in caught.value.next_step
    assert looks_for("120s") == 40


@dataclass
class Standing(Consumer):
    """Has nothing of two partitions until one is read no more, then the end of the other."""

    unassigned: list[SystemStreamPartition] = field(default_factory=list)

    def unassign(self, ssps: Sequence[SystemStreamPartition]) -> None:
        self.unassigned += ssps

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        self.time.now += wait_s
        return [PartitionEof(ssp=SECOND.ssp, offset=100)] if self.unassigned else [self.fault]


class Shortened(Trimmed):
    """The log of the first partition ends within its range."""

    def log(self, ssp: SystemStreamPartition) -> tuple[int, int]:
        return 0, {PLANNED.ssp: 50, SECOND.ssp: 100}[ssp]


def test_a_range_that_is_given_up_after_the_timeout_is_read_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its later records would be fetched and kept while another partition stands still."""
    monkeypatch.setattr("spark_ssp.kafka_source.reading.task_reader.run_in_thread", at_once)
    consumer = Standing(Shortened(["new"]), ManualTime(), 0, fault(ErrorKind.TRANSIENT))
    reader = reader_of(consumer, PLANNED, SECOND, failOnDataLoss="false", pollTimeout="60s")
    assert list(reader.read()) == []
    assert consumer.unassigned == [PLANNED.ssp]
    assert "an end at 50" in caplog.text


@pytest.mark.parametrize("stale", ["old", None])
def test_what_a_broker_that_is_behind_says_is_not_believed_at_once(stale: str | None) -> None:
    brokers = Brokers([stale] * (CONFIRMATIONS - 1) + ["new"])
    read(brokers, ManualTime(), after=CONFIRMATIONS)


@pytest.mark.parametrize(("stays", "found"), [("old", "created again"), (None, "deleted")])
def test_what_brokers_go_on_to_say_is_believed_after_some_time(
    stays: str | None, found: str
) -> None:
    brokers, time = Brokers([stays]), ManualTime()
    began = time.now
    with pytest.raises(DataLossError, match=found):
        read(brokers, time, after=CONFIRMATIONS + 1)
    assert brokers.looks == CONFIRMATIONS
    assert time.now - began > (CONFIRMATIONS - 1) * CONFIRM_INTERVAL_S


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_partition_that_the_topic_of_the_same_id_lacks_is_waited_for(
    fail: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka deletes no single partition: the metadata is outdated."""
    monkeypatch.setattr("spark_ssp.kafka_source.reading.task_reader.run_in_thread", at_once)

    def placed(after: int, time: ManualTime) -> list[int]:
        brokers = Brokers(["new"])
        return read(brokers, time, after=after, fail=fail, ssp=SECOND.ssp, planned=SECOND)

    assert set(placed(5 * CONFIRMATIONS, ManualTime())) == {0}
    time = ManualTime()
    began = time.now
    with pytest.raises(ServiceUnavailableError, match="orders-1"):
        placed(10_000, time)
    assert time.now - began >= 60
    assert not caplog.messages


def test_a_topic_that_is_hidden_for_a_while_is_read_if_deletions_are_tolerated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hidden = 5 * CONFIRMATIONS
    read(Brokers([None] * hidden + ["new"]), ManualTime(), after=hidden + 1, fail="false")
    assert not caplog.messages
    time = ManualTime()
    began = time.now
    read(Brokers([None]), time, after=10_000, fail="false", timeout="60s")
    assert "deleted" in caplog.text
    assert time.now - began >= 60


@pytest.mark.parametrize("hidden", [1, CONFIRMATIONS - 1, CONFIRMATIONS])
def test_after_a_short_timeout_a_deletion_is_confirmed_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hidden: int
) -> None:
    """A broker that has just started does not know the topic yet."""
    monkeypatch.setattr("spark_ssp.kafka_source.reading.task_reader.run_in_thread", at_once)
    brokers = Brokers([None] * hidden + ["new"])
    if hidden < CONFIRMATIONS:
        with pytest.raises(ServiceUnavailableError, match="pollTimeout"):
            read(brokers, ManualTime(), after=10_000, fail="false", timeout="512ms")
        assert not caplog.messages
    else:
        read(brokers, ManualTime(), after=10_000, fail="false", timeout="512ms")
        assert "deleted" in caplog.text


@pytest.mark.parametrize("fail", ["true", "false"])
def test_before_reading_an_old_id_is_asked_for_again(fail: str) -> None:
    options, time = kafka_options(failOnDataLoss=fail), ManualTime()

    def checked(*ids: str) -> tuple[PartitionRange, ...]:
        topics = checker(Brokers([*ids]), time)
        return _check_topic_ids((PLANNED,), options, topics)

    assert checked("new") == (PLANNED,)
    assert time.slept == [], "the right id costs no pause"
    assert checked("old", "new") == (PLANNED,)
    assert time.slept == [CONFIRM_INTERVAL_S]
    if fail == "true":
        with pytest.raises(DataLossError, match="created again"):
            checked("old")
    else:
        assert checked("old") == ()
    assert len(time.slept) == 1 + CONFIRMATIONS - 1


def checker(brokers: Brokers, time: ManualTime) -> TopicIdChecker:
    return TopicIdChecker(connect=lambda _: brokers, monotonic=time.monotonic, sleep=time.sleep)


def test_ids_are_kept_for_as_long_as_they_count_as_confirmed() -> None:
    time = ManualTime()
    topics = checker(Brokers(["one", "two"]), time)
    for topic_id in ("one", "two"):
        planned = part("orders", 0, 0, 100, topic_id=topic_id)
        assert topics.unconfirmed([planned], kafka_options())
        assert not topics.unconfirmed([planned], kafka_options())
        assert len(topics._valid_until) == 1
        time.now += VALID_S + 1


@dataclass
class Away(Brokers):
    """Do not answer before this time, for which a request waits half a minute."""

    time: ManualTime = field(default_factory=ManualTime)
    until: float = 0.0

    def describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        self.time.now += max(0.0, min(30.0, self.until - self.time.now))
        if self.time.now < self.until:
            raise ServiceUnavailableError("a", found="b", expected="c", next_step="d")
        return super().describe(selection)


def test_a_task_that_begins_without_brokers_waits_for_them_as_one_that_reads() -> None:
    time = ManualTime()
    options = kafka_options(pollTimeout="60s")

    def checked(away_s: float) -> tuple[PartitionRange, ...]:
        brokers = Away(["new"], time=time, until=time.now + away_s)
        return _check_topic_ids((PLANNED,), options, checker(brokers, time))

    assert checked(59) == (PLANNED,)
    began = time.now
    with pytest.raises(ServiceUnavailableError, match="raise pollTimeout") as caught:
        checked(1_000)
    waited_s = time.now - began
    assert 60 <= waited_s <= 60 + 30
    assert seconds_text(waited_s) in caught.value.found


def test_a_check_of_a_log_sees_beyond_an_open_transaction() -> None:
    """With read_committed the end of a log is before it, which would look like a truncation."""

    def connect(options: KafkaOptions) -> FakeKafka:
        kafka = FakeKafka(options.isolation_level)
        kafka.create(1, name="orders")
        kafka.fill("orders", 100)
        kafka.log(PLANNED.ssp).open_since = 50
        return kafka

    options = kafka_options(kafka_isolation_level="read_committed")
    assert connect(options).list_offsets([PLANNED.ssp], LogicalOffset.LATEST) == {PLANNED.ssp: 50}
    checked = TopicIdChecker(connect=connect).service(options)
    assert checked.list_offsets([PLANNED.ssp], LogicalOffset.LATEST) == {PLANNED.ssp: 100}


def test_services_beyond_the_last_are_kept_only_while_they_are_used() -> None:
    topics = TopicIdChecker(connect=lambda _: Brokers(["new"]))

    def service(number: int) -> KafkaService:
        return topics.service(kafka_options(kafka_bootstrap_servers=f"host{number}:9092"))

    used = service(0)
    kept = {number: weakref.ref(service(number)) for number in range(MAX_SERVICES)}
    assert service(1) is kept[1]()
    kept |= {number: weakref.ref(service(number)) for number in range(100, 102)}
    assert {number for number in kept if kept[number]() is None} == {2}
    assert used is kept[0]()


@dataclass
class Large(Standing):
    """Has records of 1 MiB: 20 in the first poll, then as many as are asked for; and the end of a
    second partition at once."""

    limits: list[int] = field(default_factory=list)
    at: int = 0
    taken: list[int] = field(default_factory=list)

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        self.limits.append(limit)
        count = min(20 if self.at == 0 else limit, 100 - self.at)
        found = RecordRun(ssp=PLANNED.ssp, begin=0, offsets=range(self.at, self.at + count))
        self.at += count
        return [found, PartitionEof(ssp=SECOND.ssp, offset=100)]

    def keep(self, run: RecordRun, kept: slice) -> None:
        self.buffered_rows += kept.stop - kept.start
        self.buffered_bytes = self.buffered_rows << 20

    def take(self, most: int, columns: Collection[str]) -> RecordColumns:
        count = rows_within(np.full(self.buffered_rows, 1 << 20, np.int64), most)
        begin = sum(self.taken)
        self.taken.append(count)
        self.buffered_rows -= count
        self.buffered_bytes = self.buffered_rows << 20
        none = binary_column([None] * count)
        zeros = numeric_column(pa.int64(), np.zeros(count, np.int64))
        return RecordColumns(
            runs=[(PLANNED.ssp, count)],
            keys=none,
            values=none,
            offsets=numeric_column(pa.int64(), np.arange(begin, begin + count)),
            times_ms=zeros,
            time_types=numeric_column(pa.int32(), np.zeros(count, np.int32)),
        )


def test_records_of_unknown_size_are_polled_with_care_and_batches_are_cut_by_bytes() -> None:
    consumer = Large(Brokers(["new"]), ManualTime(), 0, fault(ErrorKind.TRANSIENT))
    offsets: list[int] = []
    for batch in reader_of(consumer, PLANNED, SECOND).read():
        assert consumer.unassigned == [SECOND.ssp], "it is not fetched while Spark has a batch"
        offsets += batch.column("offset").to_pylist()
    assert offsets == list(range(100))
    assert consumer.limits[0] == 64
    assert max(consumer.limits[1:]) <= POLL_BYTES >> 20
    assert max(consumer.taken) == POLL_BYTES >> 20
