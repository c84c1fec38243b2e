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
from kafka_source.planning.topic_metadata import Loss
from task_grouping.identifiers import StreamName

LOOKS: Final = 3
"""So often a topic or partition must be found gone, or to be another one, before it is believed."""

LOOK_AGAIN_S: Final = 1.0
"""The pause between such looks, where reading waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What brokers said of a partition: its topic, its oldest record, its end; None: nothing."""

    topic: TopicDescription | None
    earliest: int | None
    end: int | None


class Verdict(StrEnum):
    """Why a partition is not read further."""

    FINE = "fine"
    """There is something to read: go on."""
    GONE = "gone"
    RECREATED = "recreated"
    OVERTAKEN = "overtaken"
    CUT_OFF = "cut off"
    """The log ends before the position."""
    REPLACED = "replaced"
    """Records before the position were truncated, and the log has grown past it again."""
    SHORT = "short"
    """The log ends before the range does, at the position or behind it."""


def is_recreated(range_: PartitionRange, topic: TopicDescription | None) -> bool:
    """Whether the topic is another one than was planned. Unknown ids tell nothing."""
    ids = {range_.topic_id, None if topic is None else topic.topic_id}
    return topic is not None and None not in ids and len(ids) > 1


def judge(
    range_: PartitionRange, position: int, standing: Standing, *, truncated: bool = False
) -> Verdict:
    """Return why a range that was read up to `position` makes no progress; `truncated` if brokers
    have reported that records before it were truncated."""
    topic = standing.topic
    if topic is None or topic.partition_count <= range_.ssp.partition:
        return Verdict.GONE
    if is_recreated(range_, topic):
        return Verdict.RECREATED
    if standing.earliest is not None and standing.earliest > position:
        return Verdict.OVERTAKEN
    if standing.end is not None and standing.end < position:
        return Verdict.CUT_OFF
    if truncated:
        return Verdict.REPLACED
    if standing.end is not None and standing.end < range_.end:
        return Verdict.SHORT
    return Verdict.FINE


def loss_of(range_: PartitionRange, position: int, verdict: Verdict, standing: Standing) -> Loss:
    """What to say of a verdict that means lost records."""
    recreated: tuple[StreamName, TopicId] | None = None
    reading = f"while it is read from {position} up to {range_.end}"
    match verdict:
        case Verdict.GONE:
            found, expected = f"that it was deleted {reading}", "it to stay until it is read"
        case Verdict.RECREATED:
            now = None if standing.topic is None else standing.topic.topic_id
            found = f"the topic deleted and created again (id {now}) {reading}"
            expected = f"the topic that was planned (id {range_.topic_id})"
            recreated = None if now is None else (range_.ssp.stream, now)
        case Verdict.OVERTAKEN:
            found = f"that its oldest record is {standing.earliest} {reading}"
            expected = "to read it within the topic's retention"
        case Verdict.REPLACED:
            found = f"a log that was truncated and written again {reading}"
            expected = "a log that keeps the records it has returned"
        case _:
            found = (
                f"an end at {standing.end} {reading}: the log was truncated, or the topic was "
                "deleted and created again"
            )
            expected = f"an end at {range_.end} or behind it"
    return Loss(
        subject=f"partition {kafka_name(range_.ssp)}",
        found=found,
        expected=expected,
        recreated=recreated,
    )
