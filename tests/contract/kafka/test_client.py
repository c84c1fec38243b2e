"""What planning may rely on of a cluster: one contract, of a Kafka in memory and a real broker."""

from __future__ import annotations

import time

import pytest

from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.api import KafkaService, TopicDescription
from spark_ssp.kafka_source.model.topic import (
    Assign,
    AtTime,
    IsolationLevel,
    LogicalOffset,
    Subscribe,
    SubscribePattern,
    partition_of,
)
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.servers.kafka_clusters import BrokerCluster, Cluster, FakeCluster
from tests.support.simulation.effort import EFFORT, Effort
from tests.support.waiting import until

ABSENT = StreamName("absent")
READ_COMMITTED = IsolationLevel.READ_COMMITTED
READ_UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED

NOW_MS = time.time_ns() // 1_000_000
"""Older records would be expired."""


@pytest.fixture(params=["fake", "broker"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Every implementation in turn."""
    if request.param == "fake":
        return FakeCluster()
    broker = request.getfixturevalue("kafka_broker")
    topics = request.getfixturevalue("topics")
    assert isinstance(broker, KafkaBroker)
    assert isinstance(topics, KafkaTopics)
    return BrokerCluster(broker.bootstrap_servers, topics)


@pytest.fixture
def kafka(cluster: Cluster) -> KafkaService:
    return cluster.service(READ_UNCOMMITTED)


def of(topic: str, *partitions: int) -> list[SystemStreamPartition]:
    return [partition_of(StreamName(topic), partition) for partition in partitions]


def description(kafka: KafkaService, topic: str) -> TopicDescription:
    found = kafka.describe(Subscribe(topics=(StreamName(topic),)))
    return found[StreamName(topic)]


def record(partition: int = 0, time_ms: int | None = None) -> Record:
    return Record(value=b"x", partition=partition, time_ms=time_ms)


# --- Topics ---------------------------------------------------------------------------------------


def test_topics_are_described_and_absent_ones_absent(cluster: Cluster, kafka: KafkaService) -> None:
    one, three = StreamName(cluster.create(1)), StreamName(cluster.create(3))

    found = kafka.describe(Subscribe(topics=(ABSENT, one, three)))

    assert {name: topic.partition_count for name, topic in found.items()} == {one: 1, three: 3}
    assert len({topic.topic_id for topic in found.values()} - {None}) == 2
    # All partitions are counted, whichever of them are assigned.
    assigned = kafka.describe(Assign(partitions=(*of(three, 1), *of(ABSENT, 0))))
    assert assigned == {three: found[three]}


def test_an_expansion_is_seen_at_once_and_keeps_the_id(
    cluster: Cluster, kafka: KafkaService
) -> None:
    topic = cluster.create(2)
    before = description(kafka, topic)
    assert kafka.list_offsets(of(topic, 0, 1), LogicalOffset.LATEST).keys() == {*of(topic, 0, 1)}

    cluster.expand(topic, 4)

    assert kafka.list_offsets(of(topic, 3), LogicalOffset.LATEST) == dict.fromkeys(of(topic, 3), 0)
    after = description(kafka, topic)
    assert after == TopicDescription(topic_id=before.topic_id, partition_count=4)


def test_a_topic_created_again_has_another_id(cluster: Cluster, kafka: KafkaService) -> None:
    topic = cluster.create(2)
    cluster.put(topic, [record(), record()])
    before = description(kafka, topic)
    assert kafka.list_offsets(of(topic, 0), LogicalOffset.LATEST) == dict.fromkeys(of(topic, 0), 2)

    cluster.delete(topic)
    assert kafka.describe(Subscribe(topics=(StreamName(topic),))) == {}
    assert kafka.list_offsets(of(topic, 0), LogicalOffset.LATEST) == {}
    cluster.create(1, name=topic)

    after = description(kafka, topic)
    assert after.partition_count == 1
    assert after.topic_id not in (None, before.topic_id)
    assert kafka.list_offsets(of(topic, 0, 1), LogicalOffset.LATEST) == dict.fromkeys(
        of(topic, 0), 0
    )


def test_a_pattern_is_searched_for_and_finds_no_internal_topic(
    cluster: Cluster, kafka: KafkaService
) -> None:
    topic = cluster.create(1)
    longer = cluster.create(2, name=f"{topic}-more")
    internal = cluster.internal_topic()

    def found(pattern: str) -> dict[str, int]:
        topics = kafka.describe(SubscribePattern(pattern=pattern))
        return {name: one.partition_count for name, one in topics.items()}

    assert found(topic[1:]) == {topic: 1, longer: 2}
    assert found(f"^{topic}$") == {topic: 1}
    assert found(f"^{topic[1:]}") == {}
    assert found(f"^({internal}|{topic})$") == {topic: 1}
    # Whoever names it gets it.
    assert description(kafka, internal).partition_count == 1


# --- Offsets --------------------------------------------------------------------------------------


def test_edges_of_a_log(cluster: Cluster, kafka: KafkaService) -> None:
    topic = cluster.create(3)
    cluster.put(topic, [record(0)] * 5 + [record(1)] * 2)
    cluster.expire(topic, 0, before=3)

    earliest = kafka.list_offsets(of(topic, 0, 1, 2), LogicalOffset.EARLIEST)
    latest = kafka.list_offsets(of(topic, 0, 1, 2), LogicalOffset.LATEST)

    assert list(earliest.items()) == list(zip(of(topic, 0, 1, 2), (3, 0, 0), strict=True))
    assert list(latest.items()) == list(zip(of(topic, 0, 1, 2), (5, 2, 0), strict=True))


def test_the_end_with_an_open_transaction(cluster: Cluster) -> None:
    topic = cluster.create()
    uncommitted = cluster.service(READ_UNCOMMITTED)
    committed = cluster.service(READ_COMMITTED)
    place = of(topic, 0)[0]
    cluster.put(topic, [record(time_ms=NOW_MS + 1_000)] * 2)

    with cluster.transaction(topic, [record(time_ms=NOW_MS + 2_000)] * 3):
        assert uncommitted.list_offsets([place], LogicalOffset.LATEST) == {place: 5}
        assert committed.list_offsets([place], LogicalOffset.LATEST) == {place: 2}
        assert committed.list_offsets([place], LogicalOffset.EARLIEST) == {place: 0}
        at = AtTime(time_ms=EpochMillis(NOW_MS + 2_000))
        assert uncommitted.list_offsets([place], at) == {place: 2}
        assert committed.list_offsets([place], at) == {place: None}
        assert committed.list_offsets([place], at, uncommitted=True) == {place: 2}
        latest = committed.list_offsets([place], LogicalOffset.LATEST, uncommitted=True)
        assert latest == {place: 5}

    # A real log has the mark of the commit at its end, which comes a moment later.
    end = 5 if isinstance(cluster, FakeCluster) else 6
    until(
        lambda: committed.list_offsets([place], LogicalOffset.LATEST)[place] == end,
        "the commit has its mark",
    )
    assert uncommitted.list_offsets([place], LogicalOffset.LATEST) == {place: end}


def test_the_first_record_of_a_time(cluster: Cluster, kafka: KafkaService) -> None:
    topic = cluster.create(2)
    cluster.put(
        topic,
        [
            record(0, NOW_MS + 1_000),
            record(0, NOW_MS + 2_000),
            record(0, NOW_MS + 3_000),
            record(1, NOW_MS + 1_500),
        ],
    )

    def found(millis: int) -> list[int | None]:
        at = AtTime(time_ms=EpochMillis(millis))
        return [kafka.list_offsets(of(topic, 0, 1), at)[ssp] for ssp in of(topic, 0, 1)]

    assert found(0) == [0, 0]
    assert found(NOW_MS + 1_000) == [0, 0]
    assert found(NOW_MS + 1_001) == [1, 0]
    assert found(NOW_MS + 3_000) == [2, None]
    assert found(NOW_MS + 3_001) == [None, None]


def test_the_first_records_and_their_times(cluster: Cluster, kafka: KafkaService) -> None:
    topic = cluster.create(3)
    times = [record(0, NOW_MS + place) for place in (3_000, 1_000)]
    cluster.put(topic, [*times, record(1, NOW_MS + 2_000), record(1, NOW_MS + 500)])
    cluster.expire(topic, 1, before=1)
    asked = [*of(topic, 0, 1, 2, 9), *of(ABSENT, 0)]

    def found(since_ms: int) -> list[tuple[int, int] | None]:
        answer = kafka.first_records(asked, EpochMillis(since_ms))
        assert answer.keys() == {*of(topic, 0, 1, 2)}
        return [
            None if one is None else (one.offset, one.time_ms - NOW_MS) for one in answer.values()
        ]

    assert found(0) == [(0, 3_000), (1, 500), None]
    assert found(NOW_MS + 3_000) == [(0, 3_000), None, None]
    assert found(NOW_MS + 3_001) == [None, None, None]


def test_what_does_not_exist_is_absent(cluster: Cluster, kafka: KafkaService) -> None:
    topic = cluster.create(2)
    asked = [*of(topic, 0, 1, 2, 9), *of(ABSENT, 0)]
    for point in (LogicalOffset.EARLIEST, LogicalOffset.LATEST, AtTime(time_ms=EpochMillis(5))):
        assert kafka.list_offsets(asked, point).keys() == {*of(topic, 0, 1)}
        assert kafka.list_offsets(of(ABSENT, 0), point) == {}
        assert kafka.list_offsets([], point) == {}


def test_many_partitions_at_once(cluster: Cluster, kafka: KafkaService) -> None:
    # A broker makes some tens of partitions in a second.
    count = 2_000 if EFFORT is Effort.SOAK or isinstance(cluster, FakeCluster) else 100
    topic = cluster.create(count)
    cluster.put(topic, [record(count - 1)])

    latest = kafka.list_offsets(of(topic, *range(count)), LogicalOffset.LATEST)

    assert list(latest.values()) == [0] * (count - 1) + [1]
    assert description(kafka, topic).partition_count == count
