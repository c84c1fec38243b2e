"""Checks of topic metadata and offsets: the partitions to read, and answers that must be confirmed.

For a moment after a topic was created, expanded or deleted, brokers contradict each other, and a
new leader may not know yet up to which offset its log is readable. So an answer that means a loss
or a missing topic must be confirmed: `offset_fetcher` fetches recreated a few times, with pauses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from spark_ssp.common.errors import ServiceUnavailableError, StreamNotFoundError
from spark_ssp.common.logs import abbreviate
from spark_ssp.grouping.assignment import TaskAssignment, counts_up_to
from spark_ssp.grouping.identifiers import StreamName, SystemStream, SystemStreamPartition
from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from spark_ssp.kafka_source.model.topic import (
    Assign,
    Selection,
    Subscribe,
    SubscribePattern,
    is_selected,
    kafka_name,
    partition_of,
)
from spark_ssp.kafka_source.planning.topic_metadata import (
    Metadata,
    PartitionOffsets,
    TopicMetadata,
    offsets_of,
    partitions_of,
    recreated_topics,
)

Topics = Mapping[StreamName, TopicDescription]

_MAX_SHOWN: Final = 5


def select_partitions(selection: Selection, topics: Topics) -> tuple[SystemStreamPartition, ...]:
    """Return the partitions to read that exist, sorted."""
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
    """Return the partitions of which the query has read nothing yet, sorted."""
    recreated = recreated_topics(start, topics)
    return sorted(
        ssp for ssp in partitions if ssp not in start.positions or ssp.stream in recreated
    )


def order_by_generation(
    partitions: Collection[SystemStreamPartition],
    known: TaskAssignment,
    recreated: Collection[StreamName] = (),
) -> list[list[SystemStreamPartition]]:
    """Return the partitions in the order in which their ends are listed: newest generations first.

    `known` has the generations so far; partitions that it lacks are newer, and are divided as they
    will be once they are assigned. Topics in `recreated` have one generation. Normally there is one
    list.
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
    ordered: list[list[SystemStreamPartition]] = []
    for topic in sorted(generations):
        for index, generation in enumerate(sorted(generations[topic], reverse=True)):
            if index == len(ordered):
                ordered.append([])
            ordered[index].extend(generations[topic][generation])
    return ordered


def _cuts(
    partitions: Collection[SystemStreamPartition], known: TaskAssignment
) -> dict[SystemStream, tuple[int, ...]]:
    """Return the counts that divide the partitions of each known stream into generations."""
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
    """Return the metadata of the partitions whose end was listed.

    If retention has deleted all records before a listed end since, the log counts as empty there.
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


# --- Answers to confirm --------------------------------------------------------------------------


def missing_names(selection: Selection, topics: Topics, start: Offset) -> list[str]:
    """Return the topics or partitions that the options name and that are neither in the cluster nor
    in the start, as users write them."""
    match selection:
        case Subscribe():
            return [name for name in selection.topics if name not in {**topics, **start.topics}]
        case SubscribePattern():
            return []
        case Assign():
            existing = {*select_partitions(selection, topics), *start.positions}
            return [kafka_name(ssp) for ssp in selection.partitions if ssp not in existing]


def unconfirmed_losses(
    selection: Selection,
    start: Offset,
    initial_positions: Positions,
    topics: Topics,
    metadata: Metadata,
) -> Iterator[str]:
    """Describe the answers that mean a loss if they are confirmed. That the options no longer name
    a partition needs no confirmation."""
    recreated = recreated_topics(start, topics)
    absent = {ssp for ssp in start.positions if ssp.stream not in topics}
    for topic in sorted({ssp.stream for ssp in absent if is_selected(selection, ssp)}):
        yield f"topic {topic} does not exist"
    for topic in sorted(recreated):
        yield f"topic {topic} has another id"
    for ssp, position in sorted({**initial_positions, **start.positions}.items()):
        if ssp.stream not in topics or ssp.stream in recreated:
            continue
        logs = metadata[ssp.stream].partitions if ssp.stream in metadata else {}
        if ssp.partition not in logs:
            if is_selected(selection, ssp):
                yield f"{kafka_name(ssp)} does not exist"
        elif logs[ssp.partition].end < position:
            yield f"{kafka_name(ssp)} ends at {logs[ssp.partition].end}, before {position}"


def partitions_without_end(
    partitions: Collection[SystemStreamPartition], metadata: Metadata
) -> list[SystemStreamPartition]:
    """Return the described partitions whose end was not listed."""
    return [
        ssp
        for ssp in sorted(partitions)
        if ssp.stream not in metadata or ssp.partition not in metadata[ssp.stream].partitions
    ]


def partitions_without_earliest(
    start: Offset, initial_positions: Positions, metadata: Metadata
) -> list[SystemStreamPartition]:
    """Return the partitions that start at their oldest record (`BatchContext.start_positions`),
    whose offset no broker has returned.

    `initial_positions` are those of a query's first batch, and only affect that.
    """
    recreated = recreated_topics(start, metadata)
    named = {**(initial_positions if start == BEFORE_FIRST_BATCH else {}), **start.positions}
    return [
        ssp
        for ssp in partitions_of(metadata)
        if offsets_of(metadata, ssp).earliest is None
        and (ssp not in named or ssp.stream in recreated)
    ]


def not_found_error(selection: Selection, names: Collection[str]) -> StreamNotFoundError:
    """Return the error for topics or partitions to read that do not exist."""
    option = "assign" if isinstance(selection, Assign) else "subscribe"
    what = "partitions" if isinstance(selection, Assign) else "topics"
    return StreamNotFoundError(
        f"option {option}",
        found=f"{what} that do not exist: {abbreviate(sorted(names), _MAX_SHOWN)}",
        expected=f"{what} of this cluster that the user may see",
        next_step=f"correct {option} or kafka.bootstrap.servers, or create them first",
    )


def unknown_offsets_error(
    partitions: Collection[SystemStreamPartition], what: str
) -> ServiceUnavailableError:
    """Return the error for partitions whose end or oldest record (`what`) stays unknown."""
    return ServiceUnavailableError(
        f"partitions {abbreviate([kafka_name(ssp) for ssp in sorted(partitions)], _MAX_SHOWN)}",
        found="brokers that describe them without knowing their offsets",
        expected=f"the {what} of every partition",
        next_step="check whether the topic is being deleted or has partitions without a leader, "
        "then run the query again; or raise fetchOffset.numRetries",
    )
