"""The page as HTML: one file without external resources, readable without scripts.

Its content consists of parts with names, in their order. A part is an element of `main`, or a row
of a table that is a part: the row `q1-t0-7` is in the table `q1-t0`. A running query begins with a
banner: its verdict, with reasons and remedies. The live page receives the parts that have changed,
by a short script; the file that `LivePage.save` writes has no script."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from spark_ssp.common.times import clock_text, date_text, duration_text
from spark_ssp.operations.health import Behind, Health, Limits, Verdict
from spark_ssp.operations.live_page.svg import (
    OWNER_COLOURS,
    axis_of,
    count_text,
    delay_text,
    draw,
    html_text,
    is_aggregate,
)
from spark_ssp.operations.live_page.timeline import (
    Bar,
    DelayLevel,
    QueryTimeline,
    SourceTimeline,
    level_bounds,
    owners_of,
)
from spark_ssp.operations.observed_queries import ObservedQuery
from spark_ssp.operations.snapshot import (
    ReadState,
    ShardSnapshot,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
    short_name,
    task_text,
)

_FILES: Final = files("spark_ssp.operations.live_page")
_STYLE: Final = _FILES.joinpath("page.css").read_text(encoding="utf-8")
_SCRIPT: Final = _FILES.joinpath("page.js").read_text(encoding="utf-8")
_MOST_ROWS: Final = 2_000
"""The shards in a table: those farthest behind."""
_MOST_ROWS_ENDED: Final = 100
_CHANGING: Final = 2
"""The first cells of a row, which change most: delay, and state or offsets."""
_EVENTS: Final = 12
"""The events that are shown, the newest."""
_ROW: Final = re.compile(r"q\d+-t\w+-\d+")

_STATES: Final = {
    ReadState.OPEN: "open",
    ReadState.CLOSED: "closed, not read to the end",
    ReadState.WAITING: "waiting for their parents",
    ReadState.ENDED: "ended",
}

Parts = Mapping[str, str]
"""The HTML of each part by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of the page at a time."""

    title: str
    parts: Parts


# --- The document ---------------------------------------------------------------------------------


def page(content: Content, *, nonce: str | None = None, revision: str = "") -> str:
    """Return the whole page. With `nonce`, the live one: its script has it. `revision`: that of
    the content, from which the script asks for changes."""
    live = "" if nonce is None else f'<script nonce="{nonce}">\n{_SCRIPT}</script>'
    state = "snapshot" if nonce is None else "connecting"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en" data-revision="{revision}">',
            '<head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{html_text(content.title)}</title>",
            f"<style>\n{_STYLE}</style></head>",
            "<body>",
            f'<h1>spark-ssp <span class="dim" id="state" role="status">{state}</span></h1>',
            _HATCH,
            f"<main>{_nested(content.parts)}</main>",
            live,
            "</body></html>",
            "",
        ]
    )


_HATCH: Final = (
    '<svg class="defs" width="0" height="0" aria-hidden="true"><defs><pattern id="hatch" width="6" '
    'height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="hatch-ground" width="6" height="6"/><rect class="hatch-line" width="2" '
    'height="6"/></pattern></defs></svg>'
)


def _nested(parts: Parts) -> str:
    """Return the parts as elements, rows in their tables."""
    rows: dict[str, list[str]] = {}
    for name, html in parts.items():
        if is_row(name):
            rows.setdefault(name.rpartition("-")[0], []).append(f'<tr id="{name}">{html}</tr>')
    return "\n".join(
        f'<div id="{name}">{html.replace(_TBODY, _TBODY + chr(10).join(rows.get(name, ())))}</div>'
        for name, html in parts.items()
        if not is_row(name)
    )


_TBODY: Final = '<tbody class="rows">'


def is_row(name: str) -> bool:
    """Return whether a part is a row of a table."""
    return _ROW.fullmatch(name) is not None


def changes(before: Parts | None, after: Content) -> dict[str, Any]:
    """Return the document that makes one content of the page another. `before`: the parts that the
    page has; None if that is not known."""
    known = before or {}
    found: dict[str, Any] = {"title": after.title}
    if before is None:
        found["all"] = True
    for name, html in after.parts.items():
        earlier = known.get(name)
        if earlier == html:
            continue
        cells, rest = _cells(html)
        if earlier is not None and is_row(name) and _cells(earlier)[1] == rest:
            found.setdefault("cells", {})[name] = cells
        else:
            found.setdefault("parts", {})[name] = html
    gone = [name for name in known if name not in after.parts]
    if gone:
        found["gone"] = gone
    order = [name for name in after.parts if not is_row(name)]
    if order != [name for name in known if not is_row(name)]:
        found["order"] = order
    return found


def _cells(row: str) -> tuple[str, str]:
    """Return the first cells of a row, which change most, and the others."""
    cells = row.split("</td>", _CHANGING)
    return "</td>".join([*cells[:_CHANGING], ""]), cells[-1]


# --- The parts ------------------------------------------------------------------------------------


DrawParts = Callable[[QueryTimeline, Limits, int | None], Parts]
"""`query_parts`, or a function that remembers its answers."""


def content(
    queries: Sequence[tuple[ObservedQuery, Health, QueryTimeline]],
    limits: Limits,
    now_ms: int,
    *,
    draw_parts: DrawParts | None = None,
) -> Content:
    """Return the content of the page."""
    draw_parts = draw_parts or query_parts
    assessed = [(query, health) for query, health, _ in queries]
    timelines = {query.run_id: timeline for query, _, timeline in queries}
    parts = {"top": overview(assessed, now_ms)}
    if not queries:
        parts["none"] = "<p>No query of kinesis-ssp or kafka-ssp runs.</p>"
    shown = gravest_first(assessed)
    for query, health in shown:
        timeline = timelines[query.run_id]
        name = f"q{timeline.number}"
        drawn = draw_parts(timeline, limits, now_ms if query.is_running else None)
        if query.is_running:
            parts |= {name: banner(query, health)} | dict(drawn)
        else:
            inner = "\n".join(drawn.values())
            is_open = " open" if query is shown[0][0] else ""  # none runs
            parts[name] = (
                f'<details class="ended" data-key="{name}"{is_open}><summary>{ended_banner(query)}'
                f"</summary>{inner}</details>"
            )
    worst = worst_of(assessed)
    title = "spark-ssp" if worst is None else f"{worst} - spark-ssp"
    return Content(title=title, parts=parts)


def query_parts(query: QueryTimeline, limits: Limits, now_ms: int | None) -> Parts:
    """Return the parts of a query below its banner. `now_ms`: None if it has ended."""
    parts: dict[str, str] = {}
    if query.snapshot is None:
        return parts
    for number, source in enumerate(query.sources):
        latest = source.latest
        if latest is None or not source.batches:
            continue
        parts[f"q{query.number}-f{number}"] = "\n".join(
            _figure(source, latest, query, limits, now_ms)
        )
        table = f"q{query.number}-t{number}"
        if now_ms is None:
            rows = _shard_rows(source, latest, table, _MOST_ROWS_ENDED).values()
            html = "\n".join(f"<tr>{row}</tr>" for row in rows)
            parts[table] = _shards_frame(latest, table, html, _MOST_ROWS_ENDED)
        else:
            # A frame that changes is another table, since it comes without its rows.
            table += "o" if _has_owners(latest) else ""
            table += "m" if _is_more(latest, _MOST_ROWS) else ""
            parts[table] = _shards_frame(latest, table, "", _MOST_ROWS)
            parts |= _shard_rows(source, latest, table, _MOST_ROWS)
    parts[f"q{query.number}-n"] = "\n".join(_notes(query))
    return parts


def _figure(
    timeline: SourceTimeline,
    latest: SourceSnapshot,
    query: QueryTimeline,
    limits: Limits,
    now_ms: int | None,
) -> Iterator[str]:
    label = query.snapshot.label if query.snapshot else ""
    yield f'<p class="summary">{html_text(_summary(timeline, latest))}</p>'
    yield f'<p class="summary">{html_text(_levels(timeline, latest, limits))}</p>'
    lanes = "shards farthest behind" if is_aggregate(timeline) else "shards of each task"
    title = f"{label}: the {lanes} over time"
    yield draw(timeline, axis_of(timeline, now_ms), title, limits.max_delay_ms)
    entries = "".join(f"<li>{entry}</li>" for entry in _legend(timeline, limits))
    yield f'<ul class="legend">{entries}</ul>'


def _summary(timeline: SourceTimeline, latest: SourceSnapshot) -> str:
    is_kinesis = timeline.format is SourceFormat.KINESIS
    parts = [f"{count_text(len(latest.tasks))} {'slots' if is_kinesis else 'tasks'}"]
    for stream in latest.streams:
        states = [
            f"{count_text(stream.states[state])} {text}"
            for state, text in _STATES.items()
            if stream.states.get(state)
        ]
        total = (
            f"{count_text(sum(stream.states.values()))} {'shards' if is_kinesis else 'partitions'}"
        )
        shown = f" ({', '.join(states)})" if is_kinesis and states else ""
        offsets = ""
        if not is_kinesis and stream.max_lag is not None:
            offsets = f", up to {count_text(stream.max_lag)} offsets behind"
        pushed = ""
        if stream.fan_out is not None:
            pushed = f", {stream.fan_out.pushed} pushed and {stream.fan_out.polled} polled"
        parts.append(f"{stream.name}: {total}{shown}{offsets}{_alignment(stream)}{pushed}")
    newest = timeline.batches[-1]
    took = "" if newest.duration_ms is None else f" in {duration_text(newest.duration_ms)}"
    if newest.rows is not None:
        parts.append(f"last batch: {count_text(newest.rows)} rows{took}")
    return "; ".join(parts)


def _alignment(stream: StreamSnapshot) -> str:
    found = stream.alignment
    if found is None:
        return ""
    spread = f", spread {duration_text(found.spread_ms)}" if found.spread_ms else ""
    holds = f", {short_name(found.holds_back)} holds others back" if found.holds_back else ""
    left = f", {count_text(found.left_behind)} left behind" if found.left_behind else ""
    return spread + holds + left


def _level_names(limits: Limits) -> dict[DelayLevel, str]:
    low, moderate, high = map(duration_text, level_bounds(limits.max_delay_ms))
    return {
        DelayLevel.SEVERE: f"more than {high}",
        DelayLevel.HIGH: f"up to {high}",
        DelayLevel.MODERATE: f"up to {moderate}",
        DelayLevel.LOW: f"up to {low}",
        DelayLevel.UNKNOWN: "not reported",
    }


def _levels(timeline: SourceTimeline, latest: SourceSnapshot, limits: Limits) -> str:
    """Return the number of shards of each level."""
    levels = [bar.spans[-1].level for bar in timeline.bars if bar.is_current]
    parts = [
        f"{count_text(levels.count(level))} {name}"
        for level, name in _level_names(limits).items()
        if level in levels
    ]
    bounds = [one.not_shown_max_lag for one in latest.streams if one.not_shown_max_lag is not None]
    known = f" (at most {duration_text(max(bounds))} when the batch began)" if bounds else ""
    noun = "shards" if timeline.format is SourceFormat.KINESIS else "partitions"
    return f"{noun} by delay: {', '.join(parts)}{known}" if parts else ""


def _legend(timeline: SourceTimeline, limits: Limits) -> Iterator[str]:
    for level, name in reversed(_level_names(limits).items()):
        yield f'<span class="swatch lag{int(level)}"></span>{name}'
    if timeline.format is SourceFormat.KINESIS:
        yield "dark end: closed or ended"
        yield "line: split or merge"
    owners = owners_of(timeline.bars)
    if len(owners) > 1:
        for number, owner in enumerate(owners):
            swatch = f'<span class="swatch owner{number % OWNER_COLOURS}"></span>'
            yield f"{swatch}owner {html_text(owner)}"


# --- Shards ---------------------------------------------------------------------------------------


def _has_owners(latest: SourceSnapshot) -> bool:
    return any(shard.owner for stream in latest.streams for shard in stream.shards)


def _is_more(latest: SourceSnapshot, most: int) -> bool:
    return sum(len(stream.shards) for stream in latest.streams) > most


def _shards_frame(latest: SourceSnapshot, name: str, rows: str, most: int) -> str:
    """Return the table of shards around its rows."""
    is_kinesis = latest.format is SourceFormat.KINESIS
    noun = "Shards" if is_kinesis else "Partitions"
    columns = (
        ["delay", "state", "shard", "stream", "slot"]
        if is_kinesis
        else ["delay", "offsets", "partition", "topic", "task"]
    )
    columns += ["owner"] if _has_owners(latest) else []
    shown = f": the {count_text(most)} farthest behind" if _is_more(latest, most) else ""
    head = "".join(f"<th>{column}</th>" for column in columns)
    return (
        f'<details data-key="{name}"><summary>{noun}{shown}</summary><div class="scroll">'
        f'<table class="shards"><thead><tr>{head}</tr></thead>\n{_TBODY}{rows}</tbody></table>'
        "</div></details>"
    )


def _shard_rows(
    timeline: SourceTimeline, latest: SourceSnapshot, table: str, most: int
) -> dict[str, str]:
    """Return the row of each shard, those farthest behind first."""
    bars = {bar.key: bar for bar in timeline.bars if bar.is_current}
    every = [(stream, shard) for stream in latest.streams for shard in stream.shards]

    def order(one: tuple[StreamSnapshot, ShardSnapshot]) -> tuple[int, int]:
        delay = timeline.delays.get((one[0].name, one[1].shard))
        return -1 if delay is None else -delay.ms - 1, -(one[1].lag or 0)

    every.sort(key=order)
    has_owners = _has_owners(latest)
    found = {}
    for stream, shard in every[:most]:
        key = stream.name, shard.shard
        cells = _shard_cells(timeline, stream, shard, bars.get(key))
        cells += [("", shard.owner or "")] if has_owners else []
        found[f"{table}-{timeline.numbers[key]}"] = "".join(
            f"<td{f' data-v={value}' if value else ''}>{html_text(text)}</td>"
            for value, text in cells
        )
    return found


def _shard_cells(
    timeline: SourceTimeline, stream: StreamSnapshot, shard: ShardSnapshot, bar: Bar | None
) -> list[tuple[str, str]]:
    """Return the cells of a shard: the value to sort by, if it is not the text, and the text."""
    planned = timeline.delays.get((stream.name, shard.shard))
    delay = planned if bar is None else bar.delay
    task = shard.task or ""
    measured = ("", "") if delay is None else (str(delay.ms), delay_text(delay))
    if timeline.format is SourceFormat.KAFKA:
        lag = shard.lag
        second = ("", "") if lag is None else (str(lag), count_text(lag))
        task = task_text(task) or ""
    else:
        parents = ", ".join(map(short_name, shard.parents or ()))
        second = ("", f"{shard.state}, from {parents}" if parents else f"{shard.state}")
    return [measured, second, ("", shard.shard), ("", stream.name), ("", task)]


# --- Events, leases, counters ---------------------------------------------------------------------


def _notes(query: QueryTimeline) -> Iterator[str]:
    yield '<div class="notes">'
    if query.events:
        lines = "".join(
            f"<li><time>{_moment(event.time_ms)}</time> {html_text(event.text)}</li>"
            for event in list(query.events)[: -_EVENTS - 1 : -1]
        )
        yield f'<div><h3>Events, UTC</h3><ul class="events">{lines}</ul></div>'
    for source in query.sources:
        if source.latest is not None:
            yield from _leases(source.latest)
            yield from _counters(source.latest)
    if query.dropped:
        yield f"<p>{count_text(query.dropped)} rows dropped by the watermark</p>"
    yield "</div>"


def _moment(time_ms: int) -> str:
    return f"{date_text(time_ms)} {clock_text(time_ms, seconds=True)}"


def _leases(latest: SourceSnapshot) -> Iterator[str]:
    rows = []
    for stream in latest.streams:
        leases = stream.leases
        if leases is None:
            continue
        for owner, held in sorted(leases.by_owner.items()):
            own = " (this query)" if owner == latest.worker else ""
            rows.append((stream.name, owner + own, count_text(held)))
        if leases.others:
            rows.append((stream.name, "other owners", count_text(leases.others)))
        if leases.stale:
            rows.append((stream.name, "of these, not renewed", count_text(leases.stale)))
        if leases.free:
            rows.append((stream.name, "no owner", count_text(leases.free)))
        if leases.not_read:
            rows.append((stream.name, "not read: a row is malformed", count_text(leases.not_read)))
    if rows:
        yield f"<div><h3>Leases</h3>{_table(('stream', 'owner', 'leases'), rows)}</div>"


def _counters(latest: SourceSnapshot) -> Iterator[str]:
    if latest.counters:
        rows = [(_in_words(name), count_text(n)) for name, n in latest.counters.items()]
        table = _table(("event", "count"), rows)
        yield f"<div><h3>Since the start of the query</h3>{table}</div>"


def _in_words(name: str) -> str:
    """Return the words of a name in camelCase."""
    return re.sub("[A-Z]", lambda capital: f" {capital[0].lower()}", name)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html_text(name)}</th>" for name in columns)
    lines = "\n".join(
        f"<tr>{''.join(f'<td>{html_text(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{lines}</tbody></table>"


# --- The health of a query -----------------------------------------------------------------------


Assessed = tuple[ObservedQuery, Health]


def gravest_first(queries: Sequence[Assessed]) -> list[Assessed]:
    """Return running queries, the gravest first, then those that failed and those that ended, the
    last first."""

    def order(one: Assessed) -> tuple[int, int, str]:
        query, health = one
        if query.ended_ms is None:
            return 0, -health.verdict.gravity, query.label
        return (1 if query.failure is not None else 2), -query.ended_ms, query.label

    return sorted(queries, key=order)


def worst_of(queries: Sequence[Assessed]) -> Verdict | None:
    """Return the gravest verdict; None without queries. Queries that ended by themselves do not
    count."""
    found = [
        health.verdict for query, health in queries if query.is_running or query.failure is not None
    ]
    return max(found, key=lambda one: one.gravity, default=None)


def overview(queries: Sequence[Assessed], now_ms: int) -> str:
    """Return the number of queries by verdict, and the time."""
    running = [health.verdict for query, health in queries if query.is_running]
    chips = [
        _chip(verdict.lower(), f"{running.count(verdict)} {verdict}")
        for verdict in reversed(Verdict)
        if verdict in running
    ]
    failed = sum(query.failure is not None for query, _ in queries)
    if failed:
        chips.append(_chip(Verdict.FAILED.lower(), f"{failed} failed"))
    ended = len(queries) - len(running) - failed
    if ended:
        chips.append(_chip("ended", f"{ended} ended"))
    now = f"{date_text(now_ms)} {clock_text(now_ms, seconds=True)}"
    return f'<p class="chips">{"".join(chips)}<span class="dim">{now} UTC</span></p>'


def _chip(kind: str, text: str) -> str:
    return f'<span class="verdict {kind}">{text}</span> '


def banner(query: ObservedQuery, health: Health) -> str:
    """Return the banner of a running query."""
    verdict = health.verdict
    return "\n".join(
        [
            f'<div class="banner {verdict.lower()}">',
            f"<h2>{_chip(verdict.lower(), verdict)}{html_text(query.label)}</h2>",
            *_findings(health),
            f'<dl class="facts">{"".join(_facts(health))}</dl>',
            f'<p class="dim">{html_text(_identity(query))}</p>',
            "</div>",
        ]
    )


def ended_banner(query: ObservedQuery) -> str:
    """Return the banner of a query that has failed or ended."""
    if query.failure is None:
        return f'<span class="verdict ended">ended</span> {html_text(query.label)}{_when(query)}'
    return (
        f'<span class="verdict failed">{Verdict.FAILED}</span> {html_text(query.label)}: '
        f"<strong>{html_text(query.failure)}</strong>{_when(query)}"
    )


def _identity(query: ObservedQuery) -> str:
    batch = "" if query.snapshot is None else f"batch {query.snapshot.batch_id}, "
    return f"{batch}query {query.query_id}"


def _when(query: ObservedQuery) -> str:
    if query.ended_ms is None:
        return ""
    moment = f"{date_text(query.ended_ms)} {clock_text(query.ended_ms, seconds=True)}"
    return f' <span class="dim">{moment} UTC</span>'


def _findings(health: Health) -> Iterator[str]:
    if not health.findings:
        return
    yield '<ul class="findings">'
    for finding in health.findings:
        mark = ""
        if finding.verdict is not health.verdict:
            mark = f'<span class="verdict {finding.verdict.lower()}">{finding.verdict}</span> '
        yield (
            f"<li>{mark}{html_text(finding.reason)}"
            f'<p class="remedy">{html_text(finding.remedy)}</p></li>'
        )
    yield "</ul>"


def _facts(health: Health) -> Iterator[str]:
    where = f" in its {' or its '.join(health.stuck_in)}" if health.stuck_in else ""
    yield _fact("state", f"{health.state}{where}")
    yield _fact("committed delay", _delay(health.committed))
    yield _fact("planned delay", _delay(health.planned))
    yield _fact("last trigger", _ago(health.trigger_age_ms))
    yield _fact("last commit", _ago(health.commit_age_ms))
    caught_up = health.outlook.until_caught_up_ms
    if caught_up:
        yield _fact("catches up", _until(caught_up))
    expiry = health.outlook.until_expiry_ms
    if expiry is not None and caught_up:
        yield _fact("records expire", _until(expiry))


def _fact(name: str, text: str) -> str:
    return f"<div><dt>{name}</dt><dd>{html_text(text)}</dd></div>"


def _delay(behind: Behind) -> str:
    """Return a delay, which is an upper bound."""
    time = "unknown" if behind.ms is None else f"≤ {duration_text(behind.ms)}"
    return time if behind.offsets is None else f"{time} ({count_text(behind.offsets)} offsets)"


def _ago(age_ms: int | None) -> str:
    return "none yet" if age_ms is None else f"{duration_text(age_ms)} ago"


def _until(length_ms: float) -> str:
    if length_ms == math.inf:
        return "never"
    return f"in {duration_text(round(length_ms))}" if length_ms > 0 else "now"
