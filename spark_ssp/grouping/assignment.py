"""Assignments of partitions to tasks, and their JSON, version 2.

    {"v": 2, "grouper": "partition",
     "counts": {"kafka": {"orders": [2, 4], "clicks": [2]}},
     "tasks": {"Partition 1": {"kafka": {"clicks": [1]}},
               "Partition 7": {"kafka": {"clicks": [7]}}}}

* `counts` are the numbers of partitions that a stream has had, or may have had between two looks
  (`counts_up_to`), smallest first; the last one is the number of its partitions. They divide a
  stream's partitions into generations: here 0 and 1 of orders came first, 2 and 3 with the
  expansion.
* `tasks` has the partitions of the other streams than those whose tasks follow from their counts
  (`_tasks_by_counts`): here of clicks, of which two partitions are chosen. Without such streams it
  is absent. So the size of most assignments does not depend on the number of partitions.
* Every level is inserted in sorted order, tasks by name and partitions as numbers. So equal
  assignments are equal text, although PySpark writes a dict in insertion order.

In version 1 `tasks` is always present and has the partitions of all streams.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from spark_ssp.common.errors import NEW_CHECKPOINT
from spark_ssp.common.versioned_json import Codec, Json, VersionedDocument, whole_number
from spark_ssp.grouping.groupers import Grouping, grouper_of, tasks_of
from spark_ssp.grouping.identifiers import (
    StreamName,
    SystemName,
    SystemStream,
    SystemStreamPartition,
    TaskName,
)

ASSIGNMENT_VERSION = 2

_DOCUMENT: Final = VersionedDocument(
    subject="task assignment",
    article="an",
    noun="assignment",
    full_name="a task assignment",
    next_step="use the spark-ssp version that wrote it, or start with another assignmentStore, if "
    f"there is one, and {NEW_CHECKPOINT}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAssignment:
    """The partitions of each task, and the partition counts that the streams may have had. `counts`
    holds exactly the streams of `tasks`. The order of either mapping has no meaning."""

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
        later than that of any partition that had keys of this one. 0 as well for a stream of which
        only chosen partitions are read: they have one count."""
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


Owners = dict[SystemStream, dict[int, TaskName]]
"""The task of each partition, by stream and by number."""


def encode_assignment(assignment: TaskAssignment) -> Json:
    """Return the assignment as it is stored."""
    owners = _owners_by_stream(assignment.tasks)
    listed = {
        stream
        for stream, counts in assignment.counts.items()
        if owners[stream] != _tasks_by_counts(assignment.grouper, stream, counts)
    }
    document = _encode_counts(assignment, ASSIGNMENT_VERSION)
    if tasks := _encode_tasks(assignment, listed):
        document["tasks"] = tasks
    return document


def decode_assignment(document: Any) -> TaskAssignment:
    """Parse an assignment. Raises IncompatibleStateError for an unknown version."""
    return _DOCUMENT.read(document, _CODECS)


@lru_cache(maxsize=32)
def _tasks_by_counts(
    label: str, stream: SystemStream, counts: tuple[int, ...]
) -> Mapping[int, TaskName] | None:
    """Return the task of each of a stream's partitions, 0 to n - 1, if its grouper made the first
    ones and all others stay with the partition that had their keys, by modulo; None for a grouper
    or counts without such tasks.

    Part of the format: stored assignments rely on the result, which must not change.
    """
    grouper = grouper_of(label)
    if grouper is None or not counts or not counts[0] or any(n % counts[0] for n in counts):
        return None
    plain = {
        ssp.partition: task
        for task, ssps in grouper.group([_ssp(stream, n) for n in range(counts[0])]).items()
        for ssp in ssps
    }
    return {number: plain[number % counts[0]] for number in range(counts[-1])}


def _owners_by_stream(tasks: Grouping) -> Owners:
    found: dict[tuple[SystemName, StreamName], dict[int, TaskName]] = {}
    for task, ssps in tasks.items():
        for ssp in ssps:
            found.setdefault((ssp.system, ssp.stream), {})[ssp.partition] = task
    return {
        SystemStream(system=system, stream=stream): numbers
        for (system, stream), numbers in found.items()
    }


def _ssp(stream: SystemStream, partition: int) -> SystemStreamPartition:
    return SystemStreamPartition(system=stream.system, stream=stream.stream, partition=partition)


# --- Writing -------------------------------------------------------------------------------------


def encode_assignment_v1(assignment: TaskAssignment) -> Json:
    """Return the assignment as version 1 stored it."""
    document = _encode_counts(assignment, 1)
    document["tasks"] = _encode_tasks(assignment, assignment.counts.keys())
    return document


def _encode_counts(assignment: TaskAssignment, version: int) -> Json:
    counts: Json = {}
    for stream in sorted(assignment.counts):
        counts.setdefault(stream.system, {})[stream.stream] = list(assignment.counts[stream])
    return {"v": version, "grouper": assignment.grouper, "counts": counts}


def _encode_tasks(assignment: TaskAssignment, streams: Collection[SystemStream]) -> Json:
    """Return the partitions of these streams by task, without tasks that have none of them."""
    if not streams:
        return {}
    document: Json = {}
    for task in sorted(assignment.tasks):
        for ssp in sorted(assignment.tasks[task]):
            if ssp.system_stream in streams:
                systems = document.setdefault(task, {})
                systems.setdefault(ssp.system, {}).setdefault(ssp.stream, []).append(ssp.partition)
    return document


# --- Reading -------------------------------------------------------------------------------------


def _decode_v1(document: Json) -> TaskAssignment:
    return _assignment(document, _decode_counts(document), _decode_tasks(document["tasks"]))


def _decode_v2(document: Json) -> TaskAssignment:
    counts, owners = _decode_counts(document), _decode_tasks(document.get("tasks", {}))
    for stream in counts.keys() - {ssp.system_stream for ssp in owners}:
        tasks = _tasks_by_counts(_decode_grouper(document), stream, counts[stream])
        if tasks is None:
            raise ValueError(f"{stream} is not in the tasks, which do not follow from its counts")
        owners.update({_ssp(stream, number): task for number, task in tasks.items()})
    return _assignment(document, counts, owners)


def _assignment(
    document: Json,
    counts: Mapping[SystemStream, tuple[int, ...]],
    owners: Mapping[SystemStreamPartition, TaskName],
) -> TaskAssignment:
    _check_counts(counts, owners)
    return TaskAssignment(grouper=_decode_grouper(document), counts=counts, tasks=tasks_of(owners))


def _decode_grouper(document: Json) -> str:
    grouper = document["grouper"]
    if not isinstance(grouper, str):
        raise TypeError(f"{grouper!r} is no grouper")
    return grouper


def _decode_counts(document: Json) -> dict[SystemStream, tuple[int, ...]]:
    return {
        SystemStream(system=SystemName(system), stream=StreamName(stream)): tuple(
            whole_number(count) for count in history
        )
        for system, streams in document["counts"].items()
        for stream, history in streams.items()
    }


def _decode_tasks(document: Json) -> dict[SystemStreamPartition, TaskName]:
    owners: dict[SystemStreamPartition, TaskName] = {}
    for task, systems in document.items():
        ssps = _decode_ssps(systems)
        if not ssps:
            raise ValueError(f"{task} has no partitions")
        for ssp in ssps:
            if owners.setdefault(ssp, TaskName(task)) != task:
                raise ValueError(f"{ssp} is in two tasks")
    return owners


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


_CODECS: Final = {
    1: Codec(parse=_decode_v1, write=encode_assignment_v1),
    ASSIGNMENT_VERSION: Codec(parse=_decode_v2, write=encode_assignment),
}


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
