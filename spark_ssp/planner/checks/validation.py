"""Validates a whole graph and reports all of its problems. Computes no count.

* References to missing operators, tables and systems, and duplicate names: the fluent API prevents
  these, but a graph can be built without it.
* Cycles of rows, within the pipeline or through a stream that it writes and reads. Only cycles
  through a table are allowed: rows joined with a table may be sent back to it.
* Parts that no input reaches, and parts that lead to no output.
* Limits of Kinesis (`kinesis_limits`), and of state that is kept by task (`task_limits`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from spark_ssp.planner.checks.co_partitioning import table_links
from spark_ssp.planner.checks.kinesis_limits import find_kinesis_problems
from spark_ssp.planner.checks.task_limits import find_task_problems
from spark_ssp.planner.graph.errors import InvalidPipelineError, Problem
from spark_ssp.planner.graph.names import OperatorName
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
    consumers,
    described,
    upstreams,
)
from spark_ssp.planner.graph.traversal import find_cycle, reached, shortest_path, topological_order


def raise_invalid(graph: Graph) -> None:
    """Raise InvalidPipelineError with all problems, if there are any."""
    found = find_graph_problems(graph)
    if found:
        raise InvalidPipelineError(graph.pipeline, found)


def find_graph_problems(graph: Graph) -> tuple[Problem, ...]:
    """Return all problems, in graph order within each kind."""
    broken = tuple(_broken_references(graph))
    if broken:  # the walks below need every name to be defined
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
    done = {problem.subject for problem in of_kinesis}
    yield from (problem for problem in find_task_problems(graph) if problem.subject not in done)


def operators_in_order(graph: Graph) -> tuple[Operator, ...]:
    """Return the operators in topological order, ties in graph order. The graph must have no
    cycles of rows: `find_graph_problems` reports none."""
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
                "add the missing parts",
            )


# --- Cycles --------------------------------------------------------------------------------------


def _cycles(graph: Graph) -> Iterator[Problem]:
    """Yield one of the cycles that share an operator."""
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
            "break the cycle, or keep the rows that must return in a table",
        )


def _streams_read_back(graph: Graph) -> Iterator[Problem]:
    """Yield outputs into a stream that the pipeline reads: a cycle through the service, or an
    undeclared repartition whose count would not be checked."""
    reading = {o.stream: o for o in graph.operators if isinstance(o, Input | PartitionBy)}
    readers, links = consumers(graph), table_links(graph)

    def follow(name: OperatorName) -> list[OperatorName]:
        return [*(o.name for o in readers[name]), *links.get(name, ())]

    for output in (o for o in graph.operators if isinstance(o, Output)):
        source = reading.get(output.stream)
        if source is None:
            continue
        path = shortest_path(source.name, output.name, follow)
        if path is not None:
            yield _problem(
                output,
                f"{output.stream}, the source of its rows: {' -> '.join(path)}",
                "no cycle through a stream: its records would circulate forever",
                "write another stream, or keep the rows that must return in a table",
            )
        else:
            yield _problem(
                output,
                f"{output.stream}, which {described(source)} reads",
                "an output that leaves the pipeline",
                "pass the rows with partition_by, or read the stream in another pipeline",
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
                "no input that leads to it",
                "operators that an input leads to",
                "start with input(system, stream)",
            )
        elif useful and operator.name not in useful and _ends(operator, readers[operator.name]):
            yield _problem(operator, *_dead_end(operator))
    used = {o.table for o in graph.operators if isinstance(o, SendToTable | SideInput | JoinTable)}
    for table in graph.tables:
        if table.name not in used:
            yield Problem(
                subject=f"table {table.name}",
                found="no operator that fills or reads it",
                expected="a table that is joined with",
                next_step="join with it, or remove it",
                place=table.place,
            )


def _ends(operator: Operator, readers: tuple[Operator, ...]) -> bool:
    """Return whether the operator is the end of a part without effect: only ends are reported."""
    return not readers or isinstance(operator, SendToTable | SideInput)


def _dead_end(operator: Operator) -> tuple[str, str, str]:
    if isinstance(operator, SendToTable | SideInput):
        return (
            f"table {operator.table}, whose rows reach no output",
            "a table whose rows reach an output",
            f"join with table {operator.table} on the way to an output, or do not fill it",
        )
    return (
        "rows without a consumer",
        "operators that lead to an output",
        "end it with output, send_to_table or partition_by, or remove it",
    )


def _problem(operator: Operator, found: str, expected: str, next_step: str) -> Problem:
    return Problem(
        subject=described(operator),
        found=found,
        expected=expected,
        next_step=next_step,
        place=operator.place,
    )
