"""Layered layout of a directed graph, after Sugiyama: layers, order within layers, heights.

Boxes are assigned to layers from left to right by the longest path. Where an edge passes a layer
without a box, a waypoint reserves room for it; all edges of a box share its waypoints. The order
within layers follows the barycentre heuristic, heights follow isotonic regression. The same
arguments give the same layout.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

from spark_ssp.planner.graph.traversal import find_cycle, topological_order, traverse

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
