"""Reports conflicting partition counts, each with its source location and the path of links."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from spark_ssp.planner.checks.co_partitioning import (
    JoinLink,
    Link,
    line_successors,
    operators_by_link,
    sources,
)
from spark_ssp.planner.graph.errors import Problem
from spark_ssp.planner.graph.names import StreamId, SystemKind
from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    Join,
    JoinTable,
    Operator,
    PartitionBy,
    SendToTable,
    SideInput,
    by_name,
    described,
)
from spark_ssp.planner.graph.traversal import shortest_path
from spark_ssp.planner.planning.partition_counts import Agreement, Origin, Path


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
    context = _Context(graph, agreement, recorded) if disagreements else None
    return (
        *(_disagreement(context, path) for path in disagreements if context is not None),
        *_wishes_against_facts(graph, agreement, observed),
        *_unverified(graph, agreement),
        *_undecided(graph, agreement),
    )


class _Context:
    """The graph and counts that descriptions of paths refer to."""

    def __init__(self, graph: Graph, agreement: Agreement, recorded: Collection[StreamId]) -> None:
        self.graph = graph
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
        found=f"{context.counts[first].partitions} and {context.counts[last].partitions} "
        f"partitions, linked by {_describe_path(context, path)}",
        expected="equal counts: one task must read the records of a key",
        next_step=_remedy(context, first, last),
        place=nearest.place,
    )


def _describe_path(context: _Context, path: Path) -> str:
    """Return the streams of a path and the operators at which their lines meet."""
    parts = [_with_count(context, path.ends[0])]
    for before, link, after in zip(path.steps[:-2:2], path.links(), path.steps[2::2], strict=True):
        assert isinstance(before, StreamId)
        assert isinstance(after, StreamId)
        there, back = _path_to(context, before, link), _path_to(context, after, link)
        if isinstance(link, JoinLink):
            parts += [*there, *back[-2::-1]]  # both end at the join
        else:
            parts += [*there, str(link), *back[::-1]]
        parts.append(_with_count(context, after))
    return " -- ".join(parts)


def _with_count(context: _Context, stream: StreamId) -> str:
    count = context.counts.get(stream)
    known = count.partitions if count is not None else None
    return f"{stream} ({'undefined' if known is None else known})"


def _path_to(context: _Context, stream: StreamId, link: Link) -> list[str]:
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
    known = [
        other for other in group.streams if other in context.counts
    ]  # others are undefined yet
    return [other for other in known if context.counts[other].partitions == count]


def _all_of(streams: Sequence[StreamId]) -> str:
    return f"{', '.join(map(str, streams[:-1]))} and {streams[-1]}"


def _made_by(context: _Context, stream: StreamId) -> str | None:
    """Return the remedy for an intermediate stream. One that exists keeps its count."""
    for operator in context.graph.operators:
        if isinstance(operator, PartitionBy) and operator.stream == stream:
            wish = f"leave out partitions={operator.partitions}"
            if context.counts[stream].origin is Origin.GIVEN:
                return f"{wish} of {described(operator)}"
            and_wish = "" if operator.partitions is None else f", and {wish}"
            return f"name another stream for {described(operator)} with stream={and_wish}"
    return None


def _wishes_against_facts(
    graph: Graph, agreement: Agreement, observed: Mapping[StreamId, int | None]
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
                yield Problem(
                    subject=described(operator),
                    found=f"{operator.stream} with {found} partitions",
                    expected=f"{operator.partitions}, the value of partitions=",
                    next_step="leave partitions= out, or name a new stream with stream=; an "
                    "existing stream is never altered",
                    place=operator.place,
                )


def _unverified(graph: Graph, agreement: Agreement) -> Iterator[Problem]:
    for operator in graph.operators:
        if isinstance(operator, Input) and operator.stream in agreement.unverified:
            group = next(g for g in agreement.sets if operator.stream in g.streams)
            others = ", ".join(str(s) for s in group.streams if s != operator.stream)
            yield Problem(
                subject=described(operator),
                found=f"no count of partitions for {operator.stream}",
                expected=f"an existing stream with the same count as {others}",
                next_step="create the stream, or correct its name or its system",
                place=operator.place,
            )


def _undecided(graph: Graph, agreement: Agreement) -> Iterator[Problem]:
    for operator in graph.operators:
        if isinstance(operator, PartitionBy) and operator.stream in agreement.undecided:
            yield Problem(
                subject=described(operator),
                found="no known count of an input or output to infer its count from",
                expected="a count",
                next_step="pass partitions=, or plan with "
                "settings=PlanSettings(default_intermediate_partitions=…)",
                place=operator.place,
            )
