"""Which streams must have as many partitions as which others, and through what.

A *line* carries the records of a source (an input, or an intermediate stream as it is read) through
operators up to the next repartition, which cuts it. A *tie* is a place where lines meet that must
agree: a join, or a table that is filled. The seed's analysis (section "OperatorSpec Graph
Analysis") in its two traversals:

1. every operator that fills a table is linked with every operator that joins with it, as if rows
   flowed from one to the other (`table_links`, the virtual edges);
2. from each source, along rows and links, all ties that its line reaches (`Web`).

A merge ties nothing by itself: lines that were merged agree from the first join on. A broadcast
stream counts as whole in every task, and is in no tie. A table that the pipeline does not fill ties
nobody, nor does one that only broadcast streams fill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from pipeline_planner.graph.names import OperatorName, StreamId, TableName
from pipeline_planner.graph.operators import (
    Graph,
    Input,
    Join,
    JoinTable,
    Operator,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    Source,
    by_name,
    consumers,
    upstreams,
)
from pipeline_planner.graph.traversal import reached
from pipeline_planner.services.systems import StreamUse


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinLink:
    """The lines that a join brings together."""

    join: OperatorName

    def __str__(self) -> str:
        return f"join {self.join}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLink:
    """The lines that fill a table and those that are joined with it."""

    table: TableName

    def __str__(self) -> str:
        return f"table {self.table}"


Link = JoinLink | TableLink
Vertex = StreamId | Link


def table_links(graph: Graph) -> dict[OperatorName, tuple[OperatorName, ...]]:
    """Each operator that fills a table, with those that join with this table, in graph order."""
    readers: dict[TableName, list[OperatorName]] = {}
    for operator in graph.operators:
        if isinstance(operator, JoinTable):
            readers.setdefault(operator.table, []).append(operator.name)
    return {
        operator.name: tuple(readers.get(operator.table, ()))
        for operator in graph.operators
        if isinstance(operator, SendToTable | SideInput)
    }


def line_successors(graph: Graph) -> Callable[[OperatorName], tuple[OperatorName, ...]]:
    """Where the rows of an operator go within their line, links included: not into an
    intermediate stream, nor into an output."""
    links = table_links(graph)
    direct = {
        name: tuple(o.name for o in readers if not isinstance(o, PartitionBy | Output))
        for name, readers in consumers(graph).items()
    }
    return lambda name: direct.get(name, ()) + links.get(name, ())


def sources(graph: Graph) -> tuple[Source, ...]:
    """All that lines begin at, in graph order."""
    return tuple(o for o in graph.operators if isinstance(o, Input | PartitionBy))


class CoPartitionGraph:
    """The ties of a graph and the streams that they tie: a bipartite graph, and the walks over it.

    Its edges are not kept. The last of a chain of joins ties every stream of the chain, so there
    may be far more edges than operators; a walk goes along the operators instead, over each at most
    once down from streams and once up from ties.
    """

    def __init__(self, graph: Graph) -> None:
        self._down = line_successors(graph)
        self._up = _reversed(graph, self._down)
        broadcast = {o.stream for o in graph.operators if isinstance(o, Input) and o.broadcast}
        self._begins: dict[StreamId, list[OperatorName]] = {}
        for source in sources(graph):
            if source.stream not in broadcast:
                self._begins.setdefault(source.stream, []).append(source.name)
        self._stream_at = {name: s for s, names in self._begins.items() for name in names}
        lined = reached(self._stream_at, self._down)
        self.filled = frozenset(
            o.table
            for o in graph.operators
            if isinstance(o, SendToTable | SideInput) and o.name in lined
        )
        """The tables that a partitioned line fills."""
        self._tie_at: dict[OperatorName, Link] = {}
        self._meet: dict[Link, list[OperatorName]] = {}
        for operator in graph.operators:
            tie = link_of(operator)
            if tie is not None and operator.name in lined and self._ties(tie):
                self._tie_at[operator.name] = tie
                self._meet.setdefault(tie, []).append(operator.name)
        self._rank = {tie: rank for rank, tie in enumerate(self._meet)}

    def _ties(self, tie: Link) -> bool:
        return isinstance(tie, JoinLink) or tie.table in self.filled

    @property
    def ties(self) -> tuple[Link, ...]:
        """All that tie any stream, in graph order."""
        return tuple(self._meet)

    def sets(self) -> tuple[frozenset[StreamId], ...]:
        """Streams tied to each other, directly or through others: disjoint sets, sorted by their
        first stream. Every stream of a tie is in one of them."""
        found: list[frozenset[StreamId]] = []
        done: set[StreamId] = set()
        for stream in sorted(self._begins):
            if stream not in done:
                web = self.search([stream])
                here = frozenset(vertex for vertex in web if isinstance(vertex, StreamId))
                done |= here
                if len(web) > 1:
                    found.append(here)
        return tuple(found)

    def links_by_group(
        self, sets: Iterable[Collection[StreamId]]
    ) -> dict[StreamId, tuple[Link, ...]]:
        """The ties of each set, in graph order, by the set's first stream."""
        found: dict[StreamId, tuple[Link, ...]] = {}
        for streams in sets:
            first = min(streams)
            web = self.search([first])
            found[first] = self._ordered(v for v in web if not isinstance(v, StreamId))
        return found

    def search(self, starts: Iterable[StreamId]) -> dict[Vertex, Vertex | None]:
        """What hangs together with any of `starts`, each with the vertex by which it was reached
        first, None for the starts; nearest first. From a vertex it goes on in this order: from a
        stream to ties in graph order, from a tie to streams as they are sorted."""
        came_from: dict[Vertex, Vertex | None] = dict.fromkeys(starts)
        ahead = deque(came_from)
        above: set[OperatorName] = set()
        below: set[OperatorName] = set()
        while ahead:
            vertex = ahead.popleft()
            following: Iterable[Vertex]
            if isinstance(vertex, StreamId):
                passed = _passed(self._begins.get(vertex, ()), self._down, below)
                following = self._ordered(
                    {self._tie_at[name] for name in passed if name in self._tie_at}
                )
            else:
                passed = _passed(self._meet[vertex], self._up, above)
                following = sorted(
                    {self._stream_at[name] for name in passed if name in self._stream_at}
                )
            for other in following:
                if other not in came_from:
                    came_from[other] = vertex
                    ahead.append(other)
        return came_from

    def _ordered(self, ties: Iterable[Link]) -> tuple[Link, ...]:
        return tuple(sorted(ties, key=self._rank.__getitem__))


def _reversed(
    graph: Graph, successors: Callable[[OperatorName], tuple[OperatorName, ...]]
) -> Callable[[OperatorName], list[OperatorName]]:
    before: dict[OperatorName, list[OperatorName]] = {}
    for operator in graph.operators:
        for name in successors(operator.name):
            before.setdefault(name, []).append(operator.name)
    return lambda name: before.get(name, [])


def _passed(
    starts: Iterable[OperatorName],
    follow: Callable[[OperatorName], Iterable[OperatorName]],
    before: set[OperatorName],
) -> list[OperatorName]:
    """`starts` and all that lies behind them, but for what was passed `before`, to which they are
    added. What lies behind that was passed as well."""
    found: list[OperatorName] = []
    ahead = list(starts)
    while ahead:
        name = ahead.pop()
        if name not in before:
            before.add(name)
            found.append(name)
            ahead.extend(follow(name))
    return found


def uses(graph: Graph) -> dict[StreamId, StreamUse]:
    """Return the purpose of each intermediate stream, within the stages that read it."""
    fills = _leading_to(graph, SendToTable, SideInput)
    carries = _leading_to(graph, Join, JoinTable, Output, PartitionBy)
    found: dict[StreamId, StreamUse] = {}
    for operator in graph.operators:
        if isinstance(operator, PartitionBy):
            use = StreamUse.BOTH if operator.name in carries else StreamUse.TABLE
            found[operator.stream] = use if operator.name in fills else StreamUse.EVENTS
    return found


def side_inputs(graph: Graph) -> frozenset[StreamId]:
    """Return inputs whose rows go only into tables, by `side_input`."""
    aside = _leading_to(graph, SideInput)
    used = _leading_to(graph, Join, JoinTable, Output, PartitionBy, SendToTable)
    inputs = (operator for operator in graph.operators if isinstance(operator, Input))
    return frozenset(o.stream for o in inputs if o.name in aside and o.name not in used)


def _leading_to(graph: Graph, *kinds: type[Operator]) -> frozenset[OperatorName]:
    """Return operators whose rows reach one of these kinds before a repartition."""
    named = by_name(graph)

    def back(name: OperatorName) -> tuple[OperatorName, ...]:
        return () if isinstance(named[name], PartitionBy) else upstreams(named[name])

    ends = [operator for operator in graph.operators if isinstance(operator, kinds)]
    return frozenset(reached([name for end in ends for name in upstreams(end)], back))


def tables_in_parts(graph: Graph) -> frozenset[TableName]:
    """Tables of which each task holds its own part, since a partitioned line fills them. Others
    are whole in every task, or somebody else's."""
    return CoPartitionGraph(graph).filled


def link_of(operator: Operator) -> Link | None:
    """What lines meet in at an operator, if any are there."""
    match operator:
        case Join():
            return JoinLink(join=operator.name)
        case SendToTable() | SideInput() | JoinTable():
            return TableLink(table=operator.table)
        case _:
            return None


def operators_by_link(graph: Graph) -> dict[Link, tuple[Operator, ...]]:
    """The operators at which a tie's lines meet, in graph order; also of what ties nothing."""
    found: dict[Link, list[Operator]] = {}
    for operator in graph.operators:
        if (tie := link_of(operator)) is not None:
            found.setdefault(tie, []).append(operator)
    return {tie: tuple(operators) for tie, operators in found.items()}
