"""Merges the assignments of several queries, and finds contradictions between them.

Queries of a pipeline that read the same streams must give a partition the same task. They do if
each starts from the other's assignment, since both apply the same function to it; so two
assignments agree if every partition that both have is in the same task. One query may see an
expansion before the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from spark_ssp.common.logs import abbreviate
from spark_ssp.grouping.assignment import NO_ASSIGNMENT, TaskAssignment, counts_up_to, is_whole
from spark_ssp.grouping.groupers import tasks_of
from spark_ssp.grouping.identifiers import SystemStream, SystemStreamPartition

SINGLE: Final = "single"
"""The label of `AllSspToSingleTask`."""


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
    """Return the first difference, or None if the two agree. If only chosen partitions of a stream
    are read, both must have the same partitions, except for a query with a single task, which no
    key can leave."""
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
