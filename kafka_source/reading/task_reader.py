"""Reads the ranges of one task as Arrow record batches, in a Spark task."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from spark_ssp.common.columns import Column
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.client.admin_client import connect
from spark_ssp.kafka_source.client.api import KafkaService, TopicDescription
from spark_ssp.kafka_source.model.ranges import PartitionRange, TaskRange
from spark_ssp.kafka_source.model.topic import Subscribe, TopicId
from spark_ssp.kafka_source.options.client_properties import GROUP_ID, ClientProperties
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.data_loss import report_data_loss
from spark_ssp.kafka_source.reading.arrow_batches import all_columns
from spark_ssp.kafka_source.reading.generation_reader import GenerationReader
from spark_ssp.kafka_source.reading.pool import (
    PROCESS_POOL,
    ConsumerKey,
    ConsumerPool,
    choose_profile,
)
from spark_ssp.kafka_source.reading.progress import (
    CONFIRM_INTERVAL_S,
    CONFIRMATIONS,
    PartitionStatus,
    RangeProgress,
    StallReason,
    is_recreated,
    split_generations,
    to_data_loss,
)


def read_task(
    range_: TaskRange,
    options: KafkaOptions,
    group_id: str,
    *,
    columns: Sequence[Column] | None = None,
    pool: ConsumerPool = PROCESS_POOL,
    topics: TopicIdChecker | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the records of `range_` as batches of these columns, by default all of the options. The
    rows of a partition keep their order, and partitions of an older generation precede those of a
    newer one.

    Reading again returns the same rows, possibly in other batches. `group_id` is the consumer group
    unless `kafka.group.id` is set. Nothing starts before the first `next`.

    Raises DataLossError for lost records unless that is tolerated, ServiceUnavailableError if no
    partition advanced for `pollTimeout`, and permanent errors of brokers at once.
    """
    columns = columns or all_columns(
        include_headers=options.include_headers, include_task=options.include_task
    )
    topics = topics or checker_of_process(os.getpid())
    properties = options.client.config()
    ranges = _check_topic_ids(range_.partitions, options, topics, time.sleep)
    key = ConsumerKey(
        client=options.client,
        group_id=properties.get(GROUP_ID, group_id),
        profile=choose_profile(ranges, pool.record_bytes, properties),
    )
    ids = {one.ssp.stream: one.topic_id for one in ranges if one.topic_id is not None}
    with pool.acquire(key, ids) as consumer:
        for generation in split_generations(ranges):
            reader = GenerationReader(
                task=range_,
                options=options,
                columns=columns,
                progress=RangeProgress(generation),
                consumer=consumer,
                service=partial(topics.service, options),
                monotonic=time.monotonic,
                sleep=time.sleep,
                record_bytes=_largest(pool.record_bytes, generation),
            )
            yield from reader.read()
            if reader.record_bytes is not None:
                streams = (one.ssp.stream for one in generation)
                pool.record_bytes.update(dict.fromkeys(streams, reader.record_bytes))


def _largest(
    record_bytes: Mapping[StreamName, float], ranges: Iterable[PartitionRange]
) -> float | None:
    """Return the largest known record size of these ranges, or None if any is unknown."""
    sizes = [record_bytes.get(one.ssp.stream) for one in ranges]
    known = [size for size in sizes if size is not None]
    return max(known, default=None) if len(known) == len(sizes) else None


def _check_topic_ids(
    ranges: tuple[PartitionRange, ...],
    options: KafkaOptions,
    topics: TopicIdChecker,
    sleep: Callable[[float], None],
) -> tuple[PartitionRange, ...]:
    """Return the ranges whose topics were not created again since planning. Another id is requested
    again, with pauses: an outdated broker still returns that of the previous topic."""
    for attempt in range(CONFIRMATIONS):
        if attempt:
            sleep(CONFIRM_INTERVAL_S)
        found = topics.unconfirmed(ranges, options)
        lost = [one for one in ranges if is_recreated(one, found.get(one.ssp.stream))]
        if not lost:
            return ranges
    losses = [
        to_data_loss(
            one,
            one.start,
            StallReason.RECREATED,
            PartitionStatus(topic=found[one.ssp.stream], earliest=None, end=None),
        )
        for one in lost
    ]
    report_data_loss(losses, fail=options.fail_on_data_loss)
    return tuple(one for one in ranges if one not in lost)


# --- Topic ids ------------------------------------------------------------------------------------

VALID_S: Final = 60.0
"""The time for which an answer is valid. The driver checks before each batch as well."""

_Key = tuple[ClientProperties, StreamName, TopicId]


@dataclass(slots=True)
class TopicIdChecker:
    """Checks that topics still have their planned ids, and caches the confirmed ones. Thread-safe.

    A batch may be planned long before it is read: a query that was stopped within a batch reads it
    after its restart, and by then the topic may have been deleted and created again, with records
    at the same offsets. So every worker process checks a topic before it reads it for the first
    time, and again after a while.
    """

    connect: Callable[[KafkaOptions], KafkaService] = connect
    monotonic: Callable[[], float] = time.monotonic
    _valid_until: dict[_Key, float] = field(default_factory=dict)
    _services: dict[ClientProperties, KafkaService] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def service(self, options: KafkaOptions) -> KafkaService:
        """Return the brokers' service, with a cached connection."""
        with self._lock:
            if options.client not in self._services:
                self._services[options.client] = self.connect(options)
            return self._services[options.client]

    def unconfirmed(
        self, ranges: Collection[PartitionRange], options: KafkaOptions
    ) -> Mapping[StreamName, TopicDescription]:
        """Return the existing topics of `ranges`, except those that were confirmed recently or have
        no known id."""
        now = self.monotonic()
        ids = {one.ssp.stream: one.topic_id for one in ranges if one.topic_id is not None}
        with self._lock:
            unconfirmed = [
                topic
                for topic, topic_id in sorted(ids.items())
                if self._valid_until.get((options.client, topic, topic_id), -math.inf) < now
            ]
        if not unconfirmed:
            return {}
        found = self.service(options).describe(Subscribe(topics=tuple(unconfirmed)))
        with self._lock:
            for topic in unconfirmed:
                if topic in found and found[topic].topic_id == ids[topic]:
                    self._valid_until[(options.client, topic, ids[topic])] = now + VALID_S
        return found


_checkers: dict[int, TopicIdChecker] = {}


def checker_of_process(process: int) -> TopicIdChecker:
    """Return the checker of a process, by its id: a forked child starts with a new one."""
    return _checkers.setdefault(process, TopicIdChecker())
