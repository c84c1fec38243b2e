"""What it means that a partition is not read further. Pure.

Brokers disagree for a moment after a topic was created or deleted or a leader was chosen. A log
that begins behind the position is certain all the same. That a topic is gone, or has another id,
which may be that of the topic before, is believed once it was found several times; that a log is
too short once time is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kafka_source.client.api import TopicDescription
from kafka_source.model.ranges import PartitionRange
from kafka_source.model.topic import TopicId, kafka_name
from kafka_source.planning.topic_metadata import DataLoss
from task_grouping.identifiers import StreamName

CONFIRMATIONS: Final = 3
"""So often a topic or partition must be found gone, or to be another one, before it is believed."""

CONFIRM_INTERVAL_S: Final = 1.0
"""The pause between such looks, where reading waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """What brokers said of a partition: its topic, its oldest record, its end; None: nothing."""

    topic: TopicDescription | None
    earliest: int | None
    end: int | None


class StallReason(StrEnum):
    """Why a partition is not read further."""

    OK = "ok"
    """There is something to read: go on."""
    DELETED = "deleted"
    RECREATED = "recreated"
    EXPIRED = "expired"
    TRUNCATED = "truncated"
    """The log ends before the position."""
    REWRITTEN = "rewritten"
    """Records before the position were truncated, and the log has grown past it again."""
    INCOMPLETE = "incomplete"
    """The log ends before the range does, at the position or behind it."""


def is_recreated(range_: PartitionRange, topic: TopicDescription | None) -> bool:
    """Whether the topic is another one than was planned. Unknown ids tell nothing."""
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
    """What to say of a reason that means lost records."""
    recreated: tuple[StreamName, TopicId] | None = None
    reading = f"while it is read from {position} up to {range_.end}"
    match reason:
        case StallReason.DELETED:
            found, expected = f"that it was deleted {reading}", "it to stay until it is read"
        case StallReason.RECREATED:
            now = None if status.topic is None else status.topic.topic_id
            found = f"the topic deleted and created again (id {now}) {reading}"
            expected = f"the topic that was planned (id {range_.topic_id})"
            recreated = None if now is None else (range_.ssp.stream, now)
        case StallReason.EXPIRED:
            found = f"that its oldest record is {status.earliest} {reading}"
            expected = "to read it within the topic's retention"
        case StallReason.REWRITTEN:
            found = f"a log that was truncated and written again {reading}"
            expected = "a log that keeps the records it has returned"
        case _:
            found = (
                f"an end at {status.end} {reading}: the log was truncated, or the topic was "
                "deleted and created again"
            )
            expected = f"an end at {range_.end} or behind it"
    return DataLoss(
        subject=f"partition {kafka_name(range_.ssp)}",
        found=found,
        expected=expected,
        recreated=recreated,
    )
