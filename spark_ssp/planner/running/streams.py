"""Opens the streams of a stage's query: with the services' formats, side inputs without rate
limits, and deduplicated intermediate streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession

from spark_ssp.planner.graph.names import StreamId
from spark_ssp.planner.services.systems import Services, SparkFormat


class Use(Enum):
    """The purpose for which a stage reads a stream."""

    LINE = auto()
    TABLE = auto()
    """To fill a table, which needs every record from the first."""
    SIDE_INPUT = auto()
    """To fill a table before rows are joined: each batch takes all available records, and changes
    of a table apply before the batch's rows are joined (`table_join`)."""


@runtime_checkable
class DropsDuplicates(Protocol):
    """The additional Protocol of a `System` whose writer may duplicate records after a failure."""

    @property
    def repeat_reader_options(self) -> Mapping[str, str]:
        """Additional options of its reader, for deduplication."""
        ...

    @property
    def repeat_writer_options(self) -> Mapping[str, str]:
        """Additional options of its writer, for deduplication."""
        ...

    @property
    def batch_write_option(self) -> str:
        """Name of its writer's option with the value `<query's id>:<batch>`, for deduplication if a
        streaming query writes each batch by one batch write."""
        ...

    def drop_duplicates(self, frame: DataFrame) -> DataFrame:
        """Return the frame of a stream without duplicates, by a stateful operator."""
        ...


_LIMITS: Final = ("max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAccess:
    """Opens streams on one session."""

    spark: SparkSession
    services: Services

    def read(self, stream: StreamId, use: Use) -> DataFrame:
        """Read an external stream with the columns of its format."""
        found = self.services[stream.system].reader_format(
            stream.stream, from_start=use is not Use.LINE
        )
        return self._load(found, found.options, use)

    def read_own(self, stream: StreamId, use: Use) -> DataFrame:
        """Read an intermediate stream without duplicates, with at least a column `value`."""
        system = self.services[stream.system]
        found = system.reader_format(stream.stream, from_start=True)
        if isinstance(system, DropsDuplicates):
            options = _with(found.options, system.repeat_reader_options)
            return system.drop_duplicates(self._load(found, options, use))
        return self._load(found, found.options, use)

    def writer(self, stream: StreamId) -> SparkFormat:
        """Return the format that writes a stream so that its readers can deduplicate it."""
        system = self.services[stream.system]
        found = system.writer_format(stream.stream)
        if isinstance(system, DropsDuplicates):
            return SparkFormat(found.format, _with(found.options, system.repeat_writer_options))
        return found

    def batch_write_option(self, stream: StreamId) -> str | None:
        """Return `DropsDuplicates.batch_write_option`, None for other systems."""
        system = self.services[stream.system]
        return system.batch_write_option if isinstance(system, DropsDuplicates) else None

    def drops_duplicates(self, stream: StreamId) -> bool:
        """Return whether reading this intermediate stream needs state."""
        return isinstance(self.services[stream.system], DropsDuplicates)

    def _load(self, found: SparkFormat, options: Mapping[str, str], use: Use) -> DataFrame:
        kept = {
            name: value
            for name, value in options.items()
            if use is not Use.SIDE_INPUT or not _is_limit(name)
        }
        return self.spark.readStream.format(found.format).options(**kept).load()


def _with(options: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return the options with `more`, which overrides names regardless of case."""
    names = {name.lower() for name in more}
    return {**{name: options[name] for name in options if name.lower() not in names}, **more}


def _is_limit(option: str) -> bool:
    """Return whether it is an option such as `maxRecordsPerTrigger` or `minOffsetsPerTrigger`."""
    name = option.lower()
    return name.startswith(_LIMITS) and name.endswith("pertrigger")
