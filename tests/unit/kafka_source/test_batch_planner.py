"""From one offset to the next: limits, triggers, lag, stores, and checkpoints of Spark's source."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from spark_ssp.checkpoint.assignments.files import open_assignment_store
from spark_ssp.checkpoint.assignments.store import AssignmentStore, AssignmentStoreError
from spark_ssp.common.errors import (
    DataLossError,
    IncompatibleStateError,
    ServiceUnavailableError,
)
from spark_ssp.grouping.fixed_tasks import PartitionCountError
from spark_ssp.kafka_source.batch_planner import lag_metrics
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kafka_source.model.topic import IsolationLevel, LogicalOffset
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.rate_limit import SAMPLE_PERIOD_S
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.driving import FakeQuery, kafka_options
from tests.support.kafka.partitions import ssp
from tests.support.kafka.topics import Record


@pytest.fixture
def kafka() -> FakeKafka:
    fake = FakeKafka()
    fake.create(2, name="orders")
    return fake


@pytest.fixture
def store(tmp_path: Path) -> AssignmentStore:
    return open_assignment_store(f"file://{tmp_path}/assignment")


def _committed(**changed: str) -> KafkaOptions:
    return kafka_options(kafka_isolation_level="read_committed", **changed)


# --- How much -------------------------------------------------------------------------------------


def test_a_batch_keeps_to_its_limit_and_once_to_none(kafka: FakeKafka) -> None:
    kafka.fill("orders", 30, 10)
    query = FakeQuery(kafka, kafka_options(maxOffsetsPerTrigger="20"))
    assert query.counts() == [20, 20]
    kafka.fill("orders", 30, 10)
    assert query.batch(once=True) == [
        ("Partition 0", ssp("orders", 0), 30, 60),
        ("Partition 1", ssp("orders", 1), 10, 20),
    ]


def test_bytes_are_estimated_from_records_like_those_to_come(kafka: FakeKafka) -> None:
    kafka.fill("orders", 300, 90)
    query = FakeQuery(kafka, kafka_options(maxBytesPerTrigger="200k"), record_bytes=1_000)
    first, second = query.counts()
    assert 195 <= first <= 205
    # One look was enough, at the partition that has most to read.
    (sample,) = query.sampled
    (part,) = sample.partitions
    assert (part.ssp, part.start, part.end) == (ssp("orders", 0), 0, 300)
    assert first + second == 390
    query.record_bytes = 3_000
    query.time.now += SAMPLE_PERIOD_S
    kafka.fill("orders", 180)
    assert 64 <= query.counts()[0] <= 68, "the estimate rises at once"
    query.record_bytes = 1_000
    kafka.fill("orders", 400)
    assert 98 <= query.counts()[0] <= 103, "and falls halfway"


def test_a_few_large_records_among_small_ones_are_in_the_estimate(kafka: FakeKafka) -> None:
    """900 KB in one of 500: a sample of a hundred has none, and makes a batch of nine limits."""
    kafka.fill("orders", 20_000)
    query = FakeQuery(
        kafka, kafka_options(maxBytesPerTrigger="4m"), record_bytes=200, large_bytes=900_000
    )
    for _ in range(5):
        (read,) = query.batch() or []
        size = sum(query.size_of(offset) for offset in range(read[2], read[3]))
        assert size <= 2 * (4 << 20)


@pytest.mark.parametrize("gap", [range(40_000), range(20_000, 60_000)])
def test_a_sample_without_records_lets_no_batch_grow_without_bound(
    kafka: FakeKafka, gap: range
) -> None:
    """As at the head of a compacted topic: thousands of offsets without a record, then all."""
    kafka.fill("orders", 100_000)
    query = FakeQuery(kafka, kafka_options(maxBytesPerTrigger="1m"), record_bytes=500)
    query.without_records = gap
    while batch := query.batch():
        ((_, _, start, end),) = batch
        records = len(range(start, end)) - len(range(max(start, gap.start), min(end, gap.stop)))
        assert records * query.record_bytes <= 10.5 * (1 << 20)


def test_a_backlog_is_sampled_for_each_batch_that_its_limit_ends(kafka: FakeKafka) -> None:
    kafka.fill("orders", 2_000)
    query = FakeQuery(kafka, kafka_options(maxBytesPerTrigger="100k"), record_bytes=200)
    query.batch()
    query.record_bytes = 20_000
    (read,) = query.batch() or []
    assert read[3] - read[2] <= 6


def test_a_small_batch_is_waited_for_until_the_longest_delay(kafka: FakeKafka) -> None:
    options = kafka_options(minOffsetsPerTrigger="10", maxTriggerDelay="1m")
    query = FakeQuery(kafka, options)
    kafka.fill("orders", 1)
    assert query.batch() is not None, "the first batch of a run is not put off"
    kafka.fill("orders", 9)
    assert query.batch() is None
    kafka.fill("orders", 0, 1)
    assert query.batch() == [
        ("Partition 0", ssp("orders", 0), 1, 10),
        ("Partition 1", ssp("orders", 1), 0, 1),
    ]
    kafka.fill("orders", 1)
    assert query.batch() is None
    query.time.now += 60
    assert query.batch() == [("Partition 0", ssp("orders", 0), 10, 11)]
    kafka.fill("orders", 1)
    assert query.batch(once=True) == [("Partition 0", ssp("orders", 0), 11, 12)]


# --- Aligned batches ------------------------------------------------------------------------------

T0 = 1_700_000_000_000


def _aligned(**changed: str) -> KafkaOptions:
    return kafka_options(**{"alignBatches": "true", "maxOffsetsPerTrigger": "20", **changed})


def _put_times(kafka: FakeKafka, partition: int, times: Iterable[int | None]) -> None:
    kafka.put(
        "orders",
        [
            Record(value=b"", partition=partition, time_ms=None if time is None else T0 + time)
            for time in times
        ],
    )


def _lookups(kafka: FakeKafka) -> int:
    return sum(call.startswith("first records") for call in kafka.calls)


def test_partitions_advance_through_time_together_with_those_of_an_expansion(
    kafka: FakeKafka,
) -> None:
    """By backlog, partition 1 would be at its end in the fourth batch, 45 minutes ahead."""
    _put_times(kafka, 0, range(0, 3_600_000, 36_000))
    _put_times(kafka, 1, range(0, 3_600_000, 360_000))
    query = FakeQuery(kafka, _aligned())
    query.batch()
    kafka.expand("orders", 4)
    _put_times(kafka, 2, range(1_800_000, 3_600_000, 60_000))
    query.pass_time()
    ends: list[int] = []
    while (read := query.batch()) is not None:
        times = [
            (record.time_ms or 0) - T0
            for _, one, start, end in read
            for record in kafka.log(one).records[start:end]
        ]
        assert len(times) <= 20
        assert all(time < min(times) for time in ends)
        ends.append(max(times))
    assert ends[-1] == 3_600_000 - 36_000


def test_a_batch_of_all_records_costs_no_lookup(kafka: FakeKafka) -> None:
    _put_times(kafka, 0, [5, 6, 7])
    _put_times(kafka, 1, range(17))
    query = FakeQuery(kafka, _aligned())
    assert query.counts() == [20]
    query.restart(kafka_options(alignBatches="true"))
    _put_times(kafka, 0, range(30))
    assert query.counts() == [30], "no limit"
    query.restart(_aligned())
    _put_times(kafka, 0, range(30))
    assert query.batch(once=True) == [("Partition 0", ssp("orders", 0), 33, 63)]
    assert _lookups(kafka) == 0


def test_a_delayed_batch_costs_no_lookup(kafka: FakeKafka) -> None:
    options = _aligned(
        maxOffsetsPerTrigger="1000", maxBytesPerTrigger="10", minOffsetsPerTrigger="100"
    )
    query = FakeQuery(kafka, options)
    query.batch()
    _put_times(kafka, 0, range(50))
    assert query.batch() is None
    assert _lookups(kafka) == 0


def _leader_away(query: FakeQuery, kafka: FakeKafka, *seconds: float) -> None:
    """Let the answers to come take so long. If it is over a second, partition 0, whose end is known
    by then, gets 50 records."""
    answers = iter(seconds)

    def meanwhile() -> None:
        query.time.now += (away := next(answers, 0.0))
        if away > 1:
            _put_times(kafka, 0, range(1, 51))

    kafka.meanwhile = meanwhile
    kafka.calls.clear()


@pytest.mark.parametrize("away_s", [0.2, 10])
def test_ends_are_listed_again_if_a_leader_was_away(kafka: FakeKafka, away_s: float) -> None:
    query = FakeQuery(kafka, _aligned(maxOffsetsPerTrigger="1000"))
    _put_times(kafka, 0, [0])
    query.batch()
    _leader_away(query, kafka, away_s)
    query.batch()
    assert kafka.calls.count("offsets latest") == (1 if away_s < 1 else 2)
    assert query.offset.positions[ssp("orders", 0)] == (1 if away_s < 1 else 51)


def test_ends_that_always_take_long_are_not_listed_twice(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka, _aligned(maxOffsetsPerTrigger="1000"))
    _put_times(kafka, 0, [0])
    query.batch()
    _leader_away(query, kafka, *[1.5] * 20)
    for _ in range(5):
        query.batch()
    assert kafka.calls.count("offsets latest") == 6


def test_ends_that_cannot_be_listed_again_are_the_first_ones(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = FakeQuery(kafka, _aligned(maxOffsetsPerTrigger="1000"))
    _put_times(kafka, 0, [0])
    query.batch()
    _put_times(kafka, 0, [0])
    _leader_away(query, kafka, 10)
    list_offsets = kafka.list_offsets

    def once(*given: Any) -> Any:
        if kafka.calls:
            raise ServiceUnavailableError(
                "topic orders", found="no leader", expected="one", next_step="wait"
            )
        return list_offsets(*given)

    monkeypatch.setattr(kafka, "list_offsets", once)
    query.batch()
    assert query.offset.positions[ssp("orders", 0)] == 2


def test_the_start_of_a_query_does_not_move_while_a_leader_is_away(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka, _aligned(startingOffsets="latest"))
    _leader_away(query, kafka, 0, 0, 10)
    query.batch()
    assert query.offset.positions[ssp("orders", 0)] == 0
    assert sum(query.counts()) == 50


def test_the_ends_of_available_now_are_listed_again_if_a_leader_was_away(kafka: FakeKafka) -> None:
    _put_times(kafka, 0, [0])
    query = FakeQuery(kafka, _aligned(maxOffsetsPerTrigger="1000"))
    _leader_away(query, kafka, 0, 10)
    query.planner.stop_at_latest()
    assert sum(query.counts()) == 51


def test_available_now_aligns_up_to_its_ends(kafka: FakeKafka) -> None:
    second = 1_000
    _put_times(kafka, 0, range(0, 40 * second, second))
    _put_times(kafka, 1, range(25 * second, 35 * second, second))
    query = FakeQuery(kafka, _aligned())
    query.planner.stop_at_latest()
    _put_times(kafka, 0, range(40 * second, 80 * second, second))
    _put_times(kafka, 1, range(35 * second, 80 * second, second))
    sizes = query.counts()
    assert sum(sizes) == 50
    assert len(sizes) == 3
    assert query.planner.lag() == {"orders": {0: 0, 1: 0}}


def test_a_millisecond_beyond_the_limit_is_divided_by_backlog(kafka: FakeKafka) -> None:
    _put_times(kafka, 0, [0, *[9] * 60, 10])
    _put_times(kafka, 1, [*[9] * 20, 10])
    query = FakeQuery(kafka, _aligned())
    assert query.counts() == [1, 20, 20, 20, 20, 2]
    assert query.batch() is None


def test_records_without_a_time_are_divided_by_backlog(kafka: FakeKafka) -> None:
    _put_times(kafka, 0, [None] * 30)
    _put_times(kafka, 1, [None] * 10)
    assert FakeQuery(kafka, _aligned()).counts() == [20, 20]


def test_bytes_limit_an_aligned_batch_too(kafka: FakeKafka) -> None:
    _put_times(kafka, 0, range(0, 1_000_000, 1_000))
    _put_times(kafka, 1, range(0, 1_000_000, 10_000))
    options = kafka_options(alignBatches="true", maxBytesPerTrigger="20k")
    query = FakeQuery(kafka, options, record_bytes=100)
    (_, _, _, first), (_, _, _, second) = query.batch() or []
    assert 160 <= first + second <= 205
    assert first - 10 <= 10 * second <= first + 10


def test_a_topic_that_is_gone_meanwhile_holds_back_no_other(kafka: FakeKafka) -> None:
    kafka.create(1, name="clicks")
    _put_times(kafka, 0, range(100))
    kafka.put("clicks", [Record(value=b"", partition=0, time_ms=T0)] * 50)
    query = FakeQuery(kafka, _aligned(subscribe="clicks,orders"))
    kafka.meanwhile = lambda: kafka.hidden.update({"clicks"} if "latest" in kafka.calls[-1] else ())
    assert query.batch() == [("Partition 0", ssp("orders", 0), 0, 19)]
    kafka.meanwhile = None
    kafka.hidden.clear()
    assert query.batch() == [("Partition 0", ssp("clicks", 0), 0, 20)]


def test_the_log_names_the_partition_that_holds_the_others_back(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "spark_ssp.kafka_source.batch_planner")
    _put_times(kafka, 0, range(0, 4_000, 1_000))
    _put_times(kafka, 1, range(0, 4_000, 10))
    query = FakeQuery(kafka, _aligned())
    query.batch()
    query.batch()
    first, second = [record for record in caplog.records if "aligned" in record.message]
    assert (first.levelno, second.levelno) == (logging.INFO, logging.DEBUG)
    assert re.fullmatch(
        r"batch aligned at 2023-11-14T22:13:20\.18\dZ: 20 of 404 unread offsets, 19 of them in "
        r"orders-1, which holds back the others",
        first.message,
    )


# --- Up to the tip --------------------------------------------------------------------------------


def test_available_now_reads_no_later_records(kafka: FakeKafka) -> None:
    kafka.fill("orders", 10, 10)
    query = FakeQuery(kafka, kafka_options(maxOffsetsPerTrigger="8", subscribePattern=".*"))
    query.planner.stop_at_latest()
    kafka.fill("orders", 5, 5)
    kafka.expand("orders", 4)
    kafka.fill(kafka.create(1, name="later"), 3)
    query.pass_time()
    assert query.batch() is not None
    query.pass_time()
    kafka.fill("orders", 5, 5)
    assert query.counts() == [8, 4]
    assert query.batch() is None
    query.restart()
    query.planner.stop_at_latest()
    assert sum(query.counts()) == 23


def test_available_now_lists_older_partitions_once_more(kafka: FakeKafka) -> None:
    """Only the start tells which ones are older; what came in between is in order that way."""
    query = FakeQuery(kafka)
    query.batch()
    kafka.expand("orders", 4)
    query.pass_time()
    query.batch()
    assert query.planner.expansions == 1
    query.restart()
    kafka.fill("orders", 1, 0, 1)
    query.planner.stop_at_latest()
    kafka.fill("orders", 1, 0, 1)
    assert query.batch() == [
        ("Partition 0", ssp("orders", 0), 0, 2),
        ("Partition 0", ssp("orders", 2), 0, 1),
    ]
    kafka.fill("orders", 1, 0, 1)
    assert query.batch() is None


def test_available_now_waits_for_no_minimum(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka, kafka_options(minOffsetsPerTrigger="100", maxOffsetsPerTrigger="100"))
    kafka.fill("orders", 150)
    query.planner.stop_at_latest()
    assert query.counts() == [100, 50]


def test_available_now_corrects_a_stale_response_at_its_start(kafka: FakeKafka) -> None:
    kafka.fill("orders", 1, 1)
    query = FakeQuery(kafka)
    query.batch()
    kafka.fill("orders", 1, 1)
    query.restart()
    last = kafka.topics["orders"].logs.pop()
    query.planner.stop_at_latest()
    kafka.topics["orders"].logs.append(last)
    assert query.counts() == [2]
    assert query.time.slept == [1.0]


# --- Tasks ----------------------------------------------------------------------------------------


def test_an_expansion_keeps_the_tasks_and_another_count_is_an_error(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    kafka.expand("orders", 6)
    kafka.fill("orders", 1, 1, 1, 1, 1, 1)
    query.restart()
    read = query.batch()
    assert read is not None
    assert sorted((task, one.partition) for task, one, _, _ in read) == [
        *(("Partition 0", partition) for partition in (0, 2, 4)),
        *(("Partition 1", partition) for partition in (1, 3, 5)),
    ]
    kafka.expand("orders", 8)
    query.pass_time()
    with pytest.raises(PartitionCountError, match="8 partitions, 6 before"):
        query.batch()


@pytest.mark.parametrize("count", [8, 12])
def test_order_holds_through_expansions_that_are_seen_at_once(kafka: FakeKafka, count: int) -> None:
    kafka.fill("orders", 2)
    query = FakeQuery(kafka, kafka_options(maxOffsetsPerTrigger="4"))
    query.batch()
    kafka.expand("orders", 4)
    kafka.fill("orders", 0, 0, 6)
    kafka.expand("orders", count)
    kafka.fill("orders", *[0] * (count - 2), 6)
    query.pass_time()
    read = []
    while (batch := query.batch()) is not None:
        read += [(one.partition, start, end) for _, one, start, end in batch]
    last = count - 2
    assert read == [(2, 0, 4), (2, 4, 6), (last, 0, 2), (last, 2, 6)]


def test_the_only_task_has_one_name_in_all_runs(kafka: FakeKafka) -> None:
    kafka.fill("orders", 1, 1)
    query = FakeQuery(kafka, kafka_options(grouper="single"))
    read = query.batch()
    assert read is not None
    assert [task for task, *_ in read] == ["Task-0", "Task-0"]


def test_a_new_query_has_the_tasks_of_the_store(kafka: FakeKafka, store: AssignmentStore) -> None:
    first = FakeQuery(kafka, store=store)
    first.batch()
    kafka.expand("orders", 4)
    kafka.fill("orders", 1, 1, 1, 1)
    first.pass_time()
    owners = {one: task for task, one, _, _ in first.batch() or []}
    assert len(owners) == 4
    second = FakeQuery(kafka, store=store)
    assert {one: task for task, one, _, _ in second.batch() or []} == owners
    assert isinstance(second.offset, Offset)
    assert isinstance(first.offset, Offset)
    assert second.offset.assignment == first.offset.assignment
    third = FakeQuery(kafka)
    assert {task for task, *_ in third.batch() or []} == {f"Partition {n}" for n in range(4)}


def test_the_store_knows_an_expansion_before_spark_does(
    kafka: FakeKafka, store: AssignmentStore
) -> None:
    query = FakeQuery(kafka, store=store)
    query.batch()
    kafka.expand("orders", 4)
    query.restart()
    end = query.planner.next_offset(query.offset, None)
    assert end is not None
    stored = store.read()
    assert stored is not None
    assert stored.assignment == end.assignment


# --- Lag ------------------------------------------------------------------------------------------


def test_lag_is_what_the_planned_batch_leaves(kafka: FakeKafka) -> None:
    kafka.fill("orders", 30, 10)
    query = FakeQuery(kafka, kafka_options(maxOffsetsPerTrigger="20"))
    assert lag_metrics(query.planner.lag()) is None
    query.batch()
    assert lag_metrics(query.planner.lag()) == {
        "topics": {
            "orders": {
                "offsetsBehindLatest": {"0": 15, "1": 5},
                "maxOffsetsBehindLatest": 15,
                "sumOffsetsBehindLatest": 20,
            }
        },
        "minOffsetsBehindLatest": 5,
        "maxOffsetsBehindLatest": 15,
        "avgOffsetsBehindLatest": 10.0,
        "sumOffsetsBehindLatest": 20,
    }
    query.batch()
    kafka.fill("orders", 0, 7)
    assert query.planner.lag() == {"orders": {0: 0, 1: 0}}, "as of the last look"


def test_the_lag_of_a_missing_topic_is_unknown(kafka: FakeKafka) -> None:
    kafka.create(1, name="clicks")
    kafka.fill("clicks", 900)
    options = kafka_options(
        subscribe="orders,clicks", failOnDataLoss="false", maxOffsetsPerTrigger="10"
    )
    query = FakeQuery(kafka, options)
    query.batch()
    kafka.hidden.add("clicks")
    query.pass_time()
    query.batch()
    found = lag_metrics(query.planner.lag())
    assert found is not None
    assert found["topics"]["orders"]["sumOffsetsBehindLatest"] == 0
    assert found["topics"]["clicks"]["offsetsBehindLatest"] == {"0": None}
    assert found["topics"]["clicks"]["maxOffsetsBehindLatest"] is None
    assert found["sumOffsetsBehindLatest"] is found["maxOffsetsBehindLatest"] is None


@pytest.mark.parametrize(("recreated", "unread"), [(True, 400), (False, 100)])
def test_the_lag_of_a_delayed_batch_is_that_of_its_start(recreated: bool, unread: int) -> None:
    kafka = FakeKafka()
    kafka.create(1, name="orders")
    kafka.fill("orders", 500)
    query = FakeQuery(kafka, kafka_options(minOffsetsPerTrigger="1000", failOnDataLoss="false"))
    query.batch()
    if recreated:
        kafka.delete("orders")
        kafka.create(1, name="orders")
        kafka.fill("orders", 400)
    else:
        kafka.fill("orders", 700)
        kafka.expire("orders", 0, 1100)
    query.pass_time()
    assert query.batch() is None
    assert query.planner.lag() == {"orders": {0: unread}}


def test_records_behind_an_open_transaction_count_for_the_lag(kafka: FakeKafka) -> None:
    """Also those behind it that are committed. Asked for with the topics only."""
    kafka.isolation = IsolationLevel.READ_COMMITTED
    kafka.fill("orders", 9, 3)
    kafka.log(ssp("orders", 0)).open_since = 4
    query = FakeQuery(kafka, _committed())
    assert query.counts() == [7]
    assert query.planner.lag() == {"orders": {0: 5, 1: 0}}
    kafka.fill("orders", 6, 2)
    kafka.calls.clear()
    assert query.counts() == [2]
    assert query.planner.lag() == {"orders": {0: 5, 1: 0}}
    assert set(kafka.calls) == {"offsets latest"}
    assert len(kafka.calls) == 2
    query.pass_time()
    assert query.batch() is None
    assert query.planner.lag() == {"orders": {0: 11, 1: 0}}
    kafka.log(ssp("orders", 0)).open_since = None
    assert query.counts() == [11]
    assert query.planner.lag() == {"orders": {0: 0, 1: 0}}


def test_the_lag_of_available_now_is_that_of_its_start(kafka: FakeKafka) -> None:
    kafka.isolation = IsolationLevel.READ_COMMITTED
    kafka.fill("orders", 9, 3)
    kafka.log(ssp("orders", 0)).open_since = 4
    query = FakeQuery(kafka, _committed(maxOffsetsPerTrigger="5"))
    query.planner.stop_at_latest()
    query.batch()
    kafka.fill("orders", 6, 2)
    query.pass_time()
    query.counts()
    assert query.planner.lag() == {"orders": {0: 5, 1: 0}}


@pytest.mark.parametrize("to_latest", [False, True])
def test_records_that_arrive_between_the_requests_are_behind_no_transaction(
    kafka: FakeKafka, to_latest: bool
) -> None:
    kafka.isolation = IsolationLevel.READ_COMMITTED
    kafka.fill("orders", 9, 3)
    query = FakeQuery(kafka, _committed())

    def arrive() -> None:
        if kafka.calls[-1] == "offsets latest":
            kafka.fill("orders", 1, 1)

    kafka.meanwhile = arrive
    if to_latest:
        query.planner.stop_at_latest()
    for _ in range(3):
        query.batch()
        assert query.planner.lag() == {"orders": {0: 0, 1: 0}}
        query.pass_time()


def test_ends_that_only_the_lag_needs_are_not_required(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.isolation = IsolationLevel.READ_COMMITTED
    kafka.fill("orders", 9, 3)
    kafka.log(ssp("orders", 0)).open_since = 4
    query = FakeQuery(kafka, _committed())
    away = ServiceUnavailableError("orders-0", found="no leader", expected="one", next_step="wait")
    kafka.faults += [None, None, away]
    assert query.counts() == [7]
    assert query.planner.lag() == {"orders": {0: 0, 1: 0}}
    (message,) = caplog.messages
    assert "orders-0" in message
    query.pass_time()
    assert query.batch() is None
    assert query.planner.lag() == {"orders": {0: 5, 1: 0}}


# --- Losses ---------------------------------------------------------------------------------------


def test_a_tolerated_loss_is_reported_once(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka, kafka_options(failOnDataLoss="false"))
    query.batch()
    kafka.fill("orders", 5)
    kafka.expire("orders", 0, 8)
    query.pass_time()
    assert query.batch() == [("Partition 0", ssp("orders", 0), 8, 10)]
    query.pass_time()
    assert query.batch() is None
    told = [line for line in caplog.messages if "data loss" in line]
    assert len(told) == 1
    assert "orders-0" in told[0]


@pytest.mark.parametrize("count", [3, 1])
@pytest.mark.parametrize("stored", [True, False])
def test_a_topic_created_again_with_another_count_is_named_as_another(
    kafka: FakeKafka, store: AssignmentStore, count: int, stored: bool
) -> None:
    query = FakeQuery(kafka, store=store if stored else None)
    query.batch()
    kafka.delete("orders")
    kafka.create(count, name="orders")
    query.pass_time()
    with pytest.raises(DataLossError, match="topic deleted and created again"):
        query.batch()
    query.restart(kafka_options(failOnDataLoss="false"))
    with pytest.raises(PartitionCountError, match="deleted and created again since: orders"):
        query.batch()


# --- Open transactions ----------------------------------------------------------------------------


@pytest.fixture
def held(kafka: FakeKafka) -> FakeQuery:
    """A query that read all records, two of an open transaction among them, and is to read
    committed ones."""
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka)
    query.batch()
    kafka.isolation = IsolationLevel.READ_COMMITTED
    kafka.log(ssp("orders", 0)).open_since = 3
    query.restart(_committed())
    return query


@pytest.mark.parametrize("changed", [{}, {"failOnDataLoss": "false"}])
@pytest.mark.parametrize("to_latest", [False, True])
def test_a_position_after_an_open_transaction_waits_for_its_end(
    kafka: FakeKafka, held: FakeQuery, changed: dict[str, str], to_latest: bool
) -> None:
    held.restart(_committed(**changed))
    if to_latest:
        held.planner.stop_at_latest()
    kafka.fill("orders", 2, 1)
    assert held.counts() == ([] if to_latest else [1])
    assert held.planner.losses == 0
    assert not held.time.slept
    held.restart()
    kafka.log(ssp("orders", 0)).open_since = 6
    assert [read for read in held.batch() or [] if read[1] == ssp("orders", 0)] == [
        ("Partition 0", ssp("orders", 0), 5, 6)
    ]
    kafka.log(ssp("orders", 0)).open_since = None
    assert sum(held.counts()) == 1
    kafka.calls.clear()
    held.batch()
    assert kafka.calls.count("offsets latest") == 1


def test_what_waits_for_a_transaction_takes_no_share_of_a_limit(
    kafka: FakeKafka, held: FakeQuery
) -> None:
    _put_times(kafka, 0, range(20))
    _put_times(kafka, 1, range(20))
    for options in (
        _committed(maxOffsetsPerTrigger="4"),
        _committed(maxOffsetsPerTrigger="4", alignBatches="true"),
    ):
        held.restart(options)
        (read,) = held.batch() or []
        assert read[1] == ssp("orders", 1)
        assert 3 <= read[3] - read[2] <= 4


@pytest.mark.parametrize(("options", "start"), [({}, None), ({"failOnDataLoss": "false"}, 4)])
def test_a_log_that_was_truncated_is_lost_despite_an_open_transaction(
    kafka: FakeKafka, held: FakeQuery, options: dict[str, str], start: int | None
) -> None:
    """The query reads on at the end of the whole log, after what it has read before."""
    del kafka.log(ssp("orders", 0)).records[4:]
    held.restart(_committed(**options))
    if start is None:
        with pytest.raises(DataLossError, match="an end at 4, before the position 5"):
            held.batch()
        return
    assert held.batch() == []
    assert held.offset.positions[ssp("orders", 0)] == start


def test_a_first_batch_starts_after_an_open_transaction_if_the_options_do(
    kafka: FakeKafka,
) -> None:
    kafka.fill("orders", 5, 5)
    kafka.isolation = IsolationLevel.READ_COMMITTED
    kafka.log(ssp("orders", 0)).open_since = 3
    query = FakeQuery(kafka, _committed(startingOffsets='{"orders": {"0": 4, "1": 0}}'))
    assert query.counts() == [5]
    kafka.log(ssp("orders", 0)).open_since = None
    assert query.batch() == [("Partition 0", ssp("orders", 0), 4, 5)]


# --- Checkpoints of Spark's own source ------------------------------------------------------------


def test_a_checkpoint_of_sparks_source_is_gone_on_with(kafka: FakeKafka) -> None:
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka, offset=SparkOffset(positions={ssp("orders", p): 5 for p in (0, 1)}))
    assert query.batch() == [], "the checkpoint becomes ours"
    assert query.batch() is None
    kafka.expand("orders", 4)
    kafka.fill("orders", 1, 0, 1)
    query.pass_time()
    assert query.batch() == [
        ("Partition 0", ssp("orders", 0), 5, 6),
        ("Partition 0", ssp("orders", 2), 0, 1),
    ]


def test_a_checkpoint_of_sparks_source_that_the_store_contradicts_names_it(
    kafka: FakeKafka, store: AssignmentStore
) -> None:
    FakeQuery(kafka, store=store).batch()
    positions = dict.fromkeys((ssp("orders", number) for number in range(3)), 0)
    query = FakeQuery(kafka, store=store, offset=SparkOffset(positions=positions))
    with pytest.raises(PartitionCountError, match=r"assignment store file://.*3 partitions, 2"):
        query.batch()
    with pytest.raises(PartitionCountError, match=r"assignment store file://.*3 partitions, 2"):
        query.planner.ranges(query.offset, query.offset)


def test_a_store_that_cannot_be_read_is_reported_in_the_words_of_the_store(
    kafka: FakeKafka, store: AssignmentStore, tmp_path: Path
) -> None:
    folder = tmp_path / "assignment"
    folder.mkdir()
    (folder / "00000001.json").write_text("rubbish")
    with pytest.raises(AssignmentStoreError) as raised:
        FakeQuery(kafka, store=store).batch()
    assert raised.value.subject == f"file 00000001.json of assignment store {store.uri}"
    assert raised.value.next_step.endswith("name another assignmentStore")


def test_a_batch_that_sparks_source_planned_is_read_as_planned(kafka: FakeKafka) -> None:
    kafka.expand("orders", 4)
    kafka.fill("orders", 9, 9, 9, 9)
    begin = SparkOffset(positions={ssp("orders", p): 5 for p in (0, 1)})
    end = SparkOffset(positions={ssp("orders", p): 7 for p in range(4)})
    ranges = FakeQuery(kafka).planner.ranges(begin, end)
    assert [
        (task_range.task, part.ssp.partition, part.start, part.end)
        for task_range in ranges
        for part in task_range.partitions
    ] == [
        ("Partition 0", 0, 5, 7),
        ("Partition 0", 2, 0, 7),
        ("Partition 1", 1, 5, 7),
        ("Partition 1", 3, 0, 7),
    ]
    kafka.expire("orders", 2, 1)
    with pytest.raises(DataLossError, match="orders-2"):
        FakeQuery(kafka).planner.ranges(begin, end)


@pytest.mark.parametrize("tolerant", ["true", "false"])
def test_a_new_partition_of_sparks_batch_is_deleted_only_if_no_answer_has_it(
    kafka: FakeKafka, tolerant: str
) -> None:
    kafka.fill("orders", 9, 9)
    begin = SparkOffset(positions={ssp("orders", 0): 5})
    end = SparkOffset(positions={ssp("orders", p): 7 for p in (0, 1)})
    query = FakeQuery(kafka, kafka_options(failOnDataLoss=tolerant))
    kafka.omitted += [(LogicalOffset.EARLIEST, ssp("orders", 1))] * 2
    ranges = query.planner.ranges(begin, end)
    assert [(part.start, part.end) for one in ranges for part in one.partitions] == [(5, 7), (0, 7)]
    assert query.time.slept == [1.0, 1.0]
    del kafka.topics["orders"].logs[1:]
    if tolerant == "true":
        with pytest.raises(DataLossError, match="orders-1: found the partition deleted"):
            query.planner.ranges(begin, end)
    else:
        (range_,) = query.planner.ranges(begin, end)
        assert [(part.start, part.end) for part in range_.partitions] == [(5, 7)]
    assert query.time.slept == [1.0] * 4


@pytest.mark.parametrize(
    ("begin", "end", "lost"),
    [
        ({"orders": 5, "clicks": 9}, {"orders": 6}, "topic clicks"),
        ({"orders": 5, "clicks": 9}, {"orders": 6, "clicks": 2}, "partition clicks-0"),
    ],
)
def test_what_sparks_source_reported_as_lost_is_reported_again(
    kafka: FakeKafka, begin: dict[str, int], end: dict[str, int], lost: str
) -> None:
    """Spark's source logs a batch before it fails because of its losses."""
    start, stop = (
        SparkOffset(positions={ssp(topic, 0): at for topic, at in sorted(positions.items())})
        for positions in (begin, end)
    )
    with pytest.raises(DataLossError) as caught:
        FakeQuery(kafka, _from_spark()).planner.ranges(start, stop)
    assert caught.value.subject == lost
    for tolerant in (_from_spark(failOnDataLoss="false"), _from_spark(dropTopics="clicks")):
        (task,) = FakeQuery(kafka, tolerant).planner.ranges(start, stop)
        assert [(part.ssp, part.start, part.end) for part in task.partitions] == [
            (ssp("orders", 0), 5, 6)
        ]


def _from_spark(**changed: str) -> KafkaOptions:
    """Return options as they were those of Spark's source."""
    given = {"kafka.bootstrap.servers": "broker:9092", "subscribePattern": "orders|clicks"}
    return parse_options(given | changed)


def test_planned_batches_of_ours_need_no_broker(kafka: FakeKafka) -> None:
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka)
    query.batch()
    kafka.faults.append(AssertionError("asked"))
    query.restart()
    assert len(query.planner.ranges(BEFORE_FIRST_BATCH, query.offset)) == 2


# --- More tasks than partitions -------------------------------------------------------------------


def _splitting(**options: str) -> KafkaOptions:
    given = {"kafka.bootstrap.servers": "broker:9092", "startingOffsets": "earliest"}
    return parse_options({**given, "subscribe": "orders", **options})


def test_a_batch_replayed_with_other_options_has_the_tasks_that_it_was_planned_with(
    kafka: FakeKafka,
) -> None:
    kafka.fill("orders", 90, 10)
    query = FakeQuery(kafka, _splitting(minPartitions="5"))
    end = query.planner.next_offset(BEFORE_FIRST_BATCH, None)
    assert end is not None
    planned = query.planner.ranges(BEFORE_FIRST_BATCH, end)
    sizes = [part.end - part.start for one in planned for part in one.partitions]
    assert sizes == [22, 22, 23, 23, 10]
    for options in (_splitting(), _splitting(maxRecordsPerPartition="7"), kafka_options()):
        query.restart(options)
        assert query.planner.ranges(BEFORE_FIRST_BATCH, end) == planned


def test_a_change_of_the_split_alone_is_no_batch(kafka: FakeKafka) -> None:
    kafka.fill("orders", 90, 10)
    query = FakeQuery(kafka, _splitting(minPartitions="5"))
    assert len(query.batch() or ()) == 5
    query.restart(_splitting(maxRecordsPerPartition="7"))
    assert query.batch() is None
    kafka.fill("orders", 14)
    assert len(query.batch() or ()) == 2


def test_fixed_tasks_in_the_checkpoint_are_not_split(kafka: FakeKafka) -> None:
    kafka.fill("orders", 90, 10)
    query = FakeQuery(kafka, kafka_options())
    query.batch()
    query.restart(_splitting(minPartitions="5"))
    with pytest.raises(IncompatibleStateError) as caught:
        query.batch()
    assert isinstance(query.offset, Offset)
    assert query.offset.assignment.grouper in caught.value.found


# --- The log --------------------------------------------------------------------------------------


def test_one_line_at_the_start_and_one_for_a_batch_that_changes_something(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_ssp.kafka_source")
    query = FakeQuery(kafka, kafka_options(commitOffsetsToGroup="lag", includeTask="true"))
    seen: list[str] = []
    for round_ in range(12):
        kafka.fill("orders", 2, 2)
        if round_ == 6:
            kafka.expand("orders", 4)
        caplog.clear()
        query.batch()
        query.pass_time()
        assert len(caplog.messages) <= 1
        seen += caplog.messages
    start, change = seen
    assert start.startswith("query starts from earliest: topic orders with 2 partitions; 2 tasks; ")
    assert "; offsets committed to consumer group lag; spark-ssp " in start
    assert change == "now read: orders-2 (Partition 0), orders-3 (Partition 1)"
    caplog.clear()
    query.restart()
    query.batch()
    (again,) = caplog.messages
    assert "query starts from its checkpoint: topic orders with 4 partitions; 2 tasks; " in again
