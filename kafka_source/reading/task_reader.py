"""Reads the ranges of one task as Arrow record batches, in a Spark task."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import pyarrow as pa

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.consumers.fetch_profile import choose_profile
from spark_ssp.kafka_source.consumers.pool import PROCESS_POOL, ConsumerKey, ConsumerPool
from spark_ssp.kafka_source.model.ranges import PartitionRange, TaskRange
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.data_loss import log_data_loss, raise_data_loss
from spark_ssp.kafka_source.properties.translation import GROUP_ID
from spark_ssp.kafka_source.reading.generation_reader import GenerationReader
from spark_ssp.kafka_source.reading.range_progress import RangeProgress, split_generations
from spark_ssp.kafka_source.reading.stall_diagnosis import (
    CONFIRM_INTERVAL_S,
    CONFIRMATIONS,
    PartitionStatus,
    StallReason,
    is_recreated,
    to_data_loss,
)
from spark_ssp.kafka_source.reading.topic_id_check import TopicIdChecker, checker_of_process


def read_task(
    range_: TaskRange,
    options: KafkaOptions,
    group_id: str,
    *,
    pool: ConsumerPool = PROCESS_POOL,
    topics: TopicIdChecker | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the records of `range_` as batches of `arrow_schema`. The rows of a partition keep their
    order, and partitions of an older generation precede those of a newer one.

    Reading again returns the same rows, possibly in other batches. `group_id` is the consumer group
    unless `kafka.group.id` is set. Nothing starts before the first `next`.

    Raises DataLossError for lost records unless that is tolerated, ServiceUnavailableError if no
    partition advanced for `pollTimeout`, and permanent errors of brokers at once.
    """
    topics = topics or checker_of_process(os.getpid())
    properties = options.client.config()
    ranges = _check_topic_ids(range_.partitions, options, topics, time.sleep)
    key = ConsumerKey(
        client=options.client,
        group_id=properties.get(GROUP_ID, group_id),
        headers=options.include_headers,
        profile=choose_profile(ranges, pool.record_bytes, properties),
    )
    ids = {one.ssp.stream: one.topic_id for one in ranges if one.topic_id is not None}
    with pool.acquire(key, ids) as consumer:
        for generation in split_generations(ranges):
            reader = GenerationReader(
                task=range_,
                options=options,
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
    if options.fail_on_data_loss:
        raise_data_loss(losses)
    log_data_loss(losses)
    return tuple(one for one in ranges if one not in lost)
