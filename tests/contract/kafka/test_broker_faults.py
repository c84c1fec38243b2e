"""One broker of three that is killed or frozen: nothing stops, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from spark_ssp.grouping.identifiers import EpochMillis, StreamName
from spark_ssp.kafka_source.client.admin_client import KafkaAdminClient, connect
from spark_ssp.kafka_source.group_committer import GroupOffsets
from spark_ssp.kafka_source.model.topic import (
    AtTime,
    LogicalOffset,
    Subscribe,
    SubscribePattern,
    partition_of,
)
from spark_ssp.kafka_source.options.parse import parse_options
from tests.support.kafka.broker_faults import Rehearsal
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBrokers


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaBrokers]:
    with KafkaBrokers() as brokers:
        yield brokers


@pytest.fixture
def topics(cluster: KafkaBrokers) -> Iterator[KafkaTopics]:
    with KafkaTopics({"bootstrap.servers": cluster.bootstrap_servers}) as topics_of_test:
        yield topics_of_test


# --- The requests of the driver -------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["kill", pytest.param("freeze", marks=pytest.mark.long)])
def test_each_request_is_answered_while_any_broker_is_away(
    cluster: KafkaBrokers, topics: KafkaTopics, fault: str
) -> None:
    """Of clients that were connected before, and of new ones, whichever broker it is: the
    controller, the leader of a partition, the coordinator of a group."""
    topic = StreamName(topics.create(6))
    options = parse_options({**cluster.options, "subscribe": topic, "fetchOffset.numRetries": "1"})
    places = [partition_of(topic, number) for number in range(6)]
    group = GroupOffsets(options.client, f"group-{topic}")
    connected = connect(options)

    topics.put(topic, [Record(value=b"v", partition=place.partition) for place in places])

    def ask_all(kafka: KafkaAdminClient) -> None:
        named = kafka.describe(Subscribe(topics=(topic,)))
        assert kafka.describe(SubscribePattern(pattern=f"^{topic}$")) == named
        assert kafka.list_offsets(places, LogicalOffset.LATEST) == dict.fromkeys(places, 1)
        # A partition without an answer is not one without such a record.
        assert kafka.list_offsets(places, AtTime(time_ms=EpochMillis(1))) == dict.fromkeys(
            places, 0
        )
        assert None not in kafka.first_records(places, EpochMillis(0)).values()

    ask_all(connected)
    group.commit(dict.fromkeys(places, 0), 60)
    for number in cluster.numbers:
        with cluster.away(number, fault), ThreadPoolExecutor(3) as threads:
            new = {**cluster.options, "subscribe": topic, "kafka.client.id": f"{fault}-{number}"}
            fresh = connect(parse_options(new | {"fetchOffset.numRetries": "1"}))
            done: list[Future[Any]] = [
                threads.submit(ask_all, connected),
                threads.submit(ask_all, fresh),
                threads.submit(group.commit, dict.fromkeys(places, 0), 60),
            ]
            for one in done:
                one.result()
    group.close()


# --- Everything that talks to Kafka ---------------------------------------------------------------


@pytest.mark.parametrize("fault", [pytest.param("kill", marks=pytest.mark.long), "freeze"])
def test_nothing_ends_and_nothing_is_lost_while_a_broker_is_away(
    cluster: KafkaBrokers, fault: str
) -> None:
    """Sources with and without fixed tasks, a pattern, a batch read, a sink, the planner and the
    command. `python -m tests.support.kafka.broker_faults` prints times too, of every broker."""
    with Rehearsal(cluster) as rehearsal:
        outcome = rehearsal.fault(fault, 1, down_s=10)
    assert outcome.is_right, outcome
