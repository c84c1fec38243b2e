"""Groupers that keep their tasks while streams are expanded (SEP-5).

The previous assignment decides; the plain grouper only where there is none:

* nothing was assigned before, or the stream is new: the plain grouper's tasks;
* the stream has the partitions that it had: the tasks that it had;
* its count was multiplied: a partition goes to the task that owned the partition in which its
  keys were before (`PartitionExpansionAlgorithm`), so no task comes or goes. Several expansions
  between two batches are seen as one; the possible counts in between are recorded;
* any other count would move keys between tasks: `PartitionCountError`. A count that the stream had
  only between two batches is not detected here;
* the stream is gone: so are its partitions, and the tasks that had no others.

Where SEP-5 and Samza's code differ: counts are kept per system and stream, and count partitions,
not tasks. With `AllSspToSingleTask` no count can move a key, since all partitions go to one
task.

An expansion can keep tasks if every key of a partition, by then, came from one partition before.
That is so when a key's partition is hash(key) mod n and the count is multiplied, since
(h mod kn) mod n = h mod n.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from spark_ssp.common.errors import NEW_CHECKPOINT, IncompatibleStateError, SspError
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.options.user_code import PluginSpec
from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    AllSspToSingleTask,
    Grouper,
    TaskAssignment,
    counts_up_to,
    is_whole,
    tasks_of,
)
from spark_ssp.grouping.identifiers import SystemStream, SystemStreamPartition, TaskName

Owners = dict[SystemStreamPartition, TaskName]


@runtime_checkable
class PartitionExpansionAlgorithm(Protocol):
    """Maps a partition to the one that had its keys before the system added partitions. A class is
    named by its dotted path (`my_company.kafka.Halving`) and made without arguments."""

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        """Return the partition that had all the keys of partition `current` when there were
        `initial_count` partitions, a divisor of `current_count`.

        A pure function into `range(initial_count)`. A partition below
        `initial_count` maps to itself: its keys stayed. It is called for each observed change of
        the count, which may be several expansions: the result must not depend on counts between.
        """


class ModuloExpansion:
    """The default: for streams whose producers choose partition hash(key) mod n, as Kafka's do."""

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        """Return `current` modulo the initial count."""
        return current % initial_count


def load_expansion_algorithm(dotted_path: str) -> PartitionExpansionAlgorithm:
    """Return an instance of the class at `dotted_path`. Raises BadValueError."""
    return _PLUGGABLE.load(dotted_path)


_PLUGGABLE: Final = PluginSpec(
    protocol=PartitionExpansionAlgorithm,  # type: ignore[type-abstract]
    method="partition_before_expansion",
    example="my_company.kafka.Halving",
)


class PartitionCountError(SspError):
    """A stream's partitions changed so that keys could not stay with their tasks."""

    kind = "partition-count"


class PartitionExpansionError(SspError):
    """An expansion algorithm returned a partition that breaks its contract: correct the class."""

    kind = "partition-expansion"


class OnPartitionCountChange(StrEnum):
    """The effect of a changed number of partitions on a stream's tasks."""

    KEEP = "keep"
    """Tasks stay, keys stay with them; a count that would move keys is an error."""
    REGROUP = "regroup"
    """Tasks are those of the plain grouper, regardless of earlier ones: for queries without state
    per task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedTasks:
    """The fixed-task form of `grouper`."""

    grouper: Grouper
    expansion: PartitionExpansionAlgorithm = field(default_factory=ModuloExpansion)
    on_count_change: OnPartitionCountChange = OnPartitionCountChange.KEEP

    def group(
        self, previous: TaskAssignment, ssps: Collection[SystemStreamPartition]
    ) -> TaskAssignment:
        """Assign `ssps` to tasks. The order of the arguments' elements never matters. With an empty
        `previous` the tasks are those of the plain grouper. Raises PartitionCountError,
        PartitionExpansionError, and IncompatibleStateError when `previous` is another grouper's."""
        regroup = self.on_count_change is OnPartitionCountChange.REGROUP
        if previous.tasks and previous.grouper != self.grouper.label:
            if not regroup:
                raise _another_grouper(previous.grouper, self.grouper.label)
            previous = NO_ASSIGNMENT
        same = previous.tasks and frozenset().union(*previous.tasks.values()) == frozenset(ssps)
        if same and not regroup:
            return previous
        before = _by_stream(previous.owners())
        owners: Owners = {}
        counts: dict[SystemStream, tuple[int, ...]] = {}
        for stream, fresh in _by_stream(self._plain(previous, ssps)).items():
            kept = before.get(stream)
            if kept is None or (regroup and kept != fresh):
                owners.update(fresh)
                counts[stream] = (len(fresh),)
            elif kept.keys() == fresh.keys():
                owners.update(kept)
                counts[stream] = previous.counts[stream]
            elif isinstance(self.grouper, AllSspToSingleTask):
                owners.update(fresh)
                grown = _is_whole(kept) and _is_whole(fresh) and len(fresh) > len(kept)
                counts[stream] = _history(previous, stream, len(fresh)) if grown else (len(fresh),)
            else:
                owners.update(self._expanded(stream, kept, fresh))
                counts[stream] = _history(previous, stream, len(fresh))
        return TaskAssignment(grouper=self.grouper.label, counts=counts, tasks=tasks_of(owners))

    def _plain(
        self, previous: TaskAssignment, ssps: Collection[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, TaskName]:
        """The plain grouper's owners, sorted. A query's only task keeps the name that it has when
        another worker runs the query."""
        plain = {ssp: task for task, own in self.grouper.group(ssps).items() for ssp in own}
        if isinstance(self.grouper, AllSspToSingleTask) and previous.tasks:
            plain = dict.fromkeys(plain, min(previous.tasks))
        return {ssp: plain[ssp] for ssp in sorted(plain)}

    def _expanded(self, stream: SystemStream, kept: Owners, fresh: Owners) -> Owners:
        old, new = len(kept), len(fresh)
        _check_change(stream, kept, fresh)
        owners: Owners = {}
        for ssp in fresh:
            origin = self.expansion.partition_before_expansion(ssp.partition, new, old)
            _check_origin(stream, ssp.partition, origin, new, old, self.expansion)
            owners[ssp] = kept[stream.partition(origin)]
        return owners


def _history(previous: TaskAssignment, stream: SystemStream, new: int) -> tuple[int, ...]:
    counts = previous.counts[stream]
    return (*counts, *counts_up_to(new, counts[-1]))


def _by_stream(owners: Mapping[SystemStreamPartition, TaskName]) -> dict[SystemStream, Owners]:
    streams: dict[SystemStream, Owners] = {}
    for ssp, task in owners.items():
        streams.setdefault(ssp.system_stream, {})[ssp] = task
    return streams


def _numbers(owners: Owners) -> frozenset[int]:
    return frozenset(ssp.partition for ssp in owners)


def _is_whole(owners: Owners) -> bool:
    return is_whole(_numbers(owners))


def _check_change(stream: SystemStream, kept: Owners, fresh: Owners) -> None:
    if not _is_whole(kept) or not _is_whole(fresh):
        raise PartitionCountError(
            f"stream {stream}",
            found=f"partitions {_listed(fresh)} chosen, {_listed(kept)} before",
            expected="the same choice as before, or all partitions of the stream both times",
            next_step=REGROUP_OR_AFRESH,
        )
    old, new = len(kept), len(fresh)
    if new % old:
        raise PartitionCountError(
            f"stream {stream}",
            found=f"{new} partitions, {old} before",
            expected=f"a multiple of {old}: with any other count, keys move between tasks",
            next_step=f"{_REGROUP}; else {_COPY}" if new > old else REGROUP_OR_AFRESH,
        )


def _check_origin(
    stream: SystemStream,
    partition: int,
    origin: object,
    new: int,
    old: int,
    algorithm: PartitionExpansionAlgorithm,
) -> None:
    stays = partition < old
    if type(origin) is int and (origin == partition if stays else 0 <= origin < old):
        return
    name = f"{type(algorithm).__module__}.{type(algorithm).__qualname__}"
    raise PartitionExpansionError(
        f"option partitionExpansionAlgorithm ({name})",
        found=f"{origin!r} for partition {partition} of {stream}, expanded from {old} to {new}",
        expected=f"{partition}: it was there before"
        if stays
        else f"a partition from 0 to {old - 1}",
        next_step="mend partition_before_expansion; or, if producers go by hash(key) mod n, remove "
        "the option",
    )


def _listed(owners: Owners) -> str:
    return abbreviate([str(number) for number in sorted(_numbers(owners))])


_REGROUP: Final = "set onPartitionCountChange to regroup if the query keeps no state by task"
REGROUP_OR_AFRESH: Final = f"{_REGROUP}; else start it on {NEW_CHECKPOINT}"
"""For a stream whose records were all written with one count."""
_COPY: Final = (
    f"copy the stream by key into a new one, and read that on {NEW_CHECKPOINT}: more "
    "partitions do not bring the records back that were written with this count"
)
"""Adding partitions up to the next multiple would be accepted, but records of one key would be in
partitions of two tasks."""


def _another_grouper(before: str, now: str) -> IncompatibleStateError:
    return IncompatibleStateError(
        "options grouper and tasks",
        found=f"{now!r}; the tasks of this query were made by {before!r}",
        expected="the same grouper and number of tasks as before",
        next_step=f"put them back, or start on {NEW_CHECKPOINT}",
    )
