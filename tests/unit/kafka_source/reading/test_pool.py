"""Consumers are kept, lent to one at a time, and never cross a fork."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import pytest

from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.topic import TopicId
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.reading import librdkafka
from spark_ssp.kafka_source.reading.arrow_batches import RecordColumns
from spark_ssp.kafka_source.reading.confluent_consumer import ConfluentConsumer
from spark_ssp.kafka_source.reading.consumer_api import Event, RecordRun
from spark_ssp.kafka_source.reading.pool import (
    IDLE_TIMEOUT_S,
    MAX_IDLE,
    ConsumerKey,
    ConsumerPool,
    check_consumers,
    consumer_settings,
    open_consumer,
    slow_reads,
)
from tests.support.kafka.partitions import ssp


class FakeConsumer:
    buffered_rows = 0
    buffered_bytes = 0

    def __init__(self) -> None:
        self.placed: list[Mapping[SystemStreamPartition, int]] = []
        self.closed_in: list[int] = []

    def assign(
        self, positions: Mapping[SystemStreamPartition, int], *, headers: bool = False
    ) -> None:
        self.placed.append(positions)

    def seek(self, ssp: SystemStreamPartition, offset: int) -> None:
        raise NotImplementedError

    def unassign(self, ssps: Sequence[SystemStreamPartition]) -> None:
        raise NotImplementedError

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        raise NotImplementedError

    def keep(self, run: RecordRun, kept: slice) -> None:
        raise NotImplementedError

    def take(self, most: int, columns: Collection[str]) -> RecordColumns:
        raise NotImplementedError

    def last_error(self) -> str | None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed_in.append(os.getpid())


class World:
    """A pool, its clock, and all consumers that it made."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made: list[FakeConsumer] = []
        self.pool = ConsumerPool(create=self._make, monotonic=lambda: self.now)

    def _make(self, _key: ConsumerKey) -> FakeConsumer:
        self.made.append(FakeConsumer())
        return self.made[-1]


def _key(group: str = "g") -> ConsumerKey:
    return ConsumerKey(client=ClientProperties(), group_id=group)


def test_one_task_after_the_other_has_the_same_consumer_and_it_rests_between() -> None:
    world = World()
    for _ in range(3):
        with world.pool.acquire(_key(), {}) as consumer:
            consumer.assign({ssp("orders", 0): 1})
    assert [one.placed[-1] for one in world.made] == [{}]
    world.pool.close()
    world.pool.close()
    assert len(world.made[0].closed_in) == 1


def test_tasks_at_the_same_time_and_of_other_queries_have_their_own() -> None:
    world = World()
    with world.pool.acquire(_key(), {}) as one, world.pool.acquire(_key(), {}) as two:
        assert one is not two
        with world.pool.acquire(_key("other"), {}) as three:
            assert three not in (one, two)
    with world.pool.acquire(_key("other"), {}) as again:
        assert again is three
    assert len(world.made) == 3


def test_one_that_has_read_a_topic_of_the_same_name_is_closed() -> None:
    world = World()
    orders, clicks = StreamName("orders"), StreamName("clicks")
    with world.pool.acquire(_key(), {orders: TopicId("a")}):
        pass
    for topics in ({}, {clicks: TopicId("b")}, {orders: TopicId("a")}):
        with world.pool.acquire(_key(), topics) as consumer:
            assert consumer is world.made[0]
    with world.pool.acquire(_key("other"), {orders: TopicId("c")}) as other:
        pass
    assert world.made[0].closed_in == []
    with world.pool.acquire(_key(), {orders: TopicId("c"), clicks: TopicId("b")}) as consumer:
        assert consumer is not world.made[0]
    assert len(world.made[0].closed_in) == 1
    with world.pool.acquire(_key("other"), {orders: TopicId("c")}) as again:
        assert again is other
    assert len(world.made) == 3


def test_after_an_error_a_consumer_is_closed() -> None:
    world = World()
    with pytest.raises(ZeroDivisionError), world.pool.acquire(_key(), {}):
        raise ZeroDivisionError
    assert len(world.made[0].closed_in) == 1
    with world.pool.acquire(_key(), {}) as consumer:
        assert consumer is world.made[1]


def test_those_that_rest_too_long_or_are_too_many_are_closed() -> None:
    world = World()
    with world.pool.acquire(_key("old"), {}):
        pass
    world.now += IDLE_TIMEOUT_S + 1
    for number in range(MAX_IDLE + 2):
        with world.pool.acquire(_key(str(number)), {}):
            world.now += 1
    closed = [number for number, one in enumerate(world.made) if one.closed_in]
    assert closed == [0, 1, 2]


def test_a_child_process_begins_with_none_and_leaves_its_parents_alone() -> None:
    world = World()
    with world.pool.acquire(_key(), {}):
        pass
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        with world.pool.acquire(_key(), {}) as consumer:
            mine = consumer is world.made[-1] and len(world.made) == 2
        world.pool.close()
        left = not world.made[0].closed_in and world.made[1].closed_in == [os.getpid()]
        os.write(write, b"right" if mine and left else b"wrong")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 5) == b"right"
    os.close(read)
    os.close(write)
    with world.pool.acquire(_key(), {}) as consumer:
        assert consumer is world.made[0]


def test_what_a_user_set_wins_over_the_defaults() -> None:
    client = ClientProperties(public=(("fetch.wait.max.ms", "300"),))
    settings = consumer_settings(ConsumerKey(client=client, group_id="mine"))
    assert "fetch.wait.max.ms" not in settings
    assert settings["group.id"] == "mine"
    assert settings["fetch.queue.backoff.ms"] == "2"


# --- The kind of consumer -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        (0x020E02FF, True),
        (0x021001FF, True),
        (0x02100101, False),  # before its release
        (0x021100FF, False),
        (0x020900FF, False),
        (0x030A01FF, False),
    ],
)
def test_versions_of_a_known_layout(version: int, tested: bool) -> None:
    assert librdkafka.is_tested(version) is tested


@pytest.fixture
def _unknown_layout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(librdkafka, "TESTED", ())
    librdkafka.load.cache_clear()
    yield
    librdkafka.load.cache_clear()


@pytest.mark.usefixtures("_unknown_layout")
def test_the_memory_of_a_version_of_unknown_layout_is_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = ClientProperties(public=(("bootstrap.servers", "127.0.0.1:1"),))
    with caplog.at_level(logging.WARNING, logger="spark_ssp.kafka_source.reading.pool"):
        check_consumers(client, "group")
    reason = slow_reads()
    assert reason is not None
    (record,) = [one for one in caplog.records if one.name.endswith(".pool")]
    assert reason in record.getMessage()
    consumer = open_consumer(ConsumerKey(client=client, group_id="group"))
    assert isinstance(consumer, ConfluentConsumer)
    consumer.close()
