"""What may stand directly on a Kinesis stream, that is, on its line before a repartition.

Shards split and merge while a query runs, and a shard is read by whichever slot has room. So
neither does a record's key stay with one task, nor is there a count with which other streams could
agree (the Kinesis consumer's design, section "Limitations": no stateful processing but in a second
stage, after a repartition to Kafka).

The table, by what an operator relies on:

* nothing (filter, merge, partition_by, output, a transform without state, a join with a table that
  is whole in every task or somebody else's): allowed;
* keys that Spark moves itself (a transform with state `shuffled`): allowed, with a hint;
* tasks that own their keys (tables, a transform with state `task`) or tasks that own the same keys
  of both streams (joins): refused. A repartition within the pipeline helps all of them but state
  `task`, which needs an input (`task_limits`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pipeline_planner.checks.co_partitioning import line_successors, sources, tables_in_parts
from pipeline_planner.checks.task_limits import INSTEAD, is_task_bound
from pipeline_planner.graph.errors import Note, Problem
from pipeline_planner.graph.names import OperatorName, StreamId, SystemKind, TableName
from pipeline_planner.graph.operators import (
    Graph,
    Input,
    Join,
    JoinTable,
    Operator,
    SendToTable,
    SideInput,
    StateKind,
    Transform,
    by_name,
    described,
)
from pipeline_planner.graph.traversal import traverse

_KINESIS: Final = SystemKind.KINESIS
_TABLE: Final = "tasks that own the keys of their part of the table"


_FLAGS: Final = {
    "broadcast": "its shards are dealt out to slots, each read by one task",
    "bootstrap": "its shards come and go, so it has no end that all have reached",
}
"""Of inputs, with the reason why Kinesis cannot have them."""


def refused_flag(flag: str) -> tuple[str, str, str]:
    """What is found, expected and to be done when an input from Kinesis has one of them."""
    return (
        f"{flag}=True on Kinesis",
        f"no {flag} stream of Kinesis: {_FLAGS[flag]}",
        "send it through partition_by to Kafka, and read it there",
    )


def find_kinesis_problems(graph: Graph) -> tuple[Problem, ...]:
    """Inputs from Kinesis that cannot be as they are said to be, and operators that a line of
    Kinesis must not reach, each in graph order.

    Of several on one line only the first is named: the repartition that it needs mends the others.
    """
    parts = tables_in_parts(graph)
    return *_flagged(graph), *(
        Problem(
            subject=described(operator),
            found=f"{_listed(streams)} of Kinesis, with no repartition in between",
            expected=f"{needs}: shards split and merge while they are read, and move "
            "from task to task",
            next_step=INSTEAD
            if is_task_bound(operator)
            else f"put .partition_by(<the key's columns>) before {described(operator)}, which "
            "writes an intermediate stream to Kafka, and go on from its result",
            place=operator.place,
        )
        for operator, streams in _met(graph)
        if (needs := _needs(operator, parts))
    )


def _flagged(graph: Graph) -> Iterator[Problem]:
    for operator in graph.operators:
        if isinstance(operator, Input) and graph.kind_of(operator.stream.system) is _KINESIS:
            for flag in (name for name in _FLAGS if getattr(operator, name)):
                found, expected, next_step = refused_flag(flag)
                yield Problem(
                    subject=described(operator),
                    found=found,
                    expected=expected,
                    next_step=next_step,
                    place=operator.place,
                )


def find_kinesis_notes(graph: Graph) -> tuple[Note, ...]:
    """Operators on a line of Kinesis that are right because Spark shuffles for them."""
    return tuple(
        Note(
            subject=described(operator),
            text=f"directly on {_listed(streams)} of Kinesis; right because Spark shuffles by key, "
            "at the cost of a shuffle in every batch. State kept by task would be wrong here",
            place=operator.place,
        )
        for operator, streams in _met(graph)
        if _is_shuffled(operator)
    )


def _met(graph: Graph) -> Iterator[tuple[Operator, list[StreamId]]]:
    """Operators on lines of Kinesis, up to the first on each line that must not be there."""
    named, follow, parts = by_name(graph), line_successors(graph), tables_in_parts(graph)
    met: dict[OperatorName, list[StreamId]] = {}

    def onward(name: OperatorName) -> tuple[OperatorName, ...]:
        return () if _needs(named[name], parts) else follow(name)

    for source in sources(graph):
        if graph.kind_of(source.stream.system) is _KINESIS:
            seen: list[OperatorName] = []
            traverse(source.name, seen.append, onward)
            for name in seen:
                met.setdefault(name, []).append(source.stream)
    for operator in graph.operators:
        if operator.name in met:
            yield operator, sorted(met[operator.name])


def _needs(operator: Operator, parts: frozenset[TableName]) -> str:
    """What an operator relies on that Kinesis cannot give; empty when there is nothing."""
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


def _is_shuffled(operator: Operator) -> bool:
    return isinstance(operator, Transform) and operator.state is StateKind.SHUFFLED


def _listed(streams: list[StreamId]) -> str:
    return ", ".join(str(stream) for stream in streams)
