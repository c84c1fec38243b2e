"""Reads ranges as a task does, by either consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_ssp.common.columns import Column
from spark_ssp.grouping.identifiers import StreamName, TaskName
from spark_ssp.kafka_source.model.ranges import PartitionRange, TaskRange
from spark_ssp.kafka_source.model.topic import TopicId, partition_of
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.reading.confluent_consumer import ConfluentConsumer
from spark_ssp.kafka_source.reading.consumer_api import PartitionConsumer
from spark_ssp.kafka_source.reading.librdkafka import Library, load
from spark_ssp.kafka_source.reading.native_consumer import NativeConsumer
from spark_ssp.kafka_source.reading.pool import ConsumerKey, ConsumerPool, consumer_settings
from spark_ssp.kafka_source.reading.task_reader import TopicIdChecker, read_task

Row = dict[str, Any]


def open_native(key: ConsumerKey) -> PartitionConsumer:
    """Open the consumer over librdkafka's memory."""
    found = load()
    assert isinstance(found, Library), found
    return NativeConsumer(found, key.client, consumer_settings(key))


def open_messages(key: ConsumerKey) -> PartitionConsumer:
    """Open confluent-kafka's own consumer."""
    return ConfluentConsumer(key.client, consumer_settings(key))


def part(
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    generation: int = 0,
    topic_id: str | None = None,
) -> PartitionRange:
    """Return the range from `start` up to, not including, `end`."""
    return PartitionRange(
        ssp=partition_of(StreamName(topic), partition),
        topic_id=None if topic_id is None else TopicId(topic_id),
        start=start,
        end=end,
        generation=generation,
    )


def task(*parts: PartitionRange, number: int = 0) -> TaskRange:
    """Return a task with these ranges."""
    return TaskRange(task=TaskName(f"Partition {number}"), number=number, partitions=parts)


def options_for(settings: Mapping[str, str], **more: str) -> KafkaOptions:
    """Return the options of a query; `more` in snake case with `__` for dots."""
    named = {name.replace("__", "."): value for name, value in more.items()}
    return parse_options({"subscribe": "any", "pollTimeout": "20s", **settings, **named})


@dataclass
class TaskReading:
    """Reads tasks of one cluster with a separate pool of consumers."""

    settings: Mapping[str, str]
    pool: ConsumerPool = field(default_factory=ConsumerPool)
    topics: TopicIdChecker = field(default_factory=TopicIdChecker)

    def batches(
        self, range_: TaskRange, columns: Sequence[Column] | None = None, /, **options: str
    ) -> list[pa.RecordBatch]:
        """Return all batches of a task."""
        return list(
            read_task(
                range_,
                options_for(self.settings, **options),
                "test",
                columns=columns,
                pool=self.pool,
                topics=self.topics,
            )
        )

    def rows(self, *parts: PartitionRange, **options: str) -> list[Row]:
        """Return all rows of a task with these ranges."""
        batches = self.batches(task(*parts), **options)
        rows: list[Row] = [row for batch in batches for row in batch.to_pylist()]
        return rows

    def offsets(self, *parts: PartitionRange, **options: str) -> list[tuple[int, int]]:
        """Return partition and offset of all rows."""
        return [(row["partition"], row["offset"]) for row in self.rows(*parts, **options)]
