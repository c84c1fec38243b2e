"""What this source's driver needs from Kafka: the seam between planning on one side and the SDK on
the other. `admin_client.py` is the only implementation that talks to a network; reading records is
the executor's, see `reader`.

Contract for every implementation:

* Answers are the brokers' own, asked for at this moment; nothing is remembered from call to call.
* Transient faults (a broker that restarts, a partition without leader, a dropped connection, a
  time-out) are retried inside with pauses, `fetchOffset.numRetries` times in all; then
  `ServiceUnavailableError`.
* No permission, wrong credentials: `AccessError`, at once.
* A topic or partition that does not exist is an answer, not an error: it is absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafka_source.model.topic import AtTime, LogicalOffset, Selection, TopicId
from task_grouping.identifiers import StreamName, SystemStreamPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as it is now: its id, None where brokers do not tell one, and its partitions, which
    are numbered from 0; at least one."""

    topic_id: TopicId | None = None
    partition_count: int


OffsetSpec = LogicalOffset | AtTime
"""Which offset is asked for. `Edge.LATEST` is the end: with read_committed the last stable offset,
otherwise the offset after the newest record (the high watermark)."""


class KafkaService(Protocol):
    """One cluster, as one user with one isolation level sees it."""

    def describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        """The topics of a selection that exist, all their partitions counted; with
        `SubscribePattern` internal topics are left out, as Spark does."""
        ...

    def list_offsets(
        self, partitions: Collection[SystemStreamPartition], point: OffsetSpec
    ) -> Mapping[SystemStreamPartition, int | None]:
        """ListOffsets of all `partitions` at once: one call to each broker that leads some.

        None where the point is a time later than every record's. A partition that does not exist
        (any more) is absent.
        """
        ...

    def first_timestamps(
        self, partitions: Collection[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, int | None]:
        """Return the time of the oldest record in each of `partitions`, in milliseconds since 1970,
        by one ListOffsets; None if there is no record, or none with a time. Partitions that do not
        exist are absent."""
        ...
