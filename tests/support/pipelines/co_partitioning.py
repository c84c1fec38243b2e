"""Co-partitioned streams by a naive analysis: every line is followed separately.

The reference model of `planning.co_partitioning.CoPartitionGraph`, which must agree
with it without storing every stream of every link.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    OperatorName,
    SendToTable,
    SideInput,
    StreamId,
)
from spark_ssp.planner.graph.traversal import reached
from spark_ssp.planner.planning.co_partitioning import (
    Link,
    TableLink,
    line_successors,
    link_of,
    sources,
)

Tied = dict[Link, frozenset[StreamId]]


def lines(graph: Graph) -> dict[OperatorName, frozenset[StreamId]]:
    """Return the streams whose lines reach each operator; broadcast ones too. A source begins its
    line, so it is reached by its own stream (the producers of an intermediate stream are not
    followed)."""
    follow = line_successors(graph)
    found: dict[OperatorName, set[StreamId]] = {o.name: set() for o in graph.operators}
    for source in sources(graph):
        for name in reached([source.name], follow):
            found[name].add(source.stream)
    return {name: frozenset(streams) for name, streams in found.items()}


def links(graph: Graph) -> Tied:
    """The streams of each tie, in graph order; ties of none are left out."""
    broadcast = {o.stream for o in graph.operators if isinstance(o, Input) and o.broadcast}
    through = {name: streams - broadcast for name, streams in lines(graph).items()}
    filled = {
        operator.table
        for operator in graph.operators
        if isinstance(operator, SendToTable | SideInput) and through[operator.name]
    }
    found: Tied = {}
    for operator in graph.operators:
        tie = link_of(operator)
        streams = through[operator.name]
        if tie is None or not streams or (isinstance(tie, TableLink) and tie.table not in filled):
            continue
        found[tie] = found.get(tie, frozenset()) | streams
    return found


def sets_that_agree(tied: Tied) -> tuple[frozenset[StreamId], ...]:
    """Streams tied to each other, directly or through others: disjoint sets, sorted by their first
    stream. Every stream of a tie is in one of them."""
    step = neighbours(tied)
    found: list[frozenset[StreamId]] = []
    done: set[StreamId] = set()
    for stream in sorted({s for streams in tied.values() for s in streams}):
        if stream not in done:
            start: list[StreamId | Link] = [stream]
            here = frozenset(v for v in reached(start, step) if isinstance(v, StreamId))
            done |= here
            found.append(here)
    return tuple(found)


def neighbours(tied: Tied) -> Callable[[StreamId | Link], list[StreamId | Link]]:
    """From a stream its ties, in the order of `tied`; from a tie its streams, sorted."""
    of_stream: dict[StreamId, list[Link]] = {}
    for tie, streams in tied.items():
        for stream in streams:
            of_stream.setdefault(stream, []).append(tie)

    def step(vertex: StreamId | Link) -> list[StreamId | Link]:
        if isinstance(vertex, StreamId):
            return list(of_stream.get(vertex, ()))
        return [*sorted(tied[vertex])]

    return step
