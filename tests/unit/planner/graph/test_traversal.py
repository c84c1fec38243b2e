"""Walks over graphs, held to what they promise on small random ones."""

from __future__ import annotations

from itertools import pairwise, permutations

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.planner.graph.operators import (
    find_cycle,
    reached,
    shortest_path,
    topological_order,
    traverse,
    upwards,
)

Graph = dict[int, list[int]]


@st.composite
def graphs(draw: st.DrawFn, largest: int = 6) -> Graph:
    vertices = range(draw(st.integers(1, largest)))
    following = st.lists(st.sampled_from(vertices), max_size=3)
    return {vertex: draw(following) for vertex in vertices}


def _walked(graph: Graph, start: int) -> list[int]:
    visited: list[int] = []
    traverse(start, visited.append, graph.__getitem__)
    return visited


def _recursively(graph: Graph, vertex: int, visited: list[int]) -> list[int]:
    if vertex not in visited:
        visited.append(vertex)
        for following in graph[vertex]:
            _recursively(graph, following, visited)
    return visited


def _recursively_upwards(graph: Graph, vertex: int, seen: set[int]) -> list[int]:
    if vertex in seen:
        return []
    seen.add(vertex)
    before = [found for v in graph[vertex] for found in _recursively_upwards(graph, v, seen)]
    return [*before, vertex]


@given(graphs())
def test_what_lies_before_a_vertex_comes_before_it(graph: Graph) -> None:
    """In the order in which a recursive walk leaves them, also where there are cycles."""
    assert upwards(0, graph.__getitem__) == _recursively_upwards(graph, 0, set())


def _closure(graph: Graph) -> set[tuple[int, int]]:
    """Pairs with a way of one edge or more, by going on until nothing is new."""
    ways = {(a, b) for a in graph for b in graph[a]}
    while new := {(a, d) for a, b in ways for c, d in ways if b == c} - ways:
        ways |= new
    return ways


def test_a_diamond_is_visited_depth_first_and_its_foot_once() -> None:
    assert _walked({0: [1, 2], 1: [3], 2: [3], 3: []}, 0) == [0, 1, 3, 2]


def test_a_cycle_ends() -> None:
    assert _walked({0: [1], 1: [2], 2: [0, 2]}, 1) == [1, 2, 0]


def test_no_chain_is_too_long() -> None:
    length = 100_000
    visited: list[int] = []
    traverse(0, visited.append, lambda v: [v + 1] if v < length else [])
    assert visited == list(range(length + 1))


@given(graphs())
def test_a_walk_visits_what_can_be_reached_in_the_order_of_plain_recursion(graph: Graph) -> None:
    for start in graph:
        assert _walked(graph, start) == _recursively(graph, start, [])
        assert reached([start], graph.__getitem__) == set(_walked(graph, start))


@given(graphs())
def test_reached_from_several_is_the_union(graph: Graph) -> None:
    starts = list(graph)[::2]
    apart = [set(_walked(graph, start)) for start in starts]
    assert reached(starts, graph.__getitem__) == set().union(*apart)


@given(graphs())
def test_a_shortest_path_is_a_path_and_none_is_shorter(graph: Graph) -> None:
    for start in graph:
        for goal in graph:
            path = shortest_path(start, goal, graph.__getitem__)
            short = _steps(graph, start, goal)
            assert (path is None) == (short is None)
            if path is not None:
                assert (path[0], path[-1], len(path) - 1) == (start, goal, short)
                assert all(b in graph[a] for a, b in pairwise(path))


def _steps(graph: Graph, start: int, goal: int) -> int | None:
    layer, seen, steps = {start}, {start}, 0
    while layer:
        if goal in layer:
            return steps
        layer = {b for a in layer for b in graph[a]} - seen
        seen |= layer
        steps += 1
    return None


@given(graphs(5))
def test_an_order_respects_every_edge_and_leaves_out_only_what_hangs_on_a_cycle(
    graph: Graph,
) -> None:
    order, left = topological_order(list(graph), graph.__getitem__)
    ways = _closure(graph)
    on_cycles = {v for v in graph if (v, v) in ways}
    assert set(left) == on_cycles | {b for a, b in ways if a in on_cycles}
    place = {vertex: number for number, vertex in enumerate(order)}
    legal = [
        list(p)
        for p in permutations(place)
        if all(p.index(a) < p.index(b) for a in place for b in graph[a] if b in place)
    ]
    assert order == min(legal)


@given(graphs())
def test_a_cycle_is_found_when_there_is_one(graph: Graph) -> None:
    cycle = find_cycle(list(graph), graph.__getitem__)
    ways = _closure(graph)
    on_cycles = [v for v in graph if (v, v) in ways]
    if not on_cycles:
        assert cycle is None
    else:
        assert cycle is not None
        assert cycle[0] == cycle[-1] == on_cycles[0]
        assert all(b in graph[a] for a, b in pairwise(cycle))
