"""The picture of a pipeline as SVG, drawn of what `picture` placed. Pure; the same plan gives the
same text. It needs no script, no font and nothing from the net.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from itertools import pairwise
from string import ascii_uppercase
from typing import Final

from pipeline_planner.graph.errors import Place
from pipeline_planner.graph.names import StreamId, SystemName
from pipeline_planner.graph.operators import Graph, Input, Output, PartitionBy, described
from pipeline_planner.planning.plan import Plan, Role, StreamPlan, TablePlan
from pipeline_planner.render.explain import count_told
from pipeline_planner.render.figure import GAP, Drawn, Picture, Placed, picture
from pipeline_planner.render.figure_parts import Section
from pipeline_planner.render.figure_texts import (
    one_line,
    row_texts,
    section_texts,
    stream_texts,
    table_texts,
)
from pipeline_planner.render.layout import Point, Way

MARGIN: Final = 16.0
SMALLEST: Final = 0.9
"""How much of its own size a wide picture has at least; a narrow window scrolls then."""
HUES: Final = 6
"""How many colours there are for systems, and as many for sets: `page` has them."""


def draw(graph: Graph, plan: Plan) -> str:
    """An `svg` element, to stand in a page that has the colours (see `page.STYLE`)."""
    shown = picture(graph, plan)
    pen = _Pen(graph, plan)
    width, height = shown.width + 2 * MARGIN, shown.height + 2 * MARGIN
    # As wide as the window allows, until letters would be too small to read.
    style = f"max-width:{width:.0f}px;min-width:{SMALLEST * width:.0f}px"
    frame = f"{-MARGIN:.0f} {-MARGIN:.0f} {width:.0f} {height:.0f}"
    return "\n".join(
        [
            f'<svg class="picture" xmlns="{_SPACE}" role="img" style="{style}" viewBox="{frame}">',
            f"<title>Pipeline {_escaped(plan.pipeline)}</title>",
            _MARKERS,
            *_layers(shown, pen),
            "</svg>",
        ]
    )


_SPACE: Final = "http://www.w3.org/2000/svg"

_MARKERS: Final = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path class="tip" d="M0,0.5 L8,4 L0,7.5 z"/></marker></defs>'
)


def _layers(shown: Picture, pen: _Pen) -> Iterator[str]:
    """Sections, then lines, then what stands on them."""
    behind = [box for box in shown.boxes if isinstance(box.subject, Section)]
    front = [box for box in shown.boxes if not isinstance(box.subject, Section)]
    yield from map(pen.box, behind)
    yield from map(_line, shown.lines)
    yield from map(pen.box, front)


def set_letters(plan: Plan) -> dict[StreamId, str]:
    """The letter of the set in which a stream must agree; a stream joined with itself alone has
    none."""
    groups = [group for group in plan.sets if len(group.streams) > 1]
    return {
        stream: ascii_uppercase[number % 26] + (str(number // 26) if number >= 26 else "")
        for number, group in enumerate(groups)
        for stream in group.streams
    }


def system_hues(plan: Plan) -> dict[SystemName, int]:
    """Which colour each system has."""
    systems = sorted({stream.stream.system for stream in plan.streams})
    return {system: number % HUES for number, system in enumerate(systems)}


def hue_of(letter: str) -> int:
    """Which colour a set has."""
    return (ascii_uppercase.index(letter[0]) + 26 * int(letter[1:] or 0)) % HUES


# --- Lines ---------------------------------------------------------------------------------------


def _line(line: Drawn) -> str:
    kind = "looks" if line.looks else "flows"
    tip = ' marker-end="url(#arrow)"' if line.arrow else ""
    return f'<path class="line {kind}" d="{path_of(line.way)}"{tip}/>'


def path_of(way: Way) -> str:
    """A way as the data of a path."""
    if way.back:
        return _angular(way.points)
    pieces = [f"M{_at(way.points[0])}"]
    for number, (one, other) in enumerate(pairwise(way.points)):
        if number % 2 == 0 or one.y == other.y:
            pieces.append(f"L{_at(other)}")
        else:
            middle = (one.x + other.x) / 2
            pieces.append(f"C{middle:g},{one.y:g} {middle:g},{other.y:g} {_at(other)}")
    return " ".join(pieces)


_BEND: Final = 8.0


def _angular(points: tuple[Point, ...]) -> str:
    pieces = [f"M{_at(points[0])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        pieces.append(f"L{_at(_towards(corner, before))} Q{_at(corner)} ")
        pieces.append(_at(_towards(corner, after)))
    return " ".join([*pieces, f"L{_at(points[-1])}"])


def _towards(corner: Point, other: Point) -> Point:
    far = abs(other.x - corner.x) + abs(other.y - corner.y)
    part = min(0.5, _BEND / far) if far else 0.0
    return Point(
        corner.x + (other.x - corner.x) * part,
        corner.y + (other.y - corner.y) * part,
    )


def _at(point: Point) -> str:
    return f"{round(point.x, 1):g},{round(point.y, 1):g}"


# --- Boxes ---------------------------------------------------------------------------------------


class _Pen:
    """Draws boxes, and knows what is to be said about each."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self._letters = set_letters(plan)
        self._hues = system_hues(plan)
        self._places = _stream_places(graph)
        self._table_places = {table.name: table.place for table in graph.tables}

    def box(self, box: Placed) -> str:
        """One box."""
        subject = box.subject
        match subject:
            case StreamPlan():
                return self._stream(box, subject)
            case TablePlan():
                return self._table(box, subject)
            case Section():
                return _section(box, subject)
            case _:
                caption, name = row_texts(subject)
                told = _tip(described(subject), *_details(subject), place=subject.place)
                inner = [
                    told,
                    _rect(0, GAP, box.width, box.height - 2 * GAP, 5, "row"),
                    _text(10, 17, caption, "caption"),
                    _text(10, 33, name, "name"),
                ]
                return _group("operator", box.corner, inner)

    def _stream(self, box: Placed, stream: StreamPlan) -> str:
        texts = stream_texts(stream)
        letter = self._letters.get(stream.stream)
        ring = "" if letter is None else f" ring{hue_of(letter)}"
        absent = " absent" if stream.count.origin.value != "found" else ""
        made = " made" if stream.role is Role.INTERMEDIATE else ""
        low = box.height
        stripe = f"M8,0 H5 Q0,0 0,8 V{low - 8:g} Q0,{low:g} 8,{low:g} z"
        inner = [
            self._stream_tip(stream, letter),
            _rect(0, 0, box.width, box.height, 8, f"stream{ring}{absent}{made}"),
            f'<path class="stripe" d="{stripe}"/>',
            _text(16, 19, texts.caption, "caption"),
            _text(16, 37, texts.name, "name strong"),
            _text(16, 57, texts.count, "count"),
            _text(16, 73, texts.reason, "caption inferred" if texts.inferred else "caption"),
        ]
        if letter is not None:
            x = box.width - 17
            inner.append(f'<circle class="badge badge{hue_of(letter)}" cx="{x:g}" cy="16" r="9"/>')
            inner.append(
                f'<text class="letter" x="{x:g}" y="20" text-anchor="middle">{letter}</text>'
            )
        return _group(f"node system{self._hues[stream.stream.system]}", box.corner, inner)

    def _stream_tip(self, stream: StreamPlan, letter: str | None) -> str:
        count = "unknown" if stream.partitions is None else str(stream.partitions)
        agrees = [] if letter is None else [f"must agree with the other streams of set {letter}"]
        return _tip(
            f"{stream.role} {stream.stream}",
            f"partitions: {count} ({count_told(stream.count)})",
            *agrees,
            place=self._places.get(stream.stream),
        )

    def _table(self, box: Placed, table: TablePlan) -> str:
        caption, name, key = table_texts(table)
        w, h, r = box.width, box.height, 8.0
        body = (
            f"M0,{r:g} A{w / 2:g},{r:g} 0 0 1 {w:g},{r:g} V{h - r:g} "
            f"A{w / 2:g},{r:g} 0 0 1 0,{h - r:g} z"
        )
        inner = [
            _tip(
                f"table {table.name}",
                f"key: {', '.join(table.key)}",
                place=self._table_places[table.name],
            ),
            f'<path class="table" d="{body}"/>',
            f'<path class="table rim" d="M0,{r:g} A{w / 2:g},{r:g} 0 0 0 {w:g},{r:g}"/>',
            _text(14, 32, caption, "caption"),
            _text(14, 48, name, "name strong"),
            _text(14, 63, key, "caption"),
        ]
        return _group("node", box.corner, inner)


def _section(box: Placed, section: Section) -> str:
    title, subtitle = section_texts(section)
    kind = "stage" if section.is_stage else "filling"
    word = "stage" if section.is_stage else "line"
    inner = [
        _tip(f"{word} {section.ender.name}", f"writes {section.goal}", place=section.ender.place),
        _rect(0, 0, box.width, box.height, 10, kind),
        _text(12, 20, title, "name strong"),
        _text(12, 36, subtitle, "caption"),
    ]
    return _group("section", box.corner, inner)


def _details(operator: object) -> list[str]:
    condition = getattr(operator, "condition", None)
    return [f"keeps {condition}"] if isinstance(condition, str) else []


def _stream_places(graph: Graph) -> Mapping[StreamId, Place | None]:
    found: dict[StreamId, Place | None] = {}
    for operator in graph.operators:
        if isinstance(operator, Input | PartitionBy | Output):
            found.setdefault(operator.stream, operator.place)
    return found


# --- Elements ------------------------------------------------------------------------------------


def _group(kind: str, corner: Point, inner: list[str]) -> str:
    return f'<g class="{kind}" transform="translate({_at(corner)})">{"".join(inner)}</g>'


def _tip(*lines: str, place: Place | None) -> str:
    shown = [one_line(line) for line in lines] + ([str(place)] if place else [])
    return f"<title>{_escaped(chr(10).join(shown))}</title>"


def _rect(x: float, y: float, width: float, height: float, round_: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'rx="{round_:g}"/>'
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return escape(text, quote=True)
