"""A pipeline's plan: every stream with its count, every stage, every table. Frozen and comparable.

A *stage* is one streaming query: it reads streams, and writes one. Each `partition_by` and each
`output` ends a stage, which is named after it.

`tasks` is the number of tasks that a stream's keys are distributed over: its count when it was
first planned. It stays the same when partitions multiply, since partition p then belongs to task
p mod tasks (fixed tasks, see the design of partition expansion). So linked streams must have equal
`tasks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spark_ssp.planner.graph.names import OperatorName, StreamId, SystemKind, TableName
from spark_ssp.planner.planning.partition_counts import Count, PartitionGroup


class Role(StrEnum):
    """The role of a stream in the pipeline."""

    INPUT = "input"
    INTERMEDIATE = "intermediate"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """One stream. `tasks` is None for streams without fixed tasks: Kinesis, outputs, broadcast
    streams and streams of unknown count."""

    stream: StreamId
    kind: SystemKind
    role: Role
    count: Count
    tasks: int | None
    broadcast: bool = False
    bootstrap: bool = False

    @property
    def partitions(self) -> int | None:
        """The current count, or the one to create the stream with."""
        return self.count.partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage. `reads` is in the order in which its lines meet, left before right: a query's
    checkpoint numbers its sources. `key` contains the columns of a `partition_by`."""

    name: OperatorName
    reads: tuple[StreamId, ...]
    writes: StreamId
    tables: tuple[TableName, ...] = ()
    """Tables that rows are joined with, once for each join, in the order in which rows pass them,
    left before right: a query's checkpoint numbers its states."""
    key: tuple[str, ...] = ()
    sources: tuple[StreamId, ...] | None = None
    """Streams that the stage's query reads (see `stages.sources_of`), with those of its tables, in
    the order in which its checkpoint numbers them, a stream once for each time it is read. None for
    too many to run, and in plans recorded before this field was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """One table: the streams that fill it, and the tables joined with before they do; both in the
    order of `stages.fillers_of`, then in that of the line, a stream once for each line."""

    name: TableName
    key: tuple[str, ...]
    filled_by: tuple[StreamId, ...] = ()
    joins: tuple[TableName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The streams, tables and stages of a pipeline. Streams and tables are sorted; a stage comes
    after those whose streams it reads."""

    pipeline: str
    streams: tuple[StreamPlan, ...]
    stages: tuple[StagePlan, ...]
    tables: tuple[TablePlan, ...]
    sets: tuple[PartitionGroup, ...]

    def stream(self, stream: StreamId) -> StreamPlan:
        """Return the plan of a stream. Raises KeyError for a stream outside the pipeline."""
        return {planned.stream: planned for planned in self.streams}[stream]
