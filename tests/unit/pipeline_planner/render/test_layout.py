"""The layout of pictures: small cases, and what holds for any graph."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_planner.render.layout import Box, Edge, Layout, Point, Spacing, Way, arrange
from pipeline_planner.render.layout_order import Line, Vertex, backward, layers_of, ordered, parts
from pipeline_planner.render.layout_place import placed


def _boxes(names: str, width: float = 40, height: float = 20) -> list[Box]:
    return [Box(name=name, width=width, height=height) for name in names]


def _edges(*pairs: str) -> list[Edge]:
    return [Edge(source=pair[0], target=pair[1]) for pair in pairs]


def _middle(layout: Layout, name: str, height: float = 20) -> float:
    return layout.corners[name].y + height / 2


# --- Layers and order ----------------------------------------------------------------------------


def test_parts_are_what_hangs_together() -> None:
    assert parts("abcde", [("d", "b"), ("b", "a")]) == [
        frozenset("abd"),
        frozenset("c"),
        frozenset("e"),
    ]


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        (["ab", "bc", "ac"], set()),
        (["ab", "bc", "cb"], {2}),
        (["ba", "ab", "ca"], {0}),
        (["aa"], {0}),
    ],
)
def test_lines_that_lead_back_are_found(pairs: list[str], found: set[int]) -> None:
    assert backward("abc", [(pair[0], pair[1]) for pair in pairs]) == found


def test_a_box_stands_right_of_all_that_leads_to_it() -> None:
    depth = layers_of("abcd", [("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")])
    assert depth == {"a": 0, "b": 1, "c": 2, "d": 1}


def test_what_shall_be_first_is_not_moved_to_what_it_leads_to() -> None:
    assert layers_of("abcd", [("a", "b"), ("b", "c"), ("d", "c")], {"d"})["d"] == 0


def test_lines_that_need_not_cross_do_not() -> None:
    lines = [Line(source="a", target="y"), Line(source="b", target="x")]
    assert ordered([["a", "b"], ["x", "y"]], lines) == [["a", "b"], ["y", "x"]]


def test_where_a_line_enters_decides_between_two_that_lead_to_one_box() -> None:
    lines = [
        Line(source="a", target="x", enters=5),
        Line(source="b", target="x", enters=-5),
    ]
    assert ordered([["a", "b"], ["x"]], lines)[0] == ["b", "a"]


# --- Places --------------------------------------------------------------------------------------


def test_a_chain_is_straight() -> None:
    found = arrange(_boxes("abc"), _edges("ab", "bc"))
    assert {_middle(found, name) for name in "abc"} == {10.0}
    assert [found.corners[name].x for name in "abc"] == [0.0, 96.0, 192.0]
    assert found.ways[0].points == (Point(40.0, 10.0), Point(40.0, 10.0), Point(96.0, 10.0))


def test_boxes_are_level_with_what_they_are_joined_to() -> None:
    found = arrange(_boxes("abcd"), _edges("ab", "ac", "bd", "cd"))
    assert _middle(found, "a") == _middle(found, "d")
    assert found.corners["c"].y - found.corners["b"].y == 20 + Spacing().boxes


def test_a_line_ends_where_it_shall_enter() -> None:
    edge = Edge(source="a", target="b", leaves=-4, enters=6)
    (way,) = arrange(_boxes("ab"), [edge]).ways
    assert way.points[0].y == way.points[-1].y
    found = arrange(_boxes("ab"), [edge])
    assert way.points[-1].y == _middle(found, "b") + 6
    assert way.points[0].y == _middle(found, "a") - 4


def test_wishes_that_meet_are_shared() -> None:
    lines = [Line(source="a", target="x"), Line(source="a", target="y")]
    heights: dict[Vertex, float] = dict.fromkeys("axy", 10.0)
    found = placed([["a"], ["x", "y"]], lines, heights, 6)
    assert found["y"] - found["x"] == 16
    assert found["a"] == pytest.approx((found["x"] + found["y"]) / 2)


def test_a_long_line_passes_between_boxes_and_is_straight() -> None:
    found = arrange(_boxes("abcd"), _edges("ab", "bc", "cd", "ad"))
    levels = [point.y for point in found.ways[3].points[2:-1]]
    assert len(set(levels)) == 1
    _holds(found, _boxes("abcd"))


def test_long_lines_from_one_point_go_together() -> None:
    found = arrange(_boxes("abcde"), _edges("ab", "bc", "cd", "ce", "ad", "ae"))
    one, other = found.ways[4].points, found.ways[5].points
    assert one[:-1] == other[:-1]
    assert one[-1] != other[-1]


def test_a_line_that_leads_back_runs_below() -> None:
    boxes = _boxes("abc")
    found = arrange(boxes, _edges("ab", "bc", "cb"))
    way = found.ways[2]
    assert way.back
    assert max(point.y for point in way.points) > 20
    assert (way.points[0].x, way.points[-1].x) == (found.corners["c"].x + 40, found.corners["b"].x)
    _holds(found, boxes)


def test_parts_stand_below_each_other() -> None:
    found = arrange(_boxes("abcd"), _edges("ac", "bd"), Spacing(parts=30))
    assert found.corners == {
        "a": Point(0, 0),
        "c": Point(96, 0),
        "b": Point(0, 50),
        "d": Point(96, 50),
    }
    assert (found.width, found.height) == (136, 70)


def test_nothing_needs_no_room() -> None:
    found = arrange([], [])
    assert (found.width, found.height, found.corners, found.ways) == (0, 0, {}, ())


# --- Any graph -----------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Box], list[Edge]]:
    count = draw(st.integers(1, 12))
    sizes = st.sampled_from([12.0, 30.0, 80.0])
    boxes = [Box(name=f"b{n}", width=draw(sizes), height=draw(sizes)) for n in range(count)]
    ends = st.sampled_from(boxes)
    sides = st.sampled_from([-0.4, 0.0, 0.4])
    edges = []
    for _ in range(draw(st.integers(0, 18))):
        one, other = draw(ends), draw(ends)
        edges.append(
            Edge(
                source=one.name,
                target=other.name,
                leaves=draw(sides) * one.height,
                enters=draw(sides) * other.height,
            )
        )
    return boxes, edges


@given(graphs())
def test_any_graph_is_laid_out_well(graph: tuple[list[Box], list[Edge]]) -> None:
    boxes, edges = graph
    found = arrange(boxes, edges)
    _holds(found, boxes)
    assert arrange(boxes, edges) == found
    assert len(found.ways) == len(edges)
    for edge, way in zip(edges, found.ways, strict=True):
        source = next(box for box in boxes if box.name == edge.source)
        target = next(box for box in boxes if box.name == edge.target)
        start, end = found.corners[edge.source], found.corners[edge.target]
        assert way.points[0].x == pytest.approx(start.x + source.width, abs=0.2)
        assert way.points[0].y == pytest.approx(start.y + source.height / 2 + edge.leaves, abs=0.2)
        assert way.points[-1].x == pytest.approx(end.x, abs=0.2)
        assert way.points[-1].y == pytest.approx(end.y + target.height / 2 + edge.enters, abs=0.2)


def _holds(layout: Layout, boxes: list[Box]) -> None:
    """No two boxes overlap, no line passes through one, and nothing sticks out."""
    rims = {box.name: (layout.corners[box.name], box) for box in boxes}
    for (p, one), (q, other) in combinations(rims.values(), 2):
        apart = (
            p.x + one.width <= q.x + 0.2
            or q.x + other.width <= p.x + 0.2
            or p.y + one.height <= q.y + 0.2
            or q.y + other.height <= p.y + 0.2
        )
        assert apart, (one, other)
    for way in layout.ways:
        for x, y in _along(way):
            assert -0.2 <= x <= layout.width + 0.2
            assert -0.2 <= y <= layout.height + 0.2
            for corner, box in rims.values():
                inside = (
                    corner.x + 0.3 < x < corner.x + box.width - 0.3
                    and corner.y + 0.3 < y < corner.y + box.height - 0.3
                )
                assert not inside, (way, box)
    for corner, box in rims.values():
        assert -0.2 <= corner.x <= layout.width - box.width + 0.2
        assert -0.2 <= corner.y <= layout.height - box.height + 0.2


def _along(way: Way) -> Iterator[tuple[float, float]]:
    """Points on a way, as it is drawn: level and curved pieces in turn, or straight ones."""
    for number, (one, other) in enumerate(pairwise(way.points)):
        for step in range(11):
            t = step / 10
            # The curve's own course: both ends level, half-way in the middle.
            s = t if way.back or number % 2 == 0 else 3 * t * t - 2 * t**3
            x = t if way.back or number % 2 == 0 else 1.5 * t * (1 - t) + t**3
            yield one.x + (other.x - one.x) * x, one.y + (other.y - one.y) * s
