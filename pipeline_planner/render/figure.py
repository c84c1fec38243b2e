"""Where everything stands in the picture of a pipeline. Pure: graph and plan to coordinates.

Two layouts within each other: the operators within each section, then sections, streams and tables.
A line that enters or leaves a section does so at the height where it goes on inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pipeline_planner.graph.names import OperatorName, StreamId
from pipeline_planner.graph.operators import Graph, Operator
from pipeline_planner.planning.plan import Plan, StreamPlan, TablePlan
from pipeline_planner.render.figure_parts import Chain, Flow, Section, sections
from pipeline_planner.render.figure_texts import (
    name_width,
    prose_width,
    row_texts,
    section_texts,
    stream_texts,
    table_texts,
)
from pipeline_planner.render.layout import Box, Edge, Layout, Point, Spacing, Way, arrange

NAME: Final = 12.5
CAPTION: Final = 11.0
"""Heights of letters."""

ROW: Final = 42.0
GAP: Final = 3.0
"""Above and below a row."""
HEADER: Final = 44.0
PADDING: Final = 12.0
STREAM_HEIGHT: Final = 84.0
TABLE_HEIGHT: Final = 74.0
BADGE: Final = 22.0
"""Room for the letter of the set in which a stream must agree."""

_INNER: Final = Spacing(layers=26, boxes=14, parts=14)
_OUTER: Final = Spacing(layers=54, boxes=26, parts=34)

Subject = StreamPlan | TablePlan | Section | Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A box and what it shows."""

    subject: Subject
    corner: Point
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A line. `looks`: rows are looked up along it. `arrow`: it ends where rows are taken, and not
    at the rim of a section, where it goes on."""

    way: Way
    looks: bool = False
    arrow: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Boxes from the back to the front; all within (0, 0) and (width, height)."""

    width: float
    height: float
    boxes: tuple[Placed, ...]
    lines: tuple[Drawn, ...]


def picture(graph: Graph, plan: Plan) -> Picture:
    """The picture of a plan."""
    # Once to see from where lines come, and again so that they need not cross before a section.
    levels: Mapping[str, float] = {}
    for _ in range(2):
        outer = _Outer(plan)
        for section in sections(graph, plan):
            outer.add(_inside(section, levels))
        outer.add_the_rest()
        found = outer.layout()
        levels = {door: corner.y for door, corner in found.corners.items()}
    return outer.picture(found)


# --- Inside a section ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inside:
    """A section laid out by itself. `doors`: the height of each way in and of the way out (None),
    from its upper rim."""

    section: Section
    width: float
    height: float
    rows: tuple[Placed, ...]
    lines: tuple[Drawn, ...]
    doors: Mapping[str | None, float]


def _inside(section: Section, levels: Mapping[str, float]) -> _Inside:
    """`levels`: how far down what a section reads stands, as far as that is known."""
    doors = sorted(map(_door, _sources(section)), key=lambda door: levels.get(door, 0.0))
    boxes = [
        *(Box(name=door, width=0, height=10, first=True) for door in doors),
        *(_chain_box(chain) for chain in section.chains),
        Box(name=_OUT, width=0, height=10),
    ]
    head = {row.name: chain for chain in section.chains for row in chain.rows}
    # Within a chain rows follow each other without a line.
    flows = [flow for flow in section.flows if not _within(flow, head)]
    inner = arrange(boxes, [_edge(flow, head, flows, doors) for flow in flows], _INNER)
    title, subtitle = section_texts(section)
    text = max(name_width(title, NAME), prose_width(subtitle, CAPTION)) + 2 * PADDING
    width, height = max(inner.width, text), HEADER + inner.height + PADDING
    low = [_shifted(way, 0, HEADER) for way in inner.ways]
    return _Inside(
        section=section,
        width=width,
        height=height,
        rows=tuple(row for chain in section.chains for row in _rows(chain, inner)),
        lines=(
            *(_inner_line(f, w, width) for f, w in zip(flows, low, strict=True)),
            *(link for chain in section.chains for link in _links(chain, inner)),
        ),
        doors={
            **{door: inner.corners[door].y + 5 + HEADER for door in doors},
            None: inner.corners[_OUT].y + 5 + HEADER,
        },
    )


_OUT: Final = "out"


def _sources(section: Section) -> list[StreamId | str]:
    return [*section.reads, *section.looks_into]


def _door(source: StreamId | str) -> str:
    return f"stream {source}" if isinstance(source, StreamId) else f"table {source}"


def _chain_box(chain: Chain) -> Box:
    texts = [row_texts(row) for row in chain.rows]
    widest = max(
        max(prose_width(caption, CAPTION), name_width(name, NAME)) for caption, name in texts
    )
    return Box(name=f"chain {chain.name}", width=widest + 24, height=ROW * len(chain.rows))


def _within(flow: Flow, head: Mapping[OperatorName, Chain]) -> bool:
    if flow.looks or flow.target is None or isinstance(flow.source, StreamId):
        return False
    return head[OperatorName(flow.source)] is head[flow.target]


def _edge(
    flow: Flow,
    head: Mapping[OperatorName, Chain],
    flows: Sequence[Flow],
    doors: Sequence[str],
) -> Edge:
    source, leaves = _start(flow, head)
    if flow.target is None:
        return Edge(source=source, target=_OUT, leaves=leaves)
    chain = head[flow.target]
    beside = [other for other in flows if other.target == flow.target]
    enters = _middle(chain, flow.target) + _aside(flow, beside, doors)
    return Edge(source=source, target=f"chain {chain.name}", leaves=leaves, enters=enters)


def _start(flow: Flow, head: Mapping[OperatorName, Chain]) -> tuple[str, float]:
    if flow.looks or isinstance(flow.source, StreamId):
        return _door(flow.source), 0.0
    chain = head[OperatorName(flow.source)]
    return f"chain {chain.name}", _middle(chain, flow.source)


def _middle(chain: Chain, row: str) -> float:
    """Of a row, measured from the middle of its chain."""
    place = [operator.name for operator in chain.rows].index(OperatorName(row))
    return ROW * (place + 0.5 - len(chain.rows) / 2)


def _aside(flow: Flow, beside: Sequence[Flow], doors: Sequence[str]) -> float:
    """Lines into one row enter side by side: those from without as they come, else left before
    right and a table last."""
    if all(other.looks or isinstance(other.source, StreamId) for other in beside):
        ranked = sorted(beside, key=lambda other: (doors.index(_door(other.source)), other.side))
    else:
        ranked = sorted(beside, key=lambda other: (other.looks, other.side))
    step = min(14.0, (ROW - 16) / len(ranked))
    return step * (ranked.index(flow) - (len(ranked) - 1) / 2)


def _rows(chain: Chain, inner: Layout) -> list[Placed]:
    corner = inner.corners[f"chain {chain.name}"]
    width = _chain_box(chain).width
    return [
        Placed(
            subject=row,
            corner=Point(corner.x, corner.y + HEADER + ROW * place),
            width=width,
            height=ROW,
        )
        for place, row in enumerate(chain.rows)
    ]


def _links(chain: Chain, inner: Layout) -> list[Drawn]:
    """Between the rows of a chain."""
    corner = inner.corners[f"chain {chain.name}"]
    x, top = corner.x + 18, corner.y + HEADER
    rims = [top + ROW * place for place in range(1, len(chain.rows))]
    return [
        Drawn(way=Way(points=(Point(x, y - GAP), Point(x, y + GAP))), arrow=False) for y in rims
    ]


def _inner_line(flow: Flow, way: Way, right: float) -> Drawn:
    if flow.target is None:
        # The box may be wider than what is in it.
        way = replace(way, points=(*way.points, Point(right, way.points[-1].y)))
    return Drawn(way=way, looks=flow.looks, arrow=flow.target is not None)


def _shifted(way: Way, right: float, down: float) -> Way:
    return replace(way, points=tuple(Point(p.x + right, p.y + down) for p in way.points))


# --- Around sections -----------------------------------------------------------------------------


class _Outer:
    """Streams, tables and sections, in the order in which they are met."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._streams = {_door(s.stream): s for s in plan.streams}
        self._tables = {_door(t.name): t for t in plan.tables}
        self._stream_width = max(_stream_width(s) for s in plan.streams)
        self._insides: dict[str, _Inside] = {}
        self._boxes: dict[str, Box] = {}
        self._edges: list[tuple[Edge, Drawn]] = []

    def add(self, inside: _Inside) -> None:
        """A section with what it reads and where its rows go."""
        section, name = inside.section, f"section {inside.section.ender.name}"
        goal = _door(section.goal)
        for source in _sources(section):
            self._meet(_door(source))
        if not section.is_stage and not section.chains:
            # Nothing to show between the stream and the table that it fills.
            self._meet(goal)
            self._edge(Edge(source=_door(section.reads[0]), target=goal))
            return
        self._insides[name] = inside
        self._boxes[name] = Box(name=name, width=inside.width, height=inside.height)
        self._meet(goal)
        middle = inside.height / 2
        for source in section.reads:
            door = _door(source)
            edge = Edge(source=door, target=name, enters=inside.doors[door] - middle)
            self._edge(edge, arrow=False)
        for table in section.looks_into:
            door = _door(table)
            edge = Edge(source=door, target=name, enters=inside.doors[door] - middle)
            self._edge(edge, arrow=False, looks=True)
        self._edge(Edge(source=name, target=goal, leaves=inside.doors[None] - middle))

    def add_the_rest(self) -> None:
        """What no section touches: a table that nobody fills or reads."""
        for door in [*self._streams, *self._tables]:
            self._meet(door)

    def layout(self) -> Layout:
        """Where everything stands."""
        return arrange(list(self._boxes.values()), [edge for edge, _ in self._edges], _OUTER)

    def picture(self, found: Layout) -> Picture:
        """All of it, in its place."""
        behind: list[Placed] = []
        front: list[Placed] = []
        lines = [
            replace(drawn, way=way) for (_, drawn), way in zip(self._edges, found.ways, strict=True)
        ]
        for name, box in self._boxes.items():
            corner = found.corners[name]
            inside = self._insides.get(name)
            target = front if inside is None else behind
            target.append(
                Placed(
                    subject=self._subject(name), corner=corner, width=box.width, height=box.height
                )
            )
            if inside is not None:
                front += [replace(row, corner=_plus(corner, row.corner)) for row in inside.rows]
                lines += [
                    replace(line, way=_shifted(line.way, corner.x, corner.y))
                    for line in inside.lines
                ]
        return Picture(
            width=found.width,
            height=found.height,
            boxes=(*behind, *front),
            lines=tuple(lines),
        )

    def _subject(self, name: str) -> Subject:
        if name in self._insides:
            return self._insides[name].section
        return self._streams[name] if name in self._streams else self._tables[name]

    def _meet(self, door: str) -> None:
        if door in self._boxes:
            return
        if door in self._streams:
            box = Box(name=door, width=self._stream_width, height=STREAM_HEIGHT)
        else:
            box = Box(name=door, width=_table_width(self._tables[door]), height=TABLE_HEIGHT)
        self._boxes[door] = box

    def _edge(self, edge: Edge, *, arrow: bool = True, looks: bool = False) -> None:
        self._edges.append((edge, Drawn(way=Way(points=()), arrow=arrow, looks=looks)))


def _plus(one: Point, other: Point) -> Point:
    return Point(one.x + other.x, one.y + other.y)


def _stream_width(stream: StreamPlan) -> float:
    texts = stream_texts(stream)
    widths: Sequence[float] = (
        prose_width(texts.caption, CAPTION) + BADGE,
        name_width(texts.name, NAME),
        prose_width(texts.count, NAME),
        prose_width(texts.reason, CAPTION),
    )
    return max(widths) + 30


def _table_width(table: TablePlan) -> float:
    caption, name, key = table_texts(table)
    widths = (prose_width(caption, CAPTION), name_width(name, NAME), prose_width(key, CAPTION))
    return max(widths) + 30
