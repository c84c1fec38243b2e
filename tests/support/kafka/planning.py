"""Offsets of Kafka and what was found, as tests of planning write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset
from kafka_source.model.topic import TopicId
from kafka_source.planning.plan_batch import BatchPlan, BatchRules, plan_batch
from kafka_source.planning.topic_metadata import Metadata, PartitionOffsets, TopicMetadata
from task_grouping.fixed_tasks import FixedTasks
from task_grouping.groupers import GroupByPartition
from task_grouping.identifiers import StreamName, SystemStreamPartition

BY_PARTITION = FixedTasks(grouper=GroupByPartition())
RULES = BatchRules(grouping=BY_PARTITION)

Ends = Mapping[str, Sequence[int]]
"""By topic, the end of each partition, from partition 0 on."""


def found(ends: Ends, *, earliest: int = 0, generation: str = "a") -> Metadata:
    """All partitions of topics with these ends; ids are made of the topic and `generation`."""
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


def after(ends: Ends, rules: BatchRules = RULES) -> Offset:
    """The offset of a query that has read topics up to `ends` in one batch."""
    return plan_batch(BEFORE_FIRST_BATCH, found(ends), rules).end


Read = dict[str, list[tuple[SystemStreamPartition, int, int]]]


def read(plan: BatchPlan) -> Read:
    """By task, the ranges of a batch in the order of reading."""
    return {
        task_range.task: [(one.ssp, one.start, one.end) for one in task_range.partitions]
        for task_range in plan.ranges
    }
