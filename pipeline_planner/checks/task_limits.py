"""Where a function may keep state by task (`state="task"`): on the line of one input from Kafka.

There partition p belongs to task p mod n for good, and rows can tell their task (`includeTask`).
Filters and functions that group nothing leave that as it is; all else ends it. A stream in between
is read back without the tasks of its records, and shuffled to drop repeats. A merge reads each of
its lines in tasks of its own. For joins, tables and functions that group, Spark moves records to
their keys. Of a broadcast stream no plan keeps the tasks. Kinesis has none that keep their keys:
see `kinesis_limits`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pipeline_planner.graph.errors import Problem
from pipeline_planner.graph.names import OperatorName
from pipeline_planner.graph.operators import (
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
    "keep the state by key (groupBy, transformWithState) and say state='shuffled'; or, to keep it "
    "by task, repartition first in a pipeline of its own: write a topic of Kafka by key with "
    "output, and read it with input in another pipeline"
)
"""What to do where state by task would be wrong."""


def find_task_problems(graph: Graph) -> tuple[Problem, ...]:
    """Transforms with state by task behind what ends it, in graph order; each names the nearest."""
    ended = dict(_behind(graph))
    return tuple(
        Problem(
            subject=described(operator),
            found=f"state='task' behind {described(end)}{_at(end)}, {_ends(end)}",
            expected="the line of one input from Kafka, with filters and functions that group "
            "nothing in between: only there does a key stay in its task",
            next_step=f"{_mend(end)}{INSTEAD}",
            place=operator.place,
        )
        for operator in graph.operators
        if is_task_bound(operator) and (end := ended.get(operator.name)) is not None
    )


def _behind(graph: Graph) -> Iterator[tuple[OperatorName, Operator]]:
    """Filters and transforms, each with the nearest operator before it that ends state by task.
    They take the rows of one operator, so none is walked over twice."""
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
    """Whether it is a function with state by task."""
    return isinstance(operator, Transform) and operator.state is StateKind.TASK


def _ends(operator: Operator) -> str:
    """Why rows behind it are not in the tasks that own their keys; empty when they may be."""
    match operator:
        case PartitionBy():
            return "from which rows come back without their task"
        case Merge():
            return "which reads each of its lines in tasks of its own"
        case Join() | JoinTable() | Transform(state=StateKind.SHUFFLED):
            return "for which Spark moves records to their keys"
        case Input(broadcast=True):
            return "a broadcast stream, of which no plan keeps the tasks"
        case _:
            return ""


def _mend(operator: Operator) -> str:
    match operator:
        case Input():
            return "leave out broadcast=True; or "
        case Merge():
            return "apply it to each line before they are merged, with state of its own; or "
        case _:
            return ""


def _at(operator: Operator) -> str:
    return f" ({operator.place})" if operator.place else ""
