"""Chooses the partition count of each stream, so that linked streams are co-partitioned.

Streams linked to each other, directly or through others, form a group. There are three cases, as
in Samza:

* all counts of a group are defined: they must be equal;
* some are: those must be equal, and the other streams take their count;
* none is: all take the fallback, as does an undefined stream without links.

Since a group is a connected component, one pass is the fixpoint of following links. The fallback is
the configured count, else the largest count of the pipeline's outputs and inputs (without side
inputs), at most 256. A count from a link, a service or the user is never capped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spark_ssp.planner.checks.co_partitioning import CoPartitionGraph, Link, Vertex
from spark_ssp.planner.graph.names import StreamId
from spark_ssp.planner.graph.traversal import unwind

LARGEST_INFERRED: Final = 256
"""Maximum count that is inferred from the largest input or output (Samza:
`MAX_INFERRED_PARTITIONS`)."""


class Origin(StrEnum):
    """The source of a count."""

    FOUND = "found"
    """Returned by the service."""
    GIVEN = "given"
    """Given by the user for this stream."""
    JOINED = "joined"
    """Taken from a linked stream."""
    CONFIGURED = "configured"
    """The configured default of undefined streams."""
    LARGEST = "largest"
    """The largest of the pipeline's inputs and outputs."""
    CAPPED = "capped"
    """The largest exceeds 256."""
    UNKNOWN = "unknown"
    """Unknown to the service, and not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of partitions and its source."""

    partitions: int | None
    origin: Origin
    like: StreamId | None = None
    """The stream whose count it is, or was before the cap."""
    through: tuple[str, ...] = ()
    """The path from that stream to this one: links and streams in turn."""


class Case(StrEnum):
    """The defined part of a group before counts are inferred."""

    ALL_DEFINED = "all defined"
    MIXED = "mixed"
    NONE_DEFINED = "none defined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A path between two linked streams: streams and links in turn, a stream first and last."""

    steps: tuple[StreamId | Link, ...]

    @property
    def ends(self) -> tuple[StreamId, StreamId]:
        """The two streams."""
        first, last = self.steps[0], self.steps[-1]
        assert isinstance(first, StreamId)
        assert isinstance(last, StreamId)
        return first, last

    def links(self) -> tuple[Link, ...]:
        """Return the links of the path, in order."""
        return tuple(step for step in self.steps if not isinstance(step, StreamId))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionGroup:
    """Streams that must be co-partitioned, and their count; None when counts differ or the count is
    unknown."""

    streams: tuple[StreamId, ...]
    case: Case
    partitions: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The counts of all streams, with the conflicts between them."""

    counts: Mapping[StreamId, Count]
    """The count of every requested stream, sorted."""
    sets: tuple[PartitionGroup, ...]
    disagreements: tuple[Path, ...]
    """Paths from a stream with the most frequent count of a group to each stream with another."""
    unverified: tuple[StreamId, ...]
    """Linked streams of unknown count that are not assignable."""
    undecided: tuple[StreamId, ...]
    """Assignable streams without a count from a link or a fallback."""


def fallback(observed: Mapping[StreamId, int | None], configured: int | None) -> Count | None:
    """Return the count for undefined streams whose group has none, or None without any observed
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
    linked: CoPartitionGraph,
    otherwise: Count | None,
    required: bool = True,
) -> Agreement:
    """Return counts for all streams of `defined`, `assignable` and `unknown`, which are disjoint
    and contain every stream of `linked`. `otherwise` is the fallback. Unless agreement is
    `required`, streams of a group with different counts take the count of the nearest one."""
    assignable = frozenset(assignable)
    counts = dict(defined)
    counts.update((s, Count(partitions=None, origin=Origin.UNKNOWN)) for s in unknown)
    sets: list[PartitionGroup] = []
    disagreements: list[Path] = []
    for members in linked.sets():
        known = {stream: defined[stream] for stream in sorted(members) if stream in defined}
        found = _deviations(known, linked)
        disagreements += found
        if known and not (found and required):
            counts.update(_as_the_nearest(sorted(members & assignable), known, linked))
        sets.append(_group(members, known, assignable, otherwise, bool(found)))
    # Streams of a conflicting group stay without a count: any count would be wrong.
    conflicting = {s for g in sets for s in g.streams if g.case is not Case.NONE_DEFINED}
    undecided = sorted(assignable - counts.keys() - conflicting)
    if otherwise is not None:
        counts.update((stream, otherwise) for stream in undecided)
    linked_to_others = {s for g in sets if len(g.streams) > 1 for s in g.streams}
    return Agreement(
        counts={stream: counts[stream] for stream in sorted(counts)},
        sets=tuple(sets),
        disagreements=tuple(disagreements),
        unverified=tuple(stream for stream in sorted(unknown) if stream in linked_to_others),
        undecided=tuple(undecided) if otherwise is None else (),
    )


def _group(
    members: frozenset[StreamId],
    known: Mapping[StreamId, Count],
    assignable: Set[StreamId],
    otherwise: Count | None,
    conflicting: bool,
) -> PartitionGroup:
    if len(known) == len(members):
        case = Case.ALL_DEFINED
    else:
        case = Case.MIXED if known else Case.NONE_DEFINED
    partitions: int | None = None
    if known and not conflicting:
        partitions = next(iter(known.values())).partitions
    elif not known and otherwise is not None and members <= assignable:
        partitions = otherwise.partitions
    return PartitionGroup(streams=tuple(sorted(members)), case=case, partitions=partitions)


def _deviations(known: Mapping[StreamId, Count], linked: CoPartitionGraph) -> list[Path]:
    """Return paths to the streams that deviate from the most frequent count; of equally frequent
    ones, from that of the first stream. `known` is sorted."""
    frequency = Counter(count.partitions for count in known.values())
    if len(frequency) < 2:
        return []
    usual = max(known, key=lambda stream: frequency[known[stream].partitions])
    came_from = linked.search([usual])
    return [
        Path(steps=_path_to(stream, came_from))
        for stream in known
        if known[stream].partitions != known[usual].partitions
    ]


def _as_the_nearest(
    streams: Collection[StreamId], known: Mapping[StreamId, Count], linked: CoPartitionGraph
) -> dict[StreamId, Count]:
    """Return for each of `streams` the nearest known count, of equally near ones the first. `known`
    is sorted."""
    found: dict[StreamId, Count] = {}
    came_from = linked.search(known)
    for stream in streams:
        like, *between, _ = _path_to(stream, came_from)
        assert isinstance(like, StreamId)
        found[stream] = Count(
            partitions=known[like].partitions,
            origin=Origin.JOINED,
            like=like,
            through=tuple(str(vertex) for vertex in between),
        )
    return found


def _path_to(
    goal: StreamId, came_from: Mapping[Vertex, Vertex | None]
) -> tuple[StreamId | Link, ...]:
    assert goal in came_from, "streams of one group are linked"
    vertex: Vertex = goal
    return tuple(unwind(vertex, came_from))
