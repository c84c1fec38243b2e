"""A plan as a page of HTML: the picture, a legend, and the tables of `explain`. One file that needs
nothing else and opens without a net. Pure; the same plan gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from pipeline_planner.graph.operators import Graph
from pipeline_planner.planning.partition_counts import Case
from pipeline_planner.planning.plan import Plan, Role
from pipeline_planner.render.explain import (
    agreed_told,
    count_told,
    notes,
    readers_by_table,
    sets_told,
)
from pipeline_planner.render.figure_texts import one_line, stream_texts
from pipeline_planner.render.svg import draw, hue_of, set_letters, system_hues

_COLOURS_LIGHT: Final = """
  --back: #ffffff; --ink: #17222e; --dim: #5a6876; --thin: #d3dae1; --line: #7c8a98;
  --stage: #f3f6f9; --row: #ffffff; --table: #fdf6e7; --table-rim: #c9962f; --box: #ffffff;
  --made: #eef6f5;
  --s0: #0e7c86; --s1: #c2571a; --s2: #6b4fc0; --s3: #b3336b; --s4: #3a6ea5; --s5: #5d7a1f;
  --g0: #2456d6; --g1: #a21caf; --g2: #15803d; --g3: #c81e1e; --g4: #7a4a12; --g5: #334155;
"""
_COLOURS_DARK: Final = """
  --back: #12181f; --ink: #e6ebf0; --dim: #9aa8b5; --thin: #33404d; --line: #8391a0;
  --stage: #1a222b; --row: #222c37; --table: #2b2517; --table-rim: #d9a441; --box: #1d2630;
  --made: #172a2c;
  --s0: #35b5bf; --s1: #f08a4b; --s2: #a58cf0; --s3: #ec6fa3; --s4: #6aa5e3; --s5: #a3c552;
  --g0: #7ea6ff; --g1: #e879f9; --g2: #5fd38a; --g3: #ff8080; --g4: #d9a066; --g5: #a8b5c4;
"""
_HUES: Final = "".join(
    f".system{n} .stripe, .swatch.system{n} {{ fill: var(--s{n}); background: var(--s{n}); }}\n"
    f"rect.ring{n} {{ stroke: var(--g{n}); stroke-width: 2; }}\n"
    f".badge{n} {{ fill: var(--g{n}); background: var(--g{n}); }}\n"
    for n in range(6)
)
STYLE: Final = f"""
:root {{ color-scheme: light dark; {_COLOURS_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_COLOURS_DARK} }} }}
body {{ margin: 2rem auto; padding: 0 1.5rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 "Segoe UI", "Helvetica Neue", Arial, sans-serif; }}
h1 {{ font-size: 1.5rem; margin: 0; }}
h2 {{ font-size: 1.05rem; margin: 2.2rem 0 .6rem; }}
p.lead {{ margin: .2rem 0 1.2rem; color: var(--dim); }}
code, .name {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono",
  "Liberation Mono", monospace; }}
.frame {{ overflow: auto; border: 1px solid var(--thin); border-radius: 10px; }}
.picture {{ display: block; margin: auto; width: 100%; height: auto; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: .8rem 0 0; padding: 0;
  list-style: none; color: var(--dim); font-size: .85rem; }}
.swatch {{ display: inline-block; width: .8em; height: .8em; border-radius: 2px;
  margin-right: .4em; }}
.dash {{ display: inline-block; width: 1.8em; margin: 0 .4em .25em 0;
  border-top: 2px dashed var(--line); }}
.dash.flows {{ border-top-style: solid; }}
.swatch.between {{ background: var(--made); border: 1px solid var(--line); }}
.mark {{ display: inline-block; min-width: 1.4em; padding: 0 .2em; text-align: center;
  border-radius: 1em; color: var(--back); font-weight: 600; font-size: .8em; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .9rem; }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem 1.4rem .3rem 0;
  border-bottom: 1px solid var(--thin); }}
th {{ color: var(--dim); font-weight: 600; }}
td.number {{ white-space: nowrap; }}
ul.told {{ margin: .2rem 0; padding-left: 1.2rem; }}
svg text {{ fill: var(--ink); font: 11px "Segoe UI", "Helvetica Neue", Arial, sans-serif; }}
svg text.caption {{ fill: var(--dim); }}
svg text.inferred {{ font-style: italic; }}
svg text.name {{ font: 12.5px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono",
  "Liberation Mono", monospace; }}
svg text.strong, svg text.count {{ font-weight: 600; }}
svg text.count {{ font-size: 13px; }}
svg text.letter {{ fill: var(--back); font-weight: 700; }}
.line {{ fill: none; stroke: var(--line); stroke-width: 1.6; }}
.looks {{ stroke-dasharray: 5 4; }}
.tip {{ fill: var(--line); }}
rect.stage, rect.filling {{ fill: var(--stage); stroke: var(--thin); }}
rect.row {{ fill: var(--row); stroke: var(--thin); }}
rect.stream {{ fill: var(--box); stroke: var(--line); }}
rect.made {{ fill: var(--made); }}
rect.absent {{ stroke-dasharray: 6 4; }}
path.table {{ fill: var(--table); stroke: var(--table-rim); stroke-width: 1.3; }}
path.rim {{ fill: none; }}
{_HUES}"""


def page(graph: Graph, plan: Plan) -> str:
    """The whole file."""
    title = f"Pipeline {plan.pipeline}"
    many = [(len(plan.stages), "stage"), (len(plan.streams), "stream"), (len(plan.tables), "table")]
    lead = ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in many)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}</title>",
            f"<style>{STYLE}</style></head>",
            "<body>",
            f"<h1>{_text(title)}</h1>",
            f'<p class="lead">{lead}</p>',
            "<h2>What flows where</h2>",
            f'<div class="frame">{draw(graph, plan)}</div>',
            _legend(plan),
            *_sections(graph, plan),
            "</body></html>",
            "",
        ]
    )


def _legend(plan: Plan) -> str:
    kinds = {stream.stream.system: stream.kind for stream in plan.streams}
    # Most are called by their kind.
    told = {
        name: name if str(name) == str(kind) else f"{name} ({kind})" for name, kind in kinds.items()
    }
    entries = [
        f'<li><span class="swatch system{hue}"></span>{_text(told[system])}</li>'
        for system, hue in system_hues(plan).items()
    ]
    if set_letters(plan):
        entries.append(
            '<li><span class="mark badge0">A</span> streams of one letter must agree in their '
            "partitions</li>"
        )
    if any(stream.role is Role.INTERMEDIATE for stream in plan.streams):
        entries.append(
            '<li><span class="swatch between"></span>written by a stage and read by another</li>'
        )
    entries.append("<li>dashed rim: not there yet</li>")
    if any(stream_texts(stream).inferred for stream in plan.streams):
        entries.append("<li><i>italics</i>: a count that follows from others</li>")
    entries.append('<li><span class="dash flows"></span>rows go there</li>')
    if plan.tables:
        entries.append('<li><span class="dash"></span>looked up in a table</li>')
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _sections(graph: Graph, plan: Plan) -> Iterator[str]:
    yield "<h2>Streams</h2>"
    yield _table(("stream", "role", "partitions", "where the count comes from"), _streams(plan))
    yield "<h2>Stages</h2>"
    yield _table(
        ("stage", "reads", "writes", "key", "tables"),
        (
            (_code(s.name), _codes(s.reads), _code(s.writes), _codes(s.key), _codes(s.tables))
            for s in plan.stages
        ),
    )
    if plan.tables:
        yield "<h2>Tables</h2>"
        readers = readers_by_table(plan)
        rows = (
            (_code(t.name), _codes(t.key), _codes(t.filled_by), _codes(readers.get(t.name, [])))
            for t in plan.tables
        )
        yield _table(("table", "key", "filled by", "read by"), rows)
    yield from _agreeing(graph, plan)
    told = notes(graph, plan)
    if told:
        yield "<h2>Notes</h2>"
        yield _list(_text(str(note)) for note in told)


def _streams(plan: Plan) -> Iterator[tuple[str, ...]]:
    letters = set_letters(plan)
    for stream in plan.streams:
        flags = (("broadcast", stream.broadcast), ("bootstrap", stream.bootstrap))
        role = ", ".join([stream.role.value, *(word for word, is_set in flags if is_set)])
        differs = stream.tasks is not None and stream.tasks != stream.partitions
        count = "?" if stream.partitions is None else str(stream.partitions)
        letter = letters.get(stream.stream)
        yield (
            _code(stream.stream) + ("" if letter is None else f" {_mark(letter)}"),
            role,
            count + (f" in {stream.tasks} tasks" if differs else ""),
            _text(count_told(stream.count)),
        )


def _agreeing(graph: Graph, plan: Plan) -> Iterator[str]:
    """The same lines as `explain` has, by letters."""
    letters = set_letters(plan)
    for number, (group, told) in enumerate(sets_told(graph, plan)):
        if number == 0:
            yield "<h2>What must agree</h2>"
        count = "unknown" if group.partitions is None else f"{group.partitions} partitions"
        if group.partitions is None and group.case is not Case.NONE_DEFINED:
            count = agreed_told(plan, group)
        yield (
            f"<p>{_mark(letters[group.streams[0]])} {_codes(group.streams)}: "
            f"<b>{count}</b> ({group.case.value})</p>"
        )
        yield _list(_text(tie) for tie in told)


# --- Elements ------------------------------------------------------------------------------------


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _list(entries: Iterable[str]) -> str:
    return f'<ul class="told">{"".join(f"<li>{entry}</li>" for entry in entries)}</ul>'


def _mark(letter: str) -> str:
    return f'<span class="mark badge{hue_of(letter)}">{letter}</span>'


def _code(text: object) -> str:
    return f"<code>{_text(str(text))}</code>"


def _codes(texts: Sequence[object]) -> str:
    return ", ".join(_code(text) for text in dict.fromkeys(texts)) or "-"


def _text(text: str) -> str:
    return escape(one_line(text), quote=True)
