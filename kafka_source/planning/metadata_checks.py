"""What to ask of the brokers, in which order, and what of their answers is doubtful. Pure.

Brokers disagree for a moment after a topic was created, expanded or deleted, and a new leader may
not know yet how far its log is readable. What would be a loss, or a missing topic, is therefore a
doubt first: `finding` looks again a few times, with pauses, before it is believed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from kafka_source.client.api import TopicDescription
from kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from kafka_source.model.topic import (
    Assign,
    Selection,
    Subscribe,
    SubscribePattern,
    kafka_name,
    partition_of,
)
from kafka_source.planning.topic_metadata import (
    Metadata,
    PartitionOffsets,
    TopicMetadata,
    offsets_of,
    partitions_of,
    recreated_topics,
)
from ssp_common.errors import ServiceUnavailableError, StreamNotFoundError
from task_grouping.assignment import TaskAssignment, counts_up_to
from task_grouping.identifiers import StreamName, SystemStream, SystemStreamPartition

Topics = Mapping[StreamName, TopicDescription]

_SHOWN: Final = 5


def select_partitions(selection: Selection, topics: Topics) -> tuple[SystemStreamPartition, ...]:
    """The partitions to read, of those that exist; sorted."""
    if isinstance(selection, Assign):
        return tuple(
            ssp
            for ssp in selection.partitions
            if ssp.stream in topics and ssp.partition < topics[ssp.stream].partition_count
        )
    return tuple(
        partition_of(topic, number)
        for topic in sorted(topics)
        for number in range(topics[topic].partition_count)
    )


def new_partitions(
    start: Offset, topics: Topics, partitions: Collection[SystemStreamPartition]
) -> list[SystemStreamPartition]:
    """Those of `partitions` in which the query has read nothing yet, sorted."""
    again = recreated_topics(start, topics)
    return sorted(ssp for ssp in partitions if ssp not in start.positions or ssp.stream in again)


def order_by_generation(
    partitions: Collection[SystemStreamPartition],
    known: TaskAssignment,
    recreated: Collection[StreamName] = (),
) -> list[list[SystemStreamPartition]]:
    """The order in which ends are listed: of each topic its newest partitions first.

    `known` has the generations so far; partitions that it does not have are newer, and are divided
    as they will be once they are assigned. Topics `afresh` have one generation, whatever it says.
    Normally there is one list.
    """
    owners = known.owners()
    cuts = _cuts(partitions, known)
    generations: dict[StreamName, dict[int, list[SystemStreamPartition]]] = {}
    for ssp in sorted(partitions):
        if ssp.stream in recreated:
            generation = 0
        elif ssp in owners:
            generation = known.generation(ssp)
        else:
            generation = bisect_right(cuts.get(ssp.system_stream, ()), ssp.partition)
        generations.setdefault(ssp.stream, {}).setdefault(generation, []).append(ssp)
    split_generations: list[list[SystemStreamPartition]] = []
    for topic in sorted(generations):
        for place, generation in enumerate(sorted(generations[topic], reverse=True)):
            if place == len(split_generations):
                split_generations.append([])
            split_generations[place].extend(generations[topic][generation])
    return split_generations


def _cuts(
    partitions: Collection[SystemStreamPartition], known: TaskAssignment
) -> dict[SystemStream, tuple[int, ...]]:
    """The counts that divide the partitions of each known stream into generations."""
    present = Counter(ssp.system_stream for ssp in partitions)
    return {
        stream: (*counts, *counts_up_to(present[stream], counts[-1]))
        if present[stream] > counts[-1]
        else counts
        for stream, counts in known.counts.items()
    }


def build_metadata(
    topics: Topics,
    partitions: Collection[SystemStreamPartition],
    earliest: Mapping[SystemStreamPartition, int | None],
    ends: Mapping[SystemStreamPartition, int | None],
) -> Metadata:
    """What was found, of the partitions of which an end was listed.

    Where retention took all up to an end that was listed before, the log counts as empty there.
    """
    metadata: dict[StreamName, dict[int, PartitionOffsets]] = {}
    for ssp in sorted(partitions):
        end, oldest = ends.get(ssp), earliest.get(ssp)
        if end is not None:
            log = PartitionOffsets(earliest=None if oldest is None else min(oldest, end), end=end)
            metadata.setdefault(ssp.stream, {})[ssp.partition] = log
    return {
        topic: TopicMetadata(topic_id=topics[topic].topic_id, partitions=logs)
        for topic, logs in metadata.items()
    }


# --- Doubts ---------------------------------------------------------------------------------------


def missing_names(selection: Selection, topics: Topics, start: Offset) -> list[str]:
    """What the options name and is neither there nor in the start, as users write it."""
    match selection:
        case Subscribe():
            return [name for name in selection.topics if name not in {**topics, **start.topics}]
        case SubscribePattern():
            return []
        case Assign():
            there = {*select_partitions(selection, topics), *start.positions}
            return [kafka_name(ssp) for ssp in selection.partitions if ssp not in there]


def unconfirmed_losses(
    start: Offset, initial_positions: Positions, topics: Topics, metadata: Metadata
) -> Iterator[str]:
    """What would be a loss if it stayed like that, and partitions whose end nobody knows."""
    again = recreated_topics(start, topics)
    for topic in sorted(start.topics):
        if topic not in topics:
            yield f"topic {topic} is gone"
        elif topic in again:
            yield f"topic {topic} has another id"
    for ssp, position in sorted({**initial_positions, **start.positions}.items()):
        if ssp.stream not in topics or ssp.stream in again:
            continue
        logs = metadata[ssp.stream].partitions if ssp.stream in metadata else {}
        if ssp.partition not in logs:
            yield f"{kafka_name(ssp)} is gone"
        elif logs[ssp.partition].end < position:
            yield f"{kafka_name(ssp)} ends at {logs[ssp.partition].end}, before {position}"


def partitions_without_end(
    partitions: Collection[SystemStreamPartition], metadata: Metadata
) -> list[SystemStreamPartition]:
    """Partitions that were described and of which no end was listed."""
    return [
        ssp
        for ssp in sorted(partitions)
        if ssp.stream not in metadata or ssp.partition not in metadata[ssp.stream].partitions
    ]


def partitions_without_earliest(
    start: Offset, initial_positions: Positions, metadata: Metadata
) -> list[SystemStreamPartition]:
    """Partitions found that begin at their oldest record (`find_beginnings`), which no broker told.

    `starts` are those of a query's first batch, and of effect there alone.
    """
    again = recreated_topics(start, metadata)
    named = {**(initial_positions if start == BEFORE_FIRST_BATCH else {}), **start.positions}
    return [
        ssp
        for ssp in partitions_of(metadata)
        if offsets_of(metadata, ssp).earliest is None and (ssp not in named or ssp.stream in again)
    ]


def not_found_error(selection: Selection, names: Collection[str]) -> StreamNotFoundError:
    """For topics or partitions that a query is to read and that do not exist."""
    option = "assign" if isinstance(selection, Assign) else "subscribe"
    what = "partitions" if isinstance(selection, Assign) else "topics"
    return StreamNotFoundError(
        f"option {option}",
        found=f"{what} that do not exist: {_some(sorted(names))}",
        expected=f"{what} of this cluster that the user may see",
        next_step=f"correct {option} or kafka.bootstrap.servers, or create them first",
    )


def unknown_offsets_error(
    partitions: Collection[SystemStreamPartition], what: str
) -> ServiceUnavailableError:
    """For partitions whose end or oldest record (`what`) stays unknown."""
    return ServiceUnavailableError(
        f"partitions {_some([kafka_name(ssp) for ssp in sorted(partitions)])}",
        found="that brokers describe them and do not know their offsets",
        expected=f"the {what} of every partition",
        next_step="see whether the topic is being deleted or has partitions without a leader, then "
        "run the query again; or raise fetchOffset.numRetries",
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
