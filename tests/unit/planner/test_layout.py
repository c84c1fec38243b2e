"""The layout of figures: small cases, and properties of any graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from spark_ssp.planner import PartitionCountConflictError
from spark_ssp.planner.figure import figure
from spark_ssp.planner.page import (
    BOX_GAP,
    LAYER_GAP,
    Box,
    EdgePath,
    Layout,
    Pair,
    Point,
    arrange,
    box_of,
)
from tests.support.pipelines.examples import planned
from tests.support.pipelines.random_pipelines import Drawn, pipelines


def _arranged(names: str, *edges: str) -> Layout:
    return arrange(dict.fromkeys(names, Box(40, 20)), [(edge[0], edge[1]) for edge in edges])


def test_a_chain_is_straight() -> None:
    found = _arranged("abc", "ab", "bc")
    step = 40 + LAYER_GAP
    assert found.corners == {"a": Point(0, 0), "b": Point(step, 0), "c": Point(2 * step, 0)}
    assert {point.y for path in found.paths.values() for point in path.points} == {10}
    assert (found.width, found.height) == (2 * step + 40, 20)


def test_a_box_without_sources_is_next_to_its_target() -> None:
    found = _arranged("abcd", "ab", "bc", "dc")
    assert found.corners["d"].x == found.corners["b"].x


def test_a_box_is_level_with_the_middle_of_its_neighbours() -> None:
    corners = _arranged("abcd", "ab", "ac", "bd", "cd").corners
    assert corners["c"].y - corners["b"].y == 20 + BOX_GAP
    assert corners["a"].y == corners["d"].y == (corners["b"].y + corners["c"].y) / 2


def test_edges_that_need_not_cross_do_not() -> None:
    corners = _arranged("abxy", "ay", "bx").corners
    assert (corners["a"].y < corners["b"].y) == (corners["y"].y < corners["x"].y)


def test_edges_enter_a_box_in_the_order_of_their_sources() -> None:
    found = _arranged("abc", "ac", "bc")
    one, other = found.paths["a", "c"].points, found.paths["b", "c"].points
    assert one[0].y < other[0].y
    assert one[-1].y < other[-1].y


def test_long_edges_of_one_box_share_their_course() -> None:
    found = _arranged("abcde", "ab", "bc", "cd", "ce", "ad", "ae")
    one, other = found.paths["a", "d"].points, found.paths["a", "e"].points
    assert one[:-1] == other[:-1]
    assert one[-1] != other[-1]


def test_an_edge_that_closes_a_cycle_runs_back_below() -> None:
    found = _arranged("abc", "ab", "bc", "cb")
    assert [pair for pair, path in found.paths.items() if path.runs_back] == [("c", "b")]
    assert max(point.y for point in found.paths["c", "b"].points) > 20


def test_an_empty_graph_has_no_size() -> None:
    assert arrange({}, []) == Layout(width=0, height=0, corners={}, paths={})


# --- Any graph -----------------------------------------------------------------------------------

SIZES = st.sampled_from([12.0, 30.0, 80.0])
NAMES = st.sampled_from("abcdefghijkl")


@given(
    st.dictionaries(NAMES, st.builds(Box, SIZES, SIZES), min_size=1),
    st.lists(st.tuples(NAMES, NAMES), max_size=18, unique=True),
)
def test_any_graph_is_readable(boxes: dict[str, Box], pairs: list[Pair]) -> None:
    edges = [edge for edge in pairs if {*edge} <= boxes.keys()]
    found = arrange(boxes, edges)
    assert arrange(boxes, edges) == found
    _assert_readable(found, boxes, edges)


@settings(max_examples=30)
@given(pipelines())
def test_the_figure_of_any_pipeline_is_readable(drawn: Drawn) -> None:
    try:
        made = planned(drawn.pipeline, drawn.counts, default=2)
    except PartitionCountConflictError:
        reject()
    shown = figure(made.graph, made.plan)
    boxes = {key: box_of(node) for key, node in shown.nodes.items()}
    edges = [(edge.source, edge.target) for edge in shown.edges]
    _assert_readable(arrange(boxes, edges), boxes, edges)


def _assert_readable(layout: Layout, boxes: Mapping[str, Box], edges: Sequence[Pair]) -> None:
    """No two boxes overlap, edges join the sides of their boxes and pass through no other, and all
    of it is within the layout's size."""
    assert layout.paths.keys() == {*edges}
    corners = layout.corners
    for one, other in combinations(boxes, 2):
        assert (
            corners[one].x + boxes[one].width < corners[other].x
            or corners[other].x + boxes[other].width < corners[one].x
            or corners[one].y + boxes[one].height < corners[other].y
            or corners[other].y + boxes[other].height < corners[one].y
        )
    for (source, target), path in layout.paths.items():
        first, last = path.points[0], path.points[-1]
        assert abs(first.x - corners[source].x - boxes[source].width) < 0.1
        assert corners[source].y < first.y < corners[source].y + boxes[source].height
        assert last.x == corners[target].x
        assert corners[target].y < last.y < corners[target].y + boxes[target].height
        for x, y in _along(path):
            assert -0.1 <= x <= layout.width + 0.1
            assert -0.1 <= y <= layout.height + 0.1
            for name, box in boxes.items():
                assert not (
                    corners[name].x + 0.3 < x < corners[name].x + box.width - 0.3
                    and corners[name].y + 0.3 < y < corners[name].y + box.height - 0.3
                ), (source, target, name)
    for name, box in boxes.items():
        assert 0 <= corners[name].x <= layout.width - box.width + 0.1
        assert -0.1 <= corners[name].y <= layout.height - box.height + 0.1


def _along(path: EdgePath) -> Iterator[tuple[float, float]]:
    """Points of a path as it is drawn: level and curved pieces in turn, or straight ones."""
    for number, (one, other) in enumerate(pairwise(path.points)):
        straight = path.runs_back or number % 2 == 0
        for step in range(11):
            t = step / 10
            x = t if straight else 1.5 * t * (1 - t) + t**3
            y = t if straight else 3 * t * t - 2 * t**3
            yield one.x + (other.x - one.x) * x, one.y + (other.y - one.y) * y
