"""The picture of a pipeline as Mermaid text: what flows where, with the counts of a plan.

Rows flow along full arrows; into and out of tables they go along dotted ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pipeline_planner.graph.names import StreamId
from pipeline_planner.graph.operators import (
    Filter,
    Graph,
    Input,
    Join,
    JoinTable,
    Merge,
    Operator,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    StateKind,
    Transform,
    upstreams,
)
from pipeline_planner.planning.plan import Plan
from pipeline_planner.render.explain import count_told

_STYLES: Final = (
    "  classDef stream fill:#e8f1fb,stroke:#2f6fb3,color:#12263a",
    "  classDef made fill:#e9f7ef,stroke:#2e8b57,color:#12263a",
    "  classDef table fill:#fdf3e1,stroke:#c47f17,color:#12263a",
    "  classDef step fill:#ffffff,stroke:#8a94a0,color:#12263a",
)
"""Streams that are there, streams that the pipeline makes, tables, everything else."""


def mermaid(graph: Graph, plan: Plan | None = None) -> str:
    """A flowchart from left to right, with the counts of `plan` if there is one."""
    lines = ["flowchart LR", *_nodes(graph, plan), *_edges(graph), *_STYLES]
    return "\n".join(lines) + "\n"


def _nodes(graph: Graph, plan: Plan | None) -> Iterator[str]:
    ids = _ids(graph)
    for operator in graph.operators:
        if not isinstance(operator, SendToTable | SideInput):
            yield f"  {ids[operator.name]}{_shape(operator, plan)}"
    for table in graph.tables:
        label = _label(f"table {table.name}", f"key {', '.join(table.key)}")
        yield f'  {ids[f"table {table.name}"]}[("{label}")]:::table'


def _ids(graph: Graph) -> dict[str, str]:
    """Node ids by operator name, and by the word `table` and a table's name."""
    found = {str(o.name): f"n{number}" for number, o in enumerate(graph.operators)}
    found.update((f"table {t.name}", f"t{number}") for number, t in enumerate(graph.tables))
    return found


def _shape(operator: Operator, plan: Plan | None) -> str:
    match operator:
        case Input() | Output():
            label = _label(str(operator.stream), *_count(operator.stream, plan))
            return f'(["{label}"]):::stream'
        case PartitionBy():
            by = f"by {', '.join(operator.columns)}"
            label = _label(str(operator.stream), by, *_count(operator.stream, plan))
            return f'(["{label}"]):::made'
        case Join() | JoinTable():
            return f'{{{{"{_label(operator.name)}"}}}}:::step'
        case Transform() if operator.state is not StateKind.NONE:
            return f'["{_label(operator.name, f"state: {operator.state.value}")}"]:::step'
        case Filter() | Merge() | Transform() | SendToTable() | SideInput():
            return f'["{_label(operator.name)}"]:::step'


def _count(stream: StreamId, plan: Plan | None) -> tuple[str, ...]:
    if plan is None:
        return ()
    planned = plan.stream(stream)
    if planned.partitions is None:
        return ("partitions unknown",)
    told = count_told(planned.count).partition(",")[0]
    return (f"{planned.partitions} partitions", told)


def _edges(graph: Graph) -> Iterator[str]:
    ids = _ids(graph)
    for operator in graph.operators:
        goal, arrow = ids[operator.name], "-->"
        if isinstance(operator, SendToTable | SideInput):
            goal = ids[f"table {operator.table}"]
            arrow = "-. side input .->" if isinstance(operator, SideInput) else "-.->"
        for name in upstreams(operator):
            yield f"  {ids[name]} {arrow} {goal}"
        if isinstance(operator, JoinTable):
            yield f"  {ids[f'table {operator.table}']} -.-> {ids[operator.name]}"


def _label(*lines: str) -> str:
    return "<br/>".join(_escaped(line) for line in lines)


def _escaped(text: str) -> str:
    """Mermaid's own entities: a column may be called anything."""
    text = " ".join(text.split())
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return text.replace("&", "#amp;")
