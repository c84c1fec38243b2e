"""Derives the stages of a graph, one per streaming query, the fillers of its tables, and the orders
in which stages are built and run to their ends.

A stage reads streams, and for each table that it joins with the streams that fill the table, since
every stage keeps its own copy (`running.table_join`). It is ordered after the stages that write
these streams, except those of a table that is filled by rows joined with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    Join,
    JoinTable,
    Merge,
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
from spark_ssp.planner.planning.validation import find_buildable, operators_in_order

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
            read = sources[sink.name]
            found.append(
                StagePlan(
                    name=sink.name,
                    reads=_streams_in(before),
                    writes=sink.stream,
                    tables=_tables_in(before),
                    key=sink.columns if isinstance(sink, PartitionBy) else (),
                    sources=None if read is None else read.streams,
                    shape=read.shape if read is not None and len(read.streams) > 1 else None,
                )
            )
    return tuple(found)


def tables_of(graph: Graph) -> tuple[TablePlan, ...]:
    """Return every table, sorted by name."""
    named = by_name(graph)
    fillers = fillers_of(graph)
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


def fillers_of(graph: Graph) -> dict[TableName, tuple[SendToTable | SideInput, ...]]:
    """Return the fillers of each table, in the order in which a query reads them: by the streams of
    each line, then by the tables that it joins with, then by creation. Not by names, which are only
    displayed and may change: the query's checkpoint numbers its sources."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySources:
    """The streams that a query reads, as its checkpoint numbers them, and how it combines them:
    `join(kafka/a, merge(kafka/b, kafka/c))`, `join_table(rates(kafka/rates), kafka/a)`."""

    streams: tuple[StreamId, ...]
    shape: str


def sources_of(graph: Graph) -> dict[OperatorName, QuerySources | None]:
    """Return the streams that each stage's query reads, in the order in which Spark numbers them:
    from left to right in the query's plan. A line is read again for each operator that takes its
    rows, and the lines that fill a table come before the line joined with it (`running.dataframes`
    builds queries so). None for more than `MOST_SOURCES`."""
    named = by_name(graph)
    before = _before_in_query(graph)
    known: dict[OperatorName, _Line | None] = {}

    def ahead(name: OperatorName) -> tuple[OperatorName, ...]:
        return () if name in known else before(name)

    def line_of(name: OperatorName) -> _Line | None:
        lines = [known[one] for one in before(name)]
        found = [line for line in lines if line is not None]
        if len(found) < len(lines) or sum(map(_size, found)) > MOST_SOURCES:
            return None
        return _combined(named[name], tuple(found))

    sources: dict[OperatorName, QuerySources | None] = {}
    for sink in graph.operators:
        if isinstance(sink, PartitionBy | Output):
            for name in upwards(sink.upstream, ahead):
                if name not in known:
                    known[name] = line_of(name)
            line = known[sink.upstream]
            sources[sink.name] = None if line is None else _described(line)
    return sources


@dataclass(frozen=True, slots=True, kw_only=True)
class _Combined:
    """Lines that an operator combines. `unites`: by uniting their rows, as nested merges and the
    lines of a table do, so it is irrelevant how they are nested."""

    word: str
    lines: tuple[_Line, ...]
    size: int
    """The number of sources."""
    unites: bool = False


_Line = StreamId | _Combined


def _size(line: _Line) -> int:
    return 1 if isinstance(line, StreamId) else line.size


def _combined(operator: Operator, lines: tuple[_Line, ...]) -> _Line:
    size = sum(map(_size, lines))
    match operator:
        case Input() | PartitionBy():
            return operator.stream
        case Join():
            return _Combined(word="join", lines=lines, size=size)
        case Merge():
            return _Combined(word="merge", lines=lines, size=size, unites=True)
        case JoinTable():
            *filled_by, line = lines
            table = _Combined(
                word=operator.table, lines=tuple(filled_by), size=size - _size(line), unites=True
            )
            return _Combined(word="join_table", lines=(table, line), size=size)
        case _:
            return lines[0]


def _described(line: _Line) -> QuerySources:
    # Not recursive, since lines may be deeply nested.
    streams: list[StreamId] = []
    text: list[str] = []
    ahead: list[_Line | str] = [line]
    while ahead:
        part = ahead.pop()
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, StreamId):
            streams.append(part)
            text.append(str(part))
        else:
            lines = _united(part)
            ahead.append(")")
            for number, one in enumerate(reversed(lines), start=1):
                ahead += [one, ", "] if number < len(lines) else [one]
            text.append(f"{part.word}(")
    return QuerySources(streams=tuple(streams), shape="".join(text))


def _united(combined: _Combined) -> list[_Line]:
    """Return the lines that are combined, without nesting where all of their rows are united."""
    found: list[_Line] = []
    ahead = [*reversed(combined.lines)]
    while ahead:
        line = ahead.pop()
        if combined.unites and isinstance(line, _Combined) and line.unites:
            ahead.extend(reversed(line.lines))
        else:
            found.append(line)
    return found


def _before_in_query(graph: Graph) -> Callable[[OperatorName], tuple[OperatorName, ...]]:
    """Return a function from an operator to those whose rows it takes within one query: of a join
    with a table, first the lines that fill the table."""
    named = by_name(graph)
    fillers = {
        table: [filler.upstream for filler in fillers]
        for table, fillers in fillers_of(graph).items()
    }

    def before(name: OperatorName) -> tuple[OperatorName, ...]:
        operator = named[name]
        if isinstance(operator, PartitionBy):
            return ()
        filled_by = fillers[operator.table] if isinstance(operator, JoinTable) else []
        return (*filled_by, *upstreams(operator))

    return before


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
    fill its tables; otherwise in the plan's order, after those that write the streams of one line
    or more of each of its tables."""
    stages = stages_of(graph)
    named = by_name(graph)
    lines, tables = _writers_of_lines(stages), _writers_of_tables(graph, stages)
    found: list[OperatorName] = []
    both = {name: (lines[name] | tables[name]) - {name} for name in lines}
    # A dict, for its order.
    waiting = {stage.name: None for stage in stages}
    while waiting:
        ready = _first_ready(waiting, both)
        if ready is None:
            # The rest depends on a table that is filled by rows joined with it.
            buildable = find_buildable(graph, written=frozenset(found))
            ready = next(n for n in waiting if buildable.issuperset(upstreams(named[n])))
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
    lines, tables = _writers_of_lines(stages), _writers_of_tables(graph, stages)
    named, before = by_name(graph), _before_in_query(graph)

    def writing(*fillers: type[Operator]) -> set[OperatorName]:
        """Return the stages whose streams fill a table by one of these operators."""
        ends = [o for o in graph.operators if isinstance(o, fillers)]
        read = reached([up for end in ends for up in upstreams(end)], before)
        return {name for name in read if isinstance(named[name], PartitionBy)}

    first = writing(SideInput) | (writing(SendToTable) & _from_bootstrap(graph, stages))
    found = reached(sorted(first), lambda name: sorted(lines[name] | tables[name]))
    return tuple(name for name in order_stages(graph) if name in found)


def stages_from_bootstrap(graph: Graph) -> set[OperatorName]:
    """Return the stages that the records of a bootstrap input reach, directly or through others."""
    return _from_bootstrap(graph, stages_of(graph))


def _from_bootstrap(graph: Graph, stages: Sequence[StagePlan]) -> set[OperatorName]:
    lines = _writers_of_lines(stages)
    streams = {o.stream for o in graph.operators if isinstance(o, Input) and o.bootstrap}
    starts = [stage.name for stage in stages if streams & {*stage.reads}]
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
