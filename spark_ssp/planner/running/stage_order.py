"""Orders the stages for building, and for running to their ends.

A stage reads streams, and for each table that it joins with the streams that fill the table, since
every stage keeps its own copy (`table_join`). It comes after the stages that write these streams,
except those of a table that is filled by rows joined with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from spark_ssp.planner.graph.names import OperatorName, StreamId, TableName
from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    JoinTable,
    PartitionBy,
    SendToTable,
    SideInput,
    by_name,
    upstreams,
)
from spark_ssp.planner.graph.traversal import reached
from spark_ssp.planner.planning.plan import StagePlan
from spark_ssp.planner.planning.stages import stages_of, tables_of


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
    stages: Iterable[StagePlan],
) -> dict[OperatorName, frozenset[OperatorName]]:
    """Return for each stage the stages whose streams its line reads."""
    known = tuple(stages)
    writers = {stage.writes: stage.name for stage in known}
    return {s.name: frozenset(writers[r] for r in s.reads if r in writers) for s in known}


def _writers_of_tables(
    graph: Graph, stages: Iterable[StagePlan]
) -> dict[OperatorName, frozenset[OperatorName]]:
    """Return for each stage the stages whose streams fill the tables that it joins with."""
    known = tuple(stages)
    writers = {stage.writes: stage.name for stage in known}
    tables = {table.name: table for table in tables_of(graph)}

    def filled_by(stage: StagePlan) -> set[StreamId]:
        joined: set[TableName] = reached(stage.tables, lambda name: tables[name].joins)
        return {stream for name in joined for stream in tables[name].filled_by}

    return {s.name: frozenset(writers[r] for r in filled_by(s) if r in writers) for s in known}


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
