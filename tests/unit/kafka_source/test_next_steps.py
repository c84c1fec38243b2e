"""Each next step that a query of Kafka is given is followed, and the query reads on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ssp.checkpoint.assignments.files import open_assignment_store
from spark_ssp.checkpoint.assignments.store import AssignmentContradictionError, AssignmentStore
from spark_ssp.common.errors import (
    NEW_CHECKPOINT,
    DataLossError,
    IncompatibleStateError,
    InvalidOptionsError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.grouping.fixed_tasks import PartitionCountError, PartitionExpansionError
from spark_ssp.kafka_source.batch_planner import BatchClock, plan_read
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kafka_source.model.ranges import TaskRange
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import QueryKind
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset
from tests.support.fakes.clocks import ManualTime
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.driving import FakeQuery, kafka_options
from tests.support.kafka.partitions import ssp


@pytest.fixture
def kafka() -> FakeKafka:
    fake = FakeKafka()
    fake.create(2, name="orders")
    fake.fill("orders", 5, 5)
    return fake


@pytest.fixture
def store(tmp_path: Path) -> AssignmentStore:
    return open_assignment_store(f"file://{tmp_path}/assignment")


def refused(query: FakeQuery, error: type[SspError]) -> str:
    """What is to be done next."""
    with pytest.raises(error) as caught:
        query.batch()
    return caught.value.next_step


def read_on(query: FakeQuery) -> int:
    """How many offsets the next batches read."""
    return sum(query.counts())


# --- Tasks ----------------------------------------------------------------------------------------


def test_another_choice_of_partitions(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka, kafka_options(assign='{"orders": [1]}'))
    query.batch()
    query.restart(kafka_options(assign='{"orders": [0, 1]}'))
    step = refused(query, PartitionCountError)
    assert "set onPartitionCountChange to regroup" in step
    assert "start it on a new checkpoint location" in step
    assert read_on(FakeQuery(kafka, query.options)) == 10
    query.restart(kafka_options(assign='{"orders": [0, 1]}', onPartitionCountChange="regroup"))
    assert read_on(query) == 5


def test_fewer_partitions_of_a_topic_that_was_created_again(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka, kafka_options(failOnDataLoss="false"))
    query.batch()
    for count in (1, 3):
        kafka.delete("orders")
        kafka.create(count, name="orders")
        kafka.fill("orders", 7)
        query.pass_time()
        step = refused(query, PartitionCountError)
        assert "copy the stream" not in step, "all its records were written with one count"
        assert "start it on a new checkpoint location" in step
        assert read_on(FakeQuery(kafka)) == 7
        other = FakeQuery(kafka, offset=query.offset)
        other.restart(kafka_options(failOnDataLoss="false", onPartitionCountChange="regroup"))
        assert read_on(other) == 7


def test_another_grouper(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    query.restart(kafka_options(grouper="ssp"))
    kafka.expand("orders", 4)
    assert refused(query, IncompatibleStateError) == (
        f"put them back, or start on {NEW_CHECKPOINT}"
    )
    assert read_on(FakeQuery(kafka, query.options)) == 10
    query.restart(kafka_options())
    assert query.batch() == []


class Wrong:
    """Sends every key to a partition that was not there."""

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        return current


def test_an_expansion_algorithm_that_is_wrong(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests are imported by their files, not by this name.
    monkeypatch.setattr("spark_ssp.grouping.fixed_tasks.Wrong", Wrong, raising=False)
    path = "spark_ssp.grouping.fixed_tasks.Wrong"
    query = FakeQuery(kafka, kafka_options(partitionExpansionAlgorithm=path))
    query.batch()
    kafka.expand("orders", 4)
    query.pass_time()
    step = refused(query, PartitionExpansionError)
    assert step.endswith("if producers go by hash(key) mod n, remove the option")
    query.restart(kafka_options())
    assert query.batch() == []


# --- Stores ---------------------------------------------------------------------------------------


def test_what_the_store_makes_impossible(kafka: FakeKafka, store: AssignmentStore) -> None:
    FakeQuery(kafka, store=store).batch()
    kafka.expand("orders", 3)
    query = FakeQuery(kafka, store=store)
    step = refused(query, PartitionCountError)
    assert "a new checkpoint location takes its tasks from the store" in step
    other = open_assignment_store(f"{store.uri}-other")
    for own in (other, None):
        assert read_on(FakeQuery(kafka, store=own)) == 10
    query.restart(kafka_options(onPartitionCountChange="regroup"))
    assert read_on(query) == 10


def test_a_contradiction_to_the_store(
    kafka: FakeKafka, store: AssignmentStore, tmp_path: Path
) -> None:
    FakeQuery(kafka, store=store).batch()
    kafka.expand("orders", 4)
    query = FakeQuery(kafka)
    query.batch()
    query.store = store
    query.restart()
    step = refused(query, AssignmentContradictionError)
    assert "name another assignmentStore for this query" in step
    assert f"or to take over the store's tasks, start it on {NEW_CHECKPOINT}" in step
    assert step.endswith("or, if no other query needs it, empty the store")
    afresh = FakeQuery(kafka, store=store)
    assert {task for task, *_ in afresh.batch() or []} == {"Partition 0", "Partition 1"}
    shutil.rmtree(tmp_path / "assignment")
    query.restart()
    assert query.batch() is None
    query.store = open_assignment_store(f"{store.uri}-other")
    query.restart()
    assert query.batch() is None


def test_a_contradiction_about_the_grouper(kafka: FakeKafka, store: AssignmentStore) -> None:
    FakeQuery(kafka, store=store).batch()
    query = FakeQuery(kafka, kafka_options(grouper="ssp"))
    query.batch()
    query.store = store
    query.restart()
    step = refused(query, AssignmentContradictionError)
    assert f"with grouper and tasks as in the store, on {NEW_CHECKPOINT}" in step
    refused(FakeQuery(kafka, query.options, store=store), IncompatibleStateError)
    assert read_on(FakeQuery(kafka, kafka_options(grouper="partition"), store=store)) == 10


# --- Losses and starts ----------------------------------------------------------------------------


def test_losses_of_every_kind(kafka: FakeKafka) -> None:
    kafka.fill(kafka.create(1, name="clicks"), 5)
    kafka.fill(kafka.create(1, name="views"), 5)
    options = kafka_options(subscribe="clicks,orders,views")
    query = FakeQuery(kafka, options)
    query.batch()
    kafka.delete("clicks")
    kafka.delete("views")
    kafka.create(1, name="views")
    kafka.fill("views", 3)
    kafka.fill("orders", 4)
    kafka.expire("orders", 0, 7)
    del kafka.topics["orders"].logs[1].records[2:]
    query.pass_time()
    step = refused(query, DataLossError)
    assert step.startswith(
        "set failOnDataLoss to false to continue after the gap, or start a new query with a new "
        "checkpoint"
    )
    # The step about another cluster is not for a topic that has other records.
    accepted = step.partition("set acceptTopicIds to ")[2]
    query.restart(kafka_options(subscribe="clicks,orders,views", acceptTopicIds=accepted))
    assert "wait until the copy is complete" in refused(query, DataLossError)
    kafka.fill("views", 2)
    refused(query, DataLossError)  # The others are still lost.
    query.restart(replace(options, fail_on_data_loss=False))
    assert read_on(query) == 2 + 5
    there = FakeQuery(kafka, kafka_options(subscribe="orders,views"))
    assert read_on(there) == 2 + 2 + 5


def test_a_copy_that_is_completed(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    kafka.delete("orders")
    kafka.create(2, name="orders")
    kafka.fill("orders", 5, 3)
    query.restart(kafka_options(acceptTopicIds='{"orders": "id-2"}'))
    assert refused(query, DataLossError).startswith("wait until the copy is complete")
    kafka.fill("orders", 1, 2)
    assert read_on(query) == 1


def test_topics_and_partitions_that_are_named_and_not_there(kafka: FakeKafka) -> None:
    absent = FakeQuery(kafka, kafka_options(subscribe="orders,later"))
    assert refused(absent, StreamNotFoundError) == (
        "correct subscribe or kafka.bootstrap.servers, or create them first"
    )
    kafka.create(1, name="later")
    absent.restart()
    assert read_on(absent) == 10
    some = FakeQuery(kafka, kafka_options(startingOffsets='{"orders": {"0": 3}}'))
    step = refused(some, InvalidOptionsError)
    assert "name them: -2 is earliest, -1 is latest" in step
    every = kafka_options(startingOffsets='{"orders": {"0": -2, "1": -1}}')
    assert read_on(FakeQuery(kafka, every)) == 5


def batch(kafka: FakeKafka, **options: str) -> tuple[TaskRange, ...]:
    time = ManualTime()
    raw = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders", **options}
    parsed = parse_options(raw, QueryKind.BATCH)
    clock = BatchClock(now_ms=0, monotonic=time.monotonic, sleep=time.sleep)
    return plan_read(parsed, kafka, clock=clock).ranges


def test_bounds_of_a_batch_query(kafka: FakeKafka) -> None:
    beyond = '{"orders": {"0": 9, "1": 5}}'
    with pytest.raises(DataLossError) as caught:
        batch(kafka, endingOffsets=beyond)
    assert caught.value.next_step == (
        "set failOnDataLoss to false to continue after the gap, or choose a start and an end "
        "within the partitions"
    )
    assert len(batch(kafka, endingOffsets=beyond, failOnDataLoss="false")) == 2
    assert len(batch(kafka, endingOffsets='{"orders": {"0": 5, "1": 5}}')) == 2
    with pytest.raises(InvalidOptionsError, match="name them: -1 is latest") as unnamed:
        batch(kafka, endingOffsets='{"orders": {"0": 5}}')
    assert "earliest" not in str(unnamed.value)
    assert len(batch(kafka, endingOffsets='{"orders": {"0": 5, "1": -1}}')) == 2


def test_the_first_batch_of_sparks_source(kafka: FakeKafka) -> None:
    """The file's JSON, after the line v1, is what startingOffsets takes."""
    end = SparkOffset(positions={ssp("orders", 0): 4, ssp("orders", 1): 4})
    query = FakeQuery(kafka)
    with pytest.raises(IncompatibleStateError, match="with the JSON in the file sources/0/0"):
        query.planner.ranges(BEFORE_FIRST_BATCH, end)
    _, _, content = 'v1\n{"orders":{"1":2,"0":3}}'.partition("\n")
    query.restart(kafka_options(startingOffsets=content))
    assert read_on(query) == 5
    assert isinstance(query.offset, Offset)
