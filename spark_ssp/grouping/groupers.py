"""Groupers: the assignment of partitions to tasks without an earlier assignment.

Samza's three (`org.apache.samza.container.grouper.stream`), with its task names, without broadcast
streams and elasticity. Each is a pure function of the set of partitions: every partition is in
exactly one task, no task is empty. `fixed_tasks` keeps tasks through an expansion.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from spark_ssp.grouping.identifiers import SystemStreamPartition, TaskName, WorkerId

Grouping = Mapping[TaskName, frozenset[SystemStreamPartition]]
"""The partitions of each task: disjoint, none empty."""


_BOUNDED: Final = "partition mod "


class Grouper(Protocol):
    """A strategy for giving partitions their tasks."""

    @property
    def label(self) -> str:
        """Return the name stored in an assignment. Another label means other tasks."""
        ...

    def group(
        self, ssps: Collection[SystemStreamPartition]
    ) -> dict[TaskName, frozenset[SystemStreamPartition]]:
        """The tasks, sorted by their lowest partition. No partitions, no tasks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupByPartition:
    """Partition p of every stream goes to the task "Partition p", so streams can be joined.
    `tasks`, which Samza does not have, bounds the number of tasks from the start: partition p goes
    to "Partition (p mod tasks)"."""

    tasks: int | None = None

    def __post_init__(self) -> None:
        if self.tasks is not None and self.tasks < 1:
            raise ValueError(f"there must be at least one task, not {self.tasks}")

    @property
    def label(self) -> str:
        """The name stored in an assignment."""
        return "partition" if self.tasks is None else f"{_BOUNDED}{self.tasks}"

    def group(
        self, ssps: Collection[SystemStreamPartition]
    ) -> dict[TaskName, frozenset[SystemStreamPartition]]:
        """Assign each partition to a task."""
        return tasks_of({ssp: self._task(ssp.partition) for ssp in ssps})

    def _task(self, partition: int) -> TaskName:
        number = partition if self.tasks is None else partition % self.tasks
        return TaskName(f"Partition {number}")


@dataclass(frozen=True, slots=True)
class GroupBySystemStreamPartition:
    """One task per partition of each stream, named after it: the most parallel."""

    @property
    def label(self) -> str:
        """The name stored in an assignment."""
        return "ssp"

    def group(
        self, ssps: Collection[SystemStreamPartition]
    ) -> dict[TaskName, frozenset[SystemStreamPartition]]:
        """Assign each partition to a task."""
        return tasks_of({ssp: TaskName(str(ssp)) for ssp in ssps})


@dataclass(frozen=True, slots=True, kw_only=True)
class AllSspToSingleTask:
    """One task per worker, "Task-<worker>", with all the partitions that the worker reads. A query
    is one worker, so it gets one task. (Samza gives every worker's task all partitions and leaves
    sharing them out to the consumer.)"""

    worker: WorkerId

    @property
    def label(self) -> str:
        """See `Grouper.label`. The same for every worker: a query keeps its task."""
        return "single"

    def group(
        self, ssps: Collection[SystemStreamPartition]
    ) -> dict[TaskName, frozenset[SystemStreamPartition]]:
        """Assign each partition to a task."""
        return tasks_of(dict.fromkeys(ssps, TaskName(f"Task-{self.worker}")))


def grouper_of(label: str) -> Grouper | None:
    """Return the grouper of this label; None for one whose tasks do not follow from the label."""
    if label == GroupBySystemStreamPartition().label:
        return GroupBySystemStreamPartition()
    if label == GroupByPartition().label:
        return GroupByPartition()
    tasks = label.removeprefix(_BOUNDED)
    if label.startswith(_BOUNDED) and tasks.isdecimal() and int(tasks):
        bounded = GroupByPartition(tasks=int(tasks))
        return bounded if bounded.label == label else None
    return None


def tasks_of(
    owners: Mapping[SystemStreamPartition, TaskName],
) -> dict[TaskName, frozenset[SystemStreamPartition]]:
    """The partitions of each task, from the task of each partition; sorted by their lowest. As
    text, "Partition 10" would come before "Partition 2"."""
    members: dict[TaskName, set[SystemStreamPartition]] = {}
    for ssp, task in owners.items():
        members.setdefault(task, set()).add(ssp)
    ordered = sorted(members, key=lambda task: (min(members[task]), task))
    return {task: frozenset(members[task]) for task in ordered}
