"""What the brokers said of the topics that a query reads, and what of it means lost records. Pure.

Records are lost when those that were to be read are gone: a topic deleted, or deleted and created
again (its id changed), which must never be a silent rewind; a partition that is gone; a log that
ends before the position, as after an unclean election; a log that begins behind it, since retention
was faster; a new partition whose first records are gone before anything of it was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kafka_source.model.offset import Offset, Positions
from kafka_source.model.topic import TopicId, kafka_name, partition_of
from ssp_common.errors import DataLossError
from task_grouping.identifiers import StreamName, SystemStreamPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """One partition's log: the offset of its oldest record, None where it was not asked for, and
    its end, the offset after the newest record; with read_committed, the last stable offset."""

    earliest: int | None = None
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic and those of its partitions that the query reads, by number; at least one."""

    topic_id: TopicId | None = None
    partitions: Mapping[int, PartitionOffsets]


Metadata = Mapping[StreamName, TopicMetadata]
"""By topic. Ends are listed by generation, newest partitions first: what was put into an older
partition before anything that is found in a newer one lies before the older one's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoss:
    """Records that are gone: what to say of them."""

    subject: str
    found: str
    expected: str
    recreated: tuple[StreamName, TopicId] | None = None
    """The topic and its new id, if a changed id is the only sign of the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPositions:
    """Where a batch begins. `begins` are the partitions that do not go on where the start stands:
    new ones, and those behind a gap. `positions` has every partition found."""

    positions: Positions
    explicit_starts: Positions
    losses: tuple[DataLoss, ...]


def offsets_of(metadata: Metadata, ssp: SystemStreamPartition) -> PartitionOffsets:
    """What was found of a partition."""
    return metadata[ssp.stream].partitions[ssp.partition]


def partitions_of(metadata: Metadata) -> tuple[SystemStreamPartition, ...]:
    """All partitions found, sorted."""
    return tuple(
        partition_of(name, number)
        for name in sorted(metadata)
        for number in sorted(metadata[name].partitions)
    )


class HasTopicId(Protocol):
    """What has a topic's id."""

    @property
    def topic_id(self) -> TopicId | None: ...


def recreated_topics(
    start: Offset, metadata: Mapping[StreamName, HasTopicId]
) -> frozenset[StreamName]:
    """Topics of the start whose id is another now. Unknown ids tell nothing."""
    return frozenset(
        topic
        for topic, before in start.topics.items()
        if topic in metadata and None not in (before, metadata[topic].topic_id)
        if metadata[topic].topic_id != before
    )


def topic_losses(start: Offset, metadata: Metadata) -> Iterator[DataLoss]:
    """What is lost with whole topics."""
    recreated = recreated_topics(start, metadata)
    for topic in sorted(start.topics):
        if topic not in metadata:
            yield DataLoss(
                subject=f"topic {topic}",
                found="that it was deleted, or is not among the topics to read any more",
                expected="every topic of the checkpoint",
            )
        elif topic in recreated:
            yield DataLoss(
                subject=f"topic {topic}",
                found=f"the topic deleted and created again (id {metadata[topic].topic_id})",
                expected=f"the topic of the checkpoint (id {start.topics[topic]})",
                recreated=_with_id(topic, metadata[topic]),
            )


def _with_id(topic: StreamName, metadata: HasTopicId) -> tuple[StreamName, TopicId] | None:
    return None if metadata.topic_id is None else (topic, metadata.topic_id)


def find_start_positions(
    start: Offset, metadata: Metadata, initial_positions: Positions
) -> StartPositions:
    """Where to begin in each partition found.

    A partition that is new to the query begins at `starts` where it is named there, which is so for
    all of them in a query's first batch; otherwise at its oldest record, for which `earliest` must
    be known (`ValueError`). So does every partition of a topic that was created again.
    """
    recreated = recreated_topics(start, metadata)
    positions: dict[SystemStreamPartition, int] = {}
    explicit_starts: dict[SystemStreamPartition, int] = {}
    losses: list[DataLoss] = list(_partition_losses(start, metadata, recreated))
    for ssp in partitions_of(metadata):
        log = offsets_of(metadata, ssp)
        known = start.positions.get(ssp) if ssp.stream not in recreated else None
        if known is not None:
            wanted = known
        elif ssp in initial_positions and ssp.stream not in recreated:
            wanted = explicit_starts[ssp] = initial_positions[ssp]
        else:
            wanted = explicit_starts[ssp] = _earliest(ssp, log)
            if wanted > 0 and ssp.stream in start.topics.keys() - recreated:
                losses.append(_begun_late(ssp, wanted))
        positions[ssp] = wanted
        if wanted > log.end:
            losses.append(_ends_before(ssp, wanted, log.end))
            positions[ssp] = explicit_starts[ssp] = log.end
        elif log.earliest is not None and wanted < log.earliest:
            losses.append(_overtaken(ssp, wanted, log.earliest))
            positions[ssp] = explicit_starts[ssp] = log.earliest
    return StartPositions(
        positions=positions, explicit_starts=explicit_starts, losses=tuple(losses)
    )


def _earliest(ssp: SystemStreamPartition, log: PartitionOffsets) -> int:
    if log.earliest is None:
        raise ValueError(f"{kafka_name(ssp)} is new, and its oldest record was not asked for")
    return log.earliest


def _partition_losses(
    start: Offset, metadata: Metadata, recreated: frozenset[StreamName]
) -> Iterator[DataLoss]:
    for ssp in sorted(start.positions):
        if ssp.stream not in metadata or ssp.stream in recreated:
            continue
        if ssp.partition not in metadata[ssp.stream].partitions:
            yield DataLoss(
                subject=f"partition {kafka_name(ssp)}",
                found="that it is gone, or is not among the partitions to read any more",
                expected="every partition of the checkpoint",
            )


def _begun_late(ssp: SystemStreamPartition, earliest: int) -> DataLoss:
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
        expected=f"an end at {position} or behind it",
    )


def _overtaken(ssp: SystemStreamPartition, position: int, earliest: int) -> DataLoss:
    return DataLoss(
        subject=f"partition {kafka_name(ssp)}",
        found=f"that its oldest record is {earliest}, behind the position {position}",
        expected="to go on within the topic's retention",
    )


_SHOWN = 3


def raise_data_loss(
    losses: Sequence[DataLoss], otherwise: str = "start a new query with a new checkpoint"
) -> None:
    """Raise DataLossError if there are `losses`. `otherwise` is the next step for users who do not
    accept them."""
    if not losses:
        return
    first = losses[:_SHOWN]
    more = f" (and {len(losses) - _SHOWN} more)" if len(losses) > _SHOWN else ""
    raise DataLossError(
        ", ".join(loss.subject for loss in first) + more,
        found="; ".join(loss.found for loss in first),
        expected="; ".join(dict.fromkeys(loss.expected for loss in first)),
        next_step="set failOnDataLoss to false to continue after the gap, or "
        f"{otherwise}{_if_moved(losses)}",
    )


def _if_moved(losses: Sequence[DataLoss]) -> str:
    ids = dict(sorted(loss.recreated for loss in losses if loss.recreated is not None))
    if not ids:
        return ""
    return (
        "; or, if the same records are there at the same offsets, as in a copy of the cluster, set "
        f"acceptTopicIds to {json.dumps(ids)}"
    )
