"""Which streams must have as many partitions as which others, and through what.

A *line* carries the records of a source (an input, or an intermediate stream as it is read) through
operators up to the next repartition, which cuts it. A *tie* is a place where lines meet that must
agree: a join, or a table that is filled. The seed's analysis (section "OperatorSpec Graph
Analysis") in its two traversals:

1. every operator that fills a table is linked with every operator that joins with it, as if rows
   flowed from one to the other (`table_links`, the virtual edges);
2. from each source, along rows and links, all ties that its line reaches (`ties`).

A merge ties nothing by itself: lines that were merged agree from the first join on. A broadcast
stream is whole in every task and in no tie. A table that the pipeline does not fill ties nobody,
nor does one that only broadcast streams fill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline_planner.names import OperatorName, StreamId, TableName
from pipeline_planner.operators import (
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
)
from pipeline_planner.traversal import reached


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTie:
    """The lines that a join brings together."""

    join: OperatorName

    def __str__(self) -> str:
        return f"join {self.join}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTie:
    """The lines that fill a table and those that are joined with it."""

    table: TableName

    def __str__(self) -> str:
        return f"table {self.table}"


Tie = JoinTie | TableTie


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


def lines(graph: Graph) -> dict[OperatorName, frozenset[StreamId]]:
    """The streams whose lines reach each operator; broadcast ones too. A source begins its line,
    so it is reached by its own stream (and what an intermediate stream is made of is not asked)."""
    follow = line_successors(graph)
    found: dict[OperatorName, set[StreamId]] = {o.name: set() for o in graph.operators}
    for source in sources(graph):
        for name in reached([source.name], follow):
            found[name].add(source.stream)
    return {name: frozenset(streams) for name, streams in found.items()}


def ties(graph: Graph) -> dict[Tie, frozenset[StreamId]]:
    """The streams of each tie, in graph order; ties of none are left out."""
    through = _partitioned_lines(graph)
    filled = _filled(graph, through)
    found: dict[Tie, frozenset[StreamId]] = {}
    for operator in graph.operators:
        tie = _tie_of(operator)
        streams = through[operator.name]
        if tie is None or not streams or (isinstance(tie, TableTie) and tie.table not in filled):
            continue
        found[tie] = found.get(tie, frozenset()) | streams
    return found


def tables_in_parts(graph: Graph) -> frozenset[TableName]:
    """Tables of which each task holds its own part, since a partitioned line fills them. Others
    are whole in every task, or somebody else's."""
    return _filled(graph, _partitioned_lines(graph))


def _partitioned_lines(graph: Graph) -> dict[OperatorName, frozenset[StreamId]]:
    broadcast = {o.stream for o in graph.operators if isinstance(o, Input) and o.broadcast}
    return {name: streams - broadcast for name, streams in lines(graph).items()}


def _filled(
    graph: Graph, through: Mapping[OperatorName, frozenset[StreamId]]
) -> frozenset[TableName]:
    return frozenset(
        operator.table
        for operator in graph.operators
        if isinstance(operator, SendToTable | SideInput) and through[operator.name]
    )


def _tie_of(operator: Operator) -> Tie | None:
    match operator:
        case Join():
            return JoinTie(join=operator.name)
        case SendToTable() | SideInput() | JoinTable():
            return TableTie(table=operator.table)
        case _:
            return None


def sets_that_agree(tied: Mapping[Tie, frozenset[StreamId]]) -> tuple[frozenset[StreamId], ...]:
    """Streams tied to each other, directly or through others: disjoint sets, sorted by their first
    stream. Every stream of a tie is in one of them."""
    step = neighbours(tied)
    found: list[frozenset[StreamId]] = []
    done: set[StreamId] = set()
    for stream in sorted({s for streams in tied.values() for s in streams}):
        if stream not in done:
            start: list[StreamId | Tie] = [stream]
            here = frozenset(v for v in reached(start, step) if isinstance(v, StreamId))
            done |= here
            found.append(here)
    return tuple(found)


def neighbours(
    tied: Mapping[Tie, frozenset[StreamId]],
) -> Callable[[StreamId | Tie], list[StreamId | Tie]]:
    """From a stream its ties, in the order of `tied`; from a tie its streams, sorted."""
    of_stream: dict[StreamId, list[Tie]] = {}
    for tie, streams in tied.items():
        for stream in streams:
            of_stream.setdefault(stream, []).append(tie)

    def step(vertex: StreamId | Tie) -> list[StreamId | Tie]:
        if isinstance(vertex, StreamId):
            return list(of_stream.get(vertex, ()))
        return [*sorted(tied[vertex])]

    return step


def operators_of(graph: Graph, tie: Tie) -> tuple[Operator, ...]:
    """The operators at which a tie's lines meet, in graph order."""
    if isinstance(tie, JoinTie):
        return (by_name(graph)[tie.join],)
    return tuple(
        o
        for o in graph.operators
        if isinstance(o, SendToTable | SideInput | JoinTable) and o.table == tie.table
    )
