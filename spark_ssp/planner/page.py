"""A plan as an HTML page: the figure as SVG, a legend, and the content of `explain`. It is one file
without scripts or external resources; the same plan gives the same page. Widths of texts are
estimated from their number of letters, since no font is at hand."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from string import ascii_uppercase
from typing import Final

from spark_ssp.planner.explain import Table, agreements, notes, summary, tables
from spark_ssp.planner.figure import (
    Node,
    NodeKind,
    Style,
    Text,
    figure,
    group_letters,
    one_line,
)
from spark_ssp.planner.graph.operators import Graph, SystemName
from spark_ssp.planner.layout import Box, EdgePath, Point, arrange
from spark_ssp.planner.planning.plan import Plan

_STYLE: Final = files("spark_ssp.planner").joinpath("page.css").read_text(encoding="utf-8")


def page(graph: Graph, plan: Plan) -> str:
    """Return the page."""
    title = _escaped(f"Pipeline {plan.pipeline}")
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>\n{_STYLE}</style></head>",
        "<body>",
        f"<h1>{title}</h1>",
        f'<p class="lead">{summary(plan)}</p>',
        f'<div class="frame">{draw(graph, plan)}</div>',
        f'<ul class="legend">{"".join(f"<li>{entry}</li>" for entry in _legend(plan))}</ul>',
        *map(_table, tables(plan)),
        *_agreements(graph, plan),
    ]
    listed = notes(graph, plan)
    if listed:
        lines += ["<h2>Notes</h2>", _list(map(str, listed))]
    return "\n".join([*lines, "</body></html>", ""])


def _legend(plan: Plan) -> Iterator[str]:
    kinds = {stream.stream.system: stream.kind for stream in plan.streams}
    for system, colour in system_colours(plan).items():
        kind = "" if str(system) == str(kinds[system]) else f" ({kinds[system]})"
        yield f'<span class="swatch" style="background:{colour}"></span>{_escaped(system + kind)}'
    if group_letters(plan):
        yield f"{_badge('A')} streams with the same letter must agree in their partitions"
    yield '<span class="swatch intermediate"></span>written by a stage and read by another'
    yield "dashed border: does not exist yet"
    yield "<i>italics</i>: a count inferred from others"
    yield "solid line: rows"
    yield "dashed line: lookups in a table"


def _table(table: Table) -> str:
    head = "".join(f"<th>{name}</th>" for name in table.header)
    rows = (f"<tr>{''.join(f'<td>{_escaped(c)}</td>' for c in row)}</tr>\n" for row in table.rows)
    body = f"<table><tr>{head}</tr>\n{''.join(rows)}</table>"
    return f'<h2>{table.title}</h2>\n<div class="wide">{body}</div>'


def _agreements(graph: Graph, plan: Plan) -> Iterator[str]:
    letters = group_letters(plan)
    for number, group in enumerate(agreements(graph, plan)):
        if number == 0:
            yield "<h2>What must agree</h2>"
        yield f"<p>{_badge(letters[group.streams[0]])} {_escaped(group.summary)}</p>"
        yield _list(group.ties)


def _list(entries: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_escaped(entry)}</li>' for entry in entries)}</ul>"


def _badge(letter: str) -> str:
    return f'<span class="badge" style="background:{group_colour(letter)}">{letter}</span>'


def _escaped(text: str) -> str:
    return escape(one_line(text))


# --- The figure -----------------------------------------------------------------------------------


_LETTER_WIDTH: Final = {
    Style.NAME: 7.6,  # monospaced
    Style.COUNT: 7.8,
    Style.CAPTION: 6.3,
    Style.INFERRED: 6.3,
}
_LINE: Final = 17.0
_ROW: Final = 40.0
_PADDING: Final = 12.0
_BADGE: Final = 24.0
_RIM: Final = 8.0
"""Height of a table's upper rim, and radius of corners."""
_MARGIN: Final = 16.0
_LEAST_SCALE: Final = 0.9
"""A figure wider than the window is scaled down to this, then scrolls."""

_SYSTEM_COLOURS: Final = ("#0e8a96", "#d2601f", "#7a5fd0", "#c2457f", "#4480bd", "#6c8c26")
_GROUP_COLOURS: Final = ("#3d70e2", "#a83bb8", "#2c8f50", "#d14444", "#94622b", "#64748b")
"""Visible on light and on dark ground."""

_MARKER: Final = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path class="head" d="M0,0.5 L8,4 L0,7.5 z"/></marker></defs>'
)


def draw(graph: Graph, plan: Plan) -> str:
    """Return an `svg` element for a page with the styles of `page`."""
    shown = figure(graph, plan)
    colours = system_colours(plan)
    boxes = {key: box_of(node) for key, node in shown.nodes.items()}
    layout = arrange(boxes, [(edge.source, edge.target) for edge in shown.edges])
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    style = f"max-width:{width:.0f}px;min-width:{_LEAST_SCALE * width:.0f}px"
    view = f"{-_MARGIN:.0f} {-_MARGIN:.0f} {width:.0f} {height:.0f}"
    attributes = f'xmlns="http://www.w3.org/2000/svg" role="img" style="{style}" viewBox="{view}"'
    paths = (
        f'<path class="edge {"lookup" if edge.is_lookup else "rows"}" '
        f'd="{path_data(layout.paths[edge.source, edge.target])}" marker-end="url(#arrow)"/>'
        for edge in shown.edges
    )
    nodes = (
        _group(node.tooltip, layout.corners[key], _node(node, boxes[key], colours))
        for key, node in shown.nodes.items()
    )
    return "\n".join(
        [
            f'<svg class="figure" {attributes}>',
            f"<title>Pipeline {escape(plan.pipeline)}</title>",
            _MARKER,
            *paths,
            *nodes,
            "</svg>",
        ]
    )


def system_colours(plan: Plan) -> dict[SystemName, str]:
    """Return the colour of each system."""
    systems = sorted({stream.stream.system for stream in plan.streams})
    return {s: _SYSTEM_COLOURS[n % len(_SYSTEM_COLOURS)] for n, s in enumerate(systems)}


def group_colour(letter: str) -> str:
    """Return the colour of a group, by its letter."""
    number = ascii_uppercase.index(letter[0]) + 26 * int(letter[1:] or 0)
    return _GROUP_COLOURS[number % len(_GROUP_COLOURS)]


def path_data(path: EdgePath) -> str:
    """Return an edge's path as the value of the attribute `d`."""
    pieces = [f"M{_at(path.points[0])}"]
    for number, (one, other) in enumerate(pairwise(path.points)):
        if path.runs_back or number % 2 == 0 or one.y == other.y:
            pieces.append(f"L{_at(other)}")
        else:
            middle = round((one.x + other.x) / 2, 1)
            pieces.append(f"C{middle:g},{one.y:g} {middle:g},{other.y:g} {_at(other)}")
    return " ".join(pieces)


# --- Nodes ---------------------------------------------------------------------------------------


def box_of(node: Node) -> Box:
    """Return the size of a node, by its texts."""
    texts = [*node.texts, *(text for row in node.rows for text in row.texts)]
    width = max(_cells(text.text) * _LETTER_WIDTH[text.style] for text in texts)
    indent = _PADDING if node.rows else 0.0
    badge = _BADGE if node.group else 0.0
    rows = _ROW * len(node.rows) + (_PADDING if node.rows else 0.0)
    return Box(round(width + 2 * (_PADDING + indent) + badge, 1), _top(node) + rows)


def _top(node: Node) -> float:
    """Return the height of a node above its rows."""
    rim = 1.5 * _RIM if node.kind is NodeKind.TABLE else 0.0
    return _LINE * len(node.texts) + _PADDING + rim


def _cells(text: str) -> int:
    """Return the width of a text in letters; those of East Asia are twice as wide."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _node(node: Node, box: Box, colours: dict[SystemName, str]) -> list[str]:
    width, height, classes = box.width, box.height, node.kind.value
    if node.is_missing:
        classes += " missing"
    parts = []
    if node.kind is NodeKind.TABLE:
        arc, right, low = f"A{width / 2:g},{_RIM:g} 0 0", f"{width:g},{_RIM:g}", height - _RIM
        body = f"M0,{_RIM:g} {arc} 1 {right} V{low:g} {arc} 1 0,{low:g} z"
        parts.append(f'<path class="table" d="{body} M0,{_RIM:g} {arc} 0 {right}"/>')
    else:
        stroke = f' style="stroke:{group_colour(node.group)};stroke-width:2"' if node.group else ""
        parts.append(_rectangle(classes, Point(0, 0), width, height, stroke))
    if node.system is not None:
        stripe = f"M8,0 H5 Q0,0 0,8 V{height - 8:g} Q0,{height:g} 8,{height:g} z"
        parts.append(f'<path fill="{colours[node.system]}" d="{stripe}"/>')
    if node.group is not None:
        x, colour = width - 17, group_colour(node.group)
        parts.append(f'<circle fill="{colour}" cx="{x:g}" cy="16" r="9"/>')
        parts.append(f'<text class="letter" x="{x:g}" y="20">{node.group}</text>')
    parts += _lines(node.texts, _PADDING, _top(node) - _LINE * len(node.texts) - _PADDING)
    for number, row in enumerate(node.rows):
        inner = [
            _rectangle("row", Point(_PADDING, 2), width - 2 * _PADDING, _ROW - 4),
            *_lines(row.texts, 2 * _PADDING, -2),
        ]
        parts.append(_group(row.tooltip, Point(0, _top(node) + _ROW * number), inner))
    return parts


def _lines(texts: Sequence[Text], x: float, y: float) -> list[str]:
    return [
        f'<text class="{text.style}" x="{x:g}" y="{y + _LINE * n:g}">{escape(text.text)}</text>'
        for n, text in enumerate(texts, start=1)
    ]


def _rectangle(classes: str, corner: Point, width: float, height: float, style: str = "") -> str:
    return (
        f'<rect class="{classes}" x="{corner.x:g}" y="{corner.y:g}" width="{width:g}" '
        f'height="{height:g}" rx="{_RIM:g}"{style}/>'
    )


def _group(tooltip: str, corner: Point, parts: Iterable[str]) -> str:
    title = f"<title>{escape(tooltip)}</title>"
    return f'<g transform="translate({_at(corner)})">{title}{"".join(parts)}</g>'


def _at(point: Point) -> str:
    return f"{round(point.x, 1):g},{round(point.y, 1):g}"
