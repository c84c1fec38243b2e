"""What a task takes in memory is bounded in bytes: `benchmarks.kafka.memory`, in small."""

from __future__ import annotations

import pytest

from benchmarks.kafka.memory import Shape, fill, held_by_a_task
from spark_ssp.kafka_source.reading.generation_reader import POLL_BYTES
from tests.support.kafka.topics import KafkaTopics
from tests.support.servers.kafka_broker import KafkaBroker

MEGABYTES = 260
PARTITIONS = 16
MOST = 180_000_000


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_a_task_takes_less_than_what_one_answer_of_the_default_size_unpacks_to(
    kafka_broker: KafkaBroker, topics: KafkaTopics, size: int
) -> None:
    """Compressed, the topic is smaller than librdkafka's default for one answer. The process has
    not read it before, so it does not know the size of a record."""
    topic = topics.create(PARTITIONS)
    shape = Shape(codec="zstd", size=size)
    each = fill(kafka_broker, topic, shape, megabytes=MEGABYTES, partitions=PARTITIONS)
    held = held_by_a_task(
        kafka_broker.options,
        topic,
        partitions=PARTITIONS,
        records=each,
        batches=6,
        pause_s=0.3,
    )
    assert held.largest_batch < POLL_BYTES * 1.1
    assert 0 < held.growth < MOST
