"""Checks the operators on the line of a Kinesis stream before a repartition.

Shards split and merge while a query runs, and any slot with capacity may read a shard. So the
records of a key do not stay in one task, and there is no stable count for other streams to match
(the Kinesis consumer's design, section "Limitations": stateful processing only in a second stage,
after a repartition to Kafka).

By the requirement of an operator:

* none (filter, merge, partition_by, output, a transform without state, a join with a table that is
  whole in every task or maintained outside the pipeline): allowed;
* keys that Spark shuffles (a transform with state `shuffled`): allowed, with a note;
* tasks that own their keys (tables, a transform with state `task`) or the same keys of both streams
  (joins): rejected. A repartition within the pipeline fixes all of them except state `task`, which
  needs an input (`task_limits`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_ssp.planner.checks.co_partitioning import line_successors, sources, tables_in_parts
from spark_ssp.planner.checks.task_limits import INSTEAD, is_task_bound
from spark_ssp.planner.graph.errors import Note, Problem
from spark_ssp.planner.graph.names import OperatorName, StreamId, SystemKind, TableName
from spark_ssp.planner.graph.operators import (
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
from spark_ssp.planner.graph.traversal import traverse

_KINESIS: Final = SystemKind.KINESIS
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
    """Return inputs from Kinesis with unsupported flags and operators that a line of Kinesis must
    not reach, each in graph order.

    Only the first operator of a line is reported: the repartition that it needs fixes the others.
    """
    parts = tables_in_parts(graph)
    return *_flagged(graph), *(
        Problem(
            subject=described(operator),
            found=f"{_listed(streams)} of Kinesis, with no repartition in between",
            expected=f"{needs}: shards split and merge while they are read, and move between tasks",
            next_step=INSTEAD
            if is_task_bound(operator)
            else f"put .partition_by(<the key's columns>) before {described(operator)}, which "
            "writes an intermediate stream to Kafka, and continue from its result",
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
    """Return notes on operators of a Kinesis line that are correct because Spark shuffles."""
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
    """Yield operators with the Kinesis streams that reach them, up to the first rejected one of
    each line."""
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


def _is_shuffled(operator: Operator) -> bool:
    return isinstance(operator, Transform) and operator.state is StateKind.SHUFFLED


def _listed(streams: list[StreamId]) -> str:
    return ", ".join(str(stream) for stream in streams)
