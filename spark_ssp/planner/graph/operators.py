"""The graph of a pipeline as values: operators, which name their upstreams, and tables; and its
traversals, each in a documented order.

An operator is one of a union of frozen values. A *source* (`Input`, or `PartitionBy` for the
readers of its stream) begins a line; a *sink* (`Output`, or `PartitionBy` for its upstream) ends
one. A stage consists of one sink and all operators between it and the streams that it reads.

Names of operators and tables become part of checkpoint paths, those of intermediate streams become
names at the service. So they consist of letters, digits, ``.``, ``_`` and ``-``.

User functions are stored and never called here. Source locations are not part of equality.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, NewType, TypeVar

from spark_ssp.planner.graph.errors import Problem, SourceLocation

OperatorName = NewType("OperatorName", str)
"""An operator's name, unique within its pipeline."""

TableName = NewType("TableName", str)
"""A table's name, unique within its pipeline."""

SystemName = NewType("SystemName", str)
"""The user's name for one service: a Kafka cluster, or Kinesis in a region."""


class SystemKind(StrEnum):
    """The service of a system."""

    KAFKA = "kafka"
    KINESIS = "kinesis"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StreamId:
    """A stream of a system: a topic of Kafka, a stream of Kinesis. Orders by system, then stream.
    Counts are per (system, stream): two systems may have streams of one name."""

    system: SystemName
    stream: str

    def __str__(self) -> str:
        return f"{self.system}/{self.stream}"


DEFAULT_SYSTEMS: Final[Mapping[str, str]] = {"kafka": "kafka", "kinesis": "kinesis"}
"""Default systems of a pipeline: one of each kind, named after it."""

DEFAULT_INTERMEDIATE_SYSTEM: Final = "kafka"
"""Default system of intermediate streams, which need not exist where there are none."""

LONGEST_STREAM: Final[Mapping[SystemKind, int]] = {SystemKind.KAFKA: 249, SystemKind.KINESIS: 128}
"""Maximum length of a stream's name: Kafka's limit of topics, StreamName in Kinesis's API
reference."""

LONGEST_NAME: Final = 100
"""Maximum length of the name of a pipeline, operator or table, which may become a folder's name."""

MOST_PARTITIONS: Final = 2**31 - 1
"""Maximum number of partitions of a stream: a 32-bit number in the protocols of both services."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STREAM: Final = re.compile(r"[A-Za-z0-9._-]+")


def is_name(text: str) -> bool:
    """Return whether `text` is a valid name of a pipeline, system, operator or table."""
    return len(text) <= LONGEST_NAME and _NAME.fullmatch(text) is not None


def is_partition_count(given: object) -> bool:
    """Return whether a stream can be created with this number of partitions."""
    return type(given) is int and 1 <= given <= MOST_PARTITIONS


def is_stream_name(text: str, kind: SystemKind) -> bool:
    """Return whether a service of this kind accepts the name; Kafka rejects ``.`` and ``..``."""
    reserved = kind is SystemKind.KAFKA and text in {".", ".."}
    return len(text) <= LONGEST_STREAM[kind] and bool(_STREAM.fullmatch(text)) and not reserved


def derived_stream(pipeline: str, name: OperatorName) -> str:
    """Return the name of an intermediate stream that the user gives none. Pipelines may derive the
    same: `a` with `b-by-k`, and `a-b` with `by-k`."""
    return f"{pipeline}-{name}"


def slug(*parts: str) -> str:
    """Return a name made of arbitrary strings: runs of other characters become ``-``."""
    cleaned = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-._") for part in parts)
    return "-".join(part for part in cleaned if part)


FrameFunction = Callable[[Any], Any]
"""Takes a PySpark DataFrame and returns one."""

PairFunction = Callable[[Any, Any], Any]
"""Takes two PySpark DataFrames, left and right, and returns the joined one."""


class StateKind(StrEnum):
    """The location of a function's state."""

    NONE = "none"
    SHUFFLED = "shuffled"
    """With the key: Spark shuffles records to it (groupBy, dropDuplicates, transformWithState)."""
    TASK = "task"
    """With the task: correct only while every record of a key is read by the same task, that is, on
    the line of one Kafka input (see `validation`)."""


JoinHow = Literal["inner", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Reads an existing stream. `broadcast`: its count need not match any other. `bootstrap`: it is
    read from its first record, and each batch reads all available records. In other respects both
    are read like any stream."""

    name: OperatorName
    stream: StreamId
    broadcast: bool = False
    bootstrap: bool = False
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """Applies a function to the frame; `state` declares the function's state, which cannot be
    inspected."""

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
    """Unites the records of several lines with the same columns."""

    name: OperatorName
    upstreams: tuple[OperatorName, ...]
    place: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBy:
    """Writes an intermediate stream, partitioned by columns, which downstream operators read.
    `partitions` is the count that the user requested, None to leave it to the planner."""

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
    """Fills a table like `SendToTable`, with all records available at the start of a batch before
    the rows of the batch are joined."""

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
    """The description of a pipeline. Operators are in the order of their creation."""

    pipeline: str
    systems: tuple[tuple[SystemName, SystemKind], ...]
    """All systems, sorted."""
    operators: tuple[Operator, ...]
    tables: tuple[TableSpec, ...] = ()

    def kind_of(self, system: SystemName) -> SystemKind:
        """Return the kind of a system. Raises KeyError for an unknown one."""
        return dict(self.systems)[system]


def upstreams(operator: Operator) -> tuple[OperatorName, ...]:
    """Return the operators whose rows it reads, left before right; twice the same for a
    self-join."""
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
    """Return the API method that creates the operator."""
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
    """Return every operator by name, in graph order."""
    return {operator.name: operator for operator in graph.operators}


def consumers(graph: Graph) -> dict[OperatorName, tuple[Operator, ...]]:
    """Return the operators that read each operator's rows, each once, in graph order."""
    found: dict[OperatorName, list[Operator]] = {op.name: [] for op in graph.operators}
    for operator in graph.operators:
        for name in dict.fromkeys(upstreams(operator)):
            found.setdefault(name, []).append(operator)
    return {name: tuple(readers) for name, readers in found.items()}


def described(operator: Operator) -> str:
    """Return the method and name of an operator, for messages."""
    return f"{method_of(operator)} {operator.name}"


def problem_of(operator: Operator, found: str, expected: str, next_step: str) -> Problem:
    """Return a problem of an operator, with its source location."""
    return Problem(
        subject=described(operator),
        found=found,
        expected=expected,
        next_step=next_step,
        place=operator.place,
    )


# --- Traversals ----------------------------------------------------------------------------------


V = TypeVar("V", bound=Hashable)


def traverse(start: V, visit: Callable[[V], None], successors: Callable[[V], Iterable[V]]) -> None:
    """Visit `start` and its descendants, each vertex once. Depth first: a vertex, then the
    descendants of its first successor, then of its second. Handles cycles and graphs of any
    depth."""
    seen: set[V] = set()
    ahead = [start]
    while ahead:
        vertex = ahead.pop()
        if vertex not in seen:
            seen.add(vertex)
            visit(vertex)
            ahead.extend(reversed([v for v in successors(vertex) if v not in seen]))


def upwards(start: V, before: Callable[[V], Iterable[V]]) -> list[V]:
    """Return `start` and its ancestors, each vertex once, `start` last: in depth-first postorder,
    a vertex after its ancestors. Handles cycles."""
    found: list[V] = []
    seen: set[V] = set()
    ahead = [(start, False)]
    while ahead:
        vertex, done = ahead.pop()
        if done:
            found.append(vertex)
        elif vertex not in seen:
            seen.add(vertex)
            ahead.append((vertex, True))
            ahead.extend((v, False) for v in reversed([*before(vertex)]))
    return found


def reached(starts: Iterable[V], successors: Callable[[V], Iterable[V]]) -> set[V]:
    """Return `starts` and their descendants."""
    found: set[V] = set()
    for start in starts:
        if start not in found:
            traverse(start, found.add, lambda v: (s for s in successors(v) if s not in found))
    return found


def shortest_path(start: V, goal: V, successors: Callable[[V], Iterable[V]]) -> list[V] | None:
    """Return the vertices from `start` to `goal`, both included; None without a path. Of equally
    short paths, the one whose vertices come first among the successors."""
    came_from: dict[V, V | None] = {start: None}
    ahead = deque([start])
    while ahead:
        vertex = ahead.popleft()
        if vertex == goal:
            return unwind(vertex, came_from)
        for following in successors(vertex):
            if following not in came_from:
                came_from[following] = vertex
                ahead.append(following)
    return None


def unwind(vertex: V, came_from: Mapping[V, V | None]) -> list[V]:
    """Return the path from the start of a search to a vertex. `came_from` maps each vertex of the
    search to its predecessor, a start to None."""
    path = [vertex]
    while (before := came_from[path[-1]]) is not None:
        path.append(before)
    return path[::-1]


def topological_order(
    vertices: Sequence[V], successors: Callable[[V], Iterable[V]]
) -> tuple[list[V], list[V]]:
    """Return the `vertices` (without duplicates) in topological order, and those without one. Of
    the candidates for the next position, the one given first is taken. The second list, in the
    order given, contains the vertices on cycles and their descendants."""
    rank = {vertex: number for number, vertex in enumerate(vertices)}
    waits_for = dict.fromkeys(vertices, 0)
    for vertex in vertices:
        for following in successors(vertex):
            waits_for[following] += 1
    ordered: list[V] = []
    ready = [rank[vertex] for vertex in vertices if not waits_for[vertex]]  # sorted: a heap
    while ready:
        vertex = vertices[heapq.heappop(ready)]
        ordered.append(vertex)
        for following in successors(vertex):
            waits_for[following] -= 1
            if not waits_for[following]:
                heapq.heappush(ready, rank[following])
    done = set(ordered)
    return ordered, [vertex for vertex in vertices if vertex not in done]


def find_cycle(vertices: Sequence[V], successors: Callable[[V], Iterable[V]]) -> list[V] | None:
    """Return one of the shortest cycles through the first vertex that is on any, with that vertex
    first and last; None without a cycle."""
    for vertex in topological_order(vertices, successors)[1]:
        ways = (shortest_path(s, vertex, successors) for s in dict.fromkeys(successors(vertex)))
        found = [way for way in ways if way is not None]
        if found:
            return [vertex, *min(found, key=len)]
    return None
