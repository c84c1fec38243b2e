"""Walks over graphs of anything hashable. Each says in its docstring in what order it goes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

V = TypeVar("V", bound=Hashable)


def traverse(start: V, visit: Callable[[V], None], successors: Callable[[V], Iterable[V]]) -> None:
    """Visit `start` and all that can be reached from it, each vertex once.

    Depth first: a vertex, then all that lies behind its first successor, then behind its second.
    Cycles end, and no graph is too deep. The seed's utility (section "Unifying Graph Traversal")
    visits a vertex once for each way to it, and does not end on a cycle.
    """
    seen: set[V] = set()
    ahead = [start]
    while ahead:
        vertex = ahead.pop()
        if vertex not in seen:
            seen.add(vertex)
            visit(vertex)
            ahead.extend(reversed([v for v in successors(vertex) if v not in seen]))


def upwards(start: V, before: Callable[[V], Iterable[V]]) -> list[V]:
    """`start` and all that lies before it, each vertex once and last first: a vertex comes after
    all that lies before it, the first of these with all of its own before the second. Cycles end.
    """
    found: list[V] = []
    seen: set[V] = set()
    ahead = [(start, False)]
    while ahead:
        vertex, done = ahead.pop()
        if done:
            found.append(vertex)
        elif vertex not in seen:
            seen.add(vertex)
            ahead.append((vertex, True))
            ahead.extend((v, False) for v in reversed([*before(vertex)]))
    return found


def reached(starts: Iterable[V], successors: Callable[[V], Iterable[V]]) -> set[V]:
    """All that can be reached from any of `starts`, these among them."""
    found: set[V] = set()
    for start in starts:
        if start not in found:
            traverse(start, found.add, lambda v: (s for s in successors(v) if s not in found))
    return found


def shortest_path(start: V, goal: V, successors: Callable[[V], Iterable[V]]) -> list[V] | None:
    """Vertices from `start` to `goal`, both included; None when there is no way.

    Of equally short ones, that whose vertices come first among the successors.
    """
    came_from: dict[V, V | None] = {start: None}
    ahead = deque([start])
    while ahead:
        vertex = ahead.popleft()
        if vertex == goal:
            return unwind(vertex, came_from)
        for following in successors(vertex):
            if following not in came_from:
                came_from[following] = vertex
                ahead.append(following)
    return None


def unwind(vertex: V, came_from: Mapping[V, V | None]) -> list[V]:
    """The way to a vertex from where a search began; `came_from` has each vertex of the search with
    the one before it, None for where it began."""
    path = [vertex]
    while (before := came_from[path[-1]]) is not None:
        path.append(before)
    return path[::-1]


def topological_order(
    vertices: Sequence[V], successors: Callable[[V], Iterable[V]]
) -> tuple[list[V], list[V]]:
    """All `vertices` (each given once) that can be ordered, sources first; and those that cannot.

    Of those that could come next, the one given first comes first. The second list, in the order
    given, holds the vertices on cycles and all that comes after one.
    """
    rank = {vertex: number for number, vertex in enumerate(vertices)}
    waits_for = dict.fromkeys(vertices, 0)
    for vertex in vertices:
        for following in successors(vertex):
            waits_for[following] += 1
    ordered: list[V] = []
    ready = [rank[vertex] for vertex in vertices if not waits_for[vertex]]  # sorted: a heap
    while ready:
        vertex = vertices[heapq.heappop(ready)]
        ordered.append(vertex)
        for following in successors(vertex):
            waits_for[following] -= 1
            if not waits_for[following]:
                heapq.heappush(ready, rank[following])
    done = set(ordered)
    return ordered, [vertex for vertex in vertices if vertex not in done]


def find_cycle(vertices: Sequence[V], successors: Callable[[V], Iterable[V]]) -> list[V] | None:
    """One of the shortest cycles through the first vertex that lies on any, that vertex first and
    last; None when there is no cycle."""
    for vertex in topological_order(vertices, successors)[1]:
        ways = (shortest_path(s, vertex, successors) for s in dict.fromkeys(successors(vertex)))
        found = [way for way in ways if way is not None]
        if found:
            return [vertex, *min(found, key=len)]
    return None
