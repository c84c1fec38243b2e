"""The offset ranges that each task of a batch reads, computed from the batch's two offsets.

Spark replays an unfinished batch in a new process, which asks for its ranges before anything else.
So they follow from the two offsets only: tasks, and their split, from the end offset; starts from
the end offset if it contains an explicit start, otherwise from the start offset.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.grouping.identifiers import SystemStreamPartition, TaskName
from spark_ssp.kafka_source.model.offset import Offset, Split
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
    found = tuple(task_range for task_range in ranges if task_range.partitions)
    return found if end.split is None else split_ranges(found, end.split)


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


# --- More tasks than partitions -------------------------------------------------------------------
#
# The rules are those of Spark's source (KafkaOffsetRangeCalculator of Spark 4): the same offsets
# and options give the same ranges. A size is a number of offsets, of which some may have no record.


def split_ranges(tasks: Sequence[TaskRange], split: Split) -> tuple[TaskRange, ...]:
    """Return the same offsets in tasks of one range each, in the same order.

    First each partition is divided into the fewest equal ranges of at most `max_offsets`. If there
    are fewer than `min_tasks` then, the larger ones are divided in proportion to their sizes, so
    that there are about as many.
    """
    ranges = [
        replace(task, partitions=(piece,))
        for task in tasks
        for part in task.partitions
        for piece in _divide(part, _count(part, split.max_offsets))
    ]
    if split.min_tasks is not None and len(ranges) < split.min_tasks:
        ranges = list(_spread(ranges, split.min_tasks))
    return tuple(ranges)


def _count(part: PartitionRange, max_offsets: int | None) -> int:
    return 1 if max_offsets is None else math.ceil(_size(part) / max_offsets)


def _spread(ranges: Sequence[TaskRange], min_tasks: int) -> Iterator[TaskRange]:
    """Divide the ranges whose share of `min_tasks` is more than one. The other ranges are not
    counted for their shares. All ranges of a partition stay whole if one does."""
    sizes = [_size(*one.partitions) for one in ranges]
    total = sum(sizes)
    small = [_share(size, total, min_tasks) == 1 for size in sizes]
    staying = {
        one.partitions[0].ssp for one, is_small in zip(ranges, small, strict=True) if is_small
    }
    divided = sum(size for size, is_small in zip(sizes, small, strict=True) if not is_small)
    tasks = max(min_tasks - sum(small), 1)
    for one, size in zip(ranges, sizes, strict=True):
        (part,) = one.partitions
        count = 1 if part.ssp in staying else _share(size, divided, tasks)
        yield from (replace(one, partitions=(piece,)) for piece in _divide(part, count))


def _share(size: int, total: int, tasks: int) -> int:
    """Return the number of `tasks` for this part of the total, at least one. A half rounds up."""
    return max(math.floor(size / total * tasks + 0.5), 1)


def _divide(part: PartitionRange, count: int) -> Iterator[PartitionRange]:
    """Divide a range into `count` ranges, or one per offset; the larger ones are the last."""
    start = part.start
    for left in range(count, 0, -1):
        end = start + (part.end - start) // left
        if end > start:
            yield replace(part, start=start, end=end)
        start = end


def _size(part: PartitionRange) -> int:
    return part.end - part.start
