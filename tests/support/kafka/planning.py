"""Offsets and topic metadata for tests of planning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from spark_ssp.kafka_source.model.ranges import TaskRange, plan_ranges
from spark_ssp.kafka_source.model.topic import TopicId
from spark_ssp.kafka_source.planning.data_loss import DataLoss
from spark_ssp.kafka_source.planning.plan_batch import BatchRules, plan_batch
from spark_ssp.kafka_source.planning.topic_metadata import (
    BatchContext,
    Metadata,
    PartitionOffsets,
    TopicMetadata,
)
from tests.support.kafka.partitions import BY_PARTITION

RULES = BatchRules(grouping=BY_PARTITION)

Ends = Mapping[str, Sequence[int]]
"""By topic, the end of each partition, from partition 0 on."""


def found(ends: Ends, *, earliest: int = 0, generation: str = "a") -> Metadata:
    """Return the metadata of topics with these ends; ids are made of the topic and `generation`."""
    return {
        StreamName(topic): TopicMetadata(
            topic_id=TopicId(f"{topic}-{generation}"),
            partitions={
                number: PartitionOffsets(earliest=earliest, end=end)
                for number, end in enumerate(positions)
            },
        )
        for topic, positions in ends.items()
    }


@dataclass(frozen=True)
class Planned:
    """A batch and the ranges of its tasks."""

    end: Offset
    ranges: tuple[TaskRange, ...]
    losses: tuple[DataLoss, ...]
    delayed: bool


def planned(
    start: Offset,
    metadata: Metadata,
    rules: BatchRules = RULES,
    initial_positions: Positions | None = None,
) -> Planned:
    """Plan the batch after `start`."""
    context = BatchContext(
        start=start, metadata=metadata, initial_positions=initial_positions or {}
    )
    plan = plan_batch(context, rules)
    ranges = plan_ranges(start, plan.end)
    return Planned(end=plan.end, ranges=ranges, losses=plan.losses, delayed=plan.delayed)


def after(ends: Ends, rules: BatchRules = RULES) -> Offset:
    """Return the offset of a query that has read topics up to `ends` in one batch."""
    return planned(BEFORE_FIRST_BATCH, found(ends), rules).end


Read = dict[str, list[tuple[SystemStreamPartition, int, int]]]


def read(plan: Planned) -> Read:
    """Return the ranges of a batch by task, in the order of reading."""
    return {
        task_range.task: [(one.ssp, one.start, one.end) for one in task_range.partitions]
        for task_range in plan.ranges
    }
