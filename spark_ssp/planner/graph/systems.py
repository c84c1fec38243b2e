"""The Protocol of a pipeline's services: partition counts, creation of streams, and the formats by
which Spark reads and writes them. The Kafka and the Kinesis package implement it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from spark_ssp.common.errors import SspError
from spark_ssp.planner.graph.errors import (
    InvalidPipelineError,
    PartitionCountConflictError,
    Problem,
)
from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    Output,
    PartitionBy,
    StreamId,
    SystemKind,
    SystemName,
    described,
)


class StreamUse(StrEnum):
    """The purpose of an intermediate stream's records."""

    EVENTS = "events"
    """Each is read once by each stage, soon after it is written."""
    TABLE = "table"
    """They only fill tables: a stage that is added later reads them from the first record."""
    BOTH = "both"


class StreamExistsError(SspError):
    """The stream to create exists already, possibly created concurrently."""

    kind = "stream-exists"


class UnknownSystemError(SspError, KeyError):
    """A system that is missing from `Services`."""

    kind = "unknown-system"


@dataclass(frozen=True, slots=True)
class SparkFormat:
    """The name and options of a format for `spark.readStream`, `spark.read` or `writeStream`. Its
    text contains only the options' names: a value may be a password."""

    format: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"SparkFormat({self.format!r}, options {', '.join(sorted(self.options))})"


@runtime_checkable
class System(Protocol):
    """One service of a pipeline: a Kafka cluster, or Kinesis of one account in one region.

    Every method raises an `SspError` when the service is unreachable, denies the request, or does
    not answer before the timeout. Names of streams are valid for the kind of service. Neither
    thread-safe nor picklable.
    """

    @property
    def kind(self) -> SystemKind:
        """The kind of service."""
        ...

    def partition_count(self, stream: str) -> int | None:
        """Return the current partitions of a topic, or open shards of a stream: 1 or more; None for
        a missing stream or one that is being deleted. Waits for one that is being created."""
        ...

    def create(self, stream: str, partitions: int, *, use: StreamUse = StreamUse.EVENTS) -> None:
        """Create a stream with this number of partitions and a retention that suits `use`. Waits
        for the end of a deletion of that name. Raises StreamExistsError if it exists, with any
        count. In both cases `partition_count` returns its count from then on."""
        ...

    def reader_format(
        self, stream: str, *, from_start: bool = False, keep_tasks: bool = True
    ) -> SparkFormat:
        """Return the format and options by which Spark reads the stream. `from_start`: a new query
        starts with the oldest record, regardless of the system's options, as required for
        intermediate streams and those that fill tables. `keep_tasks`: a key stays in its task when
        partitions are added, as in the plan; without it, as for a broadcast stream, any change of
        the count is accepted."""
        ...

    def writer_format(self, stream: str) -> SparkFormat:
        """Return the format and options by which Spark writes the stream. Raises UnsupportedError
        for a service without a sink."""
        ...


class Services(Mapping[str, System]):
    """The systems of a pipeline by name. A `StreamAdmin`. services = Services({"kafka":
    KafkaSystem({"kafka.bootstrap.servers": "localhost:9092"})})"""

    def __init__(self, systems: Mapping[str, System]) -> None:
        self._systems = MappingProxyType(dict(sorted(systems.items())))

    def __getitem__(self, system: str) -> System:
        """Return a system. Raises UnknownSystemError for a missing one."""
        found = self._systems.get(system)
        if found is None:
            raise UnknownSystemError(
                f"system {system}",
                found=f"services without it, with {self._listed()}",
                expected="a service for every system that the pipeline uses",
                next_step=f"add an entry named {system} to Services",
            )
        return found

    def __iter__(self) -> Iterator[str]:
        """Names, sorted."""
        return iter(self._systems)

    def __len__(self) -> int:
        return len(self._systems)

    def __repr__(self) -> str:
        return f"Services({self._listed()})"

    def partition_count(self, system: SystemName, stream: str) -> int | None:
        """Return the partitions of a topic, or the open shards of a stream; None for a missing
        one."""
        return self[system].partition_count(stream)

    def raise_missing(self, graph: Graph) -> None:
        """Raise InvalidPipelineError for every system that `graph` reads or writes and that is
        missing, or another kind of service than in the graph."""
        problems = [
            problem
            for system, first in _used(graph).items()
            if (problem := self._misfit(graph, system, first)) is not None
        ]
        if problems:
            raise InvalidPipelineError(graph.pipeline, problems)

    def _misfit(
        self, graph: Graph, system: SystemName, first: Input | PartitionBy | Output
    ) -> Problem | None:
        wanted = graph.kind_of(system)
        here = self._systems.get(system)
        if here is not None and here.kind is wanted:
            return None
        return Problem(
            subject=f"system {system}",
            found=f"services with {self._listed()}",
            expected=f"{system} ({wanted}), which {described(first)} uses",
            next_step=f"add a {wanted} system named {system} to Services"
            if here is None
            else f"use a {wanted} system as {system} in Services, or correct its kind in "
            "Pipeline(systems=…)",
            place=first.place,
        )

    def _listed(self) -> str:
        return ", ".join(f"{name} ({one.kind})" for name, one in self._systems.items()) or "nothing"


def _used(graph: Graph) -> dict[SystemName, Input | PartitionBy | Output]:
    """Return the systems of a graph's streams, sorted, with the first operator that names each."""
    found: dict[SystemName, Input | PartitionBy | Output] = {}
    for operator in graph.operators:
        if isinstance(operator, Input | PartitionBy | Output):
            found.setdefault(operator.stream.system, operator)
    return dict(sorted(found.items()))


def stream_exists_error(stream: str, found: str) -> StreamExistsError:
    """Return the error for a stream that exists already; `found` is the service's answer."""
    return StreamExistsError(
        f"stream {stream}",
        found=found,
        expected="no such stream",
        next_step="use it unchanged, or give the intermediate stream another name with stream=",
    )


class StreamAdmin(Protocol):
    """Returns the partition counts of the streams of all systems of a pipeline."""

    def partition_count(self, system: SystemName, stream: str) -> int | None:
        """Return the partitions of a Kafka topic, or the open shards of a Kinesis stream: 1 or
        more, None for a missing stream. Raises when the service does not answer."""
        ...


def observe(graph: Graph, admin: StreamAdmin) -> Mapping[StreamId, int | None]:
    """Return the counts of all streams of a graph, each requested once, sorted by stream. Raises
    PartitionCountConflictError with all counts below 1."""
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
