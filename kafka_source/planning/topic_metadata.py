"""Topic metadata as planning uses it, and the losses of records that it shows.

Records are lost if unread ones no longer exist: the topic was deleted and created again (its id
changed), which must never become a silent rewind; the log ends before the position, as after an
unclean leader election; the log begins after the position, since retention was faster than the
query; or the first records of a partition that was added to the topic are gone.

A partition of the start that the metadata lacks is in one of three states:

* *removed*: the options no longer name it;
* *recreated*: its topic has another id, so this partition no longer exists;
* *missing*: none of both. Brokers do not list a topic that was deleted, that the user may not
  describe, or that they do not know yet after a restart, and only another id proves the first. So
  its id, position and task stay in the offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Protocol

from spark_ssp.common.errors import (
    NEW_CHECKPOINT,
    DataLossError,
    ServiceUnavailableError,
    StreamNotFoundError,
)
from spark_ssp.common.logs import abbreviate
from spark_ssp.grouping.assignment import TaskAssignment, counts_up_to, whole_streams
from spark_ssp.grouping.identifiers import StreamName, SystemStream, SystemStreamPartition
from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from spark_ssp.kafka_source.model.topic import (
    Assign,
    Selection,
    Subscribe,
    SubscribePattern,
    TopicId,
    is_selected,
    kafka_name,
    partition_of,
)
from spark_ssp.kafka_source.planning.data_loss import DataLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """One partition's log: the offset of its oldest record, None if it was not requested, and its
    end: the offset after the newest record. With read_committed the end is the last stable offset,
    or the position if only an open transaction is before it."""

    earliest: int | None = None
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic and those of its partitions that the query reads, by number; at least one."""

    topic_id: TopicId | None = None
    partitions: Mapping[int, PartitionOffsets]


Metadata = Mapping[StreamName, TopicMetadata]
"""By topic. Ends are listed by generation, newest partitions first: a record written to an older
partition before any listed record of a newer one is before the older partition's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPositions:
    """The positions at which a batch starts, of every partition in the metadata. `explicit_starts`
    has those that differ from the start offset: of new partitions, and after gaps."""

    positions: Positions
    explicit_starts: Positions
    losses: tuple[DataLoss, ...]


def offsets_of(metadata: Metadata, ssp: SystemStreamPartition) -> PartitionOffsets:
    """Return the offsets of a partition."""
    return metadata[ssp.stream].partitions[ssp.partition]


def partitions_of(metadata: Metadata) -> tuple[SystemStreamPartition, ...]:
    """Return all partitions, sorted."""
    return tuple(
        partition_of(name, number)
        for name in sorted(metadata)
        for number in sorted(metadata[name].partitions)
    )


class HasTopicId(Protocol):
    """A value with a topic's id."""

    @property
    def topic_id(self) -> TopicId | None: ...


def recreated_topics(
    start: Offset, topics: Mapping[StreamName, HasTopicId]
) -> frozenset[StreamName]:
    """Return the topics of the start whose id has changed. Unknown ids are ignored."""
    return frozenset(
        topic
        for topic, before in start.topics.items()
        if topic in topics and None not in (before, topics[topic].topic_id)
        if topics[topic].topic_id != before
    )


def topics_read_whole(start: Offset, selection: Selection | None = None) -> frozenset[StreamName]:
    """Return the topics of the start of which the query reads all partitions. One that it does not
    have yet was added to the topic since. In another topic, as with `assign`, the options may have
    added it, like a topic: its earlier records were never part of the query."""
    if isinstance(selection, Assign):
        return frozenset()
    return frozenset(stream.stream for stream in whole_streams(start.positions))


@dataclass(frozen=True, kw_only=True)
class BatchContext:
    """The start of a batch, the metadata to plan it with, and the values that follow from the two,
    each computed once. `initial_positions`: the positions at which a new query starts; ignored
    after the first batch."""

    start: Offset
    metadata: Metadata
    initial_positions: Positions = field(default_factory=dict)
    selection: Selection | None = None
    """The partitions that the options name; None: all of the start."""
    described: Mapping[StreamName, HasTopicId] = field(default_factory=dict)
    """The topics that brokers have described, also those without partitions in the metadata."""

    @cached_property
    def partitions(self) -> tuple[SystemStreamPartition, ...]:
        """All partitions in the metadata, sorted."""
        return partitions_of(self.metadata)

    @cached_property
    def recreated(self) -> frozenset[StreamName]:
        """The topics of the start whose id has changed."""
        return recreated_topics(self.start, {**self.described, **self.metadata})

    @cached_property
    def missing(self) -> tuple[SystemStreamPartition, ...]:
        """The partitions of the start that are missing, sorted. They stay in the offset."""
        return tuple(
            ssp
            for ssp in self._absent
            if ssp.stream not in self.recreated
            and (self.selection is None or is_selected(self.selection, ssp))
        )

    @cached_property
    def assigned(self) -> tuple[SystemStreamPartition, ...]:
        """The partitions of the next offset, sorted."""
        return tuple(sorted((*self.partitions, *self.missing)))

    @cached_property
    def topic_losses(self) -> tuple[DataLoss, ...]:
        """The losses of whole topics, without the missing ones."""
        return tuple(self._topic_losses())

    @cached_property
    def missing_losses(self) -> tuple[DataLoss, ...]:
        """The losses, if what is missing does not exist any more. Partitions of a topic that still
        has its id exist: Kafka never deletes a partition of a topic."""
        topics = sorted({ssp.stream for ssp in self.missing} - self.metadata.keys())
        unproven = [
            ssp
            for ssp in self.missing
            if ssp.stream in self.metadata and not self._has_same_id(ssp.stream)
        ]
        return (
            *(
                DataLoss(
                    subject=f"topic {topic}",
                    found="the topic deleted, or hidden from this user",
                    expected="every topic of the checkpoint",
                    unread=topic,
                )
                for topic in topics
                if topic not in self.described or not self._has_same_id(topic)
            ),
            *(
                DataLoss(
                    subject=f"partition {kafka_name(ssp)}",
                    found="the partition deleted",
                    expected="every partition of the checkpoint",
                )
                for ssp in unproven
            ),
        )

    @cached_property
    def _absent(self) -> tuple[SystemStreamPartition, ...]:
        """The partitions of the start that are not in the metadata, sorted."""
        return tuple(sorted(self.start.positions.keys() - set(self.partitions)))

    def _has_same_id(self, topic: StreamName) -> bool:
        found = self.metadata.get(topic) or self.described.get(topic)
        return (
            found is not None
            and found.topic_id is not None
            and (found.topic_id == self.start.topics[topic])
        )

    @cached_property
    def start_positions(self) -> StartPositions:
        """The positions at which the batch starts, and the losses in single partitions.

        A partition that is new to the query starts at its initial position, which exists for all
        partitions of the first batch; otherwise at its oldest record, for which `earliest` must be
        known (`ValueError`). So does every partition of a topic that was created again. Records
        before it are a loss only if the topic was expanded, and not the options.
        """
        positions: dict[SystemStreamPartition, int] = {}
        explicit_starts: dict[SystemStreamPartition, int] = {}
        losses: list[DataLoss] = list(self._partition_losses())
        expanded = topics_read_whole(self.start, self.selection) - self.recreated
        initial = self.initial_positions if self.start == BEFORE_FIRST_BATCH else {}
        for ssp in self.partitions:
            log = offsets_of(self.metadata, ssp)
            recreated = ssp.stream in self.recreated
            if not recreated and ssp in self.start.positions:
                position = self.start.positions[ssp]
            elif not recreated and ssp in initial:
                position = explicit_starts[ssp] = initial[ssp]
            else:
                position = explicit_starts[ssp] = _earliest(ssp, log)
                if position > 0 and ssp.stream in expanded:
                    losses.append(_new_partition_expired(ssp, position))
            positions[ssp] = position
            if position > log.end:
                losses.append(_ends_before(ssp, position, log.end))
                positions[ssp] = explicit_starts[ssp] = log.end
            elif log.earliest is not None and position < log.earliest:
                losses.append(_expired(ssp, position, log.earliest))
                positions[ssp] = explicit_starts[ssp] = log.earliest
        return StartPositions(
            positions=positions, explicit_starts=explicit_starts, losses=tuple(losses)
        )

    def _topic_losses(self) -> Iterator[DataLoss]:
        kept = {ssp.stream for ssp in self.assigned}
        for topic, topic_id in sorted(self.start.topics.items()):
            if topic in self.recreated:
                new_id = {**self.described, **self.metadata}[topic].topic_id
                yield DataLoss(
                    subject=f"topic {topic}",
                    found=f"the topic deleted and created again (id {new_id})",
                    expected=f"the topic of the checkpoint (id {topic_id})",
                    recreated=None if new_id is None else (topic, new_id),
                )
            elif topic not in kept:
                yield DataLoss(
                    subject=f"topic {topic}",
                    found="the topic no longer among the topics to read",
                    expected="every topic of the checkpoint",
                    unread=topic,
                )

    def _partition_losses(self) -> Iterator[DataLoss]:
        kept, missing = {ssp.stream for ssp in self.assigned}, set(self.missing)
        for ssp in self._absent:
            if ssp.stream in kept and ssp.stream not in self.recreated and ssp not in missing:
                yield DataLoss(
                    subject=f"partition {kafka_name(ssp)}",
                    found="the partition no longer among the partitions to read",
                    expected="every partition of the checkpoint",
                )


def _earliest(ssp: SystemStreamPartition, log: PartitionOffsets) -> int:
    if log.earliest is None:
        raise ValueError(f"{kafka_name(ssp)} is new, and its earliest offset was not requested")
    return log.earliest


def _new_partition_expired(ssp: SystemStreamPartition, earliest: int) -> DataLoss:
    return DataLoss(
        subject=f"partition {kafka_name(ssp)}",
        found=f"a new partition whose oldest record is {earliest}",
        expected="new partitions to be found before any record of them expires",
    )


def _ends_before(ssp: SystemStreamPartition, position: int, end: int) -> DataLoss:
    return DataLoss(
        subject=f"partition {kafka_name(ssp)}",
        found=f"an end at {end}, before the position {position}: the log was truncated, or the "
        "topic was deleted and created again",
        expected=f"an end at {position} or after it",
    )


def _expired(ssp: SystemStreamPartition, position: int, earliest: int) -> DataLoss:
    return DataLoss(
        subject=f"partition {kafka_name(ssp)}",
        found=f"its oldest record at {earliest}, after the position {position}",
        expected="reading within the topic's retention",
    )


# --- Partitions to read ---------------------------------------------------------------------------

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
    """Return the metadata of the partitions whose end was listed. If retention has deleted all
    records before a listed end since, the log counts as empty there."""
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


# --- Answers to confirm ---------------------------------------------------------------------------
#
# For a moment after a topic was created, expanded or deleted, brokers contradict each other, and a
# new leader may not know yet up to which offset its log is readable. So an answer that means a loss
# or a missing topic must be confirmed: `offset_fetcher` fetches again a few times, with pauses.


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
    whose offset no broker has returned. `initial_positions` are those of a query's first batch, and
    only affect that."""
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


# --- Topics that moved to another cluster ---------------------------------------------------------
#
# A topic in a copy of a cluster, or one restored from a backup, has another topic id. Kafka cannot
# compare its records with the earlier ones, so the user confirms them by naming the new id in
# `acceptTopicIds`. The option names one id, so it may stay set: a topic that is created once more
# has yet another id, and is a loss again.

TopicIds = Mapping[StreamName, TopicId]


def unaccepted_positions(offset: Offset, accepted: TopicIds) -> Positions:
    """Return the positions in topics whose accepted id differs from the id in the offset."""
    return positions_in(
        offset,
        [one for one in accepted if offset.topics.get(one) not in {None, accepted[one]}],
    )


def moved_topics(
    positions: Positions, found: Mapping[StreamName, HasTopicId], accepted: TopicIds
) -> list[StreamName]:
    """Return the topics of the positions that now have the accepted id, sorted."""
    topics = sorted({ssp.stream for ssp in positions} & found.keys())
    return [topic for topic in topics if found[topic].topic_id == accepted[topic]]


def undescribed_topics(
    positions: Positions, found: Collection[StreamName], selection: Selection
) -> list[str]:
    """Describe the topics of the positions that the options name and that were not found."""
    named = {ssp.stream for ssp in positions if is_selected(selection, ssp)}
    return [f"topic {topic} does not exist" for topic in sorted(named - set(found))]


def with_accepted_ids(offset: Offset, topics: Collection[StreamName], accepted: TopicIds) -> Offset:
    """Return the offset with the new ids of `topics`."""
    return replace(offset, topics={**offset.topics, **{topic: accepted[topic] for topic in topics}})


def positions_in(offset: Offset, topics: Collection[StreamName]) -> Positions:
    """Return the positions of the offset in the partitions of `topics`."""
    return {ssp: at for ssp, at in offset.positions.items() if ssp.stream in topics}


def different_offsets(
    positions: Positions, ends: Mapping[SystemStreamPartition, int | None]
) -> list[str]:
    """Describe the partitions of moved topics that do not exist, or do not reach the query's
    position."""
    wrong: list[str] = []
    for ssp, position in sorted(positions.items()):
        end = ends.get(ssp)
        if end is None:
            wrong.append(f"{kafka_name(ssp)} is missing")
        elif end < position:
            wrong.append(f"{kafka_name(ssp)} ends at {end}, before the position {position}")
    return wrong


def different_offsets_error(wrong: Sequence[str]) -> DataLossError:
    """Return the error for `different_offsets`, with any failOnDataLoss."""
    return DataLossError(
        "option acceptTopicIds",
        found=f"offsets that differ from the checkpoint: {abbreviate(wrong)}",
        expected="the same records at the same offsets",
        next_step="wait until the copy is complete; or, if it has other offsets, start a "
        f"new query with {NEW_CHECKPOINT}, from a startingTimestamp",
    )
