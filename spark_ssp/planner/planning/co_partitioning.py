"""Finds the streams that must be co-partitioned, that is, have equal partition counts.

A *line* carries the records of a source (an input, or an intermediate stream that is read back)
through operators up to the next repartition, which cuts it. A *link* requires equal counts of the
lines that meet at it: a join, or a table that is filled. The analysis, like Samza's
`OperatorSpecGraphAnalyzer`, takes two traversals:

1. every operator that fills a table is connected to every operator that joins with it, as if rows
   flowed from one to the other (`table_links`, the virtual edges);
2. from each source, along rows and virtual edges, to all links that its line reaches
   (`CoPartitionGraph`).

A merge is not a link: merged lines need equal counts only from the first join on. A broadcast
stream is whole in every task and belongs to no link. A table links no streams if the pipeline does
not fill it or only broadcast streams fill it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    Join,
    JoinTable,
    Operator,
    OperatorName,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    Source,
    StateKind,
    StreamId,
    TableName,
    Transform,
    by_name,
    consumers,
    reached,
    upstreams,
)
from spark_ssp.planner.graph.systems import StreamUse


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinLink:
    """The lines that meet at a join."""

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
    """Return the operators that join with a table, by operator that fills it, in graph order."""
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
    """Return a function from an operator to the next ones on its line, through tables too, but not
    to repartitions and outputs."""
    links = table_links(graph)
    direct = {
        name: tuple(o.name for o in readers if not isinstance(o, PartitionBy | Output))
        for name, readers in consumers(graph).items()
    }
    return lambda name: direct.get(name, ()) + links.get(name, ())


def sources(graph: Graph) -> tuple[Source, ...]:
    """Return the operators that lines begin at, in graph order."""
    return tuple(o for o in graph.operators if isinstance(o, Input | PartitionBy))


class CoPartitionGraph:
    """A bipartite graph of links and the streams that they link, with searches over it.

    Edges are not stored. The last join of a chain links every stream of the chain, so there may be
    far more edges than operators; a search follows the operators instead, each at most once down
    from streams and once up from links.
    """

    def __init__(self, graph: Graph) -> None:
        self._down = line_successors(graph)
        self._up = _reversed(graph, self._down)
        broadcast = {o.stream for o in graph.operators if isinstance(o, Input) and o.broadcast}
        self._starts: dict[StreamId, list[OperatorName]] = {}
        for source in sources(graph):
            if source.stream not in broadcast:
                self._starts.setdefault(source.stream, []).append(source.name)
        self._stream_at = {name: s for s, names in self._starts.items() for name in names}
        lined = reached(self._stream_at, self._down)
        self.filled = frozenset(
            o.table
            for o in graph.operators
            if isinstance(o, SendToTable | SideInput) and o.name in lined
        )
        """Tables that a partitioned line fills."""
        self._link_at: dict[OperatorName, Link] = {}
        self._meet: dict[Link, list[OperatorName]] = {}
        for operator in graph.operators:
            link = link_of(operator)
            if link is not None and operator.name in lined and self._is_link(link):
                self._link_at[operator.name] = link
                self._meet.setdefault(link, []).append(operator.name)
        self._rank = {link: rank for rank, link in enumerate(self._meet)}

    def _is_link(self, link: Link) -> bool:
        return isinstance(link, JoinLink) or link.table in self.filled

    @property
    def links(self) -> tuple[Link, ...]:
        """Every link, in graph order."""
        return tuple(self._meet)

    def sets(self) -> tuple[frozenset[StreamId], ...]:
        """Return the groups of streams that are linked, directly or through others: disjoint sets,
        sorted by their first stream, which contain every linked stream."""
        found: list[frozenset[StreamId]] = []
        done: set[StreamId] = set()
        for stream in sorted(self._starts):
            if stream not in done:
                connected = self.search([stream])
                here = frozenset(vertex for vertex in connected if isinstance(vertex, StreamId))
                done |= here
                if len(connected) > 1:
                    found.append(here)
        return tuple(found)

    def links_by_group(
        self, sets: Iterable[Collection[StreamId]]
    ) -> dict[StreamId, tuple[Link, ...]]:
        """Return the links of each group, in graph order, by the group's first stream."""
        found: dict[StreamId, tuple[Link, ...]] = {}
        for streams in sets:
            first = min(streams)
            connected = self.search([first])
            found[first] = self._ordered(v for v in connected if not isinstance(v, StreamId))
        return found

    def search(self, starts: Iterable[StreamId]) -> dict[Vertex, Vertex | None]:
        """Return the vertices connected to any of `starts`, nearest first, each with its
        predecessor, None for the starts. Breadth first: from a stream to links in graph order, from
        a link to sorted streams."""
        came_from: dict[Vertex, Vertex | None] = dict.fromkeys(starts)
        ahead = deque(came_from)
        above: set[OperatorName] = set()
        below: set[OperatorName] = set()
        while ahead:
            vertex = ahead.popleft()
            following: Iterable[Vertex]
            if isinstance(vertex, StreamId):
                passed = _passed(self._starts.get(vertex, ()), self._down, below)
                following = self._ordered(
                    {self._link_at[name] for name in passed if name in self._link_at}
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

    def _ordered(self, links: Iterable[Link]) -> tuple[Link, ...]:
        return tuple(sorted(links, key=self._rank.__getitem__))


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
    """Return `starts` and their descendants without those passed `before`, to which they are
    added. Descendants of a passed operator were passed too."""
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
    """Return the purpose of each intermediate stream, within the stages that read it. A function
    with state needs every record, also on the way to a table."""
    fills = _leading_to(graph, SendToTable, SideInput)
    stateful = [
        o for o in graph.operators if isinstance(o, Transform) and o.state is not StateKind.NONE
    ]
    carries = _leading_to(graph, Join, JoinTable, Output, PartitionBy) | _before(graph, stateful)
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
    return _before(graph, [o for o in graph.operators if isinstance(o, kinds)])


def _before(graph: Graph, ends: Iterable[Operator]) -> frozenset[OperatorName]:
    """Return operators whose rows reach one of `ends` before a repartition."""
    named = by_name(graph)

    def back(name: OperatorName) -> tuple[OperatorName, ...]:
        return () if isinstance(named[name], PartitionBy) else upstreams(named[name])

    return frozenset(reached([name for end in ends for name in upstreams(end)], back))


def tables_in_parts(graph: Graph) -> frozenset[TableName]:
    """Return the tables that are split among tasks, because a partitioned line fills them. Other
    tables are whole in every task, or maintained outside the pipeline."""
    return CoPartitionGraph(graph).filled


def link_of(operator: Operator) -> Link | None:
    """Return the link at which lines meet in an operator, None if they cannot meet there."""
    match operator:
        case Join():
            return JoinLink(join=operator.name)
        case SendToTable() | SideInput() | JoinTable():
            return TableLink(table=operator.table)
        case _:
            return None


def operators_by_link(graph: Graph) -> dict[Link, tuple[Operator, ...]]:
    """Return the operators at which each link's lines meet, in graph order, including links of no
    partitioned stream."""
    found: dict[Link, list[Operator]] = {}
    for operator in graph.operators:
        if (link := link_of(operator)) is not None:
            found.setdefault(link, []).append(operator)
    return {link: tuple(operators) for link, operators in found.items()}
