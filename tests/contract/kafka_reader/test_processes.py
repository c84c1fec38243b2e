"""Consumers in worker processes: used again by the next task, and not taken along by a fork."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from spark_ssp.kafka_source.reading.consumer_api import PartitionConsumer
from spark_ssp.kafka_source.reading.pool import ConsumerKey, ConsumerPool
from spark_ssp.kafka_source.reading.task_reader import TopicIdChecker, read_task
from tests.support.kafka.reading import (
    TaskReading,
    open_messages,
    open_native,
    options_for,
    part,
    task,
)
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker

SCRIPT = textwrap.dedent(
    """
    import os, sys
    from spark_ssp.kafka_source.reading.pool import ConsumerPool
    from tests.support.kafka.reading import TaskReading, {make}, part

    reading = TaskReading({{"kafka.bootstrap.servers": "{servers}"}}, ConsumerPool({make}))
    def offsets(start, end):
        return [offset for _, offset in reading.offsets(part("{topic}", 0, start, end))]

    print(offsets(0, 3), flush=True)
    child = os.fork()
    print(offsets(1, 4), flush=True)
    if child:
        assert os.waitpid(child, 0)[1] == 0
        print(offsets(2, 5), flush=True)
    reading.pool.close()
    """
)


@pytest.mark.parametrize("make", ["open_native", "open_messages"])
def test_parent_and_child_both_read_on_and_end(
    kafka_broker: KafkaBroker, topics: KafkaTopics, make: str
) -> None:
    topic = topics.create()
    topics.put(topic, [Record(key=None, value=b"v")] * 5)
    script = SCRIPT.format(make=make, servers=kafka_broker.bootstrap_servers, topic=topic)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0, 1, 2]", "[1, 2, 3]", "[1, 2, 3]", "[2, 3, 4]"]


@pytest.mark.parametrize("make", [open_native, open_messages], ids=["native", "messages"])
def test_nothing_of_one_task_shows_in_the_next(
    kafka_broker: KafkaBroker, topics: KafkaTopics, make: Callable[[ConsumerKey], PartitionConsumer]
) -> None:
    """A task is left early or ends in the middle of what was fetched; the next reads the same
    partitions, from before and from behind."""
    made: list[ConsumerKey] = []

    def counted(key: ConsumerKey) -> PartitionConsumer:
        made.append(key)
        return make(key)

    first, second = topics.create(2), topics.create(2)
    for topic in (first, second):
        topics.put(
            topic, [Record(key=None, value=b"%d" % n, partition=n % 2) for n in range(40_000)]
        )
    reading = TaskReading(kafka_broker.options, ConsumerPool(counted))
    for start, end in [(0, 5), (15_000, 15_005), (3, 9_000), (0, 2), (19_999, 20_000), (2, 4)]:
        for topic in (first, second, first):
            found = reading.offsets(part(topic, 0, start, end), part(topic, 1, start, start + 1))
            expected = [(0, n) for n in range(start, end)] + [(1, start)]
            assert sorted(found) == sorted(expected)
    assert len(made) == 1

    options = options_for(reading.settings)
    early = read_task(
        task(part(first, 0, 0, 20_000)), options, "test", pool=reading.pool, topics=TopicIdChecker()
    )
    next(early)
    early.close()  # type: ignore[attr-defined]
    assert reading.offsets(part(first, 0, 10, 12)) == [(0, 10), (0, 11)]
    reading.pool.close()
