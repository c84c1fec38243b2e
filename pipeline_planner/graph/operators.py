"""The graph of a pipeline, as values: operators that name what they read, and tables.

An operator is one of a union of frozen values. A *source* (`Input`, or `PartitionBy` towards those
that read its stream) begins a line; a *sink* (`PartitionBy` towards what comes before it, `Output`)
ends one. Everything between the streams that are read and one sink is a stage.

Functions of the user are carried along and never called here. Places are not part of equality.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from pipeline_planner.graph.errors import SourceLocation
from pipeline_planner.graph.names import OperatorName, StreamId, SystemKind, SystemName, TableName

FrameFunction = Callable[[Any], Any]
"""Takes a PySpark DataFrame and returns one."""

PairFunction = Callable[[Any, Any], Any]
"""Takes two PySpark DataFrames, left and right, and returns the joined one."""


class StateKind(StrEnum):
    """Where an operator's memory of earlier records lives."""

    NONE = "none"
    SHUFFLED = "shuffled"
    """With the key: Spark moves records to it (groupBy, dropDuplicates, transformWithState)."""
    TASK = "task"
    """With the task: right only while every record of a key is read by the same task, hence on the
    line of one input from Kafka alone (`task_limits`)."""


JoinHow = Literal["inner", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Reads a stream that is there already.

    `broadcast`: it agrees with any count. `bootstrap`: it is read from its first record, and each
    batch takes in all that is there. Otherwise both are read as any stream is, in parts.
    """

    name: OperatorName
    stream: StreamId
    broadcast: bool = False
    bootstrap: bool = False
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """A function over the frame; `state` says what the function keeps, which nobody can see."""

    name: OperatorName
    upstream: OperatorName
    function: FrameFunction
    state: StateKind = StateKind.NONE
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Keeps the rows for which the condition holds: SQL text, or a function of the frame."""

    name: OperatorName
    upstream: OperatorName
    condition: str | FrameFunction
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """All records of several lines, which have the same columns."""

    name: OperatorName
    upstreams: tuple[OperatorName, ...]
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBy:
    """Writes an intermediate stream, partitioned by columns; others read it from there.

    `partitions` is the user's word for its count, None to leave it to the planner.
    """

    name: OperatorName
    upstream: OperatorName
    columns: tuple[str, ...]
    stream: StreamId
    partitions: int | None = None
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Joins two lines; left and right may be the same."""

    name: OperatorName
    left: OperatorName
    right: OperatorName
    combine: PairFunction
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToTable:
    """Puts each row into a table, as the latest of its key."""

    name: OperatorName
    upstream: OperatorName
    table: TableName
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideInput:
    """Fills a table like `SendToTable`, with all that is there when a batch begins before the rows
    of the batch are joined."""

    name: OperatorName
    upstream: OperatorName
    table: TableName
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTable:
    """Joins each row with the table's row of the same key; `on` names the line's key columns."""

    name: OperatorName
    upstream: OperatorName
    table: TableName
    on: tuple[str, ...]
    how: JoinHow = "inner"
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Writes a stream that leaves the pipeline."""

    name: OperatorName
    upstream: OperatorName
    stream: StreamId
    place: SourceLocation | None = field(default=None, compare=False)


Operator = (
    Input
    | Transform
    | Filter
    | Merge
    | PartitionBy
    | Join
    | SendToTable
    | SideInput
    | JoinTable
    | Output
)
Source = Input | PartitionBy


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table: the latest row of each key. Each stage that joins with it keeps its own copy."""

    name: TableName
    key: tuple[str, ...]
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A pipeline as it was described. Operators stand in the order of their making."""

    pipeline: str
    systems: tuple[tuple[SystemName, SystemKind], ...]
    """Every system that may be named, sorted."""
    operators: tuple[Operator, ...]
    tables: tuple[TableSpec, ...] = ()

    def kind_of(self, system: SystemName) -> SystemKind:
        """What the system is; `KeyError` for one that the pipeline does not name."""
        return dict(self.systems)[system]


def upstreams(operator: Operator) -> tuple[OperatorName, ...]:
    """The operators whose rows it takes, left before right; a self-join has one of them twice."""
    match operator:
        case Input():
            return ()
        case Merge():
            return operator.upstreams
        case Join():
            return (operator.left, operator.right)
        case _:
            return (operator.upstream,)


def method_of(operator: Operator) -> str:
    """The method that makes it, as in the API."""
    return _METHODS[type(operator)]


_METHODS: dict[type[Operator], str] = {
    Input: "input",
    Transform: "transform",
    Filter: "filter",
    Merge: "merge",
    PartitionBy: "partition_by",
    Join: "join",
    SendToTable: "send_to_table",
    SideInput: "side_input",
    JoinTable: "join_table",
    Output: "output",
}


def by_name(graph: Graph) -> dict[OperatorName, Operator]:
    """Every operator by its name, in the graph's order."""
    return {operator.name: operator for operator in graph.operators}


def consumers(graph: Graph) -> dict[OperatorName, tuple[Operator, ...]]:
    """Who takes an operator's rows, each once, in the graph's order."""
    found: dict[OperatorName, list[Operator]] = {op.name: [] for op in graph.operators}
    for operator in graph.operators:
        for name in dict.fromkeys(upstreams(operator)):
            found.setdefault(name, []).append(operator)
    return {name: tuple(readers) for name, readers in found.items()}


def described(operator: Operator) -> str:
    """How messages name an operator."""
    return f"{method_of(operator)} {operator.name}"
