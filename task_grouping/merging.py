"""One assignment out of several queries': what is taken over, merged, and what contradicts. Pure.

Queries of a pipeline that read the same streams must give a partition the same task. They do when
each begins where the other stood, since both follow the same function of the previous assignment;
so two assignments agree when every partition that both have is in the same task. How far each has
come may differ: one query sees an expansion before the other does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from task_grouping.assignment import NO_ASSIGNMENT, TaskAssignment, counts_up_to, is_whole
from task_grouping.groupers import tasks_of
from task_grouping.identifiers import SystemStream, SystemStreamPartition

SINGLE: Final = "single"
"""The label of `AllSspToSingleTask`."""


GROUPER: Final = "the grouper"
"""What a contradiction is about where no stream's tasks need be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Why two assignments cannot be one: what it is about, and what either says of it."""

    about: str
    stored: str
    own: str


def restricted(assignment: TaskAssignment, streams: Collection[SystemStream]) -> TaskAssignment:
    """What it says of `streams`; `NO_ASSIGNMENT` where that is nothing."""
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


def taken_over(own: TaskAssignment, others: TaskAssignment) -> TaskAssignment:
    """`own`, and what `others` says of streams that `own` does not have.

    `own` alone where it has tasks and another grouper made those of `others`. With a query's only
    task there is one in the outcome, too: that of `own`, else the first of `others`.
    """
    if not own.tasks:
        return _at_most_one(others) if others.tasks else own
    if own.grouper == SINGLE:
        return own
    added = restricted(others, others.counts.keys() - own.counts.keys())
    if not added.tasks or added.grouper != own.grouper:
        return own
    return _joined(added, own)


def _at_most_one(others: TaskAssignment) -> TaskAssignment:
    if others.grouper != SINGLE or len(others.tasks) == 1:
        return others
    everything = frozenset[SystemStreamPartition]().union(*others.tasks.values())
    return replace(others, tasks={min(others.tasks): everything})


def as_far_as(
    assignment: TaskAssignment, ssps: Collection[SystemStreamPartition]
) -> TaskAssignment:
    """`assignment` as it was when expanded streams had no more partitions than are in `ssps`.

    For what knows of an expansion later than others do: a checkpoint that is older, a broker that
    lags. Streams stay as they are for which `ssps` has a count that is neither one of theirs nor
    can lie between two of them.
    """
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
    """The first thing that the two say differently; None when they agree.

    Of a stream of which only chosen partitions are read, both must have the same partitions, but
    for a query's only task, which no key can leave: a changed choice tells nothing about keys.
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
    """All that either says. Equal to `stored` when `own` adds nothing.

    For assignments without a contradiction. The counts of a stream are those that either has seen:
    more of them divide its partitions finer, which keeps the order of what lies in them all the
    more.
    """
    if not own.tasks:
        return stored
    return _joined(stored, own) if stored.tasks else own


def replaced(stored: TaskAssignment, own: TaskAssignment) -> TaskAssignment:
    """`stored` with the streams of `own` as `own` has them: for streams that are grouped afresh."""
    if not own.tasks:
        return stored
    return _joined(restricted(stored, stored.counts.keys() - own.counts.keys()), own)


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
    ordered = sorted(numbers)
    shown = ", ".join(str(number) for number in ordered[:10])
    return shown if len(ordered) <= 10 else f"{shown} and {len(ordered) - 10} more"
