"""A plan for people: tables of text, and a picture as Mermaid text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pipeline_planner.checks.co_partitioning import Web, operators_by_tie
from pipeline_planner.checks.kinesis_limits import kinesis_notes
from pipeline_planner.graph.errors import Note
from pipeline_planner.graph.names import StreamId, SystemKind
from pipeline_planner.graph.operators import Graph, JoinTable, Output, PartitionBy, described
from pipeline_planner.planning.count_conflicts import tie_told
from pipeline_planner.planning.partition_counts import AgreeingSet, Case, Count, Origin
from pipeline_planner.planning.plan import Plan, Role, StreamPlan

WIDEST: Final = 80
"""A column is no wider, in characters."""


def explain(graph: Graph, plan: Plan) -> str:
    """The plan of `graph` in tables: streams with their counts and where these come from, stages,
    tables, what must agree and why, notes. Ends with a line break."""
    numbers = (
        _many(len(plan.stages), "stage"),
        _many(len(plan.streams), "stream"),
        _many(len(plan.tables), "table"),
    )
    sections = [
        f"Pipeline {plan.pipeline}: {', '.join(numbers)}",
        aligned(("stream", "role", "partitions", "count"), _stream_rows(plan)),
        aligned(("stage", "reads", "writes", "key", "tables"), _stage_rows(plan)),
    ]
    if plan.tables:
        sections.append(aligned(("table", "key", "filled by", "read by"), _table_rows(plan)))
    agreeing = list(_set_lines(graph, plan))
    if agreeing:
        sections.append("\n".join(["MUST AGREE", *agreeing]))
    listed = [f"- {note}" for note in notes(graph, plan)]
    if listed:
        sections.append("\n".join(["NOTES", *listed]))
    return "\n\n".join(sections) + "\n"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under upper-case heads, two spaces apart; nothing to the right of the last text. A
    cell of more than `WIDEST` characters stands out: it makes no other line longer."""
    lines = [[word.upper() for word in header], *rows]
    widths = [
        max((size for line in lines if (size := len(line[column])) <= WIDEST), default=0)
        for column in range(len(header))
    ]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def count_told(count: Count) -> str:
    """Where a count comes from, in words."""
    match count.origin:
        case Origin.FOUND:
            return "found"
        case Origin.GIVEN:
            return "given by partitions="
        case Origin.JOINED:
            return f"inferred: as {count.like}, through {', '.join(count.through)}"
        case Origin.CONFIGURED:
            return "inferred: default_intermediate_partitions"
        case Origin.LARGEST:
            return f"inferred: the largest of inputs and outputs, {count.like}"
        case Origin.CAPPED:
            return f"inferred: the cap, since {count.like} has more"
        case Origin.UNKNOWN:
            return "unknown"


def notes(graph: Graph, plan: Plan) -> tuple[Note, ...]:
    """What is right and worth knowing: hints on Kinesis, tables, caps and unknown counts."""
    return (
        *kinesis_notes(graph),
        *_kinesis_written(graph, plan),
        *_table_notes(graph, plan),
        *_disagreement_notes(plan),
        *_count_notes(plan),
    )


# --- Rows ----------------------------------------------------------------------------------------


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _stream_rows(plan: Plan) -> list[tuple[str, ...]]:
    return [
        (str(s.stream), _role(s), _number(s.partitions) + _tasks(s), count_told(s.count))
        for s in plan.streams
    ]


def _role(stream: StreamPlan) -> str:
    flags = (("broadcast", stream.broadcast), ("bootstrap", stream.bootstrap))
    return ", ".join([stream.role.value, *(word for word, is_set in flags if is_set)])


def _number(count: int | None) -> str:
    return "?" if count is None else str(count)


def _tasks(stream: StreamPlan) -> str:
    differs = stream.tasks is not None and stream.tasks != stream.partitions
    return f" in {stream.tasks} tasks" if differs else ""


def _stage_rows(plan: Plan) -> list[tuple[str, ...]]:
    return [
        (s.name, _listed(s.reads), str(s.writes), _listed(s.key), _listed(s.tables))
        for s in plan.stages
    ]


def readers_by_table(plan: Plan) -> dict[str, list[str]]:
    """The stages that join with each table."""
    readers: dict[str, list[str]] = {}
    for stage in plan.stages:
        for table in dict.fromkeys(stage.tables):
            readers.setdefault(table, []).append(stage.name)
    return readers


def _table_rows(plan: Plan) -> list[tuple[str, ...]]:
    readers = readers_by_table(plan)
    return [
        (
            table.name,
            _listed(table.key),
            _listed(table.filled_by),
            _listed(readers.get(table.name, [])),
        )
        for table in plan.tables
    ]


def _set_lines(graph: Graph, plan: Plan) -> Iterator[str]:
    for group, told in sets_told(graph, plan):
        yield f"{_listed(group.streams)}: {agreed_told(plan, group)} ({group.case.value})"
        yield from (f"  {tie}" for tie in told)


def sets_told(graph: Graph, plan: Plan) -> Iterator[tuple[AgreeingSet, list[str]]]:
    """Each set of streams that must agree, with a line for each of its ties. A stream joined with
    itself alone is left out."""
    groups = [group for group in plan.sets if len(group.streams) > 1]
    ties = Web(graph).ties_by_set(group.streams for group in groups)
    meet = operators_by_tie(graph)
    for group in groups:
        yield group, [tie_told(tie, meet[tie]) for tie in ties[group.streams[0]]]


def _listed(parts: Sequence[str | StreamId]) -> str:
    return ", ".join(str(part) for part in dict.fromkeys(parts)) or "-"


# --- Notes ---------------------------------------------------------------------------------------


def _kinesis_written(graph: Graph, plan: Plan) -> Iterator[Note]:
    for operator in graph.operators:
        if not isinstance(operator, PartitionBy | Output):
            continue
        if graph.kind_of(operator.stream.system) is SystemKind.KINESIS:
            there = plan.stream(operator.stream).count.origin is Origin.FOUND
            made = isinstance(operator, PartitionBy) and not there
            yield Note(
                subject=described(operator),
                text=f"nothing here writes to Kinesis, so {operator.stream} is planned"
                f"{', and created by apply, which AWS bills' if made else ''}, and run refuses the "
                "pipeline; to run it, name a system of Kafka here",
                place=operator.place,
            )


def _table_notes(graph: Graph, plan: Plan) -> Iterator[Note]:
    filled = {table.name for table in plan.tables if table.filled_by}
    places = {table.name: table.place for table in graph.tables}
    read = sorted({o.table for o in graph.operators if isinstance(o, JoinTable)} - filled)
    for name in read:
        yield Note(
            subject=f"table {name}",
            text="nothing in this pipeline fills it, so its readers need not agree, and its rows "
            "must come from elsewhere",
            place=places[name],
        )


def agreed_told(plan: Plan, group: AgreeingSet) -> str:
    """Return the count that a set agrees on, "?" if it is unknown, or all counts if they differ."""
    if group.partitions is not None or group.case is Case.NONE_DEFINED:
        return _number(group.partitions)
    tasks = (plan.stream(stream).tasks for stream in group.streams)
    return f"{', '.join(map(_number, tasks))}, which do not agree"


def _disagreement_notes(plan: Plan) -> Iterator[Note]:
    """Notes on plans whose counts differ."""
    for group in plan.sets:
        if group.partitions is None and group.case is not Case.NONE_DEFINED:
            yield Note(
                subject=_listed(group.streams),
                text=f"counts of {agreed_told(plan, group)}. Spark moves rows to their keys for "
                "joins and tables, so these are right; what relies on a key having one task in "
                "all of these streams is not",
            )


def _count_notes(plan: Plan) -> Iterator[Note]:
    for stream in plan.streams:
        if stream.count.origin is Origin.CAPPED:
            yield Note(
                subject=str(stream.stream),
                text=f"{stream.partitions} partitions are the cap of what is inferred; to have "
                "more, give partitions= or plan with "
                "settings=PlanSettings(default_intermediate_partitions=…)",
            )
        elif stream.count.origin is Origin.UNKNOWN and stream.role is Role.OUTPUT:
            yield Note(
                subject=str(stream.stream),
                text="not there yet; an output is not created by the pipeline",
            )
        elif stream.count.origin is Origin.UNKNOWN:
            yield Note(
                subject=str(stream.stream),
                text="not there yet, or its service does not tell its partitions; nothing that it "
                "is tied to needs them",
            )
