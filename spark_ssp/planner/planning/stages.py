"""Derives the stages of a graph, one per streaming query, and the fillers of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final

from spark_ssp.planner.checks.validation import operators_in_order
from spark_ssp.planner.graph.names import OperatorName, StreamId, TableName
from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    JoinTable,
    Operator,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    by_name,
    upstreams,
)
from spark_ssp.planner.graph.traversal import upwards
from spark_ssp.planner.planning.plan import StagePlan, TablePlan

MOST_SOURCES: Final = 1_000
"""Maximum number of streams that one query reads. A self-join doubles those of its line."""


def stages_of(graph: Graph) -> tuple[StagePlan, ...]:
    """Return one stage for each sink, after those whose streams it reads. Tables do not affect the
    order: rows joined with a table may be sent back to it."""
    named = by_name(graph)
    sources = sources_of(graph)
    found = []
    for sink in operators_in_order(graph):
        if isinstance(sink, PartitionBy | Output):
            before = operators_before(named, sink.upstream)
            found.append(
                StagePlan(
                    name=sink.name,
                    reads=_streams_in(before),
                    writes=sink.stream,
                    tables=_tables_in(before),
                    key=sink.columns if isinstance(sink, PartitionBy) else (),
                    sources=sources[sink.name],
                )
            )
    return tuple(found)


def tables_of(graph: Graph) -> tuple[TablePlan, ...]:
    """Return every table, sorted by name."""
    named = by_name(graph)
    fillers = _all_fillers(graph)
    found = []
    for table in sorted(graph.tables, key=lambda spec: spec.name):
        lines = [operators_before(named, filler.upstream) for filler in fillers[table.name]]
        found.append(
            TablePlan(
                name=table.name,
                key=table.key,
                filled_by=tuple(stream for line in lines for stream in _streams_in(line)),
                joins=tuple(joined for line in lines for joined in _tables_in(line)),
            )
        )
    return tuple(found)


def fillers_of(graph: Graph, table: TableName) -> tuple[SendToTable | SideInput, ...]:
    """Return the fillers of a table, in the order in which a query reads them: by the streams of
    each line, then by the tables that it joins with, then by creation. Not by names, which are only
    displayed and may change: the query's checkpoint numbers its sources."""
    return _all_fillers(graph)[table]


def _all_fillers(graph: Graph) -> dict[TableName, tuple[SendToTable | SideInput, ...]]:
    named = by_name(graph)
    found: dict[TableName, list[SendToTable | SideInput]] = {t.name: [] for t in graph.tables}
    for operator in graph.operators:
        if isinstance(operator, SendToTable | SideInput):
            found[operator.table].append(operator)

    def source(
        filler: SendToTable | SideInput,
    ) -> tuple[tuple[StreamId, ...], tuple[TableName, ...]]:
        before = operators_before(named, filler.upstream)
        return _streams_in(before), _tables_in(before)

    return {table: tuple(sorted(fillers, key=source)) for table, fillers in found.items()}


def sources_of(graph: Graph) -> dict[OperatorName, tuple[StreamId, ...] | None]:
    """Return the streams that each stage's query reads, in the order in which Spark numbers them:
    from left to right in the query's plan. A line is read again for each operator that takes its
    rows, and the lines that fill a table come before the line joined with it (`running.dataframes`
    builds queries so). None for more than `MOST_SOURCES`."""
    named = by_name(graph)
    fillers = {
        table: [filler.upstream for filler in fillers]
        for table, fillers in _all_fillers(graph).items()
    }
    known: dict[OperatorName, tuple[StreamId, ...] | None] = {}

    def before(name: OperatorName) -> tuple[OperatorName, ...]:
        operator = named[name]
        filled_by = fillers[operator.table] if isinstance(operator, JoinTable) else []
        return (*filled_by, *upstreams(operator))

    def ahead(name: OperatorName) -> tuple[OperatorName, ...]:
        is_source = isinstance(named[name], Input | PartitionBy)
        return () if is_source or name in known else before(name)

    def read_for(name: OperatorName) -> tuple[StreamId, ...] | None:
        operator = named[name]
        if isinstance(operator, Input | PartitionBy):
            return (operator.stream,)
        # Unknown operators depend on themselves within one query, which cannot run.
        parts = [known.get(one, ()) for one in before(name)]
        if sum(MOST_SOURCES + 1 if part is None else len(part) for part in parts) > MOST_SOURCES:
            return None
        return tuple(chain.from_iterable(part or () for part in parts))

    found: dict[OperatorName, tuple[StreamId, ...] | None] = {}
    for sink in graph.operators:
        if isinstance(sink, PartitionBy | Output):
            for name in upwards(sink.upstream, ahead):
                if name not in known:
                    known[name] = read_for(name)
            found[sink.name] = known[sink.upstream]
    return found


def operators_before(named: Mapping[OperatorName, Operator], start: OperatorName) -> list[Operator]:
    """Return `start` and its upstream operators within the stage, each once, in the order in which
    rows pass them; left first."""

    def back(name: OperatorName) -> tuple[OperatorName, ...]:
        operator = named[name]
        return () if isinstance(operator, PartitionBy) else upstreams(operator)

    return [named[name] for name in upwards(start, back)]


def _streams_in(operators: Iterable[Operator]) -> tuple[StreamId, ...]:
    return tuple(o.stream for o in operators if isinstance(o, Input | PartitionBy))


def _tables_in(operators: Iterable[Operator]) -> tuple[TableName, ...]:
    return tuple(o.table for o in operators if isinstance(o, JoinTable))
