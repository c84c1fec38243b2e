"""In which order stages are built and run to their ends. Pure.

A stage reads streams, and with each table that it joins with the streams that fill the table, since
every stage keeps its own copy (`table_join`). Both make it come after the stages that write these
streams; only a table that is filled by what was joined with it cannot be waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pipeline_planner.graph.names import OperatorName, StreamId, TableName
from pipeline_planner.graph.operators import (
    Graph,
    Input,
    JoinTable,
    PartitionBy,
    SendToTable,
    SideInput,
    by_name,
    upstreams,
)
from pipeline_planner.graph.traversal import reached
from pipeline_planner.planning.plan import StagePlan
from pipeline_planner.planning.stages import stages_of, tables_of


def order_stages(graph: Graph) -> tuple[OperatorName, ...]:
    """Every stage after those that write what it reads, and where that can be, after those that
    fill its tables; else as in the plan."""
    stages = stages_of(graph)
    lines, tables = _writers_of_lines(stages), _writers_of_tables(graph, stages)
    found: list[OperatorName] = []
    both = {name: (lines[name] | tables[name]) - {name} for name in lines}
    # A dict, for its order.
    waiting = {stage.name: None for stage in stages}
    while waiting:
        ready = _first_ready(waiting, both)
        if ready is None:
            # Those left are tied by a table that is filled from behind its own join.
            ready = _first_ready(waiting, lines)
        assert ready is not None, "rows do not go round"
        del waiting[ready]
        found.append(ready)
    return tuple(found)


def _first_ready(
    waiting: Collection[OperatorName], before: Mapping[OperatorName, frozenset[OperatorName]]
) -> OperatorName | None:
    """The first that waits for none of those that wait."""
    return next((n for n in waiting if not any(one in waiting for one in before[n])), None)


def bootstrap_stages(graph: Graph) -> tuple[OperatorName, ...]:
    """Stages that must have read all there is before any other starts, in `run_order`.

    The first batch that reads a table's side input, or a bootstrap input, takes in all that is
    there. Where it comes through an intermediate stream, all is there only when the stages that
    write it are through.
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
    """Stages to which the records of a bootstrap input come, at once or through others."""
    streams = {o.stream for o in graph.operators if isinstance(o, Input) and o.bootstrap}
    starts = [stage.name for stage in stages_of(graph) if streams & {*stage.reads}]
    return reached(starts, lambda name: [n for n, before in lines.items() if name in before])


def _writers_of_lines(
    stages: Iterable[StagePlan],
) -> dict[OperatorName, frozenset[OperatorName]]:
    """For each stage the stages whose streams its own line reads."""
    known = tuple(stages)
    writers = {stage.writes: stage.name for stage in known}
    return {s.name: frozenset(writers[r] for r in s.reads if r in writers) for s in known}


def _writers_of_tables(
    graph: Graph, stages: Iterable[StagePlan]
) -> dict[OperatorName, frozenset[OperatorName]]:
    """For each stage the stages that write what fills the tables that it joins with."""
    known = tuple(stages)
    writers = {stage.writes: stage.name for stage in known}
    tables = {table.name: table for table in tables_of(graph)}

    def filled_by(stage: StagePlan) -> set[StreamId]:
        joined: set[TableName] = reached(stage.tables, lambda name: tables[name].joins)
        return {stream for name in joined for stream in tables[name].filled_by}

    return {s.name: frozenset(writers[r] for r in filled_by(s) if r in writers) for s in known}


def _read_by(graph: Graph, start: OperatorName) -> set[StreamId]:
    """The streams that an operator's rows, and those of tables joined with on the way, come from
    within one stage."""
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
