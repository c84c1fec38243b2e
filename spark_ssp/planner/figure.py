"""The figure of a plan: a node for each stream, table and stage, and the edges between them; also
as text for Mermaid.

The operators of a stage are rows of its node, in the order in which records pass them. Operators
before a table have a node too. A line that two stages share is shown in both, since the query of
each computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from string import ascii_uppercase
from typing import Final

from spark_ssp.planner.explain import count_source, roles
from spark_ssp.planner.graph.errors import SourceLocation
from spark_ssp.planner.graph.operators import (
    Filter,
    Graph,
    Input,
    JoinTable,
    Operator,
    OperatorName,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    StateKind,
    StreamId,
    SystemName,
    TableName,
    Transform,
    by_name,
    described,
    method_of,
    upstreams,
)
from spark_ssp.planner.planning.partition_counts import Origin
from spark_ssp.planner.planning.plan import Plan, Role, StreamPlan, TablePlan
from spark_ssp.planner.planning.stages import operators_before

MAX_LETTERS: Final = 40
"""Longer texts are shortened; tooltips have them in full."""


class NodeKind(StrEnum):
    """The kind of a node, and its CSS class."""

    STREAM = "stream"
    """An input or an output."""
    INTERMEDIATE = "intermediate"
    TABLE = "table"
    STAGE = "stage"
    FILLER = "filler"
    """Operators before a table."""


class Style(StrEnum):
    """The typeface of a text."""

    NAME = "name"
    COUNT = "count"
    CAPTION = "caption"
    INFERRED = "inferred"


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text."""

    text: str
    style: Style = Style.CAPTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An operator."""

    texts: tuple[Text, ...]
    tooltip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A box. `system` and `group` are those of a stream; `is_missing` is set for a stream that does
    not exist yet."""

    kind: NodeKind
    texts: tuple[Text, ...]
    tooltip: str
    rows: tuple[Row, ...] = ()
    system: SystemName | None = None
    group: str | None = None
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """Rows that go from one node to another; `is_lookup`: they are looked up in a table."""

    source: str
    target: str
    is_lookup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Nodes by key, and edges, which differ in their ends."""

    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]


def figure(graph: Graph, plan: Plan) -> Figure:
    """Return the figure of a plan."""
    named = by_name(graph)
    ends = _end_nodes(graph, plan)
    nodes: dict[str, Node] = {}
    edges: list[Edge] = []
    fillers = [o for o in graph.operators if isinstance(o, SendToTable | SideInput)]
    for sink in [*(named[stage.name] for stage in plan.stages), *fillers]:
        assert isinstance(sink, PartitionBy | Output | SendToTable | SideInput)
        before = operators_before(named, upstreams(sink)[0])
        reads = [_key(o.stream) for o in before if isinstance(o, Input | PartitionBy)]
        lookups = [_key(o.table) for o in before if isinstance(o, JoinTable)]
        operators = [o for o in before if not isinstance(o, Input | PartitionBy)]
        goal = _key(sink.stream if isinstance(sink, PartitionBy | Output) else sink.table)
        nodes.update((key, ends[key]) for key in [*reads, *lookups])
        if operators or isinstance(sink, PartitionBy | Output):
            key = f"sink {sink.name}"
            nodes[key] = _sink_node(sink, operators, named)
            edges += [Edge(read, key) for read in reads]
            edges += [Edge(table, key, is_lookup=True) for table in lookups]
            edges.append(Edge(key, goal))
        else:
            edges.append(Edge(reads[0], goal))
        nodes[goal] = ends[goal]
    return Figure(nodes=nodes | ends, edges=tuple(dict.fromkeys(edges)))


def group_letters(plan: Plan) -> dict[StreamId, str]:
    """Return the letter of the group with which each stream must agree. A stream that is joined
    only with itself has none."""
    groups = [group for group in plan.sets if len(group.streams) > 1]
    return {
        stream: ascii_uppercase[number % 26] + (str(number // 26) if number >= 26 else "")
        for number, group in enumerate(groups)
        for stream in group.streams
    }


def one_line(text: str) -> str:
    """Return a text without line breaks and unprintable characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shorten(text: str) -> str:
    """Return a text on one line, a long one without its middle."""
    text = one_line(text)
    head, tail = MAX_LETTERS * 2 // 3, MAX_LETTERS // 3
    return text if len(text) <= MAX_LETTERS else f"{text[:head]}…{text[-tail:]}"


# --- Nodes ---------------------------------------------------------------------------------------


def _key(end: StreamId | TableName) -> str:
    return f"stream {end}" if isinstance(end, StreamId) else f"table {end}"


def _end_nodes(graph: Graph, plan: Plan) -> dict[str, Node]:
    """Return the nodes of streams and tables by key."""
    letters = group_letters(plan)
    tables = {table.name: table.place for table in graph.tables}
    streams: dict[StreamId, SourceLocation | None] = {}
    for operator in graph.operators:
        if isinstance(operator, Input | PartitionBy | Output):
            streams.setdefault(operator.stream, operator.place)
    return {
        **{
            _key(s.stream): _stream_node(s, letters.get(s.stream), streams.get(s.stream))
            for s in plan.streams
        },
        **{_key(t.name): _table_node(t, tables[t.name]) for t in plan.tables},
    }


def _stream_node(stream: StreamPlan, letter: str | None, place: SourceLocation | None) -> Node:
    origin, source = stream.count.origin, count_source(stream.count)
    is_inferred = origin not in (Origin.FOUND, Origin.GIVEN)
    style = Style.INFERRED if is_inferred else Style.CAPTION
    short = Text(shorten(source.partition(", through")[0]), style)
    agrees = [] if letter is None else [f"must agree with the other streams of group {letter}"]
    return Node(
        kind=NodeKind.INTERMEDIATE if stream.role is Role.INTERMEDIATE else NodeKind.STREAM,
        texts=(
            Text(" · ".join([stream.stream.system, *roles(stream)])),
            Text(shorten(stream.stream.stream), Style.NAME),
            Text(_count(stream), Style.COUNT),
            *([] if origin is Origin.UNKNOWN else [short]),
        ),
        tooltip=_tooltip(
            f"{stream.role} {stream.stream}", f"{_count(stream)} ({source})", *agrees, place=place
        ),
        system=stream.stream.system,
        group=letter,
        is_missing=origin is not Origin.FOUND,
    )


def _count(stream: StreamPlan) -> str:
    if stream.partitions is None:
        return "count unknown" if stream.role is Role.INPUT else "does not exist yet"
    unit = "shard" if stream.kind == "kinesis" else "partition"
    count = f"{stream.partitions} {unit}{'' if stream.partitions == 1 else 's'}"
    differs = stream.tasks is not None and stream.tasks != stream.partitions
    return f"{count} in {stream.tasks} tasks" if differs else count


def _table_node(table: TablePlan, place: SourceLocation | None) -> Node:
    key = f"key {', '.join(table.key)}"
    caption = "table" if table.filled_by else "table · filled elsewhere"
    return Node(
        kind=NodeKind.TABLE,
        texts=(Text(caption), Text(shorten(table.name), Style.NAME), Text(shorten(key))),
        tooltip=_tooltip(f"table {table.name}", key, place=place),
    )


def _sink_node(
    sink: PartitionBy | Output | SendToTable | SideInput,
    operators: Sequence[Operator],
    named: Mapping[OperatorName, Operator],
) -> Node:
    match sink:
        case PartitionBy():
            subtitle = f"partition by {', '.join(sink.columns)}"
        case Output():
            subtitle = f"output to {sink.stream.stream}"
        case SendToTable():
            subtitle = f"sent to table {sink.table}"
        case SideInput():
            subtitle = f"side input of {sink.table}"
    above = [(), *((operator.name,) for operator in operators)]
    return Node(
        kind=NodeKind.STAGE if isinstance(sink, PartitionBy | Output) else NodeKind.FILLER,
        texts=(Text(shorten(sink.name), Style.NAME), Text(shorten(subtitle))),
        tooltip=_tooltip(described(sink), subtitle, place=sink.place),
        rows=tuple(_row(o, one, named) for o, one in zip(operators, above, strict=False)),
    )


def _row(
    operator: Operator, above: tuple[OperatorName, ...], named: Mapping[OperatorName, Operator]
) -> Row:
    """Return the row of an operator, with the names of its upstreams unless the operator above is
    the only one."""
    details = _details(operator)
    if above != upstreams(operator) and (above or len(upstreams(operator)) > 1):
        taken = (named[name] for name in upstreams(operator))
        names = (o.stream.stream if isinstance(o, Input | PartitionBy) else o.name for o in taken)
        details.append(f"of {', '.join(names)}")
    return Row(
        texts=(
            Text(shorten(" · ".join([method_of(operator), *details]))),
            Text(shorten(operator.name), Style.NAME),
        ),
        tooltip=_tooltip(described(operator), *details, place=operator.place),
    )


def _details(operator: Operator) -> list[str]:
    match operator:
        case Filter() if isinstance(operator.condition, str):
            return [operator.condition]
        case Transform() if operator.state is not StateKind.NONE:
            return [f"state {operator.state.value}"]
        case JoinTable():
            return [operator.table, *(["left"] if operator.how == "left" else [])]
        case _:
            return []


def _tooltip(*lines: str, place: SourceLocation | None) -> str:
    return "\n".join([*map(one_line, lines), *([str(place)] if place else [])])


# --- Mermaid --------------------------------------------------------------------------------------


_SHAPES: Final = {
    NodeKind.STREAM: ('(["', '"])', "fill:#e8f1fb,stroke:#2f6fb3,color:#12263a"),
    NodeKind.INTERMEDIATE: ('(["', '"])', "fill:#e9f7ef,stroke:#2e8b57,color:#12263a"),
    NodeKind.TABLE: ('[("', '")]', "fill:#fdf3e1,stroke:#c47f17,color:#12263a"),
    NodeKind.STAGE: ('["', '"]', "fill:#ffffff,stroke:#8a94a0,color:#12263a"),
    NodeKind.FILLER: ('["', '"]', "fill:#ffffff,stroke:#8a94a0,color:#12263a"),
}
"""Opening and closing bracket, and style."""


def mermaid(graph: Graph, plan: Plan) -> str:
    """Return the figure as Mermaid text, a flowchart from left to right. Lookups in tables are
    dotted."""
    shown = figure(graph, plan)
    ids = {key: f"n{number}" for number, key in enumerate(shown.nodes)}
    lines = ["flowchart LR"]
    for key, node in shown.nodes.items():
        opening, closing, _ = _SHAPES[node.kind]
        rows = (": ".join(text.text for text in reversed(row.texts)) for row in node.rows)
        label = "<br/>".join(map(_escaped, [*(text.text for text in node.texts), *rows]))
        lines.append(f"  {ids[key]}{opening}{label}{closing}:::{node.kind}")
    for edge in shown.edges:
        arrow = "-.->" if edge.is_lookup else "-->"
        lines.append(f"  {ids[edge.source]} {arrow} {ids[edge.target]}")
    lines += [f"  classDef {kind} {style}" for kind, (_, _, style) in _SHAPES.items()]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Replace the characters that end a label by Mermaid's entities."""
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return text.replace("&", "#amp;")
