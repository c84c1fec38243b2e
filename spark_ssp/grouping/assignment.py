"""The assignment of partitions to tasks: the groupers that make it, its JSON, and its merges. The
tasks of an assignment are kept through an expansion by `fixed_tasks`.

The JSON, version 2:

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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Protocol

from spark_ssp.common.errors import NEW_CHECKPOINT
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.versioned_json import Codec, Json, VersionedDocument, whole_number
from spark_ssp.grouping.identifiers import (
    StreamName,
    SystemName,
    SystemStream,
    SystemStreamPartition,
    TaskName,
    WorkerId,
)

# --- Groupers ------------------------------------------------------------------------------------


Grouping = Mapping[TaskName, frozenset[SystemStreamPartition]]
"""The partitions of each task: disjoint, none empty."""


SINGLE: Final = "single"
"""The label of `AllSspToSingleTask`."""
_BOUNDED: Final = "partition mod "


class Grouper(Protocol):
    """A strategy for giving partitions their tasks: a pure function of the set of partitions. Every
    partition is in exactly one task, no task is empty.

    The groupers are Samza's three (`org.apache.samza.container.grouper.stream`), with its task
    names, without broadcast streams and elasticity.
    """

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
        return SINGLE

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


# --- Assignments ---------------------------------------------------------------------------------


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
        for task, ssps in grouper.group([stream.partition(n) for n in range(counts[0])]).items()
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
        owners.update({stream.partition(number): task for number, task in tasks.items()})
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


def whole_streams(ssps: Iterable[SystemStreamPartition]) -> frozenset[SystemStream]:
    """Return the streams all of whose partitions are among these."""
    streams = _by_stream(ssps).items()
    return frozenset(stream for stream, numbers in streams if is_whole(numbers))


# --- Merging -------------------------------------------------------------------------------------


GROUPER: Final = "the grouper"
"""The subject of a contradiction between groupers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A contradiction between two assignments: its subject, and the value in each."""

    about: str
    stored: str
    own: str


def restrict_to(assignment: TaskAssignment, streams: Collection[SystemStream]) -> TaskAssignment:
    """Return the part for `streams`; `NO_ASSIGNMENT` if there is no part."""
    kept = assignment.counts.keys() & set(streams)
    if not kept:
        return NO_ASSIGNMENT
    return TaskAssignment(
        grouper=assignment.grouper,
        counts={stream: assignment.counts[stream] for stream in sorted(kept)},
        tasks=tasks_of(
            {ssp: task for ssp, task in assignment.owners().items() if ssp.system_stream in kept}
        ),
    )


def inherit(own: TaskAssignment, others: TaskAssignment) -> TaskAssignment:
    """Return `own` with the streams of `others` that it does not have. Returns `own` if it has
    tasks and another grouper made those of `others`. A query with a single task keeps a single
    task: that of `own`, else the first of `others`."""
    if not own.tasks:
        return _at_most_one(others) if others.tasks else own
    if own.grouper == SINGLE:
        return own
    added = restrict_to(others, others.counts.keys() - own.counts.keys())
    if not added.tasks or added.grouper != own.grouper:
        return own
    return _joined(added, own)


def _at_most_one(others: TaskAssignment) -> TaskAssignment:
    if others.grouper != SINGLE or len(others.tasks) == 1:
        return others
    everything = frozenset[SystemStreamPartition]().union(*others.tasks.values())
    return replace(others, tasks={min(others.tasks): everything})


def up_to(assignment: TaskAssignment, ssps: Collection[SystemStreamPartition]) -> TaskAssignment:
    """Return `assignment` as it was when expanded streams had only the partitions in `ssps`. For an
    older checkpoint or a lagging broker, which see an expansion late. A stream is unchanged if its
    count in `ssps` is neither one of its counts nor possible between two of them."""
    owners = assignment.owners()
    known, present = _by_stream(owners), _by_stream(ssps)
    counts = dict(assignment.counts)
    for stream, history in assignment.counts.items():
        numbers = present.get(stream, frozenset())
        earlier = tuple(count for count in history if count < len(numbers))
        later = history[len(earlier)] if len(earlier) < len(history) else 0
        if (
            history[0] <= len(numbers) < history[-1]
            and is_whole(numbers)
            and is_whole(known[stream])
            and (
                later == len(numbers)
                or (later % len(numbers) == 0 and len(numbers) % earlier[-1] == 0)
            )
        ):
            way = counts_up_to(len(numbers), earlier[-1]) if earlier else (len(numbers),)
            counts[stream] = (*earlier, *way)
    if counts == assignment.counts:
        return assignment
    tasks = tasks_of(
        {
            ssp: task
            for ssp, task in owners.items()
            if counts[ssp.system_stream] == assignment.counts[ssp.system_stream]
            or ssp.partition < counts[ssp.system_stream][-1]
        }
    )
    return TaskAssignment(grouper=assignment.grouper, counts=counts, tasks=tasks)


def contradiction(stored: TaskAssignment, own: TaskAssignment) -> Contradiction | None:
    """Return the first difference, or None if the two agree.

    Queries of a pipeline that read the same streams must give a partition the same task. They do if
    each starts from the other's assignment, since both apply the same function to it; so two
    assignments agree if every partition that both have is in the same task. One query may see an
    expansion before the other.

    If only chosen partitions of a stream are read, both must have the same partitions, except for a
    query with a single task, which no key can leave.
    """
    if not stored.tasks or not own.tasks:
        return None
    if stored.grouper != own.grouper:
        return Contradiction(about=GROUPER, stored=stored.grouper, own=own.grouper)
    theirs, ours = stored.owners(), own.owners()
    for ssp, task in ours.items():
        if theirs.get(ssp, task) != task:
            return Contradiction(about=f"the task of {ssp}", stored=theirs[ssp], own=task)
    if own.grouper == SINGLE:
        return None
    befores, nows = _by_stream(theirs), _by_stream(ours)
    for stream in sorted(befores.keys() & nows.keys()):
        before, now = befores[stream], nows[stream]
        if before != now and not (is_whole(before) and is_whole(now)):
            return Contradiction(
                about=f"the chosen partitions of {stream}",
                stored=_listed(before),
                own=_listed(now),
            )
    return None


def merged(stored: TaskAssignment, own: TaskAssignment) -> TaskAssignment:
    """Return the union. Equal to `stored` if `own` adds nothing. For assignments without a
    contradiction. The counts of a stream are those that either has seen: additional counts only
    divide its partitions finer, which keeps the order of keys."""
    if not own.tasks:
        return stored
    return _joined(stored, own) if stored.tasks else own


def replaced(stored: TaskAssignment, own: TaskAssignment) -> TaskAssignment:
    """`stored` with the streams of `own` as `own` has them: for streams that are grouped afresh."""
    if not own.tasks:
        return stored
    return _joined(restrict_to(stored, stored.counts.keys() - own.counts.keys()), own)


def _joined(first: TaskAssignment, second: TaskAssignment) -> TaskAssignment:
    owners = {**first.owners(), **second.owners()}
    counts = {**first.counts, **second.counts}
    present = _by_stream(owners)
    for stream in first.counts.keys() & second.counts.keys():
        seen = {*first.counts[stream], *second.counts[stream]}
        counts[stream] = _counts(seen, present[stream])
    return TaskAssignment(grouper=second.grouper, counts=counts, tasks=tasks_of(owners))


def _counts(seen: set[int], numbers: frozenset[int]) -> tuple[int, ...]:
    if is_whole(numbers) and max(seen) == len(numbers):
        return tuple(sorted(seen))
    return (len(numbers),)


def _by_stream(ssps: Iterable[SystemStreamPartition]) -> dict[SystemStream, frozenset[int]]:
    numbers: dict[SystemStream, set[int]] = {}
    for ssp in ssps:
        numbers.setdefault(ssp.system_stream, set()).add(ssp.partition)
    return {stream: frozenset(own) for stream, own in numbers.items()}


def _listed(numbers: frozenset[int]) -> str:
    return abbreviate([str(number) for number in sorted(numbers)])
