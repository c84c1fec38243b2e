"""Accepts topics that moved to another cluster with the same records at the same offsets.

A topic in a copy of a cluster, or one restored from a backup, has another topic id. Kafka cannot
compare its records with the earlier ones, so the user confirms them by naming the new id in
`acceptTopicIds`. The option names one id, so it may stay set: a topic that is created once more has
yet another id, and is a loss again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from spark_ssp.common.errors import DataLossError
from spark_ssp.common.logs import abbreviate
from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.offset import Offset, Positions
from spark_ssp.kafka_source.model.topic import TopicId, kafka_name
from spark_ssp.kafka_source.planning.topic_metadata import HasTopicId

TopicIds = Mapping[StreamName, TopicId]


def may_have_moved(offset: Offset, accepted: TopicIds) -> bool:
    """Return whether an accepted id differs from the id in the offset."""
    return any(offset.topics.get(topic) not in {None, accepted[topic]} for topic in accepted)


def moved_topics(
    offset: Offset, found: Mapping[StreamName, HasTopicId], accepted: TopicIds
) -> tuple[StreamName, ...]:
    """Return the topics of the offset that now have the accepted id, sorted."""
    return tuple(
        topic
        for topic in sorted(offset.topics.keys() & accepted.keys() & found.keys())
        if offset.topics[topic] not in {None, accepted[topic]}
        and found[topic].topic_id == accepted[topic]
    )


def with_accepted_ids(offset: Offset, topics: Collection[StreamName], accepted: TopicIds) -> Offset:
    """Return the offset with the new ids of `topics`."""
    return replace(offset, topics={**offset.topics, **{topic: accepted[topic] for topic in topics}})


def positions_in(offset: Offset, topics: Collection[StreamName]) -> Positions:
    """Return the positions of the offset in the partitions of `topics`."""
    return {ssp: at for ssp, at in offset.positions.items() if ssp.stream in topics}


def check_same_offsets(
    positions: Positions, ends: Mapping[SystemStreamPartition, int | None]
) -> None:
    """Raise DataLossError unless every partition of a moved topic exists and reaches the query's
    position, with any failOnDataLoss: otherwise the offsets are not the same."""
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
            found=f"offsets that differ from the checkpoint: {abbreviate(wrong)}",
            expected="the same records at the same offsets",
            next_step="wait until the copy is complete; or, if it has other offsets, start a "
            "new query with a new checkpoint, from a startingTimestamp",
        )
