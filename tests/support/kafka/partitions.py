"""Partitions of a Kafka topic and their tasks, as tests write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_ssp.grouping.assignment import NO_ASSIGNMENT, GroupByPartition, TaskAssignment
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.grouping.identifiers import (
    StreamName,
    SystemName,
    SystemStream,
    SystemStreamPartition,
    TaskName,
)

KAFKA = SystemName("kafka")
BY_PARTITION = FixedTasks(grouper=GroupByPartition())


def ssp(stream: str, partition: int) -> SystemStreamPartition:
    return SystemStreamPartition(system=KAFKA, stream=StreamName(stream), partition=partition)


def stream(name: str) -> SystemStream:
    return SystemStream(system=KAFKA, stream=StreamName(name))


def ssps(counts: Mapping[str, int]) -> frozenset[SystemStreamPartition]:
    """All partitions of streams of these counts."""
    return frozenset(ssp(name, p) for name, count in counts.items() for p in range(count))


def assigned(
    grouper: str,
    counts: Mapping[str, tuple[int, ...]],
    tasks: Mapping[str, Iterable[SystemStreamPartition]],
) -> TaskAssignment:
    return TaskAssignment(
        grouper=grouper,
        counts={stream(name): history for name, history in counts.items()},
        tasks={TaskName(task): frozenset(own) for task, own in tasks.items()},
    )


def grown(name: str, *counts: int, fixed: FixedTasks = BY_PARTITION) -> TaskAssignment:
    """The tasks of a stream that has had these counts."""
    assignment = NO_ASSIGNMENT
    for count in counts:
        assignment = fixed.group(assignment, ssps({name: count}))
    return assignment
