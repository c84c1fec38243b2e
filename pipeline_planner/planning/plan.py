"""A pipeline's plan: every stream with its count, every stage, every table. Frozen and comparable.

A *stage* is what one streaming query does: it reads streams, and writes one. Each `partition_by`
and each `output` ends one, and gives it its name.

`tasks` is the count over which a stream's keys are spread: its count when it was first planned. It
stays when partitions multiply, since partition p then belongs to task p mod tasks (fixed tasks, the
partition expansion's design). So it is `tasks` on which tied streams agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pipeline_planner.graph.names import OperatorName, StreamId, SystemKind, TableName
from pipeline_planner.planning.partition_counts import Count, PartitionGroup


class Role(StrEnum):
    """What a stream is to the pipeline."""

    INPUT = "input"
    INTERMEDIATE = "intermediate"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """One stream. `tasks` is None for what has no fixed tasks: Kinesis, outputs, broadcast streams
    and streams of unknown count."""

    stream: StreamId
    kind: SystemKind
    role: Role
    count: Count
    tasks: int | None
    broadcast: bool = False
    bootstrap: bool = False

    @property
    def partitions(self) -> int | None:
        """How many it has, or shall be created with."""
        return self.count.partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage. `reads` is in the order in which its rows come together, left before right: a
    query's checkpoint numbers its sources. `key` holds the columns of a `partition_by`."""

    name: OperatorName
    reads: tuple[StreamId, ...]
    writes: StreamId
    tables: tuple[TableName, ...] = ()
    """Joined with on the way, once for each join, in the order in which rows pass them, left before
    right: a query's checkpoint numbers its states."""
    key: tuple[str, ...] = ()
    sources: tuple[StreamId, ...] | None = None
    """The stage's query reads these (see `stages.sources_of`), those of its tables among them, in
    the order in which its checkpoint numbers them, a stream once for each time it is read. None
    where they are too many to run, and in plans recorded before there was this field."""


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
    """Streams and tables are sorted; a stage comes after those whose streams it reads."""

    pipeline: str
    streams: tuple[StreamPlan, ...]
    stages: tuple[StagePlan, ...]
    tables: tuple[TablePlan, ...]
    sets: tuple[PartitionGroup, ...]

    def stream(self, stream: StreamId) -> StreamPlan:
        """A stream's part; `KeyError` when it is none of the pipeline's."""
        return {planned.stream: planned for planned in self.streams}[stream]
