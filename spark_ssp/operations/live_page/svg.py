"""Draws the timeline of a source as SVG: lanes of tasks, and charts of its batches below them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from spark_ssp.common.errors import printable
from spark_ssp.common.times import clock_text, date_text, duration_text
from spark_ssp.operations.live_page.timeline import Bar, SourceTimeline, Span, owners_of
from spark_ssp.operations.snapshot import ReadState, SourceFormat, short_name

_LABELS: Final = 120.0
_WIDTH: Final = 1080.0
"""The width of the time that is shown, beside the labels of the lanes."""
_AXIS: Final = 22.0
_CHART: Final = 46.0
_CHART_GAP: Final = 22.0
_LETTER: Final = 6.2
_TICK_SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 86400)
_DAY_SECONDS: Final = 86_400
_TICKS: Final = 8
_HIGHEST_ROW: Final = 16.0
_LOWEST_ROW: Final = 3.0
_AIM: Final = 900.0
"""The height of a figure, in pixels, below which rows are made lower."""
_LANE_GAP: Final = 6.0
_LOW_ROW: Final = 9.0
"""Rows below this height have no labels."""
OWNER_COLOURS: Final = 6
Scale = Callable[[int], float]
_Values = list[int | None]


def draw(timeline: SourceTimeline, title: str) -> str:
    """Return an `svg` element for a page with the styles of `page`."""
    tasks = timeline.latest.tasks if timeline.latest else ()
    lanes = arrange(timeline.bars, tasks)
    charts = list(_charts(timeline))
    height = _AXIS + lanes.height + len(charts) * (_CHART + _CHART_GAP) + 8
    parts = [
        (
            f'<svg class="figure" xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {_LABELS + _WIDTH:.0f} {height:.0f}" '
            f'style="min-width:{0.6 * (_LABELS + _WIDTH):.0f}px">'
        ),
        f"<title>{_text(title)}</title>",
        *_axis(timeline, height),
        f'<g transform="translate(0,{_AXIS:g})">',
        *_lanes(lanes, timeline.format),
        *_bars(timeline, lanes),
        *_forks(timeline, lanes),
        "</g>",
    ]
    top = _AXIS + lanes.height
    for name, values, text in charts:
        parts += _chart(timeline, name, values, text, top + _CHART_GAP)
        top += _CHART + _CHART_GAP
    return "\n".join([*parts, "</svg>"])


def _scale(timeline: SourceTimeline) -> Scale:
    start = timeline.start_ms
    length = max(1, timeline.end_ms - start)
    return lambda time: _LABELS + _WIDTH * min(1.0, max(0.0, (time - start) / length))


def _axis(timeline: SourceTimeline, height: float) -> Iterator[str]:
    scale = _scale(timeline)
    start, end = timeline.start_ms // 1000, timeline.end_ms // 1000
    days = -((start - end) // (_TICKS * _DAY_SECONDS)) * _DAY_SECONDS
    step = next((each for each in _TICK_SECONDS if (end - start) / each <= _TICKS), days)
    for second in range(start - start % step + step, end + 1, step):
        x, millis = scale(second * 1000), second * 1000
        is_day = step % _DAY_SECONDS == 0
        clock = date_text(millis) if is_day else clock_text(millis, seconds=step < 60)
        yield f'<path class="grid" d="M{x:.1f},14 V{height:.0f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="10">{clock}</text>'
    yield '<text class="tick side" x="0" y="10">UTC</text>'


# --- Lanes ----------------------------------------------------------------------------------------


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


def _lanes(lanes: Lanes, format_: SourceFormat) -> Iterator[str]:
    noun = "slot " if format_ is SourceFormat.KINESIS else ""
    step = max(1, round(11 / (lanes.lanes[0].height + 1))) if lanes.lanes else 1
    for number, lane in enumerate(lanes.lanes):
        yield (
            f'<rect class="lane" x="{_LABELS:g}" y="{lane.top - 2:.1f}" width="{_WIDTH:g}" '
            f'height="{lane.height + 3:.1f}"/>'
        )
        if number % step == 0:
            middle = lane.top + min(lane.height, 16) / 2 + 4
            yield f'<text class="task" x="0" y="{middle:.1f}">{_text(noun + lane.task)}</text>'


def _bars(timeline: SourceTimeline, lanes: Lanes) -> Iterator[str]:
    scale = _scale(timeline)
    owners = {owner: n for n, owner in enumerate(owners_of(timeline.bars))}
    for place, bar in enumerate(timeline.bars):
        top, height = lanes.tops[place], max(2.0, lanes.row - 2)
        left, right = scale(bar.start_ms), max(scale(bar.end_ms), scale(bar.start_ms) + 2)
        yield f"<g><title>{_text(_tooltip(bar, timeline.format))}</title>"
        yield from (_span(span, scale, top, height, owners) for span in bar.spans)
        if bar.is_current and bar.state is not ReadState.OPEN:
            yield (
                f'<rect class="end" x="{right - 3:.1f}" y="{top:.1f}" width="3" '
                f'height="{height:.1f}"/>'
            )
        label = short_name(bar.shard)
        if lanes.has_labels and right - left > _LETTER * len(label) + 8:
            baseline = top + height - 3
            yield f'<text class="shard" x="{left + 4:.1f}" y="{baseline:.1f}">{_text(label)}</text>'
        yield "</g>"


def _span(span: Span, scale: Scale, top: float, height: float, owners: dict[str, int]) -> str:
    left, right = scale(span.start_ms), scale(span.end_ms)
    border = ""
    if span.owner is not None and len(owners) > 1:
        border = f" owner{owners[span.owner] % OWNER_COLOURS}"
    return (
        f'<rect class="lag{int(span.level)}{border}" x="{left:.1f}" y="{top:.1f}" '
        f'width="{max(2.0, right - left):.1f}" height="{height:.1f}"/>'
    )


def _forks(timeline: SourceTimeline, lanes: Lanes) -> Iterator[str]:
    """Yield a line from the end of each parent to the start of its child."""
    scale = _scale(timeline)
    last: dict[tuple[str, str], int] = {}
    for place, bar in enumerate(timeline.bars):
        last[bar.stream, bar.shard] = place
    middle = max(2.0, lanes.row - 2) / 2
    for place, bar in enumerate(timeline.bars):
        for parent in bar.parents:
            start = last.get((bar.stream, parent))
            if start is None:
                continue
            x0, y0 = scale(timeline.bars[start].end_ms), lanes.tops[start] + middle
            x1, y1 = scale(bar.start_ms), lanes.tops[place] + middle
            bend = max(8.0, (x1 - x0) / 2)
            yield (
                f'<path class="fork" d="M{x0:.1f},{y0:.1f} C{x0 + bend:.1f},{y0:.1f} '
                f'{x1 - bend:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"/>'
            )


def _tooltip(bar: Bar, format_: SourceFormat) -> str:
    owner = bar.spans[-1].owner
    parts = [
        f"{bar.stream} {bar.shard}",
        f"{'slot ' if format_ is SourceFormat.KINESIS else ''}{bar.task}",
        bar.state.value if bar.is_current else "not read any more",
        f"lag {lag_text(bar.lag, format_)}",
    ]
    parts += [f"owner {owner}"] if owner else []
    parts += [f"from {', '.join(map(short_name, bar.parents))}"] if bar.parents else []
    return "; ".join(parts)


# --- Charts ---------------------------------------------------------------------------------------


def _charts(timeline: SourceTimeline) -> Iterator[tuple[str, _Values, Callable[[int], str]]]:
    """Yield the name of each chart, the value of each batch, and how a value is written."""
    batches = timeline.batches
    if any(each.rows for each in batches):
        yield "rows per batch", [each.rows for each in batches], count_text
    if any(each.duration_ms is not None for each in batches):
        yield "duration", [each.duration_ms for each in batches], duration_text
    if any(each.max_lag is not None for each in batches):
        lags = [each.max_lag for each in batches]
        yield "highest lag", lags, lambda value: lag_text(value, timeline.format)


def _chart(
    timeline: SourceTimeline, name: str, values: _Values, text: Callable[[int], str], top: float
) -> Iterator[str]:
    scale = _scale(timeline)
    most = max((value for value in values if value is not None), default=0)
    width = max(1.5, min(14.0, _WIDTH / max(1, len(values)) - 1))
    yield f'<path class="grid" d="M{_LABELS:g},{top + _CHART:.1f} h{_WIDTH:g}"/>'
    yield f'<text class="task" x="0" y="{top + 14:.1f}">{name}</text>'
    yield f'<text class="tick side" x="0" y="{top + 28:.1f}">up to {_text(text(most))}</text>'
    for batch, value in zip(timeline.batches, values, strict=True):
        if value is None:
            continue
        height = _CHART * value / most if most else 0.0
        left = min(scale(batch.time_ms), _LABELS + _WIDTH - width)
        yield (
            f'<rect class="batch" x="{left:.1f}" y="{top + _CHART - height:.1f}" '
            f'width="{width:.1f}" height="{max(0.5, height):.1f}">'
            f"<title>{_text(f'batch {batch.batch_id}: {text(value)}')}</title></rect>"
        )


# --- Text -----------------------------------------------------------------------------------------


def count_text(number: int) -> str:
    """Return a number with separators."""
    return f"{number:,}"


def lag_text(lag: int | None, format_: SourceFormat) -> str:
    """Return a lag with its unit."""
    if lag is None:
        return "unknown"
    return duration_text(lag) if format_ is SourceFormat.KINESIS else f"{count_text(lag)} offsets"


def _text(text: str) -> str:
    return escape(printable(text))
