"""The implementations of `KafkaService` that one contract holds for, each with its cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from confluent_kafka import KafkaException, Producer, TopicCollection, TopicPartition

from spark_ssp.kafka_source.client.admin_client import connect
from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.kafka_source.client.api import KafkaService
from spark_ssp.kafka_source.model.topic import IsolationLevel
from spark_ssp.kafka_source.options.parse import parse_options
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.topics import KafkaTopics, Record, produce
from tests.support.waiting import until

_PATIENCE_S: Final = 60.0


class Cluster(Protocol):
    """Topics to change, and services that read them. When a method returns, all brokers have
    applied the change."""

    def service(self, isolation: IsolationLevel) -> KafkaService: ...

    def create(self, partitions: int = 1, *, name: str | None = None) -> str: ...

    def expand(self, topic: str, partitions: int) -> None: ...

    def delete(self, topic: str) -> None: ...

    def put(self, topic: str, records: Sequence[Record]) -> None: ...

    def expire(self, topic: str, partition: int, before: int) -> None: ...

    def transaction(
        self, topic: str, records: Sequence[Record]
    ) -> AbstractContextManager[None]: ...

    def internal_topic(self) -> str: ...


class FakeCluster:
    """`FakeKafka`, once for each isolation level over the same topics."""

    def __init__(self) -> None:
        self._fakes = {isolation: FakeKafka(isolation) for isolation in IsolationLevel}
        self._fake = self._fakes[IsolationLevel.READ_UNCOMMITTED]
        for fake in self._fakes.values():
            fake.topics = self._fake.topics

    def service(self, isolation: IsolationLevel) -> KafkaService:
        return self._fakes[isolation]

    def create(self, partitions: int = 1, *, name: str | None = None) -> str:
        return self._fake.create(partitions, name=name)

    def expand(self, topic: str, partitions: int) -> None:
        self._fake.expand(topic, partitions)

    def delete(self, topic: str) -> None:
        self._fake.delete(topic)

    def put(self, topic: str, records: Sequence[Record]) -> None:
        self._fake.put(topic, records)

    def expire(self, topic: str, partition: int, before: int) -> None:
        self._fake.expire(topic, partition, before)

    @contextmanager
    def transaction(self, topic: str, records: Sequence[Record]) -> Iterator[None]:
        """Open in the block, committed behind it. All `records` go to partition 0."""
        log = self._fake.topics[topic].logs[0]
        log.open_since = len(log.records)
        self._fake.put(topic, records)
        yield
        log.open_since = None

    def internal_topic(self) -> str:
        return self._fake.create(name="__transaction_state")


class BrokerCluster:
    """A real broker, asked by the client of the source."""

    def __init__(self, bootstrap_servers: str, topics: KafkaTopics) -> None:
        self._options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": "any"}
        self._settings = {"bootstrap.servers": bootstrap_servers, "log_level": "0"}
        self._admin = AdminClient({**self._settings})
        self._topics = topics

    def service(self, isolation: IsolationLevel) -> KafkaService:
        return connect(parse_options(self._options | {"kafka.isolation.level": isolation.value}))

    def create(self, partitions: int = 1, *, name: str | None = None) -> str:
        topic = self._topics.create(partitions, name=name)
        self._until_led(topic, partitions)
        return topic

    def expand(self, topic: str, partitions: int) -> None:
        self._topics.expand(topic, partitions)
        self._until_led(topic, partitions)

    def delete(self, topic: str) -> None:
        self._topics.delete(topic)
        until(lambda: self._leaders(topic) == [], f"{topic} is gone")

    def put(self, topic: str, records: Sequence[Record]) -> None:
        self._topics.put(topic, records)

    def expire(self, topic: str, partition: int, before: int) -> None:
        """As retention does it, now."""
        place = TopicPartition(topic, partition, before)
        for future in self._admin.delete_records([place]).values():
            future.result(_PATIENCE_S)

    @contextmanager
    def transaction(self, topic: str, records: Sequence[Record]) -> Iterator[None]:
        """Open in the block, committed behind it. All `records` go to partition 0."""
        producer = Producer({**self._settings, "transactional.id": f"of-{topic}"})
        producer.init_transactions(_PATIENCE_S)
        producer.begin_transaction()
        produce(producer, topic, records)
        yield
        producer.commit_transaction(_PATIENCE_S)

    def internal_topic(self) -> str:
        """Made by the first transaction."""
        with self.transaction(self.create(), [Record(value=b"", partition=0)]):
            pass
        return "__transaction_state"

    def _until_led(self, topic: str, partitions: int) -> None:
        until(lambda: self._leaders(topic) == [True] * partitions, f"{topic} has its leaders")

    def _leaders(self, topic: str) -> list[bool]:
        """Of each partition, whether it has one."""
        future = self._admin.describe_topics(TopicCollection([topic]))[topic]
        try:
            found = future.result(_PATIENCE_S)
        except KafkaException:
            return []
        return [one.leader is not None for one in found.partitions]
