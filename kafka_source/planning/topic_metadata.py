"""Topic metadata as planning uses it, and the losses of records that it shows.

Records are lost if unread ones no longer exist: the topic was deleted and created again (its id
changed), which must never become a silent rewind; the log ends before the position, as after an
unclean leader election; the log begins after the position, since retention was faster than the
query; or the first records of a new partition are gone.

A partition of the start that the metadata lacks is in one of three states:

* *removed*: the options no longer name it;
* *recreated*: its topic has another id, so this partition no longer exists;
* *missing*: none of both. Brokers do not list a topic that was deleted, that the user may not
  describe, or that they do not know yet after a restart, and only another id proves the first. So
  its id, position and task stay in the offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from spark_ssp.kafka_source.model.topic import (
    Selection,
    TopicId,
    is_selected,
    kafka_name,
    partition_of,
)
from spark_ssp.kafka_source.planning.data_loss import DataLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """One partition's log: the offset of its oldest record, None if it was not requested, and its
    end: the offset after the newest record or, with read_committed, the last stable offset."""

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


@dataclass(frozen=True, kw_only=True)
class BatchContext:
    """The start of a batch, the metadata to plan it with, and the values that follow from the two,
    each computed once.

    `initial_positions`: the positions at which a new query starts; ignored after the first batch.
    """

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
        known (`ValueError`). So does every partition of a topic that was created again.
        """
        positions: dict[SystemStreamPartition, int] = {}
        explicit_starts: dict[SystemStreamPartition, int] = {}
        losses: list[DataLoss] = list(self._partition_losses())
        known_topics = self.start.topics.keys() - self.recreated
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
                if position > 0 and ssp.stream in known_topics:
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
        "topic was deleted and created again, or it is the last stable offset of read_committed, "
        "before a transaction that is still open",
        expected=f"an end at {position} or after it",
    )


def _expired(ssp: SystemStreamPartition, position: int, earliest: int) -> DataLoss:
    return DataLoss(
        subject=f"partition {kafka_name(ssp)}",
        found=f"its oldest record at {earliest}, after the position {position}",
        expected="reading within the topic's retention",
    )
