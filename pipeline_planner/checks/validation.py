"""What is wrong with a graph as a whole. Reports everything; computes no count.

* References to operators, tables and systems that do not exist, names that stand for two things:
  the fluent API cannot make these, a graph put together by hand can.
* Cycles of rows, within the pipeline or through a stream that it writes and reads. The only cycle
  allowed goes through a table: what is joined with a table may be sent back to it.
* Parts that no input reaches, and parts that lead to no output.
* Limits of Kinesis (`kinesis_limits`), and of state that is kept by task (`task_limits`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pipeline_planner.checks.co_partitioning import table_links
from pipeline_planner.checks.kinesis_limits import find_kinesis_problems
from pipeline_planner.checks.task_limits import find_task_problems
from pipeline_planner.graph.errors import InvalidPipelineError, Problem
from pipeline_planner.graph.names import OperatorName
from pipeline_planner.graph.operators import (
    Graph,
    Input,
    JoinTable,
    Operator,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    by_name,
    consumers,
    described,
    upstreams,
)
from pipeline_planner.graph.traversal import find_cycle, reached, shortest_path, topological_order


def raise_invalid(graph: Graph) -> None:
    """Raise InvalidPipelineError over all that is wrong; nothing when all is well."""
    found = find_graph_problems(graph)
    if found:
        raise InvalidPipelineError(graph.pipeline, found)


def find_graph_problems(graph: Graph) -> tuple[Problem, ...]:
    """All that is wrong, in graph order within each kind of fault."""
    broken = tuple(_broken_references(graph))
    if broken:  # the walks below need every name to lead somewhere
        return broken
    return (
        *_cycles(graph),
        *_streams_read_back(graph),
        *_parts_without_effect(graph),
        *_limits(graph),
    )


def _limits(graph: Graph) -> Iterator[Problem]:
    of_kinesis = find_kinesis_problems(graph)
    yield from of_kinesis
    told = {problem.subject for problem in of_kinesis}
    yield from (problem for problem in find_task_problems(graph) if problem.subject not in told)


def operators_in_order(graph: Graph) -> tuple[Operator, ...]:
    """Every operator after those whose rows it takes; else as in the graph. For graphs without
    cycles of rows: what `problems_of` finds nothing wrong with."""
    named, readers = by_name(graph), consumers(graph)
    order, _ = topological_order(list(named), lambda name: [o.name for o in readers[name]])
    return tuple(named[name] for name in order)


# --- References ----------------------------------------------------------------------------------


def _broken_references(graph: Graph) -> Iterator[Problem]:
    names = Counter(operator.name for operator in graph.operators)
    tables = Counter(table.name for table in graph.tables)
    for name in (n for n, times in [*names.items(), *tables.items()] if times > 1):
        yield Problem(
            subject=name,
            found="two parts of this name",
            expected="names that differ within a pipeline",
            next_step="rename one of them",
        )
    systems = dict(graph.systems)
    for operator in graph.operators:
        missing = [f"operator {name}" for name in upstreams(operator) if name not in names]
        if isinstance(operator, SendToTable | SideInput | JoinTable):
            missing += [f"table {operator.table}"] if operator.table not in tables else []
        if isinstance(operator, Input | PartitionBy | Output):
            system = operator.stream.system
            missing += [f"system {system}"] if system not in systems else []
        if missing:
            yield _problem(
                operator,
                f"{', '.join(missing)}, which the pipeline does not have",
                "parts of the same pipeline",
                "add what is missing",
            )


# --- Cycles --------------------------------------------------------------------------------------


def _cycles(graph: Graph) -> Iterator[Problem]:
    """Of cycles that share an operator one is told."""
    named, readers = by_name(graph), consumers(graph)
    left = dict.fromkeys(named)

    def follow(name: OperatorName) -> list[OperatorName]:
        return [o.name for o in readers[name] if o.name in left]

    while (cycle := find_cycle(list(left), follow)) is not None:
        for name in cycle[1:]:
            del left[name]
        yield _problem(
            named[cycle[0]],
            f"a cycle of rows: {' -> '.join(cycle)}",
            "operators that take rows only from earlier ones",
            "break the cycle, or keep what must come back in a table",
        )


def _streams_read_back(graph: Graph) -> Iterator[Problem]:
    """Outputs into a stream that the pipeline reads: a cycle through the service, or a repartition
    in disguise whose count nobody would check."""
    reading = {o.stream: o for o in graph.operators if isinstance(o, Input | PartitionBy)}
    readers, links = consumers(graph), table_links(graph)

    def follow(name: OperatorName) -> list[OperatorName]:
        return [*(o.name for o in readers[name]), *links.get(name, ())]

    for output in (o for o in graph.operators if isinstance(o, Output)):
        source = reading.get(output.stream)
        if source is None:
            continue
        way = shortest_path(source.name, output.name, follow)
        if way is not None:
            yield _problem(
                output,
                f"{output.stream}, from which its own rows come: {' -> '.join(way)}",
                "no cycle through a stream: its records would go round for ever",
                "write another stream, or keep what must come back in a table",
            )
        else:
            yield _problem(
                output,
                f"{output.stream}, which {described(source)} reads",
                "an output that leaves the pipeline",
                "hand the rows on with partition_by, or read the stream in another pipeline",
            )


# --- Parts without effect ------------------------------------------------------------------------


def _parts_without_effect(graph: Graph) -> Iterator[Problem]:
    named, readers, links = by_name(graph), consumers(graph), table_links(graph)
    begun = reached(
        [o.name for o in graph.operators if isinstance(o, Input)],
        lambda name: [o.name for o in readers[name]],
    )
    fills: dict[OperatorName, list[OperatorName]] = {}
    for filler, joins in links.items():
        for join in joins:
            fills.setdefault(join, []).append(filler)
    useful = reached(
        [o.name for o in graph.operators if isinstance(o, Output)],
        lambda name: [*upstreams(named[name]), *fills.get(name, ())],
    )
    if not useful:
        yield Problem(
            subject="output",
            found="none",
            expected="one output or more",
            next_step="end a line with output(system, stream)",
        )
    for operator in graph.operators:
        if operator.name not in begun:
            yield _problem(
                operator,
                "no input that it could get rows from",
                "operators that an input leads to",
                "begin with input(system, stream)",
            )
        elif useful and operator.name not in useful and _ends(operator, readers[operator.name]):
            yield _problem(operator, *_dead_end(operator))
    used = {o.table for o in graph.operators if isinstance(o, SendToTable | SideInput | JoinTable)}
    for table in graph.tables:
        if table.name not in used:
            yield Problem(
                subject=f"table {table.name}",
                found="nothing that fills or reads it",
                expected="a table that is joined with",
                next_step="join with it, or drop it",
                place=table.place,
            )


def _ends(operator: Operator, readers: tuple[Operator, ...]) -> bool:
    """Of a part that leads nowhere, only the ends are reported."""
    return not readers or isinstance(operator, SendToTable | SideInput)


def _dead_end(operator: Operator) -> tuple[str, str, str]:
    if isinstance(operator, SendToTable | SideInput):
        return (
            f"table {operator.table}, from which nothing leads to an output",
            "a table whose rows reach an output",
            f"join with table {operator.table} on the way to an output, or do not fill it",
        )
    return (
        "rows that nobody takes",
        "operators that lead to an output",
        "end it with output, send_to_table or partition_by, or drop it",
    )


def _problem(operator: Operator, found: str, expected: str, next_step: str) -> Problem:
    return Problem(
        subject=described(operator),
        found=found,
        expected=expected,
        next_step=next_step,
        place=operator.place,
    )
