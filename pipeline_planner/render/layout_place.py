"""How far down the vertices of each layer stand: the second half of `layout`. Pure.

Each vertex wants to be level with its neighbours, and none may come too close to the next. Under a
fixed order the nearest such places are found exactly, by pooling neighbours that want to pass each
other (isotonic regression).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Final

from pipeline_planner.render.layout_order import Line, Vertex

_SWEEPS: Final = 24
_STRAIGHT: Final = 6.0
"""How much more a long line wants to be straight than a short one to be level."""


def placed(
    layers: Sequence[Sequence[Vertex]],
    lines: Sequence[Line],
    heights: Mapping[Vertex, float],
    gap: float,
) -> dict[Vertex, float]:
    """The middle of each vertex. Those of a layer stand in its order, at least `gap` apart."""
    middles: dict[Vertex, float] = {}
    for layer in layers:
        middles.update(_spread(layer, [0.0] * len(layer), heights, gap))
    before: dict[Vertex, list[Line]] = {vertex: [] for vertex in middles}
    after: dict[Vertex, list[Line]] = {vertex: [] for vertex in middles}
    for line in lines:
        before[line.target].append(line)
        after[line.source].append(line)
    none: dict[Vertex, list[Line]] = {}
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for layer in layers if forward else list(reversed(layers)):
            sides = (before, none) if forward else (none, after)
            _move(layer, *sides, middles, heights, gap)
    for layer in layers:
        _move(layer, before, after, middles, heights, gap)
    _level(layers, before, after, middles, heights)
    _straighten(layers, before, after, middles, heights)
    return middles


_NEARLY: Final = 9.0
"""A step in a line that is better none."""


def _level(
    layers: Sequence[Sequence[Vertex]],
    before: Mapping[Vertex, Sequence[Line]],
    after: Mapping[Vertex, Sequence[Line]],
    middles: dict[Vertex, float],
    heights: Mapping[Vertex, float],
) -> None:
    """Take small steps out of lines, where there is room. Lines that part or meet at one point stay
    as they are, to both sides of it."""
    for forward in (False, True):
        for layer in layers if forward else list(reversed(layers)):
            for place, vertex in enumerate(layer):
                if forward:
                    wishes = [middles[n.source] + n.leaves - n.enters for n in before[vertex]]
                    own = {n.enters for n in before[vertex]}
                elif before[vertex]:
                    continue
                else:
                    wishes = [middles[n.target] + n.enters - n.leaves for n in after[vertex]]
                    own = {n.leaves for n in after[vertex]}
                if len(own) < len(wishes):
                    continue
                lowest, highest = _room(layer, place, middles, heights)
                near = [
                    wish
                    for wish in wishes
                    if abs(wish - middles[vertex]) <= _NEARLY and lowest <= wish <= highest
                ]
                if near:
                    middles[vertex] = min(near, key=lambda wish: abs(wish - middles[vertex]))


def _straighten(
    layers: Sequence[Sequence[Vertex]],
    before: Mapping[Vertex, Sequence[Line]],
    after: Mapping[Vertex, Sequence[Line]],
    middles: dict[Vertex, float],
    heights: Mapping[Vertex, float],
) -> None:
    """Put all that a long line passes on one level, where there is room: best on that of an end."""
    chains: dict[int, list[tuple[Sequence[Vertex], int]]] = {}
    for layer in layers:
        for place, vertex in enumerate(layer):
            if isinstance(vertex, tuple):
                chains.setdefault(vertex[0], []).append((layer, place))
    for places in chains.values():
        chain = [layer[place] for layer, place in places]
        room = [_room(layer, place, middles, heights) for layer, place in places]
        lowest = max(low for low, _ in room)
        highest = min(high for _, high in room)
        start, ends = before[chain[0]][0], after[chain[-1]]
        wishes = [middles[start.source] + start.leaves]
        wishes += [middles[line.target] + line.enters for line in ends]
        wishes.append(sum(middles[vertex] for vertex in chain) / len(chain))
        fitting = [wish for wish in wishes if lowest <= wish <= highest]
        if fitting or lowest <= highest:
            level = fitting[0] if fitting else min(max(wishes[-1], lowest), highest)
            middles.update(dict.fromkeys(chain, level))


_CLOSE: Final = 10.0
"""How near a line may pass."""


def _room(
    layer: Sequence[Vertex],
    place: int,
    middles: Mapping[Vertex, float],
    heights: Mapping[Vertex, float],
) -> tuple[float, float]:
    """Between which levels a vertex may move while the others stay."""
    half = heights[layer[place]] / 2
    lowest, highest = -inf, inf
    if place:
        above = layer[place - 1]
        lowest = middles[above] + heights[above] / 2 + _CLOSE + half
    if place + 1 < len(layer):
        below = layer[place + 1]
        highest = middles[below] - heights[below] / 2 - _CLOSE - half
    return lowest, highest


def _move(
    layer: Sequence[Vertex],
    before: Mapping[Vertex, Sequence[Line]],
    after: Mapping[Vertex, Sequence[Line]],
    middles: dict[Vertex, float],
    heights: Mapping[Vertex, float],
    gap: float,
) -> None:
    wishes, weights = [], []
    for vertex in layer:
        total = weight = 0.0
        for line in before.get(vertex, ()):
            pull = _pull(line)
            total += pull * (middles[line.source] + line.leaves - line.enters)
            weight += pull
        for line in after.get(vertex, ()):
            pull = _pull(line)
            total += pull * (middles[line.target] + line.enters - line.leaves)
            weight += pull
        # Who has no wish stays, but makes way.
        wishes.append(total / weight if weight else middles[vertex])
        weights.append(weight or 0.1)
    middles.update(_spread(layer, wishes, heights, gap, weights))


def _pull(line: Line) -> float:
    long = isinstance(line.source, tuple) or isinstance(line.target, tuple)
    return _STRAIGHT if long else 1.0


def _spread(
    layer: Sequence[Vertex],
    wishes: Sequence[float],
    heights: Mapping[Vertex, float],
    gap: float,
    weights: Sequence[float] = (),
) -> dict[Vertex, float]:
    """The places nearest to `wishes` (by squares) at which no two are too close."""
    offsets = [0.0]
    for one, other in pairwise(layer):
        offsets.append(offsets[-1] + (heights[one] + heights[other]) / 2 + gap)
    pools: list[tuple[float, float, int]] = []  # mean wish, weight, how many
    for number, wish in enumerate(wishes):
        mean, weight, count = wish - offsets[number], weights[number] if weights else 1.0, 1
        while pools and pools[-1][0] > mean:
            other_mean, other_weight, other_count = pools.pop()
            both = weight + other_weight
            mean = (mean * weight + other_mean * other_weight) / both
            weight, count = both, count + other_count
        pools.append((mean, weight, count))
    starts = [mean for mean, _, count in pools for _ in range(count)]
    return {v: start + off for v, start, off in zip(layer, starts, offsets, strict=False)}
