"""Traversals of graphs with hashable vertices, each in a documented order."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

V = TypeVar("V", bound=Hashable)


def traverse(start: V, visit: Callable[[V], None], successors: Callable[[V], Iterable[V]]) -> None:
    """Visit `start` and its descendants, each vertex once. Depth first: a vertex, then the
    descendants of its first successor, then of its second. Handles cycles and graphs of any
    depth."""
    seen: set[V] = set()
    ahead = [start]
    while ahead:
        vertex = ahead.pop()
        if vertex not in seen:
            seen.add(vertex)
            visit(vertex)
            ahead.extend(reversed([v for v in successors(vertex) if v not in seen]))


def upwards(start: V, before: Callable[[V], Iterable[V]]) -> list[V]:
    """Return `start` and its ancestors, each vertex once, `start` last: in depth-first postorder,
    a vertex after its ancestors. Handles cycles."""
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
    """Return `starts` and their descendants."""
    found: set[V] = set()
    for start in starts:
        if start not in found:
            traverse(start, found.add, lambda v: (s for s in successors(v) if s not in found))
    return found


def shortest_path(start: V, goal: V, successors: Callable[[V], Iterable[V]]) -> list[V] | None:
    """Return the vertices from `start` to `goal`, both included; None without a path. Of equally
    short paths, the one whose vertices come first among the successors."""
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
    """Return the path from the start of a search to a vertex. `came_from` maps each vertex of the
    search to its predecessor, a start to None."""
    path = [vertex]
    while (before := came_from[path[-1]]) is not None:
        path.append(before)
    return path[::-1]


def topological_order(
    vertices: Sequence[V], successors: Callable[[V], Iterable[V]]
) -> tuple[list[V], list[V]]:
    """Return the `vertices` (without duplicates) in topological order, and those without one. Of
    the candidates for the next position, the one given first is taken. The second list, in the
    order given, contains the vertices on cycles and their descendants."""
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
    """Return one of the shortest cycles through the first vertex that is on any, with that vertex
    first and last; None without a cycle."""
    for vertex in topological_order(vertices, successors)[1]:
        ways = (shortest_path(s, vertex, successors) for s in dict.fromkeys(successors(vertex)))
        found = [way for way in ways if way is not None]
        if found:
            return [vertex, *min(found, key=len)]
    return None
