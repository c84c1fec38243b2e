"""Queries that move: from Spark's own source, whose defaults they have, and to another cluster."""

from __future__ import annotations

import pytest

from spark_ssp.common.errors import DataLossError, IncompatibleStateError
from spark_ssp.grouping.fixed_tasks import PartitionCountError
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kafka_source.model.topic import IsolationLevel, LogicalOffset
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.spark_checkpoint import decode_any
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.driving import FakeQuery, kafka_options
from tests.support.kafka.partitions import ssp


@pytest.fixture
def kafka() -> FakeKafka:
    fake = FakeKafka()
    fake.create(2, name="orders")
    return fake


# --- Defaults -------------------------------------------------------------------------------------


def like_spark(**changed: str) -> KafkaOptions:
    """Without any option about tasks."""
    return parse_options(
        {
            "kafka.bootstrap.servers": "broker:9092",
            "subscribePattern": ".*",
            "startingOffsets": "earliest",
            **changed,
        }
    )


def test_with_no_option_about_tasks_each_partition_is_one_whatever_the_counts(
    kafka: FakeKafka,
) -> None:
    for _ in range(30):
        kafka.fill(kafka.create(1), 1)
    query = FakeQuery(kafka, like_spark())
    tasks = [task for task, *_ in query.batch() or []]
    assert len(set(tasks)) == len(tasks) == 30
    for count in (3, 4, 7):
        kafka.expand("orders", count)
        kafka.fill("orders", *[1] * count)
        query.pass_time()
        read = query.batch() or []
        assert sorted(one.partition for _, one, _, _ in read) == list(range(count))
        assert len({task for task, *_ in read}) == count
    # From now on keys are to stay. So they do, in the tasks that there are.
    query.restart(like_spark(includeTask="true"))
    kafka.expand("orders", 14)
    kafka.fill("orders", *[1] * 14)
    read = query.batch() or []
    assert len(read) == 14
    assert len({task for task, *_ in read}) == 7
    kafka.expand("orders", 15)
    query.pass_time()
    with pytest.raises(PartitionCountError, match="15 partitions, 14 before"):
        query.batch()


def test_a_query_from_before_keeps_its_tasks_without_any_option(kafka: FakeKafka) -> None:
    kafka.fill("orders", 1, 1)
    query = FakeQuery(kafka)
    query.batch()
    query.restart(like_spark())
    kafka.expand("orders", 4)
    kafka.fill("orders", 1, 1, 1, 1)
    assert {task for task, *_ in query.batch() or []} == {"Partition 0", "Partition 1"}
    kafka.expand("orders", 6)
    query.pass_time()
    with pytest.raises(PartitionCountError, match="6 partitions, 4 before"):
        query.batch()


@pytest.mark.parametrize("given", [{"tasks": "2"}, {"grouper": "single"}])
def test_options_that_made_the_tasks_are_missed(kafka: FakeKafka, given: dict[str, str]) -> None:
    query = FakeQuery(kafka, kafka_options(**given))
    query.batch()
    query.restart(like_spark())
    kafka.expand("orders", 4)
    with pytest.raises(IncompatibleStateError, match="put them back") as caught:
        query.batch()
    assert "tasks of this query were made by" in caught.value.found
    query.restart(kafka_options(**given))
    assert query.batch() is not None


# --- A topic on another cluster -------------------------------------------------------------------


def moved_to(count: int, *ends: int) -> FakeKafka:
    """A copy of the cluster, whose topic has another id."""
    copy = FakeKafka()
    copy.create(1, name="first")
    copy.create(count, name="orders")
    copy.fill("orders", *ends)
    return copy


def test_a_topic_with_an_accepted_id_is_read_on_at_the_same_offsets(kafka: FakeKafka) -> None:
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka)
    query.batch()
    query.kafka = moved_to(2, 7, 5)
    query.restart()
    with pytest.raises(DataLossError, match="topic deleted and created again") as caught:
        query.batch()
    assert caught.value.next_step.endswith('set acceptTopicIds to {"orders": "id-2"}')

    accepting = kafka_options(acceptTopicIds='{"orders": "id-2"}')
    query.restart(accepting)
    before = query.offset
    assert query.batch() == [("Partition 0", ssp("orders", 0), 5, 7)]
    assert isinstance(query.offset, Offset)
    assert query.offset.topics == {"orders": "id-2"}
    assert query.batch() is None
    # A batch that was planned on the old cluster and not finished is read from the new one.
    (range_,) = query.planner.ranges(BEFORE_FIRST_BATCH, before)[:1]
    assert [part.topic_id for part in range_.partitions] == ["id-2"]

    # The option may stay: it names one id. Without it the query continues as well.
    query.restart()
    assert query.batch() is None
    query.kafka = moved_to(2, 9, 9)
    query.kafka.delete("orders")
    query.kafka.create(2, name="orders")
    query.restart(accepting)
    with pytest.raises(DataLossError, match=r"created again \(id id-3\)"):
        query.batch()


def test_an_unfinished_batch_after_a_checkpoint_of_sparks_source_has_the_accepted_id(
    kafka: FakeKafka,
) -> None:
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka, like_spark())
    start = query.offset = decode_any({"orders": {"0": 4, "1": 5}})
    end = query.planner.next_offset(start, None)
    assert end is not None
    query.kafka = moved_to(2, 7, 5)
    query.restart(like_spark(acceptTopicIds='{"orders": "id-2"}'))
    (range_,) = query.planner.ranges(start, end)
    assert [(part.topic_id, part.start, part.end) for part in range_.partitions] == [("id-2", 4, 5)]


def test_a_batch_that_sparks_source_planned_is_read_without_a_dropped_topic() -> None:
    """Which was new in the batch, and so has no start."""
    kafka = FakeKafka()
    kafka.create(1, name="orders")
    kafka.fill("orders", 10)
    start = decode_any({"orders": {"0": 2}})
    end = decode_any({"orders": {"0": 5}, "gone": {"0": 7}})
    query = FakeQuery(kafka, like_spark(dropTopics="gone"))
    ranges = query.planner.ranges(start, end)
    read = [(part.ssp, part.start, part.end) for task in ranges for part in task.partitions]
    assert read == [(ssp("orders", 0), 2, 5)]


def test_an_accepted_id_with_nothing_new_to_read_is_recorded(kafka: FakeKafka) -> None:
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka)
    query.batch()
    query.kafka = moved_to(2, 5, 5)
    query.restart(kafka_options(acceptTopicIds='{"orders": "id-2"}'))
    assert query.batch() == []
    query.restart()
    assert query.batch() is None


def test_an_accepted_topic_may_have_a_transaction_open_before_the_position(
    kafka: FakeKafka,
) -> None:
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka)
    query.batch()
    query.kafka = copy = moved_to(2, 7, 5)
    copy.isolation = IsolationLevel.READ_COMMITTED
    copy.log(ssp("orders", 0)).open_since = 3
    options = {"acceptTopicIds": '{"orders": "id-2"}', "kafka_isolation_level": "read_committed"}
    query.restart(kafka_options(**options))
    assert query.batch() == []
    copy.log(ssp("orders", 0)).open_since = None
    assert query.counts() == [2]


@pytest.mark.parametrize(
    ("count", "ends", "found"),
    [
        (2, (5, 4), "orders-1 ends at 4, before the position 5"),
        (1, (9,), "orders-1 is missing"),
        (4, (0, 9, 9, 9), "orders-0 ends at 0, before the position 5"),
    ],
)
@pytest.mark.parametrize("tolerant", ["true", "false"])
def test_an_accepted_topic_with_other_offsets_is_refused(
    kafka: FakeKafka, count: int, ends: tuple[int, ...], found: str, tolerant: str
) -> None:
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka)
    query.batch()
    query.kafka = moved_to(count, *ends)
    query.restart(kafka_options(acceptTopicIds='{"orders": "id-2"}', failOnDataLoss=tolerant))
    with pytest.raises(DataLossError, match=found):
        query.batch()
    assert isinstance(query.offset, Offset)
    with pytest.raises(DataLossError, match=found):
        query.planner.ranges(BEFORE_FIRST_BATCH, query.offset)


def moving(kafka: FakeKafka) -> FakeQuery:
    """A query at offset 5 of both partitions, on a copy that has two more records in the first."""
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka)
    query.batch()
    query.kafka = moved_to(2, 7, 5)
    options = {"acceptTopicIds": '{"orders": "id-2"}', "failOnDataLoss": "false"}
    query.restart(kafka_options(**options))
    return query


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("available_now", [False, True])
def test_an_accepted_topic_that_brokers_do_not_know_yet_is_read_on_at_the_same_offsets(
    kafka: FakeKafka, attempts: int, available_now: bool
) -> None:
    """With three stale answers, only the fetch finds the topic."""
    query = moving(kafka)
    assert isinstance(query.kafka, FakeKafka)
    query.kafka.descriptions += [{}] * attempts
    if available_now:
        query.kafka.descriptions.append({})
        query.planner.stop_at_latest()
    assert query.batch() == [("Partition 0", ssp("orders", 0), 5, 7)]
    assert query.planner.losses == 0
    assert isinstance(query.offset, Offset)
    assert query.offset.topics == {"orders": "id-2"}
    assert query.batch() is None


def test_ends_of_a_topic_that_is_accepted_after_the_fetch_are_listed_newest_generation_first(
    kafka: FakeKafka,
) -> None:
    query = FakeQuery(kafka)
    query.batch()
    kafka.expand("orders", 4)
    query.pass_time()
    query.batch()
    query.kafka = copy = moved_to(4)
    query.restart(kafka_options(acceptTopicIds='{"orders": "id-2"}'))
    copy.descriptions += [{}] * 4
    query.planner.stop_at_latest()

    def meanwhile() -> None:
        # A key moves from partition 1 to partition 3 after each answer.
        copy.fill("orders", 0, 1)
        copy.fill("orders", 0, 0, 0, 1)

    copy.meanwhile = meanwhile
    read = {one.partition: end for _, one, _, end in query.batch() or []}
    assert read[1] > read[3]


def test_a_batch_of_a_moved_topic_is_planned_again_with_the_accepted_id(kafka: FakeKafka) -> None:
    query = moving(kafka)
    assert isinstance(query.kafka, FakeKafka)
    assert isinstance(query.offset, Offset)
    query.kafka.descriptions += [{}] * 2
    ranges = query.planner.ranges(BEFORE_FIRST_BATCH, query.offset)
    assert [part.topic_id for one in ranges for part in one.partitions] == ["id-2"] * 2
    assert query.time.slept == [1.0, 1.0]


def test_offsets_of_a_moved_topic_differ_only_if_no_answer_has_them(kafka: FakeKafka) -> None:
    query = moving(kafka)
    assert isinstance(query.kafka, FakeKafka)
    query.kafka.omitted.append((LogicalOffset.LATEST, ssp("orders", 0)))
    log = query.kafka.log(ssp("orders", 1))
    last = log.records.pop()
    query.kafka.meanwhile = lambda: log.records.append(last) if query.time.slept == [1.0] else None
    assert query.batch() is not None
    assert query.time.slept == [1.0, 1.0]


@pytest.mark.parametrize("selected", ["clicks", "clicks,orders"])
def test_an_accepted_topic_that_stays_away_is_waited_for_once_if_it_is_read(
    kafka: FakeKafka, selected: str
) -> None:
    kafka.create(1, name="clicks")
    query = FakeQuery(kafka, kafka_options(subscribe="clicks,orders"))
    query.batch()
    kafka.delete("orders")
    accepted = '{"orders": "id-9"}'
    query.restart(
        kafka_options(subscribe=selected, acceptTopicIds=accepted, failOnDataLoss="false")
    )
    query.batch()
    # By the description of the topics, and by the fetch.
    assert query.time.slept == ([1.0] * 4 if "orders" in selected else [])
    query.time.slept.clear()
    kafka.fill("clicks", 1)
    assert query.batch() == [("Partition 0", ssp("clicks", 0), 0, 1)]
    assert query.time.slept == []


def test_on_the_old_cluster_an_accepted_id_means_nothing_yet(kafka: FakeKafka) -> None:
    kafka.fill("orders", 5, 5)
    query = FakeQuery(kafka)
    query.batch()
    query.restart(kafka_options(acceptTopicIds='{"orders": "id-2", "payments": "id-3"}'))
    kafka.fill("orders", 1)
    assert query.batch() == [("Partition 0", ssp("orders", 0), 5, 6)]
