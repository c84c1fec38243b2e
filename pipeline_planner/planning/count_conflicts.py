"""Why counts do not fit, in the user's words: each reason with its place and the path of ties."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from pipeline_planner.checks.co_partitioning import (
    JoinLink,
    Link,
    line_successors,
    operators_by_link,
    sources,
)
from pipeline_planner.graph.errors import Problem
from pipeline_planner.graph.names import StreamId, SystemKind
from pipeline_planner.graph.operators import (
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
from pipeline_planner.graph.traversal import shortest_path
from pipeline_planner.planning.partition_counts import Agreement, Origin, Path


def find_count_problems(
    graph: Graph,
    agreement: Agreement,
    observed: Mapping[StreamId, int | None],
    *,
    recorded: Collection[StreamId] = (),
    required: bool = True,
) -> tuple[Problem, ...]:
    """Return all reasons, none if every count is settled. Streams that an earlier plan has
    `recorded` keep their tasks, even if they get more partitions. Disagreements are no reason
    unless agreement is `required`."""
    disagreements = agreement.disagreements if required else ()
    words = _Words(graph, agreement, recorded) if disagreements else None
    return (
        *(_disagreement(words, path) for path in disagreements if words is not None),
        *_wishes_against_facts(graph, agreement, observed),
        *_unverified(graph, agreement),
        *_undecided(graph, agreement),
    )


class _Words:
    """What telling of paths needs to know of a graph."""

    def __init__(self, graph: Graph, agreement: Agreement, recorded: Collection[StreamId]) -> None:
        self.graph = graph
        self.recorded = recorded
        self.counts = agreement.counts
        self.sets = agreement.sets
        self.named = by_name(graph)
        self.follow = line_successors(graph)
        self.meet = operators_by_link(graph)
        self.begins = {source.stream: source.name for source in sources(graph)}


def _disagreement(words: _Words, path: Path) -> Problem:
    first, last = path.ends
    nearest = words.meet[path.ties()[-1]][0]
    return Problem(
        subject=f"{first} and {last}",
        found=f"{words.counts[first].partitions} and {words.counts[last].partitions} partitions, "
        f"tied so: {_told(words, path)}",
        expected="equal counts: the records of one key must be met by one task",
        next_step=_remedy(words, first, last),
        place=nearest.place,
    )


def _told(words: _Words, path: Path) -> str:
    """The streams of a path and the operators that bring their lines together."""
    told = [_with_count(words, path.ends[0])]
    for before, tie, after in zip(path.steps[:-2:2], path.ties(), path.steps[2::2], strict=True):
        assert isinstance(before, StreamId)
        assert isinstance(after, StreamId)
        there, back = _way_to(words, before, tie), _way_to(words, after, tie)
        if isinstance(tie, JoinLink):
            told += [*there, *back[-2::-1]]  # both end at the join
        else:
            told += [*there, str(tie), *back[::-1]]
        told.append(_with_count(words, after))
    return " -- ".join(told)


def _with_count(words: _Words, stream: StreamId) -> str:
    count = words.counts.get(stream)
    known = count.partitions if count is not None else None
    return f"{stream} ({'undefined' if known is None else known})"


def _way_to(words: _Words, stream: StreamId, tie: Link) -> list[str]:
    """The joins and tables that a line passes on its shortest way to a tie, that one's own operator
    last."""
    source = words.begins[stream]
    ways = (shortest_path(source, goal.name, words.follow) for goal in words.meet[tie])
    way = [words.named[name] for name in min((way for way in ways if way is not None), key=len)]
    told: list[str] = []
    for before, operator in pairwise(way):
        if isinstance(operator, JoinTable) and isinstance(before, SendToTable | SideInput):
            told.append(f"table {operator.table}")
        if isinstance(operator, Join | JoinTable | SendToTable | SideInput):
            told.append(_with_place(operator, described(operator)))
    return told


def describe_link(tie: Link, operators: Sequence[Operator]) -> str:
    """A tie and where it was made: the operators at which its lines meet."""
    if isinstance(tie, JoinLink):
        return _with_place(operators[0], str(tie))
    fillers = [o for o in operators if isinstance(o, SendToTable | SideInput)]
    readers = [o for o in operators if o not in fillers]
    parts = [", ".join(_with_place(o, described(o)) for o in part) for part in (fillers, readers)]
    return f"{tie} [{'; '.join(part for part in parts if part)}]"


def _with_place(operator: Operator, text: str) -> str:
    return f"{text} ({operator.place})" if operator.place else text


def _remedy(words: _Words, usual: StreamId, other: StreamId) -> str:
    """Return the remedies, harmless ones first: `other` does not have the count of `usual`, which
    most streams have. A topic grows and never shrinks; its other readers may have fixed tasks,
    which accept only multiples."""
    cut = f"cut the tie by .partition_by(<the key's columns>) behind {other}"
    for stream in (other, usual):
        made = _made_by(words, stream)
        if made is not None:
            return f"{made}; or {cut}; or {_ADVISE}"
    fewer, most = sorted((other, usual), key=lambda s: words.counts[s].partitions or 0)
    growing = [other] if fewer == other else _alike(words, usual)
    for stream in growing:
        if stream in words.recorded:
            kept = f"{stream} was planned before, and would keep its tasks if it grew"
            return f"{cut}; or {_ADVISE}; {kept}"
        if _made_by(words, stream) is not None:
            return f"{cut}; or {_ADVISE}"
    few, many = (words.counts[stream].partitions or 0 for stream in (fewer, most))
    if many % few:
        return f"{cut}; or {_ADVISE}"
    which, its = (fewer, "it or its") if len(growing) == 1 else (_all_of(growing), "them or their")
    return (
        f"{cut}; or {_ADVISE}; or expand {which} to {many} partitions, with nothing in {its} "
        "records written anew, since those that are there stay in their partitions"
    )


_ADVISE: Final = (
    'plan with settings=PlanSettings(agreement="advise"), if only joins and tables of this '
    "pipeline rely on the counts"
)


def _alike(words: _Words, stream: StreamId) -> list[StreamId]:
    """The streams of its set that have its count, all of which would have to change with it."""
    group = next(group for group in words.sets if stream in group.streams)
    count = words.counts[stream].partitions
    known = [other for other in group.streams if other in words.counts]  # others are undefined yet
    return [other for other in known if words.counts[other].partitions == count]


def _all_of(streams: Sequence[StreamId]) -> str:
    return f"{', '.join(map(str, streams[:-1]))} and {streams[-1]}"


def _made_by(words: _Words, stream: StreamId) -> str | None:
    """Return the remedy for an intermediate stream. One that exists keeps its count."""
    for operator in words.graph.operators:
        if isinstance(operator, PartitionBy) and operator.stream == stream:
            wish = f"leave out partitions={operator.partitions}"
            if words.counts[stream].origin is Origin.GIVEN:
                return f"{wish} of {described(operator)}"
            and_wish = "" if operator.partitions is None else f", and {wish}"
            return f"name another stream for {described(operator)} with stream={and_wish}"
    return None


def _wishes_against_facts(
    graph: Graph, agreement: Agreement, observed: Mapping[StreamId, int | None]
) -> Iterator[Problem]:
    """An existing stream is never altered, so a wish must be what it has, or had at first. Shards
    of Kinesis may have come and gone since."""
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
                    expected=f"{operator.partitions}, as partitions= says",
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
                expected=f"a stream that exists, since it must agree with {others}",
                next_step="create the stream, or mend its name or its system",
                place=operator.place,
            )


def _undecided(graph: Graph, agreement: Agreement) -> Iterator[Problem]:
    for operator in graph.operators:
        if isinstance(operator, PartitionBy) and operator.stream in agreement.undecided:
            yield Problem(
                subject=described(operator),
                found="nothing to infer its count from: no input or output has a known one",
                expected="a count",
                next_step="give partitions=, or plan with "
                "settings=PlanSettings(default_intermediate_partitions=…)",
                place=operator.place,
            )
