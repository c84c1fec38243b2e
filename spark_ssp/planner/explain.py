"""A plan as text: tables of streams, stages and tables, co-partitioned streams, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spark_ssp.planner.graph.errors import Note
from spark_ssp.planner.graph.operators import (
    Graph,
    JoinTable,
    Output,
    PartitionBy,
    StreamId,
    SystemKind,
    described,
)
from spark_ssp.planner.planning.co_partitioning import CoPartitionGraph, operators_by_link
from spark_ssp.planner.planning.partition_counts import (
    Case,
    Count,
    Origin,
    PartitionGroup,
    describe_link,
    in_tasks,
)
from spark_ssp.planner.planning.plan import Plan, Role, StreamPlan
from spark_ssp.planner.planning.validation import find_kinesis_notes

MAX_COLUMN_WIDTH: Final = 80
"""In characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts; rows have as many cells as the header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementText:
    """A group of streams that must agree: its streams, its count, and a line for each tie."""

    streams: tuple[StreamId, ...]
    summary: str
    ties: tuple[str, ...]


def explain(graph: Graph, plan: Plan) -> str:
    """Return the plan of `graph` as text that ends with a line break."""
    sections = [f"Pipeline {plan.pipeline}: {summary(plan)}"]
    sections += [aligned(table.header, table.rows) for table in tables(plan)]
    groups = agreements(graph, plan)
    if groups:
        lines = [line for g in groups for line in (g.summary, *(f"  {tie}" for tie in g.ties))]
        sections.append("\n".join(["MUST AGREE", *lines]))
    listed = [f"- {note}" for note in notes(graph, plan)]
    if listed:
        sections.append("\n".join(["NOTES", *listed]))
    return "\n\n".join(sections) + "\n"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in columns under upper-case heads, two spaces apart, without trailing spaces. A
    cell of more than `MAX_COLUMN_WIDTH` characters does not widen its column."""
    lines = [[word.upper() for word in header], *rows]
    widths = [
        max((size for line in lines if (size := len(line[column])) <= MAX_COLUMN_WIDTH), default=0)
        for column in range(len(header))
    ]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def summary(plan: Plan) -> str:
    """Return the numbers of stages, streams and tables."""
    counted = ((plan.stages, "stage"), (plan.streams, "stream"), (plan.tables, "table"))
    return ", ".join(f"{len(some)} {what}{'' if len(some) == 1 else 's'}" for some, what in counted)


def tables(plan: Plan) -> tuple[Table, ...]:
    """Return the tables of streams, of stages and, if the plan has any, of tables."""
    readers = {t.name: [s.name for s in plan.stages if t.name in s.tables] for t in plan.tables}
    found = [
        Table(
            title="Streams",
            header=("stream", "role", "partitions", "count"),
            rows=tuple(
                (str(s.stream), ", ".join(roles(s)), _partitions(s), count_source(s.count))
                for s in plan.streams
            ),
        ),
        Table(
            title="Stages",
            header=("stage", "reads", "writes", "key", "tables"),
            rows=tuple(
                (s.name, _listed(s.reads), str(s.writes), _listed(s.key), _listed(s.tables))
                for s in plan.stages
            ),
        ),
        Table(
            title="Tables",
            header=("table", "key", "filled by", "read by"),
            rows=tuple(
                (t.name, _listed(t.key), _listed(t.filled_by), _listed(readers[t.name]))
                for t in plan.tables
            ),
        ),
    ]
    return tuple(table for table in found if table.title != "Tables" or table.rows)


def roles(stream: StreamPlan) -> list[str]:
    """Return a stream's role, with `broadcast` and `bootstrap` where they are set."""
    flags = (("broadcast", stream.broadcast), ("bootstrap", stream.bootstrap))
    return [stream.role.value, *(word for word, is_set in flags if is_set)]


def count_source(count: Count) -> str:
    """Return where a count comes from, as text."""
    match count.origin:
        case Origin.FOUND:
            return "found"
        case Origin.GIVEN:
            return "given by partitions=" if count.like is None else "given by an earlier plan"
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


def agreements(graph: Graph, plan: Plan) -> tuple[AgreementText, ...]:
    """Return the groups of streams that must agree, without streams joined only with themselves."""
    groups = [group for group in plan.sets if len(group.streams) > 1]
    ties = CoPartitionGraph(graph).links_by_group(group.streams for group in groups)
    operators = operators_by_link(graph)
    return tuple(
        AgreementText(
            streams=group.streams,
            summary=f"{_listed(group.streams)}: {_agreed_count(plan, group)} ({group.case.value})",
            ties=tuple(describe_link(tie, operators[tie]) for tie in ties[group.streams[0]]),
        )
        for group in groups
    )


def _partitions(stream: StreamPlan) -> str:
    return "?" if stream.partitions is None else in_tasks(stream.partitions, stream.tasks)


def _number(count: int | None) -> str:
    return "?" if count is None else str(count)


def _agreed_count(plan: Plan, group: PartitionGroup) -> str:
    """Return the count of a group, "?" if it is unknown, or all counts if they differ."""
    if group.partitions is not None or group.case is Case.NONE_DEFINED:
        return _number(group.partitions)
    tasks = (plan.stream(stream).tasks for stream in group.streams)
    return f"{', '.join(map(_number, tasks))}, which do not agree"


def _listed(parts: Sequence[str | StreamId]) -> str:
    return ", ".join(str(part) for part in dict.fromkeys(parts)) or "-"


# --- Notes ---------------------------------------------------------------------------------------


def notes(graph: Graph, plan: Plan) -> tuple[Note, ...]:
    """Return notes on a valid plan: on Kinesis, tables, capped and unknown counts."""
    return (
        *find_kinesis_notes(graph),
        *_kinesis_written(graph, plan),
        *_table_notes(graph, plan),
        *_disagreement_notes(plan),
        *_count_notes(plan),
    )


def _kinesis_written(graph: Graph, plan: Plan) -> Iterator[Note]:
    for operator in graph.operators:
        if not isinstance(operator, PartitionBy | Output):
            continue
        if graph.kind_of(operator.stream.system) is SystemKind.KINESIS:
            exists = plan.stream(operator.stream).count.origin is Origin.FOUND
            created = isinstance(operator, PartitionBy) and not exists
            yield Note(
                subject=described(operator),
                text=f"pipelines do not write to Kinesis: {operator.stream} is planned"
                f"{', and created by apply, which AWS bills' if created else ''}, but run refuses "
                "the pipeline; to run it, name a Kafka system here",
                place=operator.place,
            )


def _table_notes(graph: Graph, plan: Plan) -> Iterator[Note]:
    filled = {table.name for table in plan.tables if table.filled_by}
    places = {table.name: table.place for table in graph.tables}
    read = sorted({o.table for o in graph.operators if isinstance(o, JoinTable)} - filled)
    for name in read:
        yield Note(
            subject=f"table {name}",
            text="the pipeline does not fill it, so its readers need not agree, and its rows must "
            "come from elsewhere",
            place=places[name],
        )


def _disagreement_notes(plan: Plan) -> Iterator[Note]:
    for group in plan.sets:
        if group.partitions is None and group.case is not Case.NONE_DEFINED:
            yield Note(
                subject=_listed(group.streams),
                text=f"counts of {_agreed_count(plan, group)}. Joins and tables are still correct, "
                "since Spark shuffles rows by key; code that relies on a key having one task in "
                "all of these streams is not",
            )


def _count_notes(plan: Plan) -> Iterator[Note]:
    for stream in plan.streams:
        if stream.count.origin is Origin.CAPPED:
            text = (
                f"{stream.partitions} partitions are the cap of inferred counts; to have more, "
                "give partitions= or plan with "
                "settings=PlanSettings(default_intermediate_partitions=…)"
            )
        elif stream.count.origin is not Origin.UNKNOWN:
            continue
        elif stream.role is Role.OUTPUT:
            text = "does not exist yet; the pipeline does not create outputs"
        else:
            text = (
                "does not exist yet, or its service does not report its partitions; no stream "
                "that must agree with it needs them"
            )
        yield Note(subject=str(stream.stream), text=text)
