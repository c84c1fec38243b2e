"""The Protocol by which the planner requests partition counts of streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spark_ssp.planner.graph.errors import PartitionCountConflictError, Problem
from spark_ssp.planner.graph.names import StreamId, SystemName
from spark_ssp.planner.graph.operators import Graph, Input, Output, PartitionBy


class StreamAdmin(Protocol):
    """Returns the partition counts of the streams of all systems of a pipeline."""

    def partition_count(self, system: SystemName, stream: str) -> int | None:
        """Return the partitions of a Kafka topic, or the open shards of a Kinesis stream: 1 or
        more, None for a missing stream. Raises when the service does not answer.
        """
        ...


def observe(graph: Graph, admin: StreamAdmin) -> Mapping[StreamId, int | None]:
    """Return the counts of all streams of a graph, each requested once, sorted by stream.

    Raises PartitionCountConflictError with all counts below 1.
    """
    streams = {o.stream for o in graph.operators if isinstance(o, Input | PartitionBy | Output)}
    counts = {s: admin.partition_count(s.system, s.stream) for s in sorted(streams)}
    problems = [
        Problem(
            subject=f"stream {stream}",
            found=f"{count} partitions",
            expected="1 or more, or None for a missing stream",
            next_step=f"check {stream} at its service, and plan again; a custom admin must not "
            "return such a count",
        )
        for stream, count in counts.items()
        if count is not None and count < 1
    ]
    if problems:
        raise PartitionCountConflictError(graph.pipeline, problems)
    return counts
