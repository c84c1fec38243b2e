"""In which layer a box stands, and after which other: the first half of `layout`. Pure.

A vertex is a box, by its name, or a place where a long line passes a layer. The same arguments give
the same answers: nothing here depends on the order of a set.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

Pair = tuple[str, str]
"""The names of two boxes: a line leads from the first to the second."""

Vertex = str | tuple[int, int]
"""A box's name; or a line's number, and how many layers after its source it passes."""

_SWEEPS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A piece of an edge, from one layer to the next. `leaves` and `enters` as in `layout.Edge`."""

    source: Vertex
    target: Vertex
    leaves: float = 0.0
    enters: float = 0.0


# --- Parts, cycles, layers -----------------------------------------------------------------------


def parts(names: Sequence[str], pairs: Sequence[Pair]) -> list[frozenset[str]]:
    """Boxes that hang together, in the order of their first."""
    near: dict[str, list[str]] = {name: [] for name in names}
    for one, other in pairs:
        near[one].append(other)
        near[other].append(one)
    found: list[frozenset[str]] = []
    seen: set[str] = set()
    for name in names:
        if name not in seen:
            ahead, part = [name], {name}
            while ahead:
                fresh = [n for n in near[ahead.pop()] if n not in part]
                part.update(fresh)
                ahead += fresh
            seen |= part
            found.append(frozenset(part))
    return found


def backward(names: Sequence[str], pairs: Sequence[Pair]) -> frozenset[int]:
    """The numbers of pairs without which no cycle is left: those that lead back to where a walk,
    depth first from the boxes without a predecessor, came from."""
    behind: dict[str, list[tuple[int, str]]] = {name: [] for name in names}
    for number, (one, other) in enumerate(pairs):
        behind[one].append((number, other))
    targets = {other for _, other in pairs}
    open_, done = set(), set()
    found: set[int] = set()
    for start in sorted(names, key=lambda name: name in targets):
        if start in done:
            continue
        walk: list[tuple[str, Iterator[tuple[int, str]]]] = [(start, iter(behind[start]))]
        open_.add(start)
        while walk:
            here, left = walk[-1]
            number, following = next(left, (-1, here))
            if number < 0:
                open_.remove(here)
                done.add(here)
                walk.pop()
            elif following in open_:
                found.add(number)
            elif following not in done:
                open_.add(following)
                walk.append((following, iter(behind[following])))
    return frozenset(found)


def layers_of(
    names: Sequence[str], pairs: Sequence[Pair], first: Collection[str] = ()
) -> dict[str, int]:
    """The layer of each box, from 0: as far left as what leads to it allows. One that nothing leads
    to stands right before the first to which it leads, unless it is among `first`, which stay in
    layer 0. `pairs` make no cycle."""
    before: dict[str, list[str]] = {name: [] for name in names}
    after: dict[str, list[str]] = {name: [] for name in names}
    for one, other in pairs:
        before[other].append(one)
        after[one].append(other)
    depth: dict[str, int] = {}
    waiting = {name: len(before[name]) for name in names}
    ready = [name for name in names if not waiting[name]]
    for name in ready:  # grows
        depth[name] = max((depth[one] + 1 for one in before[name]), default=0)
        for other in after[name]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    for name in names:
        if not before[name] and after[name] and name not in first:
            depth[name] = min(depth[other] for other in after[name]) - 1
    return depth


# --- The order within layers ---------------------------------------------------------------------


def ordered(layers: Sequence[Sequence[Vertex]], lines: Sequence[Line]) -> list[list[Vertex]]:
    """The layers with their vertices in an order in which few lines cross.

    Vertices go to the mean of their neighbours, from left to right and back, then neighbours change
    places while that helps; the best order seen is taken.
    """
    web = _Web(layers, lines)
    best = [list(layer) for layer in layers]
    fewest = web.crossings(best)
    current = [list(layer) for layer in layers]
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        forward = sweep % 2 == 0
        for n in range(len(current)) if forward else reversed(range(len(current))):
            web.pull(current, n, forward)
        web.exchange(current)
        count = web.crossings(current)
        if count < fewest:
            best, fewest = [list(layer) for layer in current], count
    return best


class _Web:
    """Which vertices are joined, and where on their sides."""

    def __init__(self, layers: Sequence[Sequence[Vertex]], lines: Sequence[Line]) -> None:
        self._before: dict[Vertex, list[Line]] = {v: [] for layer in layers for v in layer}
        self._after: dict[Vertex, list[Line]] = {v: [] for layer in layers for v in layer}
        for line in lines:
            self._before[line.target].append(line)
            self._after[line.source].append(line)

    def pull(self, layers: list[list[Vertex]], n: int, forward: bool) -> None:
        """Order layer `n` by the mean of what lies before (or behind) each vertex."""
        other = n - 1 if forward else n + 1
        if not 0 <= other < len(layers):
            return
        rank = {vertex: float(place) for place, vertex in enumerate(layers[other])}
        means: dict[Vertex, float] = {}
        for place, vertex in enumerate(layers[n]):
            near = (
                [_at(rank, line.source, line.leaves) for line in self._before[vertex]]
                if forward
                else [_at(rank, line.target, line.enters) for line in self._after[vertex]]
            )
            means[vertex] = sum(near) / len(near) if near else float(place)
        layers[n].sort(key=lambda vertex: means[vertex])

    def exchange(self, layers: list[list[Vertex]]) -> None:
        """Let neighbours change places as long as fewer lines cross; each layer twice at most."""
        for n, layer in enumerate(layers):
            count = self._around(layers, n)
            sides = self._sides(layers, n) if count else {}
            for place in [*range(len(layer) - 1)] * 2:
                if not count:
                    break
                # No other lines change their crossings.
                one, other = sides[layer[place]], sides[layer[place + 1]]
                fewer = sum(
                    _inverted(a, b) - _inverted(b, a) for a, b in zip(one, other, strict=True)
                )
                if fewer > 0:
                    layer[place], layer[place + 1] = layer[place + 1], layer[place]
                    count -= fewer

    def crossings(self, layers: Sequence[Sequence[Vertex]]) -> int:
        """How many lines cross in all."""
        return sum(self._between(one, other) for one, other in pairwise(layers))

    def _sides(
        self, layers: Sequence[Sequence[Vertex]], n: int
    ) -> dict[Vertex, tuple[_Ends, _Ends]]:
        """Where the lines of each vertex of layer `n` begin and end: what orders lines that meet
        layer `n` in one order, sorted."""
        left = {vertex: place for place, vertex in enumerate(layers[n - 1] if n else ())}
        behind = layers[n + 1] if n + 1 < len(layers) else ()
        right = {vertex: float(place) for place, vertex in enumerate(behind)}
        return {
            vertex: (
                sorted((left[line.source], line.leaves) for line in self._before[vertex]),
                sorted((_at(right, line.target, line.enters), 0.0) for line in self._after[vertex]),
            )
            for vertex in layers[n]
        }

    def _around(self, layers: Sequence[Sequence[Vertex]], n: int) -> int:
        left = self._between(layers[n - 1], layers[n]) if n else 0
        right = self._between(layers[n], layers[n + 1]) if n + 1 < len(layers) else 0
        return left + right

    def _between(self, left: Sequence[Vertex], right: Sequence[Vertex]) -> int:
        rank = {vertex: float(place) for place, vertex in enumerate(right)}
        seen: list[float] = []
        count = 0
        for vertex in left:
            ends = sorted(
                (line.leaves, _at(rank, line.target, line.enters)) for line in self._after[vertex]
            )
            for group in _same_start(ends):
                count += sum(len(seen) - bisect_right(seen, end) for end in group)
                for end in group:
                    insort(seen, end)
        return count


_Ends = list[tuple[float, float]]


def _inverted(one: _Ends, other: _Ends) -> int:
    """How many pairs of an end of each have that of `one` behind that of `other`."""
    return sum(bisect_left(other, end) for end in one)


def _same_start(ends: Sequence[tuple[float, float]]) -> Iterator[list[float]]:
    """Lines that leave at one point do not cross each other."""
    for start in dict.fromkeys(leaves for leaves, _ in ends):
        yield [end for leaves, end in ends if leaves == start]


def _at(rank: Mapping[Vertex, float], vertex: Vertex, offset: float) -> float:
    """A vertex's place in its layer; within it, by where on its side: less than half a place."""
    return rank[vertex] + offset / (2.1 * (1 + abs(offset)))
