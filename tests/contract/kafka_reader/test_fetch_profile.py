"""Small pieces of a long log are read with a consumer that fetches little more than them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.reading import confluent_consumer
from spark_ssp.kafka_source.reading.confluent_consumer import ConfluentConsumer
from spark_ssp.kafka_source.reading.consumer_api import PartitionConsumer
from spark_ssp.kafka_source.reading.pool import (
    FETCH_BYTES,
    PROFILES,
    ConsumerKey,
    ConsumerPool,
    FetchProfile,
    consumer_settings,
)
from tests.support.kafka.reading import TaskReading, open_native, part
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker

FETCH = int(PROFILES[FetchProfile.SMALL][FETCH_BYTES])


class Keys:
    """Opens consumers and notes for what."""

    def __init__(self) -> None:
        self.profiles: list[FetchProfile] = []

    def open(self, key: ConsumerKey) -> PartitionConsumer:
        self.profiles.append(key.profile)
        return open_native(key)


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def reading(kafka_broker: KafkaBroker, keys: Keys) -> Iterator[TaskReading]:
    found = TaskReading(kafka_broker.options, ConsumerPool(create=keys.open))
    yield found
    found.pool.close()


def test_what_a_record_takes_is_learned(
    reading: TaskReading, topics: KafkaTopics, keys: Keys
) -> None:
    """10,000 records of a topic that nobody has read may be many bytes; of 20 bytes they are few,
    and 10 of 100 kB are not."""
    tiny, huge = topics.create(), topics.create()
    topics.put(tiny, [Record(value=b"v" * 20)] * 10_001)
    topics.put(huge, [Record(value=b"v" * 100_000)] * 11)
    assert len(reading.rows(part(tiny, 0, 0, 10_000))) == 10_000
    assert len(reading.rows(part(tiny, 0, 1, 10_001))) == 10_000
    assert reading.pool.record_bytes == {StreamName(tiny): 20.0}
    assert len(reading.rows(part(huge, 0, 0, 10))) == 10
    assert keys.profiles == [FetchProfile.BULK, FetchProfile.SMALL], "the third one was kept"
    assert len(reading.rows(part(huge, 0, 1, 11))) == 10
    assert reading.pool.record_bytes[StreamName(huge)] == 100_000.0
    assert keys.profiles == [FetchProfile.BULK, FetchProfile.SMALL], "so were both"


def test_batches_larger_than_a_small_fetch(
    reading: TaskReading, topics: KafkaTopics, keys: Keys
) -> None:
    """Of each partition, and so that a range begins and ends within one."""
    topic = topics.create(4)
    value = b"v" * (FETCH // 2)
    records = [Record(value=value, partition=number % 4) for number in range(4 * 12)]
    large = [Record(value=b"v" * (5 * FETCH), partition=number) for number in range(4)]
    topics.put(topic, [*records, *large], linger_ms="200", batch_size=str(6 * FETCH))
    for begin, end in ((0, 13), (5, 7), (11, 13), (12, 13)):
        ranges = [part(topic, number, begin, end) for number in range(4)]
        expected = [(number, offset) for number in range(4) for offset in range(begin, end)]
        reading.pool.record_bytes.clear()
        assert sorted(reading.offsets(*ranges)) == expected
    assert keys.profiles == [FetchProfile.SMALL]


def test_what_is_fetched_of_a_long_log(
    kafka_broker: KafkaBroker, topics: KafkaTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten records of a log of 6 MB, by librdkafka's own count of bytes."""
    topic = topics.create()
    topics.put(topic, [Record(value=b"v" * 1_000)] * 6_000, batch_size="16384")
    received: list[int] = []

    def count(text: str) -> None:
        received.append(sum(one["rxbytes"] for one in json.loads(text)["brokers"].values()))

    def counting(config: dict[str, Any]) -> Consumer:
        return Consumer({**config, "statistics.interval.ms": 10, "stats_cb": count})

    monkeypatch.setattr(confluent_consumer, "Consumer", counting)
    found: dict[FetchProfile, int] = {}
    for profile in FetchProfile:

        def opened(key: ConsumerKey, profile: FetchProfile = profile) -> PartitionConsumer:
            settings = consumer_settings(
                ConsumerKey(client=key.client, group_id="g", profile=profile)
            )
            return ConfluentConsumer(key.client, settings)

        reading = TaskReading(kafka_broker.options, ConsumerPool(create=opened))
        assert len(reading.rows(part(topic, 0, 1_000, 1_010))) == 10
        with reading.pool.acquire(_the_one_that_rests(reading.pool), {}) as consumer:
            received.clear()
            deadline = time.monotonic() + 30
            while len(received) < 3:
                assert time.monotonic() < deadline
                consumer.poll(1, 0.01)
        found[profile] = received[-1]
        reading.pool.close()
    assert found[FetchProfile.BULK] > 1_000_000
    assert found[FetchProfile.SMALL] < 4 * FETCH


def _the_one_that_rests(pool: ConsumerPool) -> ConsumerKey:
    (idle,) = pool._idle
    return idle.key
