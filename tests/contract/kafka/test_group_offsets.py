"""Commits to consumer groups of a real broker, and what keeps a group from taking them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import pytest
from confluent_kafka import Consumer

from spark_ssp.common.errors import InvalidRequestError, ServiceUnavailableError, SspError
from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.group_committer import CommitPace, GroupCommitter, GroupOffsets
from spark_ssp.kafka_source.model.topic import partition_of
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.source import KafkaStreamReader
from tests.support.kafka.group_tool import committed_offsets
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.waiting import until

_TIMEOUT_S = 20


def positions(topic: str, *offsets: int) -> dict[SystemStreamPartition, int]:
    return {partition_of(StreamName(topic), n): offset for n, offset in enumerate(offsets)}


@contextmanager
def group_offsets(broker: KafkaBroker, group: str) -> Iterator[GroupOffsets]:
    options = parse_options({**broker.options, "subscribe": "any"})
    offsets = GroupOffsets(options.client, group)
    try:
        yield offsets
    finally:
        offsets.close()


def committed(broker: KafkaBroker, group: str, topic: str, partitions: int) -> list[int]:
    places = [(topic, n) for n in range(partitions)]
    return list(committed_offsets(broker.bootstrap_servers, group, places).values())


def commit_patiently(offsets: GroupOffsets, where: dict[SystemStreamPartition, int]) -> None:
    """The broker creates its topic of offsets with the first request, and answers later."""

    def is_committed() -> bool:
        try:
            return offsets.commit(where, _TIMEOUT_S)
        except ServiceUnavailableError:
            return False

    until(is_committed, "a commit")


@contextmanager
def member_of(
    broker: KafkaBroker, group: str, topic: str, protocol: str = "classic"
) -> Iterator[None]:
    member = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
        }
    )
    member.subscribe([topic])
    try:
        until(lambda: bool(member.poll(0.1) or member.assignment()), "an assignment")
        yield
    finally:
        member.close()


def test_deleted_topics_and_partitions_are_left_out(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create(2)
    with group_offsets(kafka_broker, f"lag-{topic}") as offsets:
        commit_patiently(offsets, positions(topic, 3, 4))
        assert committed(kafka_broker, f"lag-{topic}", topic, 2) == [3, 4]
        offsets.commit(positions("gone", 1) | positions(topic, 5, 6, 7), _TIMEOUT_S)
        assert committed(kafka_broker, f"lag-{topic}", topic, 2) == [5, 6]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_refuses_and_is_tried_again(
    kafka_broker: KafkaBroker, topics: KafkaTopics, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create(1)
    group = f"used-{topic}"
    with group_offsets(kafka_broker, group) as offsets, ExitStack() as membership:
        commit_patiently(offsets, positions(topic, 0))
        membership.enter_context(member_of(kafka_broker, group, topic, protocol))
        with pytest.raises(InvalidRequestError, match="the group has active members"):
            offsets.commit(positions(topic, 5), _TIMEOUT_S)
        committer = GroupCommitter(group, offsets, pace=CommitPace(pause_s=0.2, flush_s=30))
        committer.submit(positions(topic, 6))
        until(lambda: "UNKNOWN_MEMBER_ID" in caplog.text, "a warning")
        assert "give commitOffsetsToGroup a group that no consumer uses" in caplog.text
        membership.close()
        until(lambda: committed(kafka_broker, group, topic, 1) == [6], "a commit")
        committer.close()
    assert len([one for one in caplog.records if "not committed" in one.message]) == 1


@pytest.mark.parametrize("connected", [False, True])
def test_the_last_batch_of_available_now_is_committed_or_a_warning(
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    connected: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark ends the process right after the plan that finds no next batch."""
    monkeypatch.setattr(GroupCommitter, "flush_on_termination", lambda _: None)
    topic = topics.create(1)
    topics.put(topic, [Record(value=b"v")] * 3)
    group = f"now-{topic}"
    options = {
        **kafka_broker.options,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "commitOffsetsToGroup": group,
    }
    reader = KafkaStreamReader(options)
    try:
        with member_of(kafka_broker, group, topic) if connected else nullcontext():
            reader.prepareForTriggerAvailableNow()
            end = reader.plan_end_of_all(reader.initialOffset())
            assert reader.plan_end_of_all(end) == end
        warnings = [one.getMessage() for one in caplog.records if "last offsets" in one.message]
        if connected:
            assert "the group has active members" in "".join(warnings)
        else:
            assert committed(kafka_broker, group, topic, 1) == [3]
            assert not warnings
    finally:
        reader.stop()


def test_a_restarted_broker_gets_the_next_commits() -> None:
    with KafkaBroker() as broker, KafkaTopics(broker_settings(broker)) as topics:
        topic = topics.create(1)
        with group_offsets(broker, "lag") as offsets:
            commit_patiently(offsets, positions(topic, 1))
            broker.stop()
            with pytest.raises(SspError) as caught:
                offsets.commit(positions(topic, 2), 2)
            assert caught.value.kind == "service-unavailable"
            assert "refused" in caught.value.found
            broker.start_again()
            commit_patiently(offsets, positions(topic, 3))
            assert committed(broker, "lag", topic, 1) == [3]


def broker_settings(broker: KafkaBroker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers}
