"""Topics of one test: created, filled, expanded and deleted."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions, NewTopic

from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.testing.kafka.broker import wait_for_partitions

_PATIENCE_S: Final = 30
_ANSWER_S: Final = 180
"""A broker may be restarting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record to produce. `time_ms` None: now. `partition` None: by the key, as with Java's
    producer."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """The position of a record."""

    record: Record = field(repr=False)
    topic: str
    partition: int
    offset: int


class KafkaTopics:
    """A context manager: topics of one cluster, deleted when the block ends. `settings` are those
    of a client of librdkafka."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        # Log lines of a client during a broker's restart are not needed here.
        self._settings: dict[str, str | int | float | bool] = {**settings, "log_level": "0"}
        self._admin = AdminClient(self._settings)
        self._made: list[str] = []
        self._adopted: list[str] = []

    def create(
        self,
        partitions: int = 1,
        *,
        name: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic and return its name, which is unique unless it is given."""
        topic = name or f"topic-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        new = NewTopic(topic, num_partitions=partitions, config=dict(config or {}))
        self._wait(self._admin.create_topics([new], request_timeout=_PATIENCE_S))
        self._made.append(topic)
        wait_for_partitions(self._admin, topic, partitions, within_s=_ANSWER_S)
        return topic

    def adopt(self, topic: str) -> None:
        """One that the test will make by itself: it is deleted at the end if it is there."""
        self._adopted.append(topic)

    def config(self, topic: str) -> dict[str, str]:
        """A topic's settings."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (future,) = self._admin.describe_configs([resource]).values()
        return {name: entry.value for name, entry in future.result(_ANSWER_S).items()}

    def expand(self, topic: str, partitions: int) -> None:
        """Expand a topic to this partition count."""
        self._wait(self._admin.create_partitions([NewPartitions(topic, partitions)]))
        wait_for_partitions(self._admin, topic, partitions, within_s=_ANSWER_S)

    def delete(self, topic: str) -> None:
        """Gone when this returns: the broker takes no more records for it."""
        self._wait(self._admin.delete_topics([topic], operation_timeout=_PATIENCE_S))
        self._made.remove(topic)
        wait_for_partitions(self._admin, topic, 0, within_s=_ANSWER_S)

    def expire(self, topic: str, before: Mapping[int, int]) -> None:
        """As retention does it, now: of each partition, the records before an offset."""
        places = [TopicPartition(topic, *place) for place in sorted(before.items())]
        self._wait(self._admin.delete_records(places))

    def put(self, topic: str, records: Iterable[Record], **settings: str) -> list[Put]:
        """Produce all records, and return their positions in the order of `records`. `settings` are
        a producer's, with `_` for dots: `compression_type="zstd"`."""
        producer = Producer(
            {
                **self._settings,
                "enable.idempotence": "true",
                "partitioner": "murmur2_random",
                "linger.ms": "5",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        return produce(producer, topic, records)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        there = self._admin.list_topics(timeout=_ANSWER_S).topics if self._adopted else {}
        self._made += [topic for topic in self._adopted if topic in there]
        for topic in list(self._made):
            self.delete(topic)

    def _wait(self, futures: Mapping[Any, object]) -> None:
        for future in futures.values():
            future.result(_ANSWER_S)  # type: ignore[attr-defined]


def produce(producer: Producer, topic: str, records: Iterable[Record]) -> list[Put]:
    """Produce with a producer of the test's own, for example one within a transaction, and wait."""
    put: list[Put | None] = []
    failed: list[str] = []
    for record in records:
        index = len(put)
        put.append(None)

        def done(
            fault: KafkaError | None, message: Message, index: int = index, record: Record = record
        ) -> None:
            if fault is not None:
                failed.append(str(fault))
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            put[index] = Put(record=record, topic=topic, partition=partition, offset=offset)

        more: dict[str, Any] = {} if record.partition is None else {"partition": record.partition}
        if record.time_ms is not None:
            more["timestamp"] = record.time_ms
        while True:
            try:
                producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers) or None,
                    on_delivery=done,
                    **more,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(_ANSWER_S)
    assert not failed, failed[:3]
    assert left == 0, f"{left} records were not delivered"
    return [one for one in put if one is not None]
