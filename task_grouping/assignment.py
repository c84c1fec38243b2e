"""Assignments of partitions to tasks, and their JSON, version 1.

    {"v": 1, "grouper": "partition",
     "counts": {"kafka": {"orders": [2, 4]}},
     "tasks": {"Partition 0": {"kafka": {"orders": [0, 2]}},
               "Partition 1": {"kafka": {"orders": [1, 3]}}}}

* `counts` are the numbers of partitions that a stream has had, or may have had between two looks
  (`counts_up_to`), smallest first; the last one is that of the partitions in `tasks`. They divide a
  stream's partitions into generations: here 0 and 1 came first, 2 and 3 with the expansion.
* Every level is inserted in sorted order, tasks by name and partitions as numbers. So equal
  assignments are equal text, although PySpark writes a dict in insertion order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from ssp_common.documents.versioned_json import Json, VersionedDocument, whole_number
from task_grouping.groupers import Grouping
from task_grouping.identifiers import (
    StreamName,
    SystemName,
    SystemStream,
    SystemStreamPartition,
    TaskName,
)

ASSIGNMENT_VERSION = 1

_DOCUMENT: Final = VersionedDocument(
    subject="task assignment",
    article="an",
    noun="assignment",
    full_name="a task assignment",
    version=ASSIGNMENT_VERSION,
    next_step="use the spark-ssp version that wrote it, or start with a new checkpoint location "
    "and, if there is an assignmentStore, a new one",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAssignment:
    """The partitions of each task, and the partition counts that the streams may have had.

    `counts` holds exactly the streams of `tasks`. The order of either mapping has no meaning.
    """

    grouper: str = ""
    """The label of the grouper that made it; empty only in `NO_ASSIGNMENT`."""
    counts: Mapping[SystemStream, tuple[int, ...]] = field(default_factory=dict)
    tasks: Grouping = field(default_factory=dict)

    def owners(self) -> dict[SystemStreamPartition, TaskName]:
        """The task of each partition, sorted by partition."""
        owners = {ssp: task for task, ssps in self.tasks.items() for ssp in ssps}
        return {ssp: owners[ssp] for ssp in sorted(owners)}

    def generation(self, ssp: SystemStreamPartition) -> int:
        """With which of the stream's counts the partition came: 0 for those of the start. It is
        later than that of any partition that had keys of this one.

        0 as well for a stream of which only chosen partitions are read: they have one count.
        """
        counts = self.counts[ssp.system_stream]
        if len(counts) == 1:
            return 0
        return bisect_right(counts, ssp.partition)

    def restarted(self, stream: SystemStream) -> TaskAssignment:
        """The same tasks, with all partitions of `stream` of one generation: for a stream that was
        deleted and created again, whose partitions came together."""
        return replace(self, counts={**self.counts, stream: self.counts[stream][-1:]})


def counts_up_to(new: int, old: int) -> tuple[int, ...]:
    """The counts that a stream may have had on the way from `old` to `new` partitions, smallest
    first, `new` included: several expansions may happen between two batches.

    Each of them is a multiple of `old` and divides `new`; 6 may come from 2 by 4 to 12 or by 6, so
    they need not divide each other. Where `new` is not a multiple of `old` the result is `(new,)`.
    A partition p was added with a count whose divisor mapped p's keys to partitions below p, so on
    any path each count separates the partitions it added from those that had their keys.
    """
    if new % old:
        return (new,)
    return tuple(count for count in range(2 * old, new + 1, old) if new % count == 0)


NO_ASSIGNMENT = TaskAssignment()
"""The previous assignment of a query that never ran."""


def encode_assignment(assignment: TaskAssignment) -> Json:
    """The assignment as it is stored."""
    counts: Json = {}
    for stream in sorted(assignment.counts):
        counts.setdefault(stream.system, {})[stream.stream] = list(assignment.counts[stream])
    return {
        "v": ASSIGNMENT_VERSION,
        "grouper": assignment.grouper,
        "counts": counts,
        "tasks": {task: _encode_ssps(assignment, task) for task in sorted(assignment.tasks)},
    }


def _encode_ssps(assignment: TaskAssignment, task: TaskName) -> Json:
    document: Json = {}
    for ssp in sorted(assignment.tasks[task]):
        streams = document.setdefault(ssp.system, {})
        streams.setdefault(ssp.stream, []).append(ssp.partition)
    return document


def decode_assignment(document: Any) -> TaskAssignment:
    """Parse an assignment. Raises IncompatibleStateError for another version."""
    return _DOCUMENT.read(document, _decode_v1, encode_assignment)


def _decode_v1(document: Json) -> TaskAssignment:
    owners: dict[SystemStreamPartition, TaskName] = {}
    tasks: dict[TaskName, frozenset[SystemStreamPartition]] = {}
    for task, systems in document["tasks"].items():
        ssps = _decode_ssps(systems)
        if not ssps:
            raise ValueError(f"{task} has no partitions")
        for ssp in ssps:
            if owners.setdefault(ssp, task) != task:
                raise ValueError(f"{ssp} is in two tasks")
        tasks[TaskName(task)] = ssps
    counts = {
        SystemStream(system=SystemName(system), stream=StreamName(stream)): tuple(
            whole_number(count) for count in history
        )
        for system, streams in document["counts"].items()
        for stream, history in streams.items()
    }
    grouper = document["grouper"]
    if not isinstance(grouper, str):
        raise TypeError(f"{grouper!r} is no grouper")
    _check_counts(counts, owners)
    return TaskAssignment(grouper=grouper, counts=counts, tasks=tasks)


def _decode_ssps(document: Json) -> frozenset[SystemStreamPartition]:
    ssps = [
        SystemStreamPartition(
            system=SystemName(system), stream=StreamName(stream), partition=whole_number(partition)
        )
        for system, streams in document.items()
        for stream, partitions in streams.items()
        for partition in partitions
    ]
    if len(set(ssps)) != len(ssps):
        raise ValueError("a partition is listed twice")
    return frozenset(ssps)


def _check_counts(
    counts: Mapping[SystemStream, tuple[int, ...]], owners: Mapping[SystemStreamPartition, TaskName]
) -> None:
    """The parts must fit each other, or an edited assignment would fail far from here."""
    present: dict[SystemStream, set[int]] = {}
    for ssp in owners:
        present.setdefault(ssp.system_stream, set()).add(ssp.partition)
    if present.keys() != counts.keys():
        odd = sorted(present.keys() ^ counts.keys())[0]
        raise ValueError(f"{odd} is not both in the counts and in the tasks")
    for stream, history in counts.items():
        if not history or history[-1] != len(present[stream]):
            raise ValueError(f"{stream} has {len(present[stream])} partitions, not {history}")
        if any(newer <= older for older, newer in pairwise(history)):
            raise ValueError(f"the counts of {stream} do not grow: {history}")
        if len(history) > 1 and not is_whole(present[stream]):
            raise ValueError(f"{stream} lacks partitions below {max(present[stream])}")


def is_whole(partitions: set[int] | frozenset[int]) -> bool:
    """Return whether these are all partitions of a stream, 0 to n - 1, and not chosen ones."""
    return partitions == set(range(len(partitions)))
