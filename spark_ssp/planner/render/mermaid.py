"""The figure of a plan as Mermaid text, for a README."""

from __future__ import annotations

from typing import Final

from spark_ssp.planner.graph.operators import Graph
from spark_ssp.planner.planning.plan import Plan
from spark_ssp.planner.render.figure import NodeKind, figure

_SHAPES: Final = {
    NodeKind.STREAM: ('(["', '"])', "fill:#e8f1fb,stroke:#2f6fb3,color:#12263a"),
    NodeKind.INTERMEDIATE: ('(["', '"])', "fill:#e9f7ef,stroke:#2e8b57,color:#12263a"),
    NodeKind.TABLE: ('[("', '")]', "fill:#fdf3e1,stroke:#c47f17,color:#12263a"),
    NodeKind.STAGE: ('["', '"]', "fill:#ffffff,stroke:#8a94a0,color:#12263a"),
    NodeKind.FILLER: ('["', '"]', "fill:#ffffff,stroke:#8a94a0,color:#12263a"),
}
"""Opening and closing bracket, and style."""


def mermaid(graph: Graph, plan: Plan) -> str:
    """Return a flowchart from left to right. Lookups in tables are dotted."""
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
