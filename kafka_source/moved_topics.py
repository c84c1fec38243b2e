"""Topics that are on another cluster now, with the same records at the same offsets. Pure.

A copy of a cluster, or a topic that was restored from one, has another topic id. Kafka has no means
to compare its records with those of before, so the user vouches for them by naming the new id in
`acceptTopicIds`. Since the option names one id, it may stay where it is: a topic that is created
once more has yet another id, and is a loss again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from kafka_source.found import Identified
from kafka_source.model import TopicId, kafka_name
from kafka_source.offset import Offset, Positions
from ssp_common.errors import DataLossError
from ssp_common.logs import some_of
from task_grouping.identifiers import StreamName, SystemStreamPartition

TopicIds = Mapping[StreamName, TopicId]


def may_have_moved(offset: Offset, accepted: TopicIds) -> bool:
    """Whether an accepted id is another one than the offset has."""
    return any(offset.topics.get(topic) not in {None, accepted[topic]} for topic in accepted)


def moved_topics(
    offset: Offset, found: Mapping[StreamName, Identified], accepted: TopicIds
) -> tuple[StreamName, ...]:
    """The topics of the offset that are found with the accepted id instead of theirs, sorted."""
    return tuple(
        topic
        for topic in sorted(offset.topics.keys() & accepted.keys() & found.keys())
        if offset.topics[topic] not in {None, accepted[topic]}
        and found[topic].topic_id == accepted[topic]
    )


def as_moved(offset: Offset, topics: Collection[StreamName], accepted: TopicIds) -> Offset:
    """The offset with the new ids of `topics`."""
    return replace(offset, topics={**offset.topics, **{topic: accepted[topic] for topic in topics}})


def positions_in(offset: Offset, topics: Collection[StreamName]) -> Positions:
    """Where the offset stands in the partitions of `topics`."""
    return {ssp: at for ssp, at in offset.positions.items() if ssp.stream in topics}


def refuse_other_offsets(
    positions: Positions, ends: Mapping[SystemStreamPartition, int | None]
) -> None:
    """Raise DataLossError unless every partition of a moved topic is there and goes as far as the
    query has read: otherwise the offsets are not the same, whatever failOnDataLoss says."""
    wrong: list[str] = []
    for ssp, position in sorted(positions.items()):
        end = ends.get(ssp)
        if end is None:
            wrong.append(f"{kafka_name(ssp)} is missing")
        elif end < position:
            wrong.append(f"{kafka_name(ssp)} ends at {end}, before the position {position}")
    if wrong:
        raise DataLossError(
            "option acceptTopicIds",
            found=f"other offsets than those of the checkpoint: {some_of(wrong)}",
            expected="the same records at the same offsets",
            next_step="wait until the copy is complete; or, if its offsets are its own, start a "
            "new query with a new checkpoint, from a startingTimestamp",
        )
