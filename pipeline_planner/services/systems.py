"""The services of a pipeline: what the planner asks of them and does to them, and how Spark reads
and writes their streams. No implementation here: the Kafka and the Kinesis package have one each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from pipeline_planner.graph.errors import InvalidPipelineError, Problem
from pipeline_planner.graph.names import SystemKind, SystemName
from pipeline_planner.graph.operators import Graph, Input, Output, PartitionBy, described
from ssp_common.errors import SspError


class StreamUse(StrEnum):
    """The purpose of an intermediate stream's records."""

    EVENTS = "events"
    """Each is read once by each stage, soon after it was written."""
    TABLE = "table"
    """They only fill tables: a stage that is added later reads them from the first record."""
    BOTH = "both"


class StreamExistsError(SspError):
    """A stream that was to be created is there: made by somebody else, or a moment ago."""

    kind = "stream-exists"


class UnknownSystemError(SspError, KeyError):
    """A system is named that the services at hand do not have: name it in `Services`."""

    kind = "unknown-system"


@dataclass(frozen=True, slots=True)
class SparkFormat:
    """What `spark.readStream`, `spark.read` or `writeStream` is given: a format by its name, and
    options. The text shows the options' names alone: a value may be a password."""

    format: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"SparkFormat({self.format!r}, options {', '.join(sorted(self.options))})"


class System(Protocol):
    """One service of a pipeline: a cluster of Kafka, Kinesis of one account in one region.

    Every method raises an `SspError` when the service cannot be asked, refuses, or does not answer
    within its limits of patience. Names of streams are right for the kind of service. Not to be
    shared between threads or pickled.
    """

    @property
    def kind(self) -> SystemKind:
        """What service it is."""
        ...

    def partition_count(self, stream: str) -> int | None:
        """Partitions of a topic, or open shards of a stream, asked anew: 1 or more; None when there
        is no such stream, or when it is being removed. One that is being made is waited for."""
        ...

    def create(self, stream: str, partitions: int, *, use: StreamUse = StreamUse.EVENTS) -> None:
        """Create a stream with so many partitions, whose records stay as long as `use` wants it.
        One of that name that is being removed is waited for.

        Raises StreamExistsError when it is there, however many partitions it has. Either way
        `partition_count` tells of it from then on.
        """
        ...

    def reader_format(self, stream: str, *, from_start: bool = False) -> SparkFormat:
        """How Spark reads the stream, as the system was set up.

        `from_start`: a new query begins with the oldest record, whatever the system was set up
        with. What a pipeline wrote itself, and what fills a table, must be read so.
        """
        ...

    def writer_format(self, stream: str) -> SparkFormat:
        """How Spark writes the stream; UnsupportedError where nothing can be written."""
        ...


class Services(Mapping[str, System]):
    """The systems of a pipeline, by the names that the pipeline gives them. A `StreamAdmin`.

    services = Services({"kafka": KafkaSystem({"kafka.bootstrap.servers": "localhost:9092"})})
    """

    def __init__(self, systems: Mapping[str, System]) -> None:
        self._systems = MappingProxyType(dict(sorted(systems.items())))

    def __getitem__(self, system: str) -> System:
        """A system; UnknownSystemError when there is none of that name."""
        found = self._systems.get(system)
        if found is None:
            raise UnknownSystemError(
                f"system {system}",
                found=f"services that lack it, with {self._told()}",
                expected="a service for every system that the pipeline uses",
                next_step=f"give Services an entry called {system}",
            )
        return found

    def __iter__(self) -> Iterator[str]:
        """Names, sorted."""
        return iter(self._systems)

    def __len__(self) -> int:
        return len(self._systems)

    def __repr__(self) -> str:
        return f"Services({self._told()})"

    def partition_count(self, system: SystemName, stream: str) -> int | None:
        """See `StreamAdmin`."""
        return self[system].partition_count(stream)

    def raise_missing(self, graph: Graph) -> None:
        """Raise InvalidPipelineError for every system that `graph` reads or writes and that is not
        here, or is another kind of service than the graph says."""
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
            found=f"services with {self._told()}",
            expected=f"{system} ({wanted}), which {described(first)} uses",
            next_step=f"give Services a system of {wanted} called {system}"
            if here is None
            else f"give Services a system of {wanted} as {system}, or say what it is in "
            "Pipeline(systems=…)",
            place=first.place,
        )

    def _told(self) -> str:
        return ", ".join(f"{name} ({one.kind})" for name, one in self._systems.items()) or "nothing"


def _used(graph: Graph) -> dict[SystemName, Input | PartitionBy | Output]:
    """The systems of a graph's streams, sorted, each with the first operator that names it."""
    found: dict[SystemName, Input | PartitionBy | Output] = {}
    for operator in graph.operators:
        if isinstance(operator, Input | PartitionBy | Output):
            found.setdefault(operator.stream.system, operator)
    return dict(sorted(found.items()))


def stream_exists_error(stream: str, found: str) -> StreamExistsError:
    """A stream that was to be created is there; `found` is what the service said."""
    return StreamExistsError(
        f"stream {stream}",
        found=found,
        expected="no such stream",
        next_step="use it as it is, or give the intermediate stream another name with stream=",
    )
