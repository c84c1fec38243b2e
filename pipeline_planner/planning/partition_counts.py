"""How many partitions each stream shall have, so that those that are tied agree.

Streams tied to each other, directly or through others, form a set. There are three cases (the
seed's section "Processing Joined Streams"):

* all of a set are defined: they must agree;
* some are: those must agree, and the rest take their count;
* none is: all take the fallback, as does an undefined stream that nothing ties.

Since a set is all that hangs together, one look at each is the fixpoint of going from tie to tie.
The fallback is what the user configured, else the largest count of the pipeline's inputs, side
inputs left out, and outputs, at most 256. A count that comes from a tie, from a service or from the
user is never cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pipeline_planner.checks.co_partitioning import CoPartitionGraph, Link, Vertex
from pipeline_planner.graph.names import StreamId
from pipeline_planner.graph.traversal import unwind

LARGEST_INFERRED: Final = 256
"""The most partitions that a count may have which nobody asked for (the seed's rule 3)."""


class Origin(StrEnum):
    """Where a count comes from."""

    FOUND = "found"
    """The service says so."""
    GIVEN = "given"
    """The user says so, for this stream."""
    JOINED = "joined"
    """A stream that it is tied to has it."""
    CONFIGURED = "configured"
    """The user says so, for all streams without a better reason."""
    LARGEST = "largest"
    """The largest of the pipeline's inputs and outputs."""
    CAPPED = "capped"
    """That one is more than 256."""
    UNKNOWN = "unknown"
    """The service does not say, and nobody needs to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of partitions and where it comes from."""

    partitions: int | None
    origin: Origin
    like: StreamId | None = None
    """The stream whose count it is, or was before the cap."""
    through: tuple[str, ...] = ()
    """By what it is tied to that stream: ties and streams in turn, from it towards this one."""


class Case(StrEnum):
    """How much of a set is defined before anything is inferred."""

    ALL_DEFINED = "all defined"
    MIXED = "mixed"
    NONE_DEFINED = "none defined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """How two streams are tied: streams and ties in turn, a stream first and last."""

    steps: tuple[StreamId | Link, ...]

    @property
    def ends(self) -> tuple[StreamId, StreamId]:
        """The two streams."""
        first, last = self.steps[0], self.steps[-1]
        assert isinstance(first, StreamId)
        assert isinstance(last, StreamId)
        return first, last

    def ties(self) -> tuple[Link, ...]:
        """What ties them, in order."""
        return tuple(step for step in self.steps if not isinstance(step, StreamId))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionGroup:
    """Streams that must agree, and the count that they agree on; None when they do not, or when it
    is not known."""

    streams: tuple[StreamId, ...]
    case: Case
    partitions: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What became of all counts."""

    counts: Mapping[StreamId, Count]
    """Every stream that was asked about, sorted."""
    sets: tuple[PartitionGroup, ...]
    disagreements: tuple[Path, ...]
    """From a stream with the count that most of a set have to each stream that has another."""
    unverified: tuple[StreamId, ...]
    """Not to be assigned, of unknown count, and tied to others."""
    undecided: tuple[StreamId, ...]
    """To be assigned, but there is neither a tie nor a fallback to go by."""


def fallback(observed: Mapping[StreamId, int | None], configured: int | None) -> Count | None:
    """Return the count for undefined streams whose set has none, or None without any observed
    count. `observed` contains the pipeline's inputs, without side inputs, and its outputs. Of equal
    counts the first stream is named.
    """
    if configured is not None:
        return Count(partitions=configured, origin=Origin.CONFIGURED)
    known = {stream: count for stream, count in observed.items() if count is not None}
    if not known:
        return None
    largest = min(known, key=lambda stream: (-known[stream], stream))
    if known[largest] > LARGEST_INFERRED:
        return Count(partitions=LARGEST_INFERRED, origin=Origin.CAPPED, like=largest)
    return Count(partitions=known[largest], origin=Origin.LARGEST, like=largest)


def agree(
    defined: Mapping[StreamId, Count],
    *,
    assignable: Collection[StreamId],
    unknown: Collection[StreamId],
    tied: CoPartitionGraph,
    otherwise: Count | None,
    required: bool = True,
) -> Agreement:
    """Return counts for all streams of `defined`, `assignable` and `unknown`, which are disjoint
    and contain every stream of `tied`. `otherwise` is the fallback. Unless agreement is `required`,
    streams of a set that disagrees take the count of the nearest one."""
    assignable = frozenset(assignable)
    counts = dict(defined)
    counts.update((s, Count(partitions=None, origin=Origin.UNKNOWN)) for s in unknown)
    sets: list[PartitionGroup] = []
    disagreements: list[Path] = []
    for members in tied.sets():
        known = {stream: defined[stream] for stream in sorted(members) if stream in defined}
        found = _deviations(known, tied)
        disagreements += found
        if known and not (found and required):
            counts.update(_as_the_nearest(sorted(members & assignable), known, tied))
        sets.append(_set(members, known, assignable, otherwise, bool(found)))
    # What stands in a set that disagrees stays without a count: whatever it got would be wrong.
    at_odds = {s for g in sets for s in g.streams if g.case is not Case.NONE_DEFINED}
    undecided = sorted(assignable - counts.keys() - at_odds)
    if otherwise is not None:
        counts.update((stream, otherwise) for stream in undecided)
    tied_to_others = {s for g in sets if len(g.streams) > 1 for s in g.streams}
    return Agreement(
        counts={stream: counts[stream] for stream in sorted(counts)},
        sets=tuple(sets),
        disagreements=tuple(disagreements),
        unverified=tuple(stream for stream in sorted(unknown) if stream in tied_to_others),
        undecided=tuple(undecided) if otherwise is None else (),
    )


def _set(
    members: frozenset[StreamId],
    known: Mapping[StreamId, Count],
    assignable: Set[StreamId],
    otherwise: Count | None,
    at_odds: bool,
) -> PartitionGroup:
    if len(known) == len(members):
        case = Case.ALL_DEFINED
    else:
        case = Case.MIXED if known else Case.NONE_DEFINED
    partitions: int | None = None
    if known and not at_odds:
        partitions = next(iter(known.values())).partitions
    elif not known and otherwise is not None and members <= assignable:
        partitions = otherwise.partitions
    return PartitionGroup(streams=tuple(sorted(members)), case=case, partitions=partitions)


def _deviations(known: Mapping[StreamId, Count], tied: CoPartitionGraph) -> list[Path]:
    """Paths to the streams that differ from what most have; of equal numbers, from what the first
    stream has. `known` is sorted."""
    frequency = Counter(count.partitions for count in known.values())
    if len(frequency) < 2:
        return []
    usual = max(known, key=lambda stream: frequency[known[stream].partitions])
    came_from = tied.search([usual])
    return [
        Path(steps=_way_to(stream, came_from))
        for stream in known
        if known[stream].partitions != known[usual].partitions
    ]


def _as_the_nearest(
    streams: Collection[StreamId], known: Mapping[StreamId, Count], tied: CoPartitionGraph
) -> dict[StreamId, Count]:
    """Each of `streams` has the count of the nearest that is known, of the first of equally near
    ones. `known` is sorted."""
    found: dict[StreamId, Count] = {}
    came_from = tied.search(known)
    for stream in streams:
        like, *between, _ = _way_to(stream, came_from)
        assert isinstance(like, StreamId)
        found[stream] = Count(
            partitions=known[like].partitions,
            origin=Origin.JOINED,
            like=like,
            through=tuple(str(vertex) for vertex in between),
        )
    return found


def _way_to(
    goal: StreamId, came_from: Mapping[Vertex, Vertex | None]
) -> tuple[StreamId | Link, ...]:
    assert goal in came_from, "streams of one set are tied"
    vertex: Vertex = goal
    return tuple(unwind(vertex, came_from))
