"""Validates a whole graph and reports all of its problems. Computes no count.

The handles of the API name only earlier operators, so every operator follows those that it takes
rows from, and an input leads to it; names are unique, and flags fit their systems.

* Cycles through a table, or through a stream that the pipeline writes and reads. The only permitted
  ones are through a table and an intermediate stream: rows joined with a table may be sent back to
  it by another stage, if another line fills it too.
* Parts that lead to no output.
* Operators on the line of a Kinesis stream before a repartition. Shards split and merge while a
  query runs, and any slot with capacity may read a shard. So the records of a key do not stay in
  one task, and there is no stable count for other streams to match (the Kinesis consumer's design,
  section "Limitations": stateful processing only in a second stage, after a repartition to Kafka).
  By the requirement of an operator:

  - none (filter, merge, partition_by, output, a transform without state, a join with a table that
    is whole in every task or maintained outside the pipeline): allowed;
  - keys that Spark shuffles (a transform with state `shuffled`): allowed, with a note;
  - tasks that own their keys (tables, a transform with state `task`) or the same keys of both
    streams (joins): rejected. A repartition within the pipeline fixes all of them except state
    `task`, which needs an input.
* Functions with state by task (`state="task"`) elsewhere than on the line of one Kafka input.
  There partition p always belongs to task p mod n, and rows carry their task (`includeTask`).
  Filters and functions that group nothing preserve that; any other operator ends it: an
  intermediate stream is read back without the tasks of its records, and shuffled for
  deduplication; a merge reads each of its lines in separate tasks; for joins, tables and functions
  that group, Spark shuffles records by key; plans do not fix the tasks of broadcast streams.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from spark_ssp.common.logs import abbreviate
from spark_ssp.planner.graph.errors import InvalidPipelineError, Note, Problem
from spark_ssp.planner.graph.operators import (
    Filter,
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
    Source,
    StateKind,
    StreamId,
    SystemKind,
    TableName,
    Transform,
    by_name,
    consumers,
    described,
    find_cycle,
    problem_of,
    reached,
    shortest_path,
    topological_order,
    traverse,
    upstreams,
)
from spark_ssp.planner.planning.co_partitioning import (
    line_successors,
    sources,
    table_links,
    tables_in_parts,
)


def raise_invalid(graph: Graph) -> None:
    """Raise InvalidPipelineError with all problems, if there are any."""
    found = find_graph_problems(graph)
    if found:
        raise InvalidPipelineError(graph.pipeline, found)


def find_graph_problems(graph: Graph) -> tuple[Problem, ...]:
    """Return all problems, in graph order within each kind."""
    return (
        *_tables_without_other_rows(graph),
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
    """Return the operators in topological order, ties in graph order."""
    named, readers = by_name(graph), consumers(graph)
    order, _ = topological_order(list(named), lambda name: [o.name for o in readers[name]])
    return tuple(named[name] for name in order)


# --- Cycles ---------------------------------------------------------------------------------------


def _tables_without_other_rows(graph: Graph) -> Iterator[Problem]:
    """Yield joins with tables that depend on their own rows within one query, which cannot feed
    itself, or that only rows joined with them fill, whose columns are defined by nothing; each
    table once."""
    named, onward = by_name(graph), line_successors(graph)
    left = dict.fromkeys(named)
    reported: set[TableName] = set()

    def follow(name: OperatorName) -> list[OperatorName]:
        return [one for one in onward(name) if one in left]

    while (cycle := find_cycle(list(left), follow)) is not None:
        for name in cycle[1:]:
            del left[name]
        joins = [o for name in cycle[:-1] if isinstance(o := named[name], JoinTable)]
        reported |= {join.table for join in joins}
        for join in joins[:1]:
            yield problem_of(
                join,
                f"table {join.table}, which depends on its own rows within one query: "
                f"{' -> '.join(cycle)}",
                "rows that return to a table through a stream",
                "put .partition_by(<the table's key>) before the operator that fills the table, "
                "and fill it from its result",
            )
    buildable = find_buildable(graph)
    for operator in graph.operators:
        if (
            isinstance(operator, JoinTable)
            and operator.upstream in buildable
            and operator.name not in buildable
            and operator.table not in reported
        ):
            reported.add(operator.table)
            yield problem_of(
                operator,
                f"table {operator.table}, which is filled only with rows joined with it",
                "a line that fills it from another source",
                f"fill table {operator.table} from another line too",
            )


def find_buildable(
    graph: Graph, written: Container[OperatorName] | None = None
) -> set[OperatorName]:
    """Return the operators whose columns can be known: from those of their lines, and of one line
    or more of those that fill a table joined with. `written`: the intermediate streams whose
    columns are known; None for any whose own line can be built."""
    named, readers, links = by_name(graph), consumers(graph), table_links(graph)
    filled = {o.table for o in graph.operators if isinstance(o, SendToTable | SideInput)}
    waits_for: dict[OperatorName, int] = {}
    for operator in graph.operators:
        if written is not None and isinstance(operator, PartitionBy):
            waits_for[operator.name] = 0 if operator.name in written else -1
        else:
            of_table = isinstance(operator, JoinTable) and operator.table in filled
            waits_for[operator.name] = len({*upstreams(operator)}) + of_table
    found: set[OperatorName] = set()
    begun: set[TableName] = set()
    ahead = [name for name, count in waits_for.items() if count == 0]
    while ahead:
        operator = named[ahead.pop()]
        found.add(operator.name)
        following = [reader.name for reader in readers[operator.name]]
        if isinstance(operator, SendToTable | SideInput) and operator.table not in begun:
            begun.add(operator.table)
            following += links[operator.name]
        for name in following:
            waits_for[name] -= 1
            if waits_for[name] == 0:
                ahead.append(name)
    return found


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
            yield problem_of(
                output,
                f"{output.stream}, the source of its rows: {' -> '.join(path)}",
                "no cycle through a stream: its records would circulate forever",
                "write another stream, or keep the rows that must return in a table",
            )
        else:
            yield problem_of(
                output,
                f"{output.stream}, which {described(source)} reads",
                "an output that leaves the pipeline",
                "pass the rows with partition_by, or read the stream in another pipeline",
            )


# --- Parts without effect ------------------------------------------------------------------------


def _parts_without_effect(graph: Graph) -> Iterator[Problem]:
    named, readers, links = by_name(graph), consumers(graph), table_links(graph)
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
        if useful and operator.name not in useful and _ends(operator, readers[operator.name]):
            yield problem_of(operator, *_dead_end(operator))
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


# --- Limits of Kinesis ----------------------------------------------------------------------------


_TABLE: Final = "tasks that own the keys of their part of the table"
_FLAGS: Final = {
    "broadcast": "its shards are distributed among slots, each read by one task",
    "bootstrap": "its shards change while it is read, so it has no common end offset",
}
"""Flags of inputs that Kinesis does not support, with the reason."""


def refused_flag(flag: str) -> tuple[str, str, str]:
    """Return `found`, `expected` and `next_step` for a flag that Kinesis does not support."""
    return (
        f"{flag}=True on Kinesis",
        f"no {flag} stream of Kinesis: {_FLAGS[flag]}",
        "send it through partition_by to Kafka, and read it there",
    )


def find_kinesis_problems(graph: Graph) -> tuple[Problem, ...]:
    """Return the operators that a line of Kinesis must not reach, in graph order. Only the first
    operator of a line is reported: the repartition that it needs fixes the others."""
    parts = tables_in_parts(graph)
    return tuple(
        problem_of(
            operator,
            f"{_listed(streams)} of Kinesis, with no repartition in between",
            f"{needs}: shards split and merge while they are read, and move between tasks",
            INSTEAD
            if is_task_bound(operator)
            else f"put .partition_by(<the key's columns>) before {described(operator)}, which "
            "writes an intermediate stream to Kafka, and continue from its result",
        )
        for operator, streams in _met(graph)
        if (needs := _needs(operator, parts))
    )


def _is_kinesis(graph: Graph, source: Source) -> bool:
    return graph.kind_of(source.stream.system) is SystemKind.KINESIS


def find_kinesis_notes(graph: Graph) -> tuple[Note, ...]:
    """Return notes on operators of a Kinesis line that are correct because Spark shuffles."""
    return tuple(
        Note(
            subject=described(operator),
            text=f"directly on {_listed(streams)} of Kinesis; right because Spark shuffles by key, "
            "at the cost of a shuffle in every batch. State kept by task would be wrong here",
            place=operator.place,
        )
        for operator, streams in _met(graph)
        if isinstance(operator, Transform) and operator.state is StateKind.SHUFFLED
    )


def _met(graph: Graph) -> Iterator[tuple[Operator, list[StreamId]]]:
    """Yield operators with the Kinesis streams that reach them, up to the first rejected one of
    each line."""
    named, follow, parts = by_name(graph), line_successors(graph), tables_in_parts(graph)
    met: dict[OperatorName, list[StreamId]] = {}

    def onward(name: OperatorName) -> tuple[OperatorName, ...]:
        return () if _needs(named[name], parts) else follow(name)

    for source in sources(graph):
        if _is_kinesis(graph, source):
            seen: list[OperatorName] = []
            traverse(source.name, seen.append, onward)
            for name in seen:
                met.setdefault(name, []).append(source.stream)
    for operator in graph.operators:
        if operator.name in met:
            yield operator, sorted(met[operator.name])


def _needs(operator: Operator, parts: frozenset[TableName]) -> str:
    """Return the requirement of an operator that Kinesis cannot meet, or an empty string."""
    match operator:
        case Join():
            return "streams whose partitions of one key are read by one task"
        case SendToTable() | SideInput():
            return _TABLE
        case JoinTable() if operator.table in parts:
            return _TABLE
        case Transform(state=StateKind.TASK):
            return "tasks that keep their keys, and with them the state"
        case _:
            return ""


def _listed(streams: list[StreamId]) -> str:
    return abbreviate([str(stream) for stream in streams])


# --- State by task --------------------------------------------------------------------------------


INSTEAD: Final = (
    "keep the state by key (groupBy, transformWithState) and pass state='shuffled'; or, to keep it "
    "by task, repartition in a separate pipeline: write a Kafka topic by key with output, and read "
    "it with input in another pipeline"
)
"""The next step where state by task would be wrong."""


def find_task_problems(graph: Graph) -> tuple[Problem, ...]:
    """Return the transforms with state by task after an operator that ends it, in graph order; each
    problem names the nearest such operator."""
    ended = dict(_nearest_ends(graph))
    return tuple(
        problem_of(
            operator,
            f"state='task' after {described(end)}{_at(end)}, {_ends_tasks(end)}",
            "the line of one input from Kafka, with filters and functions that group "
            "nothing in between: only there a key stays in its task",
            f"{_remedy(end)}{INSTEAD}",
        )
        for operator in graph.operators
        if is_task_bound(operator) and (end := ended.get(operator.name)) is not None
    )


def _nearest_ends(graph: Graph) -> Iterator[tuple[OperatorName, Operator]]:
    """Yield filters and transforms with the nearest operator before them that ends state by task.
    They have one upstream, so each is visited once."""
    readers = consumers(graph)
    for end in graph.operators:
        ahead = [end] if _ends_tasks(end) else []
        while ahead:
            for operator in readers[ahead.pop().name]:
                if isinstance(operator, Filter | Transform):
                    yield operator.name, end
                    if not _ends_tasks(operator):
                        ahead.append(operator)


def is_task_bound(operator: Operator) -> bool:
    """Return whether the operator is a function with state by task."""
    return isinstance(operator, Transform) and operator.state is StateKind.TASK


def _ends_tasks(operator: Operator) -> str:
    """Return the reason why rows after the operator leave the tasks that own their keys, or an
    empty string."""
    match operator:
        case PartitionBy():
            return "whose stream is read back without the tasks of its records"
        case Merge():
            return "which reads each of its lines in separate tasks"
        case Join() | JoinTable() | Transform(state=StateKind.SHUFFLED):
            return "for which Spark shuffles records by key"
        case Input(broadcast=True):
            return "a broadcast stream, whose tasks are not fixed"
        case _:
            return ""


def _remedy(operator: Operator) -> str:
    match operator:
        case Input():
            return "leave out broadcast=True; or "
        case Merge():
            return "apply it to each line before the merge, with separate state; or "
        case _:
            return ""


def _at(operator: Operator) -> str:
    return f" ({operator.place})" if operator.place else ""
