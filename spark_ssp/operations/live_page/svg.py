"""Draws the timeline of a source: lanes, and charts of its batches below them, newest at the right.

The labels are an `svg` beside that of the time, which scrolls on a narrow screen. The time has
`TIME` units at any width of the page: shapes are stretched, texts are placed by a percentage.

Up to `MAX_SHARDS`, a lane is a task. Beyond it, each of the shards farthest behind has a lane, and
one lane has the number of the others by their level."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from spark_ssp.common.errors import printable
from spark_ssp.common.times import clock_text, date_text, duration_text
from spark_ssp.operations.live_page.timeline import (
    Bar,
    Batch,
    DelayLevel,
    SourceTimeline,
    Span,
    owners_of,
)
from spark_ssp.operations.observed_queries import Delay
from spark_ssp.operations.snapshot import ReadState, SourceFormat, short_name, task_text

MAX_SHARDS: Final = 100
_WORST: Final = 12
"""The shards with lanes of their own if there are more than `MAX_SHARDS`."""
OWNER_COLOURS: Final = 6

TIME: Final = 2000
_LABELS: Final = 92, 148
"""The least and the greatest width of the labels, in pixels."""
_LABEL_LETTERS: Final = 20
_NARROWEST: Final = 640
"""The least width of the time, in pixels, as in the styles."""
_LETTER: Final = 6.2
_AXIS: Final = 22
_CHART: Final = 52
_CHART_GAP: Final = 26
_OTHERS: Final = 64
"""The height of the lane of the others."""
_TICK_SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 86400)
_DAY_SECONDS: Final = 86_400
_TICKS: Final = 6
_ROWS: Final = 3, 16
"""The least and the greatest height of a row."""
_AIM: Final = 900
"""The height of a figure, in pixels, below which rows are made lower."""
_LANE_GAP: Final = 6
_LOW_ROW: Final = 10
"""Rows below this height have no labels."""
_COLUMNS: Final = 128
"""Spans that are shorter than the time divided by this number share a column, which has the worst
of their levels."""
_COUNTED: Final = 80
"""The times at which the other shards are counted."""
_HOVERED: Final = 40
"""The parts of the charts that show values under the pointer."""
_CHART_MS: Final = (
    *(100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000),
    *(600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000),
)
_Values = list[int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The time that is shown."""

    start_ms: int
    end_ms: int

    def x(self, time_ms: int) -> int:
        """Return the place of a time, in units of `TIME`."""
        length = max(1, self.end_ms - self.start_ms)
        return min(TIME, max(0, TIME * (time_ms - self.start_ms) // length))


def axis_of(timeline: SourceTimeline, now_ms: int | None) -> Axis:
    """Return the axis of a timeline: to its end, and on to the present time if the query runs, in
    steps so large that they show. A query that has not reported for long leaves at most a third of
    the figure empty."""
    start, end = timeline.start_ms, timeline.end_ms
    length = end - start
    if now_ms is not None and now_ms > end:
        step = max(10_000, length // 100)
        end += min((now_ms - end) // step * step, max(120_000, length // 2))
    return Axis(start_ms=start, end_ms=end)


def draw(timeline: SourceTimeline, axis: Axis, title: str, limit_ms: int) -> str:
    """Return the figure as HTML for a page with the styles of `page`."""
    tasks = timeline.latest.tasks if timeline.latest else ()
    lanes = arrange_worst(timeline) if is_aggregate(timeline) else arrange(timeline, tasks)
    charts = _charts(timeline, limit_ms)
    top = _AXIS + lanes.height
    height = top + len(charts) * (_CHART + _CHART_GAP) + 4
    tops = [top + _CHART_GAP + n * (_CHART + _CHART_GAP) for n in range(len(charts))]
    width = _label_width(lanes)
    labels = [*_lane_labels(lanes), *_chart_labels(charts, tops, width)]
    shapes = [
        *_ticks(axis, height),
        f'<g transform="translate(0,{_AXIS})">',
        *_lanes(lanes),
        *_bars(timeline, lanes, axis),
        *_others(timeline, lanes, axis),
        *_forks(lanes, axis),
        "</g>",
        *_silence(timeline, axis, height),
    ]
    for chart, y in zip(charts, tops, strict=True):
        shapes += _chart(timeline, chart, axis, y)
    shapes += _hovered(timeline, charts, axis, top, height)
    texts = [*_tick_texts(axis), *_bar_labels(lanes, axis), *_silence_text(timeline, axis)]
    return "\n".join(
        [
            '<div class="plot">',
            f'<svg class="labels" width="{width}" height="{height}" aria-hidden="true">',
            *labels,
            "</svg>",
            f'<div class="frame" tabindex="0" role="group" aria-label="{html_text(title)}">',
            f'<svg class="time" role="img" width="100%" height="{height}">',
            f"<title>{html_text(title)}</title>",
            f'<svg viewBox="0 0 {TIME} {height}" preserveAspectRatio="none">',
            *shapes,
            "</svg>",
            *texts,
            "</svg></div></div>",
        ]
    )


def is_aggregate(timeline: SourceTimeline) -> bool:
    """Return whether there are too many shards for a lane of each task."""
    return sum(bar.is_current for bar in timeline.bars) > MAX_SHARDS


# --- The time -------------------------------------------------------------------------------------


def _times(axis: Axis) -> Iterator[tuple[int, str]]:
    """Yield the place and the text of each tick."""
    start, end = axis.start_ms // 1000, axis.end_ms // 1000
    days = -((start - end) // (_TICKS * _DAY_SECONDS)) * _DAY_SECONDS
    step = next((each for each in _TICK_SECONDS if (end - start) / each <= _TICKS), days)
    for second in range(start - start % step + step, end + 1, step):
        millis = second * 1000
        is_day = step % _DAY_SECONDS == 0
        yield (
            axis.x(millis),
            date_text(millis) if is_day else clock_text(millis, seconds=step < 60),
        )


def _ticks(axis: Axis, height: int) -> Iterator[str]:
    d = "".join(f"M{x} 14V{height}" for x, _ in _times(axis))
    yield f'<path class="grid" d="{d}"/>'


def _tick_texts(axis: Axis) -> Iterator[str]:
    for x, text in _times(axis):
        side = " first" if x < 60 else " last" if x > TIME - 60 else ""
        yield f'<text class="tick{side}" x="{_percent(x)}" y="10">{text}</text>'


def _percent(x: int) -> str:
    return f"{100 * x / TIME:g}%"


def _silence(timeline: SourceTimeline, axis: Axis, height: int) -> Iterator[str]:
    """Yield the time since the newest report."""
    x = axis.x(timeline.end_ms)
    if x < TIME:
        yield f'<path class="silence" d="M{x} {_AXIS - 2}H{TIME}V{height}H{x}z"/>'


def _silence_text(timeline: SourceTimeline, axis: Axis) -> Iterator[str]:
    if axis.x(timeline.end_ms) <= 0.8 * TIME:
        since = clock_text(timeline.end_ms, seconds=True)
        yield f'<text class="tick last" x="99.5%" y="{_AXIS + 12}">no report since {since}</text>'


# --- Lanes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The rows of one task or shard. Heights are in pixels."""

    label: str
    title: str
    top: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The arrangement of a source's bars."""

    lanes: tuple[Lane, ...]
    bars: tuple[Bar, ...]
    """Those that are drawn."""
    tops: tuple[int, ...]
    """The upper edge of each of them."""
    row: int
    """The height of a row; a bar is slightly lower."""
    height: int
    others: Lane | None = None
    """The lane of the shards that are not drawn."""


def arrange(timeline: SourceTimeline, tasks: Sequence[str]) -> Lanes:
    """Return the lanes of tasks, in their order, and the place of each bar within its lane. A bar
    takes the first row that is free from its start on, so children follow their parents."""
    bars = timeline.bars
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
    least, most = _ROWS
    room = (_AIM - _LANE_GAP * len(counts)) // max(1, sum(counts.values()))
    row_height = min(most, max(least, room))
    lanes: list[Lane] = []
    tops: dict[int, int] = {}
    top = 0
    for task, places in by_task.items():
        label, title = _task_label(task, timeline.format)
        lane = Lane(label=label, title=title, top=top, height=counts[task] * row_height)
        lanes.append(lane)
        tops.update({place: top + rows[place] * row_height for place in places})
        top += lane.height + _LANE_GAP
    return Lanes(
        lanes=tuple(lanes),
        bars=tuple(bars),
        tops=tuple(tops[place] for place in range(len(bars))),
        row=row_height,
        height=max(top, row_height),
    )


def arrange_worst(timeline: SourceTimeline) -> Lanes:
    """Return a lane for each of the shards farthest behind, the worst first, and one for the
    others."""
    current = [bar for bar in timeline.bars if bar.is_current]
    worst = sorted(current, key=lambda bar: (-_severity(bar.delay), bar.key))[:_WORST]
    row = _ROWS[1]
    places = {bar.key: n * (row + 2) for n, bar in enumerate(worst)}
    lanes = []
    for bar in worst:
        task, _ = _task_label(bar.task, timeline.format)
        name = short_name(bar.shard)
        if timeline.format is SourceFormat.KAFKA:
            name = f"{bar.stream}-{name}"
        label = f"{name}, {task}" if timeline.format is SourceFormat.KINESIS else name
        title = f"{bar.stream} {bar.shard}, {bar.task}"
        lanes.append(Lane(label=label, title=title, top=places[bar.key], height=row))
    bars = tuple(bar for bar in timeline.bars if bar.key in places)
    top = len(lanes) * (row + 2) + _LANE_GAP
    number = len(current) - len(worst)
    noun = "shards" if timeline.format is SourceFormat.KINESIS else "partitions"
    others = Lane(label=f"{number:,} other {noun}", title="by level", top=top, height=_OTHERS)
    return Lanes(
        lanes=tuple(lanes),
        bars=bars,
        tops=tuple(places[bar.key] for bar in bars),
        row=row,
        height=top + _OTHERS + _LANE_GAP,
        others=others,
    )


def _severity(delay: Delay | None) -> int:
    return -1 if delay is None else delay.ms


def _task_label(task: str, format_: SourceFormat) -> tuple[str, str]:
    """Return the name of a task, and its full name."""
    if format_ is SourceFormat.KINESIS:
        return f"slot {task}", f"slot {task}"
    return task_text(task) or task, task


def shortened(text: str, most: int = _LABEL_LETTERS) -> str:
    """Return a name of at most so many letters: its end, which distinguishes it."""
    return text if len(text) <= most else f"…{text[len(text) - most + 1 :]}"


def _label_width(lanes: Lanes) -> int:
    every = [*lanes.lanes, *([] if lanes.others is None else [lanes.others])]
    longest = max((len(shortened(lane.label)) for lane in every), default=0)
    least, most = _LABELS
    return min(most, max(least, round(1.1 * _LETTER * longest) + 10))


def _lane_labels(lanes: Lanes) -> Iterator[str]:
    yield '<text class="tick first" x="0" y="10">UTC</text>'
    step = max(1, round(11 / (lanes.lanes[0].height + 1))) if lanes.lanes else 1
    for lane in lanes.lanes[::step]:
        yield _lane_label(lane)
    if lanes.others is not None:
        yield _lane_label(lanes.others)


def _lane_label(lane: Lane) -> str:
    y = _AXIS + lane.top + min(lane.height, 16) // 2 + 4
    label, title = html_text(shortened(lane.label)), html_text(lane.title)
    return f'<text x="0" y="{y}">{label}<title>{title}</title></text>'


def _lanes(lanes: Lanes) -> Iterator[str]:
    every = [*lanes.lanes, *([] if lanes.others is None else [lanes.others])]
    for lane in every:
        yield f'<path class="lane" d="M0 {lane.top - 2}H{TIME}v{lane.height + 3}H0z"/>'


def _bars(timeline: SourceTimeline, lanes: Lanes, axis: Axis) -> Iterator[str]:
    owners = {owner: n for n, owner in enumerate(owners_of(timeline.bars))}
    height = max(2, lanes.row - 2)
    for bar, top in zip(lanes.bars, lanes.tops, strict=True):
        paths: dict[str, list[str]] = {}
        for span in coarse(bar.spans, axis):
            border = ""
            if span.owner is not None and len(owners) > 1:
                border = f" owner{owners[span.owner] % OWNER_COLOURS}"
            left, right = _edges(span.start_ms, span.end_ms, axis)
            paths.setdefault(f"lag{int(span.level)}{border}", []).append(
                f"M{left} 0V{height}H{right}V0z"
            )
        title = html_text(_tooltip(bar, timeline.format))
        yield f'<g transform="translate(0,{top})"><title>{title}</title>'
        yield from (f'<path class="{name}" d="{"".join(d)}"/>' for name, d in paths.items())
        if bar.is_current and bar.state is not ReadState.OPEN:
            right = _edges(bar.start_ms, bar.end_ms, axis)[1]
            yield f'<path class="end" d="M{right - 6} 0V{height}H{right}V0z"/>'
        yield "</g>"


def _edges(start_ms: int, end_ms: int, axis: Axis) -> tuple[int, int]:
    """Return the left and the right edge of a time, at least a pixel or two apart."""
    right = max(axis.x(end_ms), 4)
    return min(axis.x(start_ms), right - 4), right


def coarse(spans: Iterable[Span], axis: Axis) -> Iterator[Span]:
    """Yield spans that are not too many to be drawn: those too short for the eye are one for each
    column, whose place does not depend on later ones, with the worst of their levels."""
    step = 1_000
    while step * _COLUMNS < axis.end_ms - axis.start_ms:
        step *= 2
    pending: Span | None = None
    for span in spans:
        is_short = span.end_ms - span.start_ms < step
        column = span.start_ms // step
        if pending is not None and is_short and pending.start_ms // step == column:
            pending.end_ms = span.end_ms
            pending.level = max(pending.level, span.level)
            pending.owner = span.owner
            continue
        if pending is not None:
            yield pending
        pending = None
        if is_short:
            pending = Span(
                start_ms=span.start_ms, end_ms=span.end_ms, level=span.level, owner=span.owner
            )
        else:
            yield span
    if pending is not None:
        yield pending


def _bar_labels(lanes: Lanes, axis: Axis) -> Iterator[str]:
    if lanes.row < _LOW_ROW or lanes.others is not None:
        return
    for bar, top in zip(lanes.bars, lanes.tops, strict=True):
        left, right = _edges(bar.start_ms, bar.end_ms, axis)
        label = short_name(bar.shard)
        if (right - left) / TIME * _NARROWEST > _LETTER * len(label) + 8:
            y = _AXIS + top + lanes.row - 5
            x, text = _percent(left), html_text(label)
            yield f'<text class="shard" x="{x}" dx="4" y="{y}">{text}</text>'


def _others(timeline: SourceTimeline, lanes: Lanes, axis: Axis) -> Iterator[str]:
    """Yield the numbers of the other shards by level over time, one upon the other."""
    lane = lanes.others
    if lane is None:
        return
    drawn = {id(bar) for bar in lanes.bars}
    times = [batch.time_ms for batch in timeline.batches]
    times = times[:: -(-len(times) // _COUNTED)]
    counts = level_counts([bar for bar in timeline.bars if id(bar) not in drawn], times)
    most = max((sum(each) for each in counts), default=0) or 1
    below = [0] * len(times)
    places = [axis.x(time) for time in times]
    end = axis.x(timeline.end_ms)
    for level in reversed(DelayLevel):
        above = [low + each[level] for low, each in zip(below, counts, strict=True)]
        if above != below:
            upper = _steps(places, [_y(lane, one, most) for one in above], end)
            lower = _steps(places, [_y(lane, one, most) for one in below], end)
            back = "".join(f"H{x}V{y}" for x, y in _reversed(lower))
            d = f"M{upper[0][0]} {upper[0][1]}" + "".join(f"H{x}V{y}" for x, y in upper[1:])
            yield f'<path class="lag{int(level)}" d="{d}V{lower[-1][1]}{back}z"/>'
        below = above


def _y(lane: Lane, count: int, most: int) -> int:
    return lane.top + round(lane.height * (1 - count / most))


def _steps(xs: Sequence[int], ys: Sequence[int], end: int) -> list[tuple[int, int]]:
    """Return the corners of a line that changes its height at each place, to an end."""
    corners = [
        (x, y) for n, (x, y) in enumerate(zip(xs, ys, strict=True)) if not n or y != ys[n - 1]
    ]
    return [*corners, (end, ys[-1])]


def _reversed(corners: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the corners of a line backward."""
    for n in range(len(corners) - 2, -1, -1):
        yield corners[n][0], corners[max(0, n - 1)][1]


def level_counts(bars: Iterable[Bar], times: Sequence[int]) -> list[list[int]]:
    """Return the number of bars of each level at each time."""
    changes = [[0] * len(DelayLevel) for _ in range(len(times) + 1)]
    for bar in bars:
        for span in bar.spans:
            changes[bisect_left(times, span.start_ms)][span.level] += 1
            changes[bisect_left(times, max(span.end_ms, span.start_ms + 1))][span.level] -= 1
    counts, now = [], [0] * len(DelayLevel)
    for change in changes[:-1]:
        now = [one + other for one, other in zip(now, change, strict=True)]
        counts.append(now)
    return counts


def _forks(lanes: Lanes, axis: Axis) -> Iterator[str]:
    """Yield a line from the end of each parent to the start of its child."""
    last: dict[tuple[str, str], int] = {bar.key: n for n, bar in enumerate(lanes.bars)}
    middle = max(2, lanes.row - 2) // 2
    for place, bar in enumerate(lanes.bars):
        for parent in bar.parents:
            start = last.get((bar.stream, parent))
            if start is None:
                continue
            x0, y0 = axis.x(lanes.bars[start].end_ms), lanes.tops[start] + middle
            x1, y1 = axis.x(bar.start_ms), lanes.tops[place] + middle
            bend = max(12, (x1 - x0) // 2)
            yield (
                f'<path class="fork" d="M{x0} {y0}C{x0 + bend} {y0} {x1 - bend} {y1} {x1} {y1}"/>'
            )


def _tooltip(bar: Bar, format_: SourceFormat) -> str:
    owner = bar.spans[-1].owner
    parts = [
        f"{bar.stream} {bar.shard}",
        f"{'slot ' if format_ is SourceFormat.KINESIS else ''}{bar.task}",
        bar.state.value if bar.is_current else "not read any more",
        f"lag {lag_text(bar.lag, format_)}",
    ]
    parts += [f"delay {delay_text(bar.delay)}"] if bar.delay else []
    parts += [f"owner {owner}"] if owner else []
    parts += [f"from {', '.join(map(short_name, bar.parents))}"] if bar.parents else []
    return "; ".join(parts)


# --- Charts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    name: str
    values: _Values
    text: Callable[[int], str]
    top: int
    """The value at the upper edge."""
    limit: int | None = None
    """A value that is marked, if it is not above the edge."""


def _charts(timeline: SourceTimeline, limit_ms: int) -> list[_Chart]:
    batches = timeline.batches
    found = []
    delays = [each.delay_ms for each in batches]
    if any(delay is not None for delay in delays):
        top = _top_ms(delays)
        limit = limit_ms if limit_ms <= top else None
        found.append(_Chart(name="delay", values=delays, text=duration_text, top=top, limit=limit))
    rows = [each.rows for each in batches]
    if any(rows):
        found.append(_Chart(name="rows", values=rows, text=count_text, top=_top_count(rows)))
    durations = [each.duration_ms for each in batches]
    if any(duration is not None for duration in durations):
        top = _top_ms(durations)
        found.append(_Chart(name="batch duration", values=durations, text=duration_text, top=top))
    return found


def _most(values: _Values) -> int:
    return max((value for value in values if value is not None), default=0)


def _top_count(values: _Values) -> int:
    """Return the next number of one digit and zeros."""
    most = max(1, _most(values))
    unit = int("1" + "0" * (len(str(most)) - 1))
    return -(-most // unit) * unit


def _top_ms(values: _Values) -> int:
    """Return the next usual duration."""
    most = _most(values)
    day = _CHART_MS[-1]
    return next((each for each in _CHART_MS if each >= most), -(-most // day) * day)


def _chart_labels(charts: Sequence[_Chart], tops: Sequence[int], width: int) -> Iterator[str]:
    for chart, top in zip(charts, tops, strict=True):
        yield f'<text x="0" y="{top + _CHART // 2 + 4}">{chart.name}</text>'
        for y, value in ((top, chart.top), (top + _CHART, 0)):
            text = html_text(chart.text(value)) if value else "0"
            yield f'<text class="tick last" x="{width - 5}" y="{y + 4}">{text}</text>'


def _chart(timeline: SourceTimeline, chart: _Chart, axis: Axis, top: int) -> Iterator[str]:
    base = top + _CHART
    yield f'<path class="grid" d="M0 {top}H{TIME}M0 {base}H{TIME}"/>'
    width = max(4, min(20, TIME // (2 * len(chart.values))))
    bars = []
    for batch, value in zip(timeline.batches, chart.values, strict=True):
        if value is not None:
            x = min(max(axis.x(batch.time_ms), width // 2), TIME - width // 2)
            bars.append(f"M{x} 0v-{max(1, round(_CHART * value / chart.top))}")
    yield (
        f'<path class="batch" transform="translate(0,{base})" stroke-width="{width}" '
        f'd="{"".join(bars)}"/>'
    )
    if chart.limit is not None:
        y = base - round(_CHART * chart.limit / chart.top)
        yield f'<path class="limit" d="M0 {y}H{TIME}"><title>limit</title></path>'


def _hovered(
    timeline: SourceTimeline, charts: Sequence[_Chart], axis: Axis, top: int, height: int
) -> Iterator[str]:
    """Yield the areas that show the values of batches under the pointer."""
    if not charts:
        return
    yield '<g class="hover">'
    step = -(-len(timeline.batches) // _HOVERED)
    for first in range(0, len(timeline.batches), step):
        group = timeline.batches[first : first + step]
        after = timeline.batches[first + step : first + step + 1]
        left = axis.x(group[0].time_ms)
        right = axis.x(after[0].time_ms) if after else axis.x(timeline.end_ms)
        yield (
            f'<path d="M{left} {top}H{max(right, left + 8)}V{height}H{left}z">'
            f"<title>{html_text(_batches_text(group))}</title></path>"
        )
    yield "</g>"


def _batches_text(group: Sequence[Batch]) -> str:
    first, last = group[0], group[-1]
    ids = f"{first.batch_id}" if len(group) == 1 else f"{first.batch_id} to {last.batch_id}"
    parts = [f"{clock_text(first.time_ms, seconds=True)} batch {ids}"]
    if any(each.rows is not None for each in group):
        parts.append(f"{count_text(sum(each.rows or 0 for each in group))} rows")
    durations = [each.duration_ms for each in group]
    delays = [each.delay_ms for each in group]
    if any(durations):
        parts.append(f"in {duration_text(_most(durations))}")
    if any(delay is not None for delay in delays):
        parts.append(f"delay {duration_text(_most(delays))}")
    return ", ".join(parts)


# --- Text -----------------------------------------------------------------------------------------


def count_text(number: int) -> str:
    """Return a number with separators."""
    return f"{number:,}"


def lag_text(lag: int | None, format_: SourceFormat) -> str:
    """Return a lag with its unit."""
    if lag is None:
        return "unknown"
    return duration_text(lag) if format_ is SourceFormat.KINESIS else f"{count_text(lag)} offsets"


def delay_text(delay: Delay | None) -> str:
    """Return a delay in words."""
    if delay is None:
        return "not reported"
    return f"{'at least ' if delay.is_bound else ''}{duration_text(delay.ms)}"


def html_text(text: str) -> str:
    return escape(printable(text))
