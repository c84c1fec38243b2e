"""The page as HTML: one file without external resources, readable without scripts. `body` is the
part that changes. The live page replaces it with each trigger, by a short script; the file that
`LivePage.save` writes has no script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from spark_ssp.common.errors import printable
from spark_ssp.common.times import duration_text
from spark_ssp.operations.live_page.svg import OWNER_COLOURS, count_text, draw, lag_text
from spark_ssp.operations.live_page.timeline import (
    LEVELS,
    LagLevel,
    QueryTimeline,
    SourceTimeline,
    owners_of,
)
from spark_ssp.operations.snapshot import (
    ReadState,
    ShardSnapshot,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
    short_name,
)

_FILES: Final = files("spark_ssp.operations.live_page")
_STYLE: Final = _FILES.joinpath("page.css").read_text(encoding="utf-8")
_SCRIPT: Final = _FILES.joinpath("page.js").read_text(encoding="utf-8")
_SHOWN_SHARDS: Final = 200
"""The shards listed in the table: those farthest behind."""

_STATES: Final = {
    ReadState.OPEN: "open",
    ReadState.CLOSED: "closed, not read to the end",
    ReadState.WAITING: "waiting for their parents",
    ReadState.ENDED: "ended",
}


def page(content: str, *, nonce: str | None = None) -> str:
    """Return the whole page around a body. With `nonce`, the live one: its script has it."""
    live = "" if nonce is None else f'<script nonce="{nonce}">\n{_SCRIPT}</script>'
    state = "snapshot" if nonce is None else "connecting"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            "<title>spark-ssp</title>",
            f"<style>\n{_STYLE}</style></head>",
            "<body>",
            f'<h1>spark-ssp <span class="dim" id="state" role="status">{state}</span></h1>',
            f"<main>{content}</main>",
            live,
            "</body></html>",
            "",
        ]
    )


def body(queries: Sequence[QueryTimeline]) -> str:
    """Return the content of the page: a section for each query."""
    if not any(query.sources for query in queries):
        return "<p>No query of kinesis-ssp or kafka-ssp has reported a batch yet.</p>"
    return "\n".join(line for query in queries if query.sources for line in _query(query))


def _query(query: QueryTimeline) -> Iterator[str]:
    snapshot = query.snapshot
    if snapshot is None:
        return
    state = "" if query.is_running else " (ended)"
    yield f"<section><h2>{_text(query.label)}{state}</h2>"
    yield f'<p class="dim">batch {snapshot.batch_id}, query {_text(snapshot.query_id)}</p>'
    if query.dropped:
        yield f"<p>{count_text(query.dropped)} rows dropped by the watermark</p>"
    for timeline in query.sources:
        yield from _source(timeline, query.label)
    yield "</section>"


def _source(timeline: SourceTimeline, label: str) -> Iterator[str]:
    latest = timeline.latest
    if latest is None or not timeline.batches:
        return
    yield f"<p>{_text(_summary(timeline, latest))}</p>"
    title = f"{label}: the shards of each task over time"
    yield f'<div class="frame" tabindex="0" aria-label="{_text(title)}">'
    yield draw(timeline, title)
    yield "</div>"
    yield f'<ul class="legend">{"".join(f"<li>{entry}</li>" for entry in _legend(timeline))}</ul>'
    yield from _leases(latest)
    yield from _counters(latest)
    yield from _shards(latest)


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
        lag = ""
        if stream.max_lag is not None:
            lag = f", lag {lag_text(stream.max_lag, timeline.format)}"
        pushed = ""
        if stream.fan_out is not None:
            pushed = f", {stream.fan_out.pushed} pushed and {stream.fan_out.polled} polled"
        alignment = _alignment(stream)
        parts.append(f"{stream.name}: {total}{shown}{lag}{alignment}{pushed}")
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


def _legend(timeline: SourceTimeline) -> Iterator[str]:
    low, moderate, high = LEVELS[timeline.format]
    names = {
        LagLevel.LOW: f"lag up to {lag_text(low, timeline.format)}",
        LagLevel.MODERATE: f"up to {lag_text(moderate, timeline.format)}",
        LagLevel.HIGH: f"up to {lag_text(high, timeline.format)}",
        LagLevel.SEVERE: "above",
        LagLevel.UNKNOWN: "unknown",
    }
    used = {span.level for bar in timeline.bars for span in bar.spans}
    for level, name in names.items():
        if level is not LagLevel.UNKNOWN or level in used:
            yield f'<span class="swatch lag{int(level)}"></span>{name}'
    if timeline.format is SourceFormat.KINESIS:
        yield "dark end: closed or ended"
        yield "line: split or merge"
    owners = owners_of(timeline.bars)
    if len(owners) > 1:
        for number, owner in enumerate(owners):
            swatch = f'<span class="swatch owner{number % OWNER_COLOURS}"></span>'
            yield f"{swatch}owner {_text(owner)}"


def _leases(latest: SourceSnapshot) -> Iterator[str]:
    leased = [stream for stream in latest.streams if stream.leases is not None]
    if not leased:
        return
    yield "<h3>Leases</h3>"
    rows = []
    for stream in leased:
        leases = stream.leases
        if leases is None:
            continue
        for owner, held in sorted(leases.by_owner.items()):
            own = " (this query)" if owner == latest.worker else ""
            rows.append((stream.name, owner + own, count_text(held)))
        if leases.others:
            rows.append((stream.name, "other owners", count_text(leases.others)))
        if leases.free:
            rows.append((stream.name, "no owner", count_text(leases.free)))
        if leases.not_read:
            rows.append((stream.name, "not read: a row is malformed", count_text(leases.not_read)))
    yield _table(("stream", "owner", "leases"), rows)


def _counters(latest: SourceSnapshot) -> Iterator[str]:
    if not latest.counters:
        return
    yield "<h3>Since the start of the query</h3>"
    rows = [(_in_words(name), count_text(n)) for name, n in latest.counters.items()]
    yield _table(("event", "count"), rows)


def _in_words(name: str) -> str:
    """Return the words of a name in camelCase."""
    return re.sub("[A-Z]", lambda capital: f" {capital[0].lower()}", name)


def _shards(latest: SourceSnapshot) -> Iterator[str]:
    every = [(stream, shard) for stream in latest.streams for shard in stream.shards]
    every.sort(key=lambda each: (each[1].lag is None, -(each[1].lag or 0)))
    is_kinesis = latest.format is SourceFormat.KINESIS
    noun = "Shards" if is_kinesis else "Partitions"
    shown = f", the {_SHOWN_SHARDS} farthest behind" if len(every) > _SHOWN_SHARDS else ""
    yield f"<details><summary>{noun}: {count_text(len(every))}{shown}</summary>"
    columns: tuple[str, ...] = (
        "stream" if is_kinesis else "topic",
        noun[:-1].lower(),
        "task",
        "state",
        "lag",
    )
    has_owner = any(shard.owner for _, shard in every)
    has_parents = any(shard.parents for _, shard in every)
    columns += ("owner",) if has_owner else ()
    columns += ("from",) if has_parents else ()
    rows = [
        (
            *_shard_cells(stream, shard, latest.format),
            *((shard.owner or "",) if has_owner else ()),
            *((", ".join(map(short_name, shard.parents or ())),) if has_parents else ()),
        )
        for stream, shard in every[:_SHOWN_SHARDS]
    ]
    yield _table(columns, rows)
    yield "</details>"


def _shard_cells(
    stream: StreamSnapshot, shard: ShardSnapshot, format_: SourceFormat
) -> tuple[str, ...]:
    lag = lag_text(shard.lag, format_)
    if shard.lag is None and stream.not_shown_max_lag is not None:
        lag = f"at most {lag_text(stream.not_shown_max_lag, format_)}"
    return stream.name, shard.shard, shard.task or "", shard.state.value, lag


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    cells = (
        "".join(_cell(name, cell) for name, cell in zip(columns, row, strict=True)) for row in rows
    )
    lines = "\n".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{lines}</tbody></table>"


def _cell(column: str, text: str) -> str:
    kind = {"shard": "id", "owner": "id", "from": "id", "count": "number", "leases": "number"}
    name = kind.get(column)
    return f'<td class="{name}">{_text(text)}</td>' if name else f"<td>{_text(text)}</td>"


def _text(text: str) -> str:
    return escape(printable(text))
