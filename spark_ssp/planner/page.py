"""A plan as an HTML page: the figure as SVG, a legend, and the content of `explain`. It is one file
without scripts or external resources; the same plan gives the same page. Widths of texts are
estimated from their number of letters, since no font is at hand.

The figure is a layered layout of a directed graph, after Sugiyama: layers, order within layers,
heights. Boxes are assigned to layers from left to right by the longest path. Where an edge passes a
layer without a box, a waypoint reserves room for it; all edges of a box share its waypoints. The
order within layers follows the barycentre heuristic, heights follow isotonic regression.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import chain, pairwise
from string import ascii_uppercase
from typing import Final

from spark_ssp.planner.explain import Table, agreements, notes, summary, tables
from spark_ssp.planner.figure import Node, NodeKind, Style, Text, figure, group_letters, one_line
from spark_ssp.planner.graph.operators import (
    Graph,
    SystemName,
    find_cycle,
    topological_order,
    traverse,
)
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


# --- The layout of the figure --------------------------------------------------------------------


LAYER_GAP: Final = 60.0
BOX_GAP: Final = 24.0
_LANE_GAP: Final = 16.0
"""Between edges that run back."""
_PORT_GAP: Final = 14.0
"""Between the points at which edges enter a box, where its height allows."""
_WAYPOINT_HEIGHT: Final = 4.0
_SWEEPS: Final = 24

Pair = tuple[str, str]
"""The names of two boxes: an edge leads from the first to the second."""
Vertex = str | tuple[str, int]
"""A box, or the waypoint of a box's edges in a layer."""
Layers = list[list[Vertex]]


@dataclass(frozen=True, slots=True)
class Box:
    """The size of a box."""

    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Point:
    """A point; y points down."""

    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePath:
    """The course of an edge: level and curved pieces in turn, the first one level. An edge that
    closes a cycle runs back below all boxes, in straight pieces."""

    points: tuple[Point, ...]
    runs_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The upper left corner of each box and the path of each edge, all within (0, 0) and
    (width, height)."""

    width: float
    height: float
    corners: Mapping[str, Point]
    paths: Mapping[Pair, EdgePath]


def arrange(boxes: Mapping[str, Box], edges: Sequence[Pair]) -> Layout:
    """Arrange boxes and the edges between them. Edges differ; cycles are allowed."""
    targets: dict[str, list[str]] = {name: [] for name in boxes}
    for source, target in edges:
        targets[source].append(target)
    names = list(boxes)
    while cycle := find_cycle(names, targets.__getitem__):
        targets[cycle[-2]].remove(cycle[-1])
    layer_of = _assign_layers(names, targets)
    routes = {
        (source, target): _route(source, target, layer_of)
        for source in names
        for target in targets[source]
    }
    neighbours = _Neighbours(names, routes.values())
    layers = _order(neighbours.in_layers(layer_of), neighbours)
    heights = {
        v: boxes[v].height if isinstance(v, str) else _WAYPOINT_HEIGHT for v in neighbours.before
    }
    middles = _place(layers, neighbours, heights)
    return _coordinates(boxes, edges, routes, layers, middles)


# --- Layers --------------------------------------------------------------------------------------


def _assign_layers(names: Sequence[str], targets: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the layer of each box: right of all its sources, as far left as possible; of a box
    without sources, directly before the first of its targets."""
    layer_of = dict.fromkeys(names, 0)
    for name in topological_order(names, targets.__getitem__)[0]:
        for target in targets[name]:
            layer_of[target] = max(layer_of[target], layer_of[name] + 1)
    for name in names:
        if not layer_of[name] and targets[name]:
            layer_of[name] = min(layer_of[target] for target in targets[name]) - 1
    return layer_of


def _route(source: str, target: str, layer_of: Mapping[str, int]) -> list[Vertex]:
    between = range(layer_of[source] + 1, layer_of[target])
    return [source, *((source, layer) for layer in between), target]


class _Neighbours:
    """The vertices of all routes, with their neighbours in the layers before and after."""

    def __init__(self, names: Iterable[str], routes: Iterable[Sequence[Vertex]]) -> None:
        self.before: dict[Vertex, list[Vertex]] = {name: [] for name in names}
        self.after: dict[Vertex, list[Vertex]] = {name: [] for name in names}
        for one, other in dict.fromkeys(chain.from_iterable(map(pairwise, routes))):
            self.before.setdefault(other, []).append(one)
            self.after.setdefault(other, [])
            self.after.setdefault(one, []).append(other)

    def in_layers(self, layer_of: Mapping[str, int]) -> Layers:
        """Return the vertices by layer, connected ones together."""
        found: dict[Vertex, None] = {}
        for vertex in self.before:
            if vertex not in found:
                traverse(vertex, found.setdefault, lambda v: self.before[v] + self.after[v])
        layers: Layers = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
        for vertex in found:
            layers[layer_of[vertex] if isinstance(vertex, str) else vertex[1]].append(vertex)
        return layers


# --- Order within layers -------------------------------------------------------------------------


def _order(layers: Layers, neighbours: _Neighbours) -> Layers:
    """Return the layers in an order with few crossings. Sweeps to the right and to the left move
    each vertex to the mean rank of its neighbours."""
    best, fewest = [*layers], _crossings(layers, neighbours)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        forward = sweep % 2 == 0
        near = neighbours.before if forward else neighbours.after
        for one, other in pairwise(range(len(layers))[:: 1 if forward else -1]):
            rank = {vertex: place for place, vertex in enumerate(layers[one])}
            scale = len(layers[one]) / len(layers[other])
            mean = {
                v: sum(rank[n] for n in near[v]) / len(near[v]) if near[v] else place * scale
                for place, v in enumerate(layers[other])
            }
            layers[other] = sorted(layers[other], key=mean.__getitem__)
        count = _crossings(layers, neighbours)
        if count < fewest:
            best, fewest = [*layers], count
    return best


def _crossings(layers: Layers, neighbours: _Neighbours) -> int:
    count = 0
    for left, right in pairwise(layers):
        rank = {vertex: place for place, vertex in enumerate(right)}
        seen: list[int] = []
        for vertex in left:
            ends = [rank[target] for target in neighbours.after[vertex]]
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


# --- Heights -------------------------------------------------------------------------------------


def _place(
    layers: Layers, neighbours: _Neighbours, heights: Mapping[Vertex, float]
) -> dict[Vertex, float]:
    """Return the middle of each vertex: near those of its neighbours, in the layers' order."""
    middles = dict.fromkeys(heights, 0.0)

    def wish(vertex: Vertex, near: Sequence[Vertex]) -> tuple[float, float]:
        # Rather a long edge straight than a short one level.
        weights = [1 + 3 * isinstance(vertex, tuple) + 3 * isinstance(n, tuple) for n in near]
        if not near:
            return middles[vertex], 0.1
        total = sum(weights)
        return sum(w * middles[n] for w, n in zip(weights, near, strict=True)) / total, total

    for sweep in range(_SWEEPS + 1):
        forward, last = sweep % 2 == 0, sweep == _SWEEPS
        for layer in layers if forward else reversed(layers):
            wishes = []
            for vertex in layer:
                near = neighbours.before[vertex] if forward else []
                near = near + neighbours.after[vertex] if last or not forward else near
                wishes.append(wish(vertex, near))
            middles.update(_spread(layer, wishes, heights))
    return middles


def _spread(
    layer: Sequence[Vertex],
    wishes: Sequence[tuple[float, float]],
    heights: Mapping[Vertex, float],
) -> dict[Vertex, float]:
    """Return the places nearest to the wishes, each with a weight, by squares at which no two
    vertices are too close: isotonic regression, by pooling adjacent violators."""
    offsets = [0.0]
    for one, other in pairwise(layer):
        offsets.append(offsets[-1] + (heights[one] + heights[other]) / 2 + BOX_GAP)
    pools: list[tuple[float, float, int]] = []  # mean, weight, count
    for (mean, weight), offset in zip(wishes, offsets, strict=True):
        mean, count = mean - offset, 1
        while pools and pools[-1][0] > mean:
            other_mean, other_weight, other_count = pools.pop()
            mean = (mean * weight + other_mean * other_weight) / (weight + other_weight)
            weight, count = weight + other_weight, count + other_count
        pools.append((mean, weight, count))
    starts = [mean for mean, _, count in pools for _ in range(count)]
    return {v: start + off for v, start, off in zip(layer, starts, offsets, strict=True)}


# --- Coordinates ---------------------------------------------------------------------------------


def _coordinates(
    boxes: Mapping[str, Box],
    edges: Sequence[Pair],
    routes: Mapping[Pair, Sequence[Vertex]],
    layers: Layers,
    middles: Mapping[Vertex, float],
) -> Layout:
    """Return the layout with layers in columns and edges without a route in lanes below."""
    aside = LAYER_GAP / 3
    columns: dict[Vertex, tuple[float, float]] = {}
    left = right = 0.0 if len(routes) == len(edges) else aside
    for layer in layers:
        right = left + max(boxes[v].width for v in layer if isinstance(v, str))
        columns.update((vertex, (round(left, 1), round(right, 1))) for vertex in layer)
        left = right + LAYER_GAP
    tops = (middles[name] - box.height / 2 for name, box in boxes.items())
    top = min([*middles.values(), *tops], default=0.0)
    middle = {vertex: round(y - top, 1) for vertex, y in middles.items()}
    corners = {
        name: Point(columns[name][0], middle[name] - box.height / 2) for name, box in boxes.items()
    }
    bottom = max([0.0, *middle.values(), *(corners[n].y + b.height for n, b in boxes.items())])
    lanes: dict[Pair, float] = {}
    for edge in edges:
        if edge not in routes:
            bottom += _LANE_GAP
            lanes[edge] = bottom
    ports = _ports(boxes, middle, {e: lanes.get(e) or middle[routes[e][-2]] for e in edges})
    paths: dict[Pair, EdgePath] = {}
    for source, target in edges:
        start = Point(corners[source].x + boxes[source].width, middle[source])
        end = Point(corners[target].x, ports[source, target])
        if (source, target) in routes:
            passed = routes[source, target][1:-1]
            via = [Point(x, middle[vertex]) for vertex in passed for x in columns[vertex]]
            via = [Point(columns[source][1], start.y), *via]
        else:
            out, back, lane = columns[source][1] + aside, end.x - aside, lanes[source, target]
            via = [Point(out, start.y), Point(out, lane), Point(back, lane), Point(back, end.y)]
        runs_back = (source, target) in lanes
        paths[source, target] = EdgePath(points=(start, *via, end), runs_back=runs_back)
    width = right + (aside if lanes else 0.0)
    return Layout(width=width, height=bottom, corners=corners, paths=paths)


def _ports(
    boxes: Mapping[str, Box], middle: Mapping[Vertex, float], arrival: Mapping[Pair, float]
) -> dict[Pair, float]:
    """Return the height at which each edge enters its target, in the order of arrival."""
    entering: dict[str, list[Pair]] = {name: [] for name in boxes}
    for edge in sorted(arrival, key=arrival.__getitem__):
        entering[edge[1]].append(edge)
    ports: dict[Pair, float] = {}
    for name, arriving in entering.items():
        step = min(_PORT_GAP, boxes[name].height / (len(arriving) + 1))
        for place, edge in enumerate(arriving):
            ports[edge] = round(middle[name] + step * (place - (len(arriving) - 1) / 2), 1)
    return ports
