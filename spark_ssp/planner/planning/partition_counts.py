"""Chooses the partition count of each stream, so that linked streams are co-partitioned; reports
conflicting counts, each with its source location and the path of links.

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
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from spark_ssp.common.logs import abbreviate
from spark_ssp.planner.graph.errors import Problem
from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    Join,
    JoinTable,
    Operator,
    PartitionBy,
    SendToTable,
    SideInput,
    StreamId,
    SystemKind,
    by_name,
    described,
    problem_of,
    shortest_path,
    unwind,
)
from spark_ssp.planner.planning.co_partitioning import (
    CoPartitionGraph,
    JoinLink,
    Link,
    Vertex,
    line_successors,
    operators_by_link,
    sources,
)

LARGEST_INFERRED: Final = 256
"""Maximum count that is inferred from the largest input or output (Samza:
`MAX_INFERRED_PARTITIONS`)."""


class Origin(StrEnum):
    """The source of a count."""

    FOUND = "found"
    """Returned by the service."""
    GIVEN = "given"
    """Given by the user for this stream; or by an earlier plan, then `like` is the stream."""
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
    counts the first stream is named."""
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


# --- Conflicts ------------------------------------------------------------------------------------


def find_count_problems(
    graph: Graph,
    agreement: Agreement,
    observed: Mapping[StreamId, int | None],
    *,
    recorded: Collection[StreamId] = (),
    required: bool = True,
) -> tuple[Problem, ...]:
    """Return all conflicts of counts. Streams that an earlier plan has `recorded` keep their tasks,
    even if they get more partitions. Disagreements are conflicts only if agreement is
    `required`."""
    disagreements = agreement.disagreements if required else ()
    context = _Context(graph, agreement, observed, recorded) if disagreements else None
    return (
        *(_disagreement(context, path) for path in disagreements if context is not None),
        *_wishes_against_facts(graph, agreement, observed, recorded),
        *_unverified(graph, agreement),
        *_undecided(graph, agreement),
    )


class _Context:
    """The graph and counts that descriptions of paths refer to."""

    def __init__(
        self,
        graph: Graph,
        agreement: Agreement,
        observed: Mapping[StreamId, int | None],
        recorded: Collection[StreamId],
    ) -> None:
        self.graph = graph
        self.observed = observed
        self.recorded = recorded
        self.counts = agreement.counts
        self.sets = agreement.sets
        self.named = by_name(graph)
        self.follow = line_successors(graph)
        self.meet = operators_by_link(graph)
        self.begins = {source.stream: source.name for source in sources(graph)}


def _disagreement(context: _Context, path: Path) -> Problem:
    first, last = path.ends
    nearest = context.meet[path.links()[-1]][0]
    return Problem(
        subject=f"{first} and {last}",
        found=f"{_count_of(context, first)} and {_count_of(context, last)} partitions, linked by "
        f"{_describe_path(context, path)}",
        expected="equal counts: one task must read the records of a key",
        next_step=_remedy(context, first, last),
        place=nearest.place,
    )


_END_OF_PATH: Final = 6
"""The number of parts that are shown at either end of a longer path."""


def _describe_path(context: _Context, path: Path) -> str:
    """Return the streams of a path and the operators at which their lines meet."""
    parts = [_with_count(context, path.ends[0])]
    for before, link, after in zip(path.steps[:-2:2], path.links(), path.steps[2::2], strict=True):
        assert isinstance(before, StreamId)
        assert isinstance(after, StreamId)
        there, back = _operators_to(context, before, link), _operators_to(context, after, link)
        if isinstance(link, JoinLink):
            parts += [*there, *back[-2::-1]]  # both end at the join
        else:
            parts += [*there, str(link), *back[::-1]]
        parts.append(_with_count(context, after))
    if len(parts) > 2 * _END_OF_PATH + 1:
        left_out = f"{len(parts) - 2 * _END_OF_PATH} more"
        parts = [*parts[:_END_OF_PATH], left_out, *parts[-_END_OF_PATH:]]
    return " -- ".join(parts)


def _with_count(context: _Context, stream: StreamId) -> str:
    return f"{stream} ({_count_of(context, stream)})"


def _count_of(context: _Context, stream: StreamId) -> str:
    """Return a stream's partitions, with the tasks that its count is compared by."""
    count, now = context.counts.get(stream), context.observed.get(stream)
    tasks = count.partitions if count is not None else None
    if now is None:
        return "undefined" if tasks is None else str(tasks)
    return in_tasks(now, tasks)


def in_tasks(partitions: int, tasks: int | None) -> str:
    """Return a stream's partitions as text, with its tasks if they differ."""
    return f"{partitions}{'' if tasks in {None, partitions} else f' in {tasks} tasks'}"


def _operators_to(context: _Context, stream: StreamId, link: Link) -> list[str]:
    """Return the joins and tables that a line passes on its shortest path to a link, the link's
    operator last."""
    source = context.begins[stream]
    paths = (shortest_path(source, goal.name, context.follow) for goal in context.meet[link])
    path = [
        context.named[name] for name in min((path for path in paths if path is not None), key=len)
    ]
    parts: list[str] = []
    for before, operator in pairwise(path):
        if isinstance(operator, JoinTable) and isinstance(before, SendToTable | SideInput):
            parts.append(f"table {operator.table}")
        if isinstance(operator, Join | JoinTable | SendToTable | SideInput):
            parts.append(_with_place(operator, described(operator)))
    return parts


def describe_link(link: Link, operators: Sequence[Operator]) -> str:
    """Return a link with the operators at which its lines meet."""
    if isinstance(link, JoinLink):
        return _with_place(operators[0], str(link))
    fillers = [o for o in operators if isinstance(o, SendToTable | SideInput)]
    readers = [o for o in operators if o not in fillers]
    parts = [", ".join(_with_place(o, described(o)) for o in part) for part in (fillers, readers)]
    return f"{link} [{'; '.join(part for part in parts if part)}]"


def _with_place(operator: Operator, text: str) -> str:
    return f"{text} ({operator.place})" if operator.place else text


def _remedy(context: _Context, usual: StreamId, other: StreamId) -> str:
    """Return the remedies, harmless ones first: `other` does not have the count of `usual`, which
    most streams have. A topic grows and never shrinks; its other readers may have fixed tasks,
    which accept only multiples."""
    cut = f"break the link by .partition_by(<the key's columns>) after {other}"
    for stream in (other, usual):
        made = _made_by(context, stream)
        if made is not None:
            return f"{made}; or {cut}; or {_ADVISE}"
    fewer, most = sorted((other, usual), key=lambda s: context.counts[s].partitions or 0)
    growing = [other] if fewer == other else _alike(context, usual)
    for stream in growing:
        if stream in context.recorded:
            kept = f"{stream} was planned before, and would keep its tasks if it grew"
            return f"{cut}; or {_ADVISE}; {kept}"
        if _made_by(context, stream) is not None:
            return f"{cut}; or {_ADVISE}"
    few, many = (context.counts[stream].partitions or 0 for stream in (fewer, most))
    if many % few:
        return f"{cut}; or {_ADVISE}"
    which, its = (
        (fewer, "it is empty or its")
        if len(growing) == 1
        else (_all_of(growing), "they are empty or their")
    )
    return (
        f"{cut}; or {_ADVISE}; or expand {which} to {many} partitions, provided {its} "
        "records are rewritten, since existing records stay in their partitions"
    )


_ADVISE: Final = (
    'plan with settings=PlanSettings(agreement="advise"), if only joins and tables of this '
    "pipeline rely on the counts"
)


def _alike(context: _Context, stream: StreamId) -> list[StreamId]:
    """Return the streams of the stream's group with the same count, which must all change
    together."""
    group = next(group for group in context.sets if stream in group.streams)
    count = context.counts[stream].partitions
    known = (
        other for other in group.streams if other in context.counts
    )  # others are undefined yet
    return [other for other in known if context.counts[other].partitions == count]


def _all_of(streams: Sequence[StreamId]) -> str:
    return f"{abbreviate([str(stream) for stream in streams[:-1]])} and {streams[-1]}"


def _made_by(context: _Context, stream: StreamId) -> str | None:
    """Return the remedy for an intermediate stream, None if there is none. One that exists keeps
    its count, and the stage of one that was planned before can write no other."""
    for operator in context.graph.operators:
        if isinstance(operator, PartitionBy) and operator.stream == stream:
            wanted = operator.partitions is not None
            wish = f"leave out partitions={operator.partitions}"
            if wanted and context.counts[stream].origin is Origin.GIVEN:
                return f"{wish} of {described(operator)}"
            if stream in context.recorded:
                return None
            and_wish = f", and {wish}" if wanted else ""
            return f"name another stream for {described(operator)} with stream={and_wish}"
    return None


def _wishes_against_facts(
    graph: Graph,
    agreement: Agreement,
    observed: Mapping[StreamId, int | None],
    recorded: Collection[StreamId],
) -> Iterator[Problem]:
    """Yield requested counts that differ from the current and the first count of an existing
    stream, which is never altered. Kinesis streams may have been resharded since."""
    for operator in graph.operators:
        if not isinstance(operator, PartitionBy) or operator.partitions is None:
            continue
        if graph.kind_of(operator.stream.system) is SystemKind.KAFKA:
            found = observed.get(operator.stream)
            at_first = agreement.counts[operator.stream].partitions
            if found is not None and operator.partitions not in {found, at_first}:
                new = operator.stream not in recorded
                or_another = ", or name a new stream with stream=" if new else ""
                yield problem_of(
                    operator,
                    f"{operator.stream} with {found} partitions",
                    f"{operator.partitions}, the value of partitions=",
                    f"leave partitions= out{or_another}; an existing stream is never altered",
                )


def _unverified(graph: Graph, agreement: Agreement) -> Iterator[Problem]:
    for operator in graph.operators:
        if isinstance(operator, Input) and operator.stream in agreement.unverified:
            group = next(g for g in agreement.sets if operator.stream in g.streams)
            others = abbreviate([str(s) for s in group.streams if s != operator.stream])
            yield problem_of(
                operator,
                f"no count of partitions for {operator.stream}",
                f"an existing stream with the same count as {others}",
                "create the stream, or correct its name or its system",
            )


def _undecided(graph: Graph, agreement: Agreement) -> Iterator[Problem]:
    for operator in graph.operators:
        if isinstance(operator, PartitionBy) and operator.stream in agreement.undecided:
            yield problem_of(
                operator,
                "no known count of an input or output to infer its count from",
                "a count",
                "pass partitions=, or plan with "
                "settings=PlanSettings(default_intermediate_partitions=…)",
            )
