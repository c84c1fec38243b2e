"""The offset ranges that each task of a batch reads, computed from the batch's two offsets.

Spark replays an unfinished batch in a new process, which asks for its ranges before anything else.
So they follow from the two offsets only: tasks from the end offset; starts from the end offset if
it contains an explicit start, otherwise from the start offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.grouping.identifiers import SystemStreamPartition, TaskName
from spark_ssp.kafka_source.model.offset import Offset
from spark_ssp.kafka_source.model.topic import TopicId, kafka_name


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """The offsets of one partition from `start` up to, not including, `end`; never empty.
    `generation` is the number of expansions of the topic before the partition existed."""

    ssp: SystemStreamPartition
    topic_id: TopicId | None
    start: int
    end: int
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRange:
    """The partitions that one task reads, in order: older generations first, so that a key that
    moved in an expansion is read in order.

    `number` is i for a task named "Partition i", in every batch. For other names it is the task's
    index among all tasks, ordered by their lowest partition.
    """

    task: TaskName
    number: int = 0
    partitions: tuple[PartitionRange, ...]


def plan_ranges(start: Offset, end: Offset) -> tuple[TaskRange, ...]:
    """Return one range for each task with records to read, sorted by the task's lowest partition.
    Raise IncompatibleStateError if the offsets do not follow each other."""
    if start == end:
        return ()
    tasks = end.assignment.tasks
    ranges = (
        TaskRange(
            task=task,
            number=_number(task, index),
            partitions=_partitions(tasks[task], start, end),
        )
        for index, task in enumerate(sorted(tasks, key=lambda task: (min(tasks[task]), task)))
    )
    return tuple(task_range for task_range in ranges if task_range.partitions)


def _number(task: TaskName, index: int) -> int:
    word, _, number = task.partition(" ")
    return int(number) if word == "Partition" and number.isdecimal() else index


def _partitions(
    ssps: frozenset[SystemStreamPartition], start: Offset, end: Offset
) -> tuple[PartitionRange, ...]:
    ordered = sorted(ssps, key=lambda ssp: (end.assignment.generation(ssp), ssp))
    return tuple(
        PartitionRange(
            ssp=ssp,
            topic_id=end.topics[ssp.stream],
            start=begin,
            end=end.positions[ssp],
            generation=end.assignment.generation(ssp),
        )
        for ssp in ordered
        if (begin := _start_of(ssp, start, end.explicit_starts)) < _checked_end(ssp, begin, end)
    )


def _start_of(
    ssp: SystemStreamPartition, start: Offset, explicit_starts: Mapping[SystemStreamPartition, int]
) -> int:
    position = explicit_starts.get(ssp, start.positions.get(ssp))
    if position is None:
        raise _unrelated(ssp, "a partition that is new in this batch, without an explicit start")
    return position


def _checked_end(ssp: SystemStreamPartition, start: int, end: Offset) -> int:
    position = end.positions[ssp]
    if position < start:
        raise _unrelated(ssp, f"an end ({position}) before its start ({start})")
    return position


def _unrelated(ssp: SystemStreamPartition, found: str) -> IncompatibleStateError:
    return IncompatibleStateError(
        f"offsets of {kafka_name(ssp)}",
        found=found,
        expected="offsets of one query that follow each other",
        next_step="do not edit or mix the files of a checkpoint; start on a new one",
    )
