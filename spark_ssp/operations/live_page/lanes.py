"""Arranges bars in lanes, one for each task, as rows that do not overlap. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_ssp.operations.live_page.timeline import Bar

_HIGHEST_ROW: Final = 16.0
_LOWEST_ROW: Final = 3.0
_AIM: Final = 900.0
"""The height of a figure, in pixels, below which rows are made lower."""
_LANE_GAP: Final = 6.0
_LOW_ROW: Final = 9.0
"""Rows below this height have no labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The rows of one task. Heights are in pixels."""

    task: str
    top: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The arrangement of a source's bars."""

    lanes: tuple[Lane, ...]
    tops: Mapping[int, float]
    """The upper edge of each bar, by its place in the list of bars."""
    row: float
    """The height of a row; a bar is slightly lower."""
    height: float

    @property
    def has_labels(self) -> bool:
        """Return whether a row is high enough for text."""
        return self.row >= _LOW_ROW


def arrange(bars: Sequence[Bar], tasks: Sequence[str]) -> Lanes:
    """Return the lanes of tasks, in their order, and the place of each bar within its lane. A bar
    takes the first row that is free from its start on, so children follow their parents."""
    by_task: dict[str, list[int]] = {task: [] for task in tasks}
    for place, bar in enumerate(bars):
        by_task.setdefault(bar.task, []).append(place)
    rows: dict[int, int] = {}
    counts: dict[str, int] = {}
    for task, places in by_task.items():
        ends: list[int] = []
        for place in sorted(places, key=lambda each: (bars[each].start_ms, each)):
            start = bars[place].start_ms
            row = next((n for n, end in enumerate(ends) if end <= start), len(ends))
            if row == len(ends):
                ends.append(0)
            ends[row] = bars[place].end_ms
            rows[place] = row
        counts[task] = max(1, len(ends))
    total = sum(counts.values())
    height = min(_HIGHEST_ROW, max(_LOWEST_ROW, (_AIM - _LANE_GAP * len(counts)) / max(1, total)))
    lanes: list[Lane] = []
    tops: dict[int, float] = {}
    top = 0.0
    for task, places in by_task.items():
        lane = Lane(task=task, top=top, height=counts[task] * height)
        lanes.append(lane)
        tops.update({place: top + rows[place] * height for place in places})
        top += lane.height + _LANE_GAP
    return Lanes(lanes=tuple(lanes), tops=tops, row=height, height=max(top, height))
