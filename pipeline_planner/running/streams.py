"""How a stage's queries reach streams: Spark formats by the services, whole tables, no repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession

from pipeline_planner.graph.names import StreamId
from pipeline_planner.services.systems import Services, SparkFormat


class Use(Enum):
    """What a stage reads a stream for."""

    LINE = auto()
    TABLE = auto()
    """To fill a table, which needs every record from the first on."""
    SIDE_INPUT = auto()
    """To fill a table before its readers go on: each batch takes in all there is, and what it reads
    for a table counts before what it joins with it (`table_join`)."""


@runtime_checkable
class DropsDuplicates(Protocol):
    """What a `System` has too when its writer may write a record again after a failure."""

    @property
    def repeat_reader_options(self) -> Mapping[str, str]:
        """What its reader is given beside the system's options, so that repeats can be told."""
        ...

    @property
    def repeat_writer_options(self) -> Mapping[str, str]:
        """What its writer is given beside the system's options, so that repeats can be told."""
        ...

    @property
    def batch_write_option(self) -> str:
        """An option of its writer, `<query's id>:<batch>`: by it repeats can be told where a
        streaming query has each batch written, once, by a batch write."""
        ...

    def drop_duplicates(self, frame: DataFrame) -> DataFrame:
        """The frame of a stream without its repeats, by state of Spark's."""
        ...


_LIMITS: Final = ("max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAccess:
    """Opens streams on one session."""

    spark: SparkSession
    services: Services

    def read(self, stream: StreamId, use: Use) -> DataFrame:
        """A stream that others write, as its format gives it."""
        found = self.services[stream.system].reader_format(
            stream.stream, from_start=use is not Use.LINE
        )
        return self._load(found, found.options, use)

    def read_own(self, stream: StreamId, use: Use) -> DataFrame:
        """An intermediate stream, each record once, with at least a column `value`."""
        system = self.services[stream.system]
        found = system.reader_format(stream.stream, from_start=True)
        if isinstance(system, DropsDuplicates):
            options = _with(found.options, system.repeat_reader_options)
            return system.drop_duplicates(self._load(found, options, use))
        return self._load(found, found.options, use)

    def writer(self, stream: StreamId) -> SparkFormat:
        """How a stream is written, so that its readers can tell repeats."""
        system = self.services[stream.system]
        found = system.writer_format(stream.stream)
        if isinstance(system, DropsDuplicates):
            return SparkFormat(found.format, _with(found.options, system.repeat_writer_options))
        return found

    def batch_write_option(self, stream: StreamId) -> str | None:
        """See `DropsRepeats`; None where a batch write needs none."""
        system = self.services[stream.system]
        return system.batch_write_option if isinstance(system, DropsDuplicates) else None

    def drops_duplicates(self, stream: StreamId) -> bool:
        """Whether reading this intermediate stream takes state."""
        return isinstance(self.services[stream.system], DropsDuplicates)

    def _load(self, found: SparkFormat, options: Mapping[str, str], use: Use) -> DataFrame:
        kept = {
            name: value
            for name, value in options.items()
            if use is not Use.SIDE_INPUT or not _is_limit(name)
        }
        return self.spark.readStream.format(found.format).options(**kept).load()


def _with(options: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """`more` wins, however a name is spelled."""
    names = {name.lower() for name in more}
    return {**{name: options[name] for name in options if name.lower() not in names}, **more}


def _is_limit(option: str) -> bool:
    """`maxRecordsPerTrigger`, `minOffsetsPerTrigger` and their like."""
    name = option.lower()
    return name.startswith(_LIMITS) and name.endswith("pertrigger")
