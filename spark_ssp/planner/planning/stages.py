"""Derives the stages of a graph, one per streaming query, the fillers of its tables, and the orders
in which stages are built and run to their ends.

A stage reads streams, and for each table that it joins with the streams that fill the table, since
every stage keeps its own copy (`running.table_join`). It is ordered after the stages that write
these streams, except those of a table that is filled by rows joined with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    JoinTable,
    Operator,
    OperatorName,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    StreamId,
    TableName,
    by_name,
    reached,
    upstreams,
    upwards,
)
from spark_ssp.planner.planning.plan import StagePlan, TablePlan
from spark_ssp.planner.planning.validation import operators_in_order

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


# --- Order ----------------------------------------------------------------------------------------


def order_stages(graph: Graph) -> tuple[OperatorName, ...]:
    """Return every stage after those that write its streams and, where possible, after those that
    fill its tables; otherwise in the plan's order."""
    stages = stages_of(graph)
    lines, tables = _writers_of_lines(stages), _writers_of_tables(graph, stages)
    found: list[OperatorName] = []
    both = {name: (lines[name] | tables[name]) - {name} for name in lines}
    # A dict, for its order.
    waiting = {stage.name: None for stage in stages}
    while waiting:
        ready = _first_ready(waiting, both)
        if ready is None:
            # The rest depends on a table that is filled by rows joined with it.
            ready = _first_ready(waiting, lines)
        assert ready is not None, "rows have no cycles"
        del waiting[ready]
        found.append(ready)
    return tuple(found)


def _first_ready(
    waiting: Collection[OperatorName], before: Mapping[OperatorName, frozenset[OperatorName]]
) -> OperatorName | None:
    """Return the first stage that depends on no waiting one."""
    return next((n for n in waiting if not any(one in waiting for one in before[n])), None)


def bootstrap_stages(graph: Graph) -> tuple[OperatorName, ...]:
    """Return the stages that must read all available records before any other starts, in the order
    of `order_stages`.

    The first batch that reads a table's side input, or a bootstrap input, takes all available
    records. If they come through an intermediate stream, it is complete only when the stages that
    write it have ended.
    """
    stages = stages_of(graph)
    writers = {stage.writes: stage.name for stage in stages}
    lines, tables = _writers_of_lines(stages), _writers_of_tables(graph, stages)
    begun_by_bootstrap = _from_bootstrap(graph, lines)
    found: set[OperatorName] = set()
    for operator in graph.operators:
        if isinstance(operator, SideInput | SendToTable):
            near = {writers[s] for s in _read_by(graph, operator.upstream) if s in writers}
            if isinstance(operator, SendToTable):
                near &= begun_by_bootstrap
            found |= reached(sorted(near), lambda name: sorted(lines[name] | tables[name]))
    return tuple(name for name in order_stages(graph) if name in found)


def _from_bootstrap(
    graph: Graph, lines: Mapping[OperatorName, frozenset[OperatorName]]
) -> set[OperatorName]:
    """Return the stages that the records of a bootstrap input reach, directly or through others."""
    streams = {o.stream for o in graph.operators if isinstance(o, Input) and o.bootstrap}
    starts = [stage.name for stage in stages_of(graph) if streams & {*stage.reads}]
    return reached(starts, lambda name: [n for n, before in lines.items() if name in before])


def _writers_of_lines(
    stages: Sequence[StagePlan],
) -> dict[OperatorName, frozenset[OperatorName]]:
    """Return for each stage the stages whose streams its line reads."""
    writers = {stage.writes: stage.name for stage in stages}
    return {s.name: frozenset(writers[r] for r in s.reads if r in writers) for s in stages}


def _writers_of_tables(
    graph: Graph, stages: Sequence[StagePlan]
) -> dict[OperatorName, frozenset[OperatorName]]:
    """Return for each stage the stages whose streams fill the tables that it joins with."""
    writers = {stage.writes: stage.name for stage in stages}
    tables = {table.name: table for table in tables_of(graph)}

    def filled_by(stage: StagePlan) -> set[StreamId]:
        joined: set[TableName] = reached(stage.tables, lambda name: tables[name].joins)
        return {stream for name in joined for stream in tables[name].filled_by}

    return {s.name: frozenset(writers[r] for r in filled_by(s) if r in writers) for s in stages}


def _read_by(graph: Graph, start: OperatorName) -> set[StreamId]:
    """Return the streams that an operator's rows, and those of joined tables, come from within one
    stage."""
    named = by_name(graph)
    fillers: dict[TableName, list[OperatorName]] = {}
    for operator in graph.operators:
        if isinstance(operator, SideInput | SendToTable):
            fillers.setdefault(operator.table, []).append(operator.upstream)

    def back(name: OperatorName) -> list[OperatorName]:
        operator = named[name]
        if isinstance(operator, PartitionBy):
            return []
        joined = fillers.get(operator.table, []) if isinstance(operator, JoinTable) else []
        return [*upstreams(operator), *joined]

    found = (named[name] for name in reached([start], back))
    return {o.stream for o in found if isinstance(o, Input | PartitionBy)}
