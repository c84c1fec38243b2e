"""Where the boxes of a picture stand and how the lines between them run. Pure.

Layers from left to right, as in Sugiyama's method: a box stands right of all that leads to it
(`layout_order`), boxes of a layer are ordered so that lines cross little, and are moved up and down
so that lines are straight (`layout_place`). What hangs together is laid out by itself; such parts
stand below each other. Lines that would close a cycle run back below everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pipeline_planner.render.layout_order import Line, Vertex, backward, layers_of, ordered, parts
from pipeline_planner.render.layout_place import placed

LANE: Final = 16.0
"""Between two lines that run back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Something to be placed, by a name of its own. `first`: in the first layer, come what may; so
    nothing leads to it."""

    name: str
    width: float
    height: float
    first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A line from the right side of a box to the left side of another. `leaves` and `enters` say at
    which height, measured downwards from the middle of the box."""

    source: str
    target: str
    leaves: float = 0.0
    enters: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spacing:
    """The least distances: between layers, between boxes of a layer, between parts."""

    layers: float = 56.0
    boxes: float = 22.0
    parts: float = 40.0


@dataclass(frozen=True, slots=True)
class Point:
    """To the right and down."""

    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A line: through these points, level within a layer and curved between two. `back`: it runs
    round the boxes instead, straight from point to point."""

    points: tuple[Point, ...]
    back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything lies between (0, 0) and (width, height)."""

    width: float
    height: float
    corners: Mapping[str, Point]
    """The upper left corner of each box."""
    ways: tuple[Way, ...]
    """One for each edge, in their order."""


def arrange(boxes: Sequence[Box], edges: Sequence[Edge], spacing: Spacing | None = None) -> Layout:
    """A layout of `boxes`, whose names differ. The same arguments give the same layout."""
    space = spacing or Spacing()
    corners: dict[str, Point] = {}
    ways: dict[int, Way] = {}
    width = top = 0.0
    for part in parts([b.name for b in boxes], [(e.source, e.target) for e in edges]):
        members = [box for box in boxes if box.name in part]
        inside = [n for n, edge in enumerate(edges) if edge.source in part]
        found = _arrange_part(members, [edges[n] for n in inside], space)
        corners.update((name, Point(p.x, p.y + top)) for name, p in found.corners.items())
        ways.update((n, _lowered(way, top)) for n, way in zip(inside, found.ways, strict=True))
        width = max(width, found.width)
        top += found.height + space.parts
    return Layout(
        width=width,
        height=max(0.0, top - space.parts),
        corners=corners,
        ways=tuple(ways[n] for n in range(len(edges))),
    )


def _lowered(way: Way, by: float) -> Way:
    return replace(way, points=tuple(Point(p.x, p.y + by) for p in way.points))


# --- One part ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """What is settled of a part when its lines are drawn."""

    sizes: Mapping[str, Box]
    depth: Mapping[str, int]
    middles: Mapping[Vertex, float]
    columns: Sequence[tuple[float, float]]
    """Left and right of each layer."""

    def corner(self, name: str) -> Point:
        """The upper left corner of a box."""
        return Point(
            self.columns[self.depth[name]][0], self.middles[name] - self.sizes[name].height / 2
        )

    def start(self, edge: Edge) -> tuple[Point, Point]:
        """Where an edge leaves its box, and its layer."""
        y = self.middles[edge.source] + edge.leaves
        left, right = self.columns[self.depth[edge.source]]
        return Point(left + self.sizes[edge.source].width, y), Point(right, y)

    def end(self, edge: Edge) -> Point:
        """Where an edge enters its box."""
        y = self.middles[edge.target] + edge.enters
        return Point(self.columns[self.depth[edge.target]][0], y)


def _arrange_part(boxes: Sequence[Box], edges: Sequence[Edge], space: Spacing) -> Layout:
    sizes = {box.name: box for box in boxes}
    back = backward(list(sizes), [(e.source, e.target) for e in edges])
    ahead = {n: edge for n, edge in enumerate(edges) if n not in back}
    first = {box.name for box in boxes if box.first}
    depth = layers_of(list(sizes), [(e.source, e.target) for e in ahead.values()], first)
    layers: list[list[Vertex]] = [[] for _ in range(max(depth.values()) + 1)]
    for name in sizes:
        layers[depth[name]].append(name)
    passing = _passing(ahead, depth)
    for n, edge in ahead.items():
        for layer, vertex in enumerate(passing[n], start=depth[edge.source] + 1):
            if vertex not in layers[layer]:
                layers[layer].append(vertex)
    pieces = (line for n, edge in ahead.items() for line in _lines(edge, passing[n]))
    lines = list(dict.fromkeys(pieces))
    layers = ordered(layers, lines)
    heights: dict[Vertex, float] = {vertex: 4.0 for some in passing.values() for vertex in some}
    heights.update((name, box.height) for name, box in sizes.items())
    middles = placed(layers, lines, heights, space.boxes)
    columns = _columns(layers, middles, lines, sizes, space)
    frame = _Frame(sizes=sizes, depth=depth, middles=middles, columns=columns)
    corners = {name: frame.corner(name) for name in sizes}
    bottom = max(point.y + sizes[name].height for name, point in corners.items())
    lanes = {n: bottom + LANE * number for number, n in enumerate(sorted(back), start=1)}
    ways = [
        _way_back(frame, edge, lanes[n], space.layers / 3)
        if n in back
        else _way(frame, edge, passing[n])
        for n, edge in enumerate(edges)
    ]
    return _from_zero(corners, ways, sizes)


def _passing(edges: Mapping[int, Edge], depth: Mapping[str, int]) -> dict[int, list[Vertex]]:
    """Where edges pass the layers between their ends. Those that leave a box at one point go
    together as far as they can."""
    bundle: dict[tuple[str, float], int] = {}
    found: dict[int, list[Vertex]] = {}
    for n, edge in edges.items():
        first = bundle.setdefault((edge.source, edge.leaves), n)
        steps = range(1, depth[edge.target] - depth[edge.source])
        found[n] = [(first, step) for step in steps]
    return found


def _lines(edge: Edge, passing: Sequence[Vertex]) -> Iterator[Line]:
    for step, (one, other) in enumerate(pairwise([edge.source, *passing, edge.target])):
        yield Line(
            source=one,
            target=other,
            leaves=edge.leaves if step == 0 else 0.0,
            enters=edge.enters if step == len(passing) else 0.0,
        )


def _columns(
    layers: Sequence[Sequence[Vertex]],
    middles: Mapping[Vertex, float],
    lines: Iterable[Line],
    sizes: Mapping[str, Box],
    space: Spacing,
) -> list[tuple[float, float]]:
    """Where lines are steep there is more room before the next layer."""
    depth = {vertex: n for n, layer in enumerate(layers) for vertex in layer}
    steepest = [0.0] * len(layers)
    for line in lines:
        rise = abs(middles[line.source] + line.leaves - middles[line.target] - line.enters)
        steepest[depth[line.source]] = max(steepest[depth[line.source]], rise)
    columns, left = [], 0.0
    for layer, rise in zip(layers, steepest, strict=True):
        right = left + max((sizes[v].width for v in layer if isinstance(v, str)), default=0.0)
        columns.append((left, right))
        left = right + space.layers + min(0.12 * rise, space.layers)
    return columns


def _way(frame: _Frame, edge: Edge, passing: Sequence[Vertex]) -> Way:
    points = list(frame.start(edge))
    for layer, vertex in enumerate(passing, start=frame.depth[edge.source] + 1):
        points += [Point(x, frame.middles[vertex]) for x in frame.columns[layer]]
    return Way(points=(*points, frame.end(edge)))


def _way_back(frame: _Frame, edge: Edge, lane: float, aside: float) -> Way:
    start, rim = frame.start(edge)
    end = frame.end(edge)
    right, left = rim.x + aside, end.x - aside
    corners = (Point(right, rim.y), Point(right, lane), Point(left, lane), Point(left, end.y))
    return Way(points=(start, *corners, end), back=True)


def _from_zero(
    corners: Mapping[str, Point], ways: Sequence[Way], sizes: Mapping[str, Box]
) -> Layout:
    """Moved so that the least coordinates are 0."""
    points = [point for way in ways for point in way.points]
    left = min(p.x for p in [*corners.values(), *points])
    top = min(p.y for p in [*corners.values(), *points])
    right = max([*(p.x + sizes[n].width for n, p in corners.items()), *(p.x for p in points)])
    bottom = max([*(p.y + sizes[n].height for n, p in corners.items()), *(p.y for p in points)])

    def moved(point: Point) -> Point:
        return Point(round(point.x - left, 1), round(point.y - top, 1))

    return Layout(
        width=right - left,
        height=bottom - top,
        corners={name: moved(point) for name, point in corners.items()},
        ways=tuple(replace(way, points=tuple(map(moved, way.points))) for way in ways),
    )
