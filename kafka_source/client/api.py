"""The requests that planning on the driver sends to Kafka.

`admin_client.py` is the only implementation that talks to a network. Records are read on executors,
over `consumer_api`.

Contract for every implementation:

* Answers come from the brokers, at the time of the call; nothing is cached.
* Transient errors (a broker restart, a partition without a leader, a lost connection, a timeout)
  are retried with pauses, in `fetchOffset.numRetries` attempts; then `ServiceUnavailableError`.
* Missing permissions and wrong credentials: `AccessError`, at once.
* A topic or partition that does not exist is absent from the answer; that is not an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.topic import AtTime, LogicalOffset, Selection, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic's id, None if the brokers return none, and its partition count, 1 or more. Partitions
    are numbered from 0."""

    topic_id: TopicId | None = None
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOffset:
    """The offset and the time of a record."""

    offset: int
    time_ms: EpochMillis


OffsetSpec = LogicalOffset | AtTime
"""The offset to request. `LogicalOffset.LATEST` is the end: the last stable offset with
read_committed, otherwise the offset after the newest record (the high watermark)."""


class KafkaService(Protocol):
    """One cluster, accessed as one user with one isolation level."""

    def describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        """Return the topics of a selection that exist, each with its full partition count. With
        `SubscribePattern`, internal topics are excluded, as in Spark."""
        ...

    def list_offsets(
        self,
        partitions: Collection[SystemStreamPartition],
        point: OffsetSpec,
        *,
        uncommitted: bool = False,
    ) -> Mapping[SystemStreamPartition, int | None]:
        """Return the offset for `point` in each of `partitions`, by one ListOffsets request to each
        leader. None for a time later than every record's. Partitions that do not exist are absent.
        `uncommitted`: the records of open transactions count, despite the isolation level."""
        ...

    def first_records(
        self, partitions: Collection[SystemStreamPartition], since_ms: EpochMillis
    ) -> Mapping[SystemStreamPartition, TimedOffset | None]:
        """Return the first record in each of `partitions` whose time is `since_ms` or later, by one
        ListOffsets request to each leader. None for a time later than every record's, and if no
        record has a time. Partitions that do not exist are absent."""
        ...
