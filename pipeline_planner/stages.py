"""What one streaming query does: the stages of a graph, and what fills its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline_planner.checks import operators_in_order
from pipeline_planner.names import OperatorName, StreamId, TableName
from pipeline_planner.operators import (
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
from pipeline_planner.plan import StagePlan, TablePlan
from pipeline_planner.traversal import traverse


def stages_of(graph: Graph) -> tuple[StagePlan, ...]:
    """One stage for each sink, after those whose streams it reads. Tables do not count for the
    order: what is joined with a table may be sent back to it."""
    named = by_name(graph)
    found = []
    for sink in operators_in_order(graph):
        if isinstance(sink, PartitionBy | Output):
            before = operators_before(named, [sink.upstream])
            found.append(
                StagePlan(
                    name=sink.name,
                    reads=_streams_in(before),
                    writes=sink.stream,
                    tables=_tables_in(before),
                    key=sink.columns if isinstance(sink, PartitionBy) else (),
                )
            )
    return tuple(found)


def tables_of(graph: Graph) -> tuple[TablePlan, ...]:
    """Every table, sorted by name."""
    named = by_name(graph)
    found = []
    for table in sorted(graph.tables, key=lambda spec: spec.name):
        fillers = [
            operator.upstream
            for operator in graph.operators
            if isinstance(operator, SendToTable | SideInput) and operator.table == table.name
        ]
        before = operators_before(named, fillers)
        found.append(
            TablePlan(
                name=table.name,
                key=table.key,
                filled_by=tuple(sorted(_streams_in(before))),
                joins=_tables_in(before),
            )
        )
    return tuple(found)


def operators_before(
    named: Mapping[OperatorName, Operator], starts: Iterable[OperatorName]
) -> list[Operator]:
    """`starts` and the operators from which their rows come, up to the streams that are read, each
    once; left first."""
    found: dict[OperatorName, Operator] = {}

    def visit(name: OperatorName) -> None:
        found.setdefault(name, named[name])

    def back(name: OperatorName) -> tuple[OperatorName, ...]:
        operator = named[name]
        return () if isinstance(operator, PartitionBy) else upstreams(operator)

    for start in starts:
        traverse(start, visit, back)
    return list(found.values())


def _streams_in(operators: Iterable[Operator]) -> tuple[StreamId, ...]:
    return tuple(o.stream for o in operators if isinstance(o, Input | PartitionBy))


def _tables_in(operators: Iterable[Operator]) -> tuple[TableName, ...]:
    return tuple(sorted({o.table for o in operators if isinstance(o, JoinTable)}))
