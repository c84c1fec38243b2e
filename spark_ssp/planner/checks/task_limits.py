"""Checks that functions keep state by task (`state="task"`) only on the line of one Kafka input.

There partition p always belongs to task p mod n, and rows carry their task (`includeTask`). Filters
and functions that group nothing preserve that; any other operator ends it. An intermediate stream
is read back without the tasks of its records, and shuffled for deduplication. A merge reads each of
its lines in separate tasks. For joins, tables and functions that group, Spark shuffles records by
key. Plans do not fix the tasks of broadcast streams. Tasks that read Kinesis do not keep their keys
(`kinesis_limits`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_ssp.planner.graph.errors import Problem
from spark_ssp.planner.graph.names import OperatorName
from spark_ssp.planner.graph.operators import (
    Filter,
    Graph,
    Input,
    Join,
    JoinTable,
    Merge,
    Operator,
    PartitionBy,
    StateKind,
    Transform,
    consumers,
    described,
)

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
        Problem(
            subject=described(operator),
            found=f"state='task' after {described(end)}{_at(end)}, {_ends(end)}",
            expected="the line of one input from Kafka, with filters and functions that group "
            "nothing in between: only there a key stays in its task",
            next_step=f"{_remedy(end)}{INSTEAD}",
            place=operator.place,
        )
        for operator in graph.operators
        if is_task_bound(operator) and (end := ended.get(operator.name)) is not None
    )


def _nearest_ends(graph: Graph) -> Iterator[tuple[OperatorName, Operator]]:
    """Yield filters and transforms with the nearest operator before them that ends state by task.
    They have one upstream, so each is visited once."""
    readers = consumers(graph)
    for end in graph.operators:
        ahead = [end] if _ends(end) else []
        while ahead:
            for operator in readers[ahead.pop().name]:
                if isinstance(operator, Filter | Transform):
                    yield operator.name, end
                    if not _ends(operator):
                        ahead.append(operator)


def is_task_bound(operator: Operator) -> bool:
    """Return whether the operator is a function with state by task."""
    return isinstance(operator, Transform) and operator.state is StateKind.TASK


def _ends(operator: Operator) -> str:
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
