"""Which task reads what in a batch. Pure: two offsets in, ranges out.

Spark replays an unfinished batch in a new process by asking for its ranges before anything else. So
they follow from the two offsets alone: tasks from the end, starts from the end where it says that a
partition begins, else from where the offset before it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka_source.model.offset import Offset
from kafka_source.model.topic import TopicId, kafka_name
from ssp_common.errors import IncompatibleStateError
from task_grouping.identifiers import SystemStreamPartition, TaskName


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """The offsets from `start` up to, not including, `end` of one partition; never empty.
    `generation` counts the expansions of its topic before the partition came to be."""

    ssp: SystemStreamPartition
    topic_id: TopicId | None
    start: int
    end: int
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRange:
    """What one task reads, in this order: partitions of an older generation first, so that a key
    that an expansion moved is read in order.

    `number` is i for a task "Partition i", whatever else there is to read; of tasks that are named
    otherwise, the place in the order of all tasks by their lowest partition."""

    task: TaskName
    number: int = 0
    partitions: tuple[PartitionRange, ...]


def plan_ranges(start: Offset, end: Offset) -> tuple[TaskRange, ...]:
    """One range for each task that has something to read, sorted by the task's lowest partition;
    idle tasks cost nothing. Raises IncompatibleStateError for offsets that do not follow each
    other."""
    if start == end:
        return ()
    tasks = end.assignment.tasks
    ranges = (
        TaskRange(
            task=task,
            number=_number(task, place),
            partitions=_partitions(tasks[task], start, end),
        )
        for place, task in enumerate(sorted(tasks, key=lambda task: (min(tasks[task]), task)))
    )
    return tuple(task_range for task_range in ranges if task_range.partitions)


def _number(task: TaskName, place: int) -> int:
    word, _, number = task.partition(" ")
    return int(number) if word == "Partition" and number.isdecimal() else place


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
        if (begin := _begin(ssp, start, end.explicit_starts)) < _checked_end(ssp, begin, end)
    )


def _begin(
    ssp: SystemStreamPartition, start: Offset, explicit_starts: Mapping[SystemStreamPartition, int]
) -> int:
    begin = explicit_starts.get(ssp, start.positions.get(ssp))
    if begin is None:
        raise _unrelated(ssp, "a partition that is new in this batch, without its beginning")
    return begin


def _checked_end(ssp: SystemStreamPartition, begin: int, end: Offset) -> int:
    position = end.positions[ssp]
    if position < begin:
        raise _unrelated(ssp, f"an end ({position}) before its start ({begin})")
    return position


def _unrelated(ssp: SystemStreamPartition, found: str) -> IncompatibleStateError:
    return IncompatibleStateError(
        f"offsets of {kafka_name(ssp)}",
        found=found,
        expected="offsets of one query that follow each other",
        next_step="do not edit or mix the files of a checkpoint; start on a new one",
    )
