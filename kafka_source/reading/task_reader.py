"""What a Spark task runs: the ranges of one task as Arrow record batches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import pyarrow as pa

from kafka_source.consumers.fetch_profile import choose_profile
from kafka_source.consumers.pool import PROCESS_POOL, ConsumerKey, ConsumerPool
from kafka_source.model.ranges import PartitionRange, TaskRange
from kafka_source.options.values import KafkaOptions
from kafka_source.planning.data_loss import log_data_loss
from kafka_source.planning.topic_metadata import raise_data_loss
from kafka_source.properties.translation import GROUP_ID
from kafka_source.reading.generation_reader import GenerationReader
from kafka_source.reading.range_progress import RangeProgress, split_generations
from kafka_source.reading.stall_diagnosis import (
    CONFIRM_INTERVAL_S,
    CONFIRMATIONS,
    PartitionStatus,
    StallReason,
    is_recreated,
    to_data_loss,
)
from kafka_source.reading.topic_id_check import TopicIdChecker, checker_of_process
from task_grouping.identifiers import StreamName


def read_task(
    range_: TaskRange,
    options: KafkaOptions,
    group_id: str,
    *,
    pool: ConsumerPool = PROCESS_POOL,
    topics: TopicIdChecker | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """The records of `range_`, of `arrow_schema`; the rows of a partition keep their order, and
    partitions of an older generation come before those of a newer one.

    Reading it again gives the same rows, in batches that may be cut elsewhere. `group_id` is what
    brokers see, unless `kafka.group.id` is set. Nothing starts before the first `next`.

    Raises DataLossError where records are gone and that is not tolerated; ServiceUnavailableError
    when no partition advanced for `pollTimeout`; and what brokers refuse, at once.
    """
    topics = topics or checker_of_process(os.getpid())
    told = options.client.config()
    ranges = _as_planned(range_.partitions, options, topics, sleep)
    key = ConsumerKey(
        client=options.client,
        group_id=told.get(GROUP_ID, group_id),
        headers=options.include_headers,
        profile=choose_profile(ranges, pool.record_bytes, told),
    )
    ids = {one.ssp.stream: one.topic_id for one in ranges if one.topic_id is not None}
    with pool.acquire(key, ids) as consumer:
        for together in split_generations(ranges):
            reader = GenerationReader(
                task=range_,
                options=options,
                progress=RangeProgress(together),
                consumer=consumer,
                service=partial(topics.service, options),
                monotonic=monotonic,
                sleep=sleep,
                record_bytes=_largest(pool.record_bytes, together),
            )
            yield from reader.read()
            if reader.record_bytes is not None:
                seen = dict.fromkeys((one.ssp.stream for one in together), reader.record_bytes)
                pool.record_bytes.update(seen)


def _largest(
    record_bytes: Mapping[StreamName, float], ranges: Iterable[PartitionRange]
) -> float | None:
    """Return the largest known record size of these ranges, or None if any is unknown."""
    sizes = [record_bytes.get(one.ssp.stream) for one in ranges]
    known = [size for size in sizes if size is not None]
    return max(known, default=None) if len(known) == len(sizes) else None


def _as_planned(
    ranges: tuple[PartitionRange, ...],
    options: KafkaOptions,
    topics: TopicIdChecker,
    sleep: Callable[[float], None],
) -> tuple[PartitionRange, ...]:
    """Those ranges whose topics were not created again since. Another id is asked for again, with
    pauses: a broker that is behind still has that of the topic before."""
    for look in range(CONFIRMATIONS):
        if look:
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
