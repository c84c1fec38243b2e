"""A plan as an HTML page: the figure, a legend, and the content of `explain`. The page is one file
without scripts or external resources; the same plan gives the same page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from spark_ssp.planner.graph.operators import Graph
from spark_ssp.planner.planning.plan import Plan
from spark_ssp.planner.render.explain import Table, agreements, notes, summary, tables
from spark_ssp.planner.render.figure import group_letters, one_line
from spark_ssp.planner.render.svg import draw, group_colour, system_colours

_SANS: Final = '"Segoe UI", "Helvetica Neue", Arial, sans-serif'
_MONO: Final = 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace'
_STYLE: Final = f"""
:root {{ color-scheme: light dark;
  --ground: light-dark(#ffffff, #12181f); --ink: light-dark(#17222e, #e6ebf0);
  --dim: light-dark(#5a6876, #9aa8b5); --thin: light-dark(#d3dae1, #33404d);
  --line: light-dark(#7c8a98, #8391a0); --stage: light-dark(#f3f6f9, #1a222b);
  --intermediate: light-dark(#eef6f5, #172a2c); --table: light-dark(#fdf6e7, #2b2517); }}
body {{ margin: 2rem auto; padding: 0 1.5rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 {_SANS}; }}
h1 {{ font-size: 1.5rem; margin: 0; }}
h2 {{ font-size: 1.05rem; margin: 2.2rem 0 .6rem; }}
.frame, .wide {{ overflow: auto; }}
.frame {{ border: 1px solid var(--thin); border-radius: 10px; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; padding: 0; list-style: none; }}
.legend, .lead {{ color: var(--dim); font-size: .9rem; }}
.badge {{ padding: .1em .5em; border-radius: 1em; color: white; font-weight: 600; }}
.swatch {{ padding: 0 .4em; margin-right: .3em; border: 1px solid var(--line); }}
table {{ border-collapse: collapse; font-size: .9rem; }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem 1.4rem .3rem 0;
  border-bottom: 1px solid var(--thin); }}
th {{ color: var(--dim); }}
td:first-child, svg text.name {{ font-family: {_MONO}; }}
.figure {{ display: block; margin: auto; width: 100%; height: auto; }}
svg text {{ fill: var(--ink); font-family: {_SANS}; font-size: 11px; }}
svg text.caption {{ fill: var(--dim); }}
svg text.inferred {{ fill: var(--dim); font-style: italic; }}
svg text.name {{ font-size: 12.5px; font-weight: 600; }}
svg text.count {{ font-size: 13px; font-weight: 600; }}
svg text.letter {{ fill: white; font-weight: 700; text-anchor: middle; }}
.edge {{ fill: none; stroke: var(--line); stroke-width: 1.6; }}
.head {{ fill: var(--line); }}
.lookup {{ stroke-dasharray: 5 4; }}
rect {{ fill: var(--ground); stroke: var(--thin); }}
.stream, .intermediate {{ stroke: var(--line); }}
.intermediate {{ fill: var(--intermediate); background: var(--intermediate); }}
.missing {{ stroke-dasharray: 6 4; }}
.stage, .filler {{ fill: var(--stage); }}
.table {{ fill: var(--table); stroke: #cf9a35; stroke-width: 1.3; }}
"""


def page(graph: Graph, plan: Plan) -> str:
    """Return the page."""
    title = _escaped(f"Pipeline {plan.pipeline}")
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>{_STYLE}</style></head>",
        "<body>",
        f"<h1>{title}</h1>",
        f'<p class="lead">{summary(plan)}</p>',
        f'<div class="frame">{draw(graph, plan)}</div>',
        f'<ul class="legend">{"".join(f"<li>{entry}</li>" for entry in _legend(plan))}</ul>',
        *map(_table, tables(plan)),
        *_agreements(graph, plan),
    ]
    listed = notes(graph, plan)
    if listed:
        lines += ["<h2>Notes</h2>", _list(map(str, listed))]
    return "\n".join([*lines, "</body></html>", ""])


def _legend(plan: Plan) -> Iterator[str]:
    kinds = {stream.stream.system: stream.kind for stream in plan.streams}
    for system, colour in system_colours(plan).items():
        kind = "" if str(system) == str(kinds[system]) else f" ({kinds[system]})"
        yield f'<span class="swatch" style="background:{colour}"></span>{_escaped(system + kind)}'
    if group_letters(plan):
        yield f"{_badge('A')} streams with the same letter must agree in their partitions"
    yield '<span class="swatch intermediate"></span>written by a stage and read by another'
    yield "dashed border: does not exist yet"
    yield "<i>italics</i>: a count inferred from others"
    yield "solid line: rows"
    yield "dashed line: lookups in a table"


def _table(table: Table) -> str:
    head = "".join(f"<th>{name}</th>" for name in table.header)
    rows = (f"<tr>{''.join(f'<td>{_escaped(c)}</td>' for c in row)}</tr>\n" for row in table.rows)
    body = f"<table><tr>{head}</tr>\n{''.join(rows)}</table>"
    return f'<h2>{table.title}</h2>\n<div class="wide">{body}</div>'


def _agreements(graph: Graph, plan: Plan) -> Iterator[str]:
    letters = group_letters(plan)
    for number, group in enumerate(agreements(graph, plan)):
        if number == 0:
            yield "<h2>What must agree</h2>"
        yield f"<p>{_badge(letters[group.streams[0]])} {_escaped(group.summary)}</p>"
        yield _list(group.ties)


def _list(entries: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_escaped(entry)}</li>' for entry in entries)}</ul>"


def _badge(letter: str) -> str:
    return f'<span class="badge" style="background:{group_colour(letter)}">{letter}</span>'


def _escaped(text: str) -> str:
    return escape(one_line(text))
