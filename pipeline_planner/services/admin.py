"""What the planner asks of services: how many partitions a stream has. No implementation here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pipeline_planner.graph.errors import PartitionCountConflictError, Problem
from pipeline_planner.graph.names import StreamId, SystemName
from pipeline_planner.graph.operators import Graph, Input, Output, PartitionBy


class StreamAdmin(Protocol):
    """Knows the streams of all systems of a pipeline."""

    def partition_count(self, system: SystemName, stream: str) -> int | None:
        """Partitions of a Kafka topic, or open shards of a Kinesis stream: 1 or more.

        None when there is no such stream. Raises when it cannot be told.
        """
        ...


def observe(graph: Graph, admin: StreamAdmin) -> Mapping[StreamId, int | None]:
    """The counts of all streams of a graph, each asked for once, in sorted order.

    Raises PartitionCountConflictError, with all of them, for counts below 1.
    """
    streams = {o.stream for o in graph.operators if isinstance(o, Input | PartitionBy | Output)}
    counts = {s: admin.partition_count(s.system, s.stream) for s in sorted(streams)}
    problems = [
        Problem(
            subject=f"stream {stream}",
            found=f"{count} partitions",
            expected="1 or more, or None where there is no such stream",
            next_step=f"see what {stream} has at its service, and plan again; an admin of your own "
            "must not give such a count",
        )
        for stream, count in counts.items()
        if count is not None and count < 1
    ]
    if problems:
        raise PartitionCountConflictError(graph.pipeline, problems)
    return counts
