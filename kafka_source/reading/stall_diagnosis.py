"""Diagnoses why a partition makes no progress.

For a moment after a topic was created or deleted or a leader was elected, brokers contradict each
other. A log that begins after the position is certain nevertheless. A deleted topic or partition,
or a topic with another id, which may be that of the previous topic, must be confirmed several
times; a log that is too short is certain after a timeout, as is a deletion that the query
tolerates: the topic may only be hidden for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.ranges import PartitionRange
from spark_ssp.kafka_source.model.topic import TopicId, kafka_name
from spark_ssp.kafka_source.planning.data_loss import DataLoss

CONFIRMATIONS: Final = 3
"""The number of checks that must agree that a topic or partition is deleted or recreated."""

CONFIRM_INTERVAL_S: Final = 1.0
"""The pause between such checks, where reading waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The topic, the earliest offset and the end of a partition, as returned by brokers; None if
    missing."""

    topic: TopicDescription | None
    earliest: int | None
    end: int | None


class StallReason(StrEnum):
    """The reason why a partition makes no progress."""

    OK = "ok"
    """There are records to read."""
    DELETED = "deleted"
    RECREATED = "recreated"
    EXPIRED = "expired"
    TRUNCATED = "truncated"
    """The log ends before the position."""
    REWRITTEN = "rewritten"
    """Records before the position were truncated, and the log has grown past it again."""
    INCOMPLETE = "incomplete"
    """The log ends before the end of the range, at the position or after it."""


def is_recreated(range_: PartitionRange, topic: TopicDescription | None) -> bool:
    """Return whether the topic has another id than the planned one. Unknown ids are ignored."""
    ids = {range_.topic_id, None if topic is None else topic.topic_id}
    return topic is not None and None not in ids and len(ids) > 1


def diagnose(
    range_: PartitionRange, position: int, status: PartitionStatus, *, truncated: bool = False
) -> StallReason:
    """Return why a range that was read up to `position` makes no progress; `truncated` if brokers
    have reported that records before it were truncated."""
    topic = status.topic
    if topic is None or topic.partition_count <= range_.ssp.partition:
        return StallReason.DELETED
    if is_recreated(range_, topic):
        return StallReason.RECREATED
    if status.earliest is not None and status.earliest > position:
        return StallReason.EXPIRED
    if status.end is not None and status.end < position:
        return StallReason.TRUNCATED
    if truncated:
        return StallReason.REWRITTEN
    if status.end is not None and status.end < range_.end:
        return StallReason.INCOMPLETE
    return StallReason.OK


def to_data_loss(
    range_: PartitionRange, position: int, reason: StallReason, status: PartitionStatus
) -> DataLoss:
    """Return the data loss that corresponds to a reason."""
    recreated: tuple[StreamName, TopicId] | None = None
    reading = f"while it was read from {position} up to {range_.end}"
    match reason:
        case StallReason.DELETED:
            found, expected = (
                f"the partition deleted {reading}",
                "an existing partition",
            )
        case StallReason.RECREATED:
            now = None if status.topic is None else status.topic.topic_id
            found = f"the topic deleted and created again (id {now}) {reading}"
            expected = f"the planned topic (id {range_.topic_id})"
            recreated = None if now is None else (range_.ssp.stream, now)
        case StallReason.EXPIRED:
            found = f"its oldest record at {status.earliest} {reading}"
            expected = "reading within the topic's retention"
        case StallReason.REWRITTEN:
            found = f"a log that was truncated and written again {reading}"
            expected = "a log that keeps the records it has returned"
        case _:
            found = (
                f"an end at {status.end} {reading}: the log was truncated, or the topic was "
                "deleted and created again"
            )
            expected = f"an end at {range_.end} or after it"
    return DataLoss(
        subject=f"partition {kafka_name(range_.ssp)}",
        found=found,
        expected=expected,
        recreated=recreated,
    )
