"""A system in memory for tests: streams with partition counts, and a log of the calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ssp.common.errors import UnsupportedError
from spark_ssp.planner.graph.operators import SystemKind
from spark_ssp.planner.graph.systems import SparkFormat, StreamUse, stream_exists_error


@dataclass(kw_only=True)
class MemorySystem:
    """`System` over a dict of counts. `created` holds the streams created, in order. `rivals`:
    partition counts of streams that another client creates just before a call to `create`.
    `short_by`: number of partitions by which a new stream falls short of the requested count."""

    streams: dict[str, int] = field(default_factory=dict)
    kind: SystemKind = SystemKind.KAFKA
    rivals: Mapping[str, int] = field(default_factory=dict)
    short_by: int = 0
    created: list[str] = field(default_factory=list)
    uses: dict[str, StreamUse] = field(default_factory=dict)

    def partition_count(self, stream: str) -> int | None:
        return self.streams.get(stream)

    def create(self, stream: str, partitions: int, *, use: StreamUse = StreamUse.EVENTS) -> None:
        if stream in self.rivals:
            self.streams.setdefault(stream, self.rivals[stream])
        if stream in self.streams:
            raise stream_exists_error(stream, "it in memory")
        self.streams[stream] = partitions - self.short_by
        self.created.append(stream)
        self.uses[stream] = use

    def reader_format(
        self, stream: str, *, from_start: bool = False, keep_tasks: bool = True
    ) -> SparkFormat:
        flags = {"fromStart": from_start, "keepTasks": keep_tasks}
        options = {name: str(flag).lower() for name, flag in flags.items()}
        return SparkFormat("memory", {"stream": stream, **options})

    def writer_format(self, stream: str) -> SparkFormat:
        if self.kind is SystemKind.KINESIS:
            raise UnsupportedError(
                f"stream {stream}",
                found="a stream of Kinesis to be written",
                expected="a stream that can be written",
                next_step="write to Kafka",
            )
        return SparkFormat("memory", {"stream": stream})
