"""Topics and brokers of the tests of Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka.feed import KafkaFeed
from tests.support.kafka.topics import KafkaTopics
from tests.support.parity.topics import ParityTopics, parity_topics
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.servers.kafka_security import SecureKafka


@pytest.fixture
def feed(topics: KafkaTopics) -> KafkaFeed:
    return KafkaFeed(topics)


@pytest.fixture(scope="module")
def prepared(kafka_broker: KafkaBroker) -> Iterator[ParityTopics]:
    brokers = kafka_broker.bootstrap_servers
    with (
        KafkaTopics({"bootstrap.servers": brokers}) as topics,
        parity_topics(topics, brokers) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def secure() -> Iterator[SecureKafka]:
    with SecureKafka() as found:
        yield found
