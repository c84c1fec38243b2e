"""What stands in the boxes of a picture, and how wide it is. Pure.

Names are set in a typeface whose letters are all equally wide, so that their width is known without
a font; other texts are measured with room to spare. What is too long loses its middle; all of it is
in the box's tooltip.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

from pipeline_planner.graph.operators import (
    Filter,
    JoinTable,
    Operator,
    PartitionBy,
    SideInput,
    StateKind,
    Transform,
    method_of,
)
from pipeline_planner.planning.partition_counts import Count, Origin
from pipeline_planner.planning.plan import Role, StreamPlan, TablePlan
from pipeline_planner.render.figure_parts import Section

LETTER: Final = 0.602
"""The width of a letter of a monospaced typeface, in heights."""

PROSE: Final = 0.56
"""More than the mean width of a letter of other typefaces, in heights."""

LONGEST: Final = 36
"""Letters of a name that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTexts:
    """The lines of a stream's box."""

    caption: str
    name: str
    count: str
    reason: str
    inferred: bool
    """Whether the planner came to the count, rather than a service or the user."""


def one_line(text: str) -> str:
    """Without line breaks and what cannot be shown."""
    shown = (c if c.isprintable() else " " for c in text)
    return " ".join("".join(shown).split())


def elided(text: str, most: int = LONGEST) -> str:
    """On one line, and without its middle when it is too long."""
    text = one_line(text)
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def name_width(text: str, size: float) -> float:
    """Of a name; letters of East Asia are twice as wide."""
    cells = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
    return cells * LETTER * size


def prose_width(text: str, size: float) -> float:
    """Of other texts."""
    cells = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
    return cells * PROSE * size


# --- Streams and tables --------------------------------------------------------------------------


def stream_texts(stream: StreamPlan) -> StreamTexts:
    """What a stream's box says."""
    flags = (("broadcast", stream.broadcast), ("bootstrap", stream.bootstrap))
    words = [stream.role.value, *(word for word, is_set in flags if is_set)]
    return StreamTexts(
        caption=f"{stream.stream.system} · {' · '.join(words)}",
        name=elided(stream.stream.stream),
        count=_count(stream),
        reason=elided(_reason(stream), LONGEST + 6),
        inferred=stream.count.origin in _INFERRED,
    )


_INFERRED: Final = frozenset({Origin.JOINED, Origin.CONFIGURED, Origin.LARGEST, Origin.CAPPED})


def _count(stream: StreamPlan) -> str:
    if stream.partitions is None:
        return "count unknown" if stream.role is Role.INPUT else "not there yet"
    what = "shard" if stream.kind == "kinesis" else "partition"
    many = f"{stream.partitions} {what}{'' if stream.partitions == 1 else 's'}"
    differs = stream.tasks is not None and stream.tasks != stream.partitions
    return f"{many} in {stream.tasks} tasks" if differs else many


def _reason(stream: StreamPlan) -> str:
    count: Count = stream.count
    match count.origin:
        case Origin.FOUND:
            return "found at the service"
        case Origin.GIVEN:
            return "given by partitions="
        case Origin.JOINED:
            return f"inferred: as {count.like}"
        case Origin.CONFIGURED:
            return "inferred: the configured default"
        case Origin.LARGEST:
            return f"inferred: as the largest, {count.like}"
        case Origin.CAPPED:
            return f"inferred: the cap; {count.like} has more"
        case Origin.UNKNOWN if stream.role is Role.INPUT:
            return "not there, or its service does not say"
        case Origin.UNKNOWN:
            return "the pipeline does not create outputs"


def table_texts(table: TablePlan) -> tuple[str, str, str]:
    """Caption, name and key of a table's box."""
    caption = "table" if table.filled_by else "table · filled by others"
    return caption, elided(table.name), elided(f"key {', '.join(table.key)}", LONGEST)


# --- Sections and operators ----------------------------------------------------------------------


def section_texts(section: Section) -> tuple[str, str]:
    """Title and subtitle of a section's box."""
    ender = section.ender
    if isinstance(ender, PartitionBy):
        said = elided(f"partition by {', '.join(ender.columns)}", LONGEST + 6)
    elif section.is_stage:
        said = "stage with an output"
    else:
        how = "side input of" if isinstance(ender, SideInput) else "fills table"
        said = elided(f"{how} {section.goal}", LONGEST + 6)
    return elided(ender.name), said


def row_texts(operator: Operator) -> tuple[str, str]:
    """Caption and name of an operator's row."""
    return elided(" · ".join([method_of(operator), *_details(operator)]), LONGEST), elided(
        operator.name
    )


def _details(operator: Operator) -> list[str]:
    match operator:
        case Filter() if isinstance(operator.condition, str):
            return [operator.condition]
        case Transform() if operator.state is not StateKind.NONE:
            return [f"state {operator.state.value}"]
        case JoinTable():
            return [operator.table, *(["left"] if operator.how == "left" else [])]
        case _:
            return []
