"""The ranges that a batch query reads, by its options and the answers of brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ssp.checkpoint.assignments.files import open_assignment_store
from spark_ssp.checkpoint.assignments.store import AssignmentStore
from spark_ssp.common.errors import DataLossError, InvalidOptionsError, ServiceUnavailableError
from spark_ssp.grouping.fixed_tasks import PartitionCountError
from spark_ssp.grouping.identifiers import EpochMillis
from spark_ssp.kafka_source.batch_planner import BatchClock, ReadPlan, plan_read
from spark_ssp.kafka_source.model.topic import AtTime, IsolationLevel
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import QueryKind
from tests.support.fakes.clocks import ManualTime
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.driving import FakeQuery
from tests.support.kafka.partitions import ssp
from tests.support.kafka.topics import Record

NOW_MS = 50_000
COMMITTED = {"kafka.isolation.level": "read_committed"}


@pytest.fixture
def kafka() -> FakeKafka:
    """Ten records in each of two partitions, one a second."""
    fake = FakeKafka()
    fake.create(2, name="orders")
    fake.put(
        "orders",
        [
            Record(value=b"", partition=partition, time_ms=1_000 * (2 * offset + partition))
            for offset in range(10)
            for partition in (0, 1)
        ],
    )
    return fake


def plan(
    kafka: FakeKafka,
    options: dict[str, str],
    store: AssignmentStore | None = None,
    slept: Callable[[float], None] = lambda _: None,
) -> ReadPlan:
    """Plan a read; `slept` is called with the time after each wait."""
    raw = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders", **options}
    if store is not None:
        raw["assignmentStore"] = store.uri
    time = ManualTime()

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        slept(time.now)

    clock = BatchClock(now_ms=NOW_MS, monotonic=time.monotonic, sleep=sleep)
    return plan_read(parse_options(raw, QueryKind.BATCH), kafka, clock=clock, store=store)


def ranges(
    kafka: FakeKafka, store: AssignmentStore | None = None, **options: str
) -> dict[int, tuple[str, int, int]]:
    """By partition, its task, start and end."""
    return {
        part.ssp.partition: (task_range.task, part.start, part.end)
        for task_range in plan(kafka, options, store).ranges
        for part in task_range.partitions
    }


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", '{"orders": {"0": 9, "1": 0}}'),
        ("endingOffsets", '{"orders": {"0": 10, "1": 10}}'),
    ],
)
def test_one_answer_that_is_behind_is_no_loss(
    kafka: FakeKafka, option: str, value: str, fail: str
) -> None:
    """As from a new leader that does not know yet how far its log is replicated."""
    log = kafka.log(ssp("orders", 0))
    log.open_since, kafka.isolation = 8, IsolationLevel.READ_COMMITTED

    def catch_up() -> None:
        if kafka.calls[-1] == "offsets latest":
            log.open_since = None

    kafka.meanwhile = catch_up
    found = ranges(kafka, None, **{option: value, "failOnDataLoss": fail})
    assert [end for _, _, end in found.values()] == [10, 10]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(0, 10), (0, 10)]),
        ({"startingOffsets": '{"orders": {"0": 3, "1": -2}}'}, [(3, 10), (0, 10)]),
        ({"endingOffsets": '{"orders": {"0": 3, "1": -1}}'}, [(0, 3), (0, 10)]),
        ({"startingTimestamp": "3000"}, [(2, 10), (1, 10)]),
        ({"endingTimestamp": "3000"}, [(0, 2), (0, 1)]),
        ({"startingTimestamp": "3000", "endingTimestamp": "7000"}, [(2, 4), (1, 3)]),
        ({"endingTimestamp": "99000"}, [(0, 10), (0, 10)]),
        ({"endingTimestamp": str((1 << 63) - 1)}, [(0, 10), (0, 10)]),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 1, "1": 1}}'}, [(0, 1), None]),
        ({"startingTimestamp": "5000", "endingTimestamp": "5000"}, [None, None]),
    ],
)
def test_both_bounds_become_offsets(
    kafka: FakeKafka, options: dict[str, str], expected: list[tuple[int, int] | None]
) -> None:
    found = ranges(kafka, None, **options)
    assert [found[p][1:] if p in found else None for p in (0, 1)] == expected


# --- Open transactions ----------------------------------------------------------------------------


def first_range(
    kafka: FakeKafka,
    options: dict[str, str],
    slept: Callable[[float], None] = lambda _: None,
) -> tuple[int, int] | None:
    """The range of the first partition in a read of committed records."""
    found = plan(kafka, COMMITTED | options, slept=slept).ranges
    parts = [part for one in found for part in one.partitions if part.ssp.partition == 0]
    return (parts[0].start, parts[0].end) if parts else None


@pytest.fixture
def open_kafka(kafka: FakeKafka) -> FakeKafka:
    """The first partition has a transaction that is open since its offset 4, of 8 s."""
    kafka.isolation = IsolationLevel.READ_COMMITTED
    kafka.log(ssp("orders", 0)).open_since = 4
    return kafka


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"endingTimestamp": "12000"}, 6),
        ({"endingTimestamp": "20000"}, 10),  # after the last record
        ({"endingTimestamp": str(NOW_MS)}, 10),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 12000, "1": 1}}'}, 6),
        ({"endingOffsets": '{"orders": {"0": 6, "1": 2}}'}, 6),
        ({"endingOffsets": '{"orders": {"0": 12, "1": 2}}', "failOnDataLoss": "false"}, 10),
    ],
)
def test_transactions_before_an_end_that_the_options_fix_are_awaited(
    open_kafka: FakeKafka, options: dict[str, str], end: int
) -> None:
    """Two reads, one up to an end and one from there, have all records between them."""
    log = open_kafka.log(ssp("orders", 0))

    def commit(now: float) -> None:
        if now >= 1030:
            log.open_since = None

    assert first_range(open_kafka, options, commit) == (0, end)
    log.open_since = 4
    tolerated = options | {"failOnDataLoss": "false", "pollTimeout": "20s"}
    assert first_range(open_kafka, tolerated) == (0, 4)
    with pytest.raises(ServiceUnavailableError) as caught:
        first_range(open_kafka, tolerated | {"failOnDataLoss": "true"})
    assert "orders-0 at 4" in caught.value.found
    assert next(iter(options)) in str(caught.value)
    assert "pollTimeout" in caught.value.next_step


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, 4),
        ({"endingTimestamp": str(NOW_MS + 1)}, 4),
        ({"endingTimestamp": "8000"}, 4),
        ({"endingOffsets": '{"orders": {"0": 3, "1": -1}}'}, 3),
        ({"endingOffsets": '{"orders": {"0": -1, "1": 3}}'}, 4),
    ],
)
def test_transactions_that_do_not_move_the_end_are_not_awaited(
    open_kafka: FakeKafka, options: dict[str, str], end: int
) -> None:
    def never(_: float) -> None:
        raise AssertionError("the plan waited")

    assert first_range(open_kafka, options, never) == (0, end)


@pytest.mark.parametrize("transaction", [None, 4])
@pytest.mark.parametrize("end", [9, 12])
def test_an_end_that_was_not_reached_is_not_fixed(
    open_kafka: FakeKafka, end: int, transaction: int | None
) -> None:
    """A later plan ends elsewhere, although the options name the offset."""
    open_kafka.log(ssp("orders", 0)).open_since = transaction
    ends = {"endingOffsets": f'{{"orders": {{"0": {end}, "1": 2}}}}', "failOnDataLoss": "false"}
    found = plan(open_kafka, COMMITTED | ends)
    assert found.has_fixed_end == (end == 9 and transaction is None)


BY_TIME = "startingOffsetsByTimestampStrategy"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": "12000", "endingTimestamp": "16000"}, (6, 8)),
        ({"startingTimestamp": "12000", "endingTimestamp": "12000"}, None),
        ({"startingTimestamp": "30000", "endingTimestamp": "40000", BY_TIME: "latest"}, None),
        (
            {
                "startingOffsets": '{"orders": {"0": 6, "1": 0}}',
                "endingOffsets": '{"orders": {"0": 9, "1": 2}}',
            },
            (6, 9),
        ),
    ],
)
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_start_does_not_move_to_an_open_transaction(
    open_kafka: FakeKafka, options: dict[str, str], expected: tuple[int, int] | None, fail: str
) -> None:
    """Else its records would be in the read before and in this one."""

    def commit(now: float) -> None:
        if now >= 1010:
            open_kafka.log(ssp("orders", 0)).open_since = None

    assert first_range(open_kafka, options | {"failOnDataLoss": fail}, commit) == expected


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("ends", [{}, {"endingOffsets": '{"orders": {"0": 12, "1": 2}}'}])
def test_a_start_after_an_open_transaction_reads_nothing_before_it(
    open_kafka: FakeKafka, ends: dict[str, str], fail: str
) -> None:
    """Only an end that no transaction holds back is a loss."""
    start = {"startingOffsets": '{"orders": {"0": 10, "1": 0}}', "failOnDataLoss": fail}
    if ends and fail == "true":
        with pytest.raises(DataLossError, match="an end at 10, before the requested end 12"):
            first_range(open_kafka, start | ends)
    else:
        assert first_range(open_kafka, start | ends) is None


def test_a_start_after_its_end_is_an_error_despite_an_open_transaction(
    open_kafka: FakeKafka,
) -> None:
    def commit(_: float) -> None:
        open_kafka.log(ssp("orders", 0)).open_since = None

    with pytest.raises(InvalidOptionsError):
        first_range(open_kafka, {"startingTimestamp": "16000", "endingTimestamp": "12000"}, commit)


def test_a_start_in_an_open_transaction_is_no_time_without_records(open_kafka: FakeKafka) -> None:
    """The read up to the latest offset ends before it."""
    assert first_range(open_kafka, {"startingTimestamp": "12000"}) is None


def test_an_end_that_lacks_a_partition_is_refused_without_a_wait(open_kafka: FakeKafka) -> None:
    def never(_: float) -> None:
        raise AssertionError("the plan waited")

    with pytest.raises(InvalidOptionsError, match="orders-1"):
        first_range(open_kafka, {"endingOffsets": '{"orders": {"0": 9}}'}, never)


def test_a_topic_that_is_deleted_while_transactions_are_open(open_kafka: FakeKafka) -> None:
    def delete(_: float) -> None:
        open_kafka.topics.pop("orders", None)

    with pytest.raises(ServiceUnavailableError) as caught:
        first_range(open_kafka, {"endingTimestamp": "12000"}, delete)
    assert "transaction" not in str(caught.value)


def test_a_record_that_comes_while_the_read_is_planned_is_before_its_end(kafka: FakeKafka) -> None:
    """It is older than the end, and the next read starts after it."""
    late = Record(value=b"", partition=0, time_ms=18_500)
    records = [late, Record(value=b"", partition=0, time_ms=40_000)]

    def put() -> None:
        if kafka.calls[-1] == "offsets latest" and records:
            kafka.put("orders", records[:])
            records.clear()

    kafka.meanwhile = put
    assert ranges(kafka, endingTimestamp="30000")[0][1:] == (0, 11)


def test_a_partition_without_an_answer_by_time_is_not_read_to_its_end(kafka: FakeKafka) -> None:
    omitted = (AtTime(time_ms=EpochMillis(3_000)), ssp("orders", 1))
    kafka.omitted += [omitted] * 2
    found = ranges(kafka, endingTimestamp="3000")
    assert [found[p][1:] for p in (0, 1)] == [(0, 2), (0, 1)]
    kafka.omitted += [omitted] * 3
    with pytest.raises(ServiceUnavailableError, match=r"orders-1: .*the offset by time of every"):
        ranges(kafka, endingTimestamp="3000")


def test_a_read_is_one_line(kafka: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_ssp.kafka_source")
    end = '{"orders": {"0": 3, "1": 0}}'
    ranges(kafka, endingOffsets=end)
    ranges(kafka, endingOffsets=end, maxRecordsPerPartition="2")
    line, split = caplog.messages
    assert "; 3 offsets in 1 partition; 2 tasks; " in split
    assert line.startswith(
        "batch read from earliest to endingOffsets: topic orders with 2 partitions; 3 offsets in 1 "
        "partition; 1 task; spark-ssp "
    )


def test_an_end_by_partition_names_them_all(kafka: FakeKafka) -> None:
    with pytest.raises(InvalidOptionsError, match="endingOffsets: found no entry for orders-1"):
        ranges(kafka, endingOffsets='{"orders": {"0": 1}}')


def test_a_start_behind_its_end_is_an_error(kafka: FakeKafka) -> None:
    with pytest.raises(InvalidOptionsError, match=r"endingTimestamp: .*-0 to 3, .* at 5,"):
        ranges(kafka, startingTimestamp="9000", endingTimestamp="5000")
    kafka.expire("orders", 0, 6)
    bounds = {"startingOffsets": '{"orders": {"0": 1, "1": 1}}'}
    bounds["endingOffsets"] = '{"orders": {"0": 4, "1": 4}}'
    found = ranges(kafka, None, failOnDataLoss="false", **bounds)
    assert found == {1: ("SystemStreamPartition [kafka, orders, 1]", 1, 4)}


def test_an_end_beyond_the_log_is_a_loss(kafka: FakeKafka) -> None:
    end = '{"orders": {"0": 99, "1": 5}}'
    with pytest.raises(DataLossError, match="orders-0"):
        ranges(kafka, endingOffsets=end)
    found = ranges(kafka, endingOffsets=end, failOnDataLoss="false")
    assert [found[p][1:] for p in (0, 1)] == [(0, 10), (0, 5)]


def test_a_start_that_expired_is_a_loss(kafka: FakeKafka) -> None:
    kafka.expire("orders", 0, 4)
    start = '{"orders": {"0": 1, "1": 5}}'
    with pytest.raises(DataLossError, match="orders-0"):
        ranges(kafka, startingOffsets=start)
    found = ranges(kafka, startingOffsets=start, failOnDataLoss="false")
    assert [found[p][1:] for p in (0, 1)] == [(4, 10), (5, 10)]


def test_tasks_are_those_of_the_store_which_stays_as_it_is(
    kafka: FakeKafka, tmp_path: Path
) -> None:
    store = open_assignment_store(f"file://{tmp_path}/assignment")
    assert [task for task, *_ in ranges(kafka, store).values()] == ["Partition 0", "Partition 1"]
    assert store.read() is None
    query = FakeQuery(kafka, store=store)
    query.batch()
    kafka.expand("orders", 4)
    kafka.fill("orders", 0, 0, 1, 1)
    assert {p: task for p, (task, *_) in ranges(kafka, store).items()} == {
        0: "Partition 0",
        1: "Partition 1",
        2: "Partition 0",
        3: "Partition 1",
    }
    stored = store.read()
    assert stored is not None
    assert len(stored.assignment.owners()) == 2


def test_a_broker_that_is_behind_the_store_is_read_as_far_as_it_sees(
    kafka: FakeKafka, tmp_path: Path
) -> None:
    store = open_assignment_store(f"file://{tmp_path}/assignment")
    query = FakeQuery(kafka, store=store)
    query.batch()
    kafka.expand("orders", 4)
    query.pass_time()
    query.batch()
    del kafka.topics["orders"].logs[2:]
    assert {p: task for p, (task, *_) in ranges(kafka, store).items()} == {
        0: "Partition 0",
        1: "Partition 1",
    }
    kafka.expand("orders", 3)
    with pytest.raises(PartitionCountError, match="assignment store file://"):
        ranges(kafka, store)
