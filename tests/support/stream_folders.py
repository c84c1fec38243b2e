"""Streams that are folders: a service for pipelines whose rows can be written and read by hand.

A stream is a folder with one file for each commit, numbered from 0; a line of a file is a record as
JSON with `key` and `value` in base64 or null. A batch that Spark writes again after a failure takes
the place of what it wrote before, unless `once` is false.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import Row, StructType

from pipeline_planner.names import SystemKind
from pipeline_planner.services import Services, SparkFormat, stream_exists
from ssp_common.errors import UnsupportedError

FORMAT = "test-folders"
_COUNT = ".partitions"


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None


class FolderSystem:
    """Streams below one folder. Counts are remembered, and mean nothing to rows."""

    def __init__(
        self, folder: Path, *, kind: SystemKind = SystemKind.KAFKA, writable: bool = True
    ) -> None:
        self._folder = folder
        self._kind = kind
        self._writable = writable

    @property
    def kind(self) -> SystemKind:
        return self._kind

    def partition_count(self, stream: str) -> int | None:
        path = self._folder / stream / _COUNT
        return int(path.read_text()) if path.exists() else None

    def create(self, stream: str, partitions: int) -> None:
        if self.partition_count(stream) is not None:
            raise stream_exists(stream, "a folder")
        (self._folder / stream).mkdir(parents=True)
        (self._folder / stream / _COUNT).write_text(str(partitions))

    def reader_format(self, stream: str, *, from_start: bool = False) -> SparkFormat:
        options = {"folder": str(self._folder / stream), "maxFilesPerTrigger": "1"}
        return SparkFormat(FORMAT, options)

    def writer_format(self, stream: str) -> SparkFormat:
        if not self._writable:
            raise UnsupportedError(
                f"stream {stream}",
                found="an attempt to write it",
                expected="streams that are only read",
                next_step="write to another system",
            )
        return SparkFormat(FORMAT, {"folder": str(self._folder / stream)})

    def put(self, stream: str, *records: Mapping[str, Any] | tuple[str, Any]) -> None:
        """A file of records: dicts as JSON without a key, or pairs of key and dict (or None)."""
        pairs = [r if isinstance(r, tuple) else (None, r) for r in records]
        _write(
            self._folder / stream,
            [
                Record(
                    None if key is None else key.encode(),
                    None if value is None else json.dumps(value).encode(),
                )
                for key, value in pairs
            ],
            name=None,
        )

    def records(self, stream: str) -> list[Record]:
        """All that is in a stream, in order."""
        folder = self._folder / stream
        return [record for path in _files(folder) for record in _read(path)]

    def values(self, stream: str) -> list[Any]:
        """The JSON in all values."""
        return [json.loads(record.value or b"null") for record in self.records(stream)]


def services(folder: Path, **systems: FolderSystem) -> tuple[Services, FolderSystem]:
    """Services with the system `kafka` in a folder and others beside it."""
    kafka = FolderSystem(folder)
    return Services({"kafka": kafka, **systems}), kafka


def register(spark: SparkSession) -> None:
    # Makes it the active session, with which formats are registered, whatever session asks.
    spark.createDataFrame([], "nothing int")
    spark.dataSource.register(FolderSource)


# --- Files ---------------------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.jsonl"))


def _write(folder: Path, records: Iterable[Record], *, name: str | None) -> None:
    """`name` is what a replay writes again."""
    mark = folder / f".{name}"
    number = int(mark.read_text()) if name and mark.exists() else len(_files(folder))
    if name:
        mark.write_text(str(number))
    passing = folder / ".passing"
    passing.write_text("".join(json.dumps([_coded(p) for p in r]) + "\n" for r in records))
    os.replace(passing, folder / f"{number:06d}.jsonl")


def _read(path: Path) -> Iterator[Record]:
    for line in path.read_text().splitlines():
        key, value = json.loads(line)
        yield Record(_decoded(key), _decoded(value))


def _coded(part: bytes | None) -> str | None:
    return None if part is None else base64.b64encode(part).decode()


def _decoded(part: str | None) -> bytes | None:
    return None if part is None else base64.b64decode(part)


# --- Spark ---------------------------------------------------------------------------------------


class FolderSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "key binary, value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _BatchWriter(self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return _Writer(self.options)


@dataclass
class _File(InputPartition):
    path: str


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is a number of files. Without the limit a batch takes all there are."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = Path(options["folder"])
        self._limit = int(options.get("maxFilesPerTrigger", "1000000"))
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"files": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = len(_files(self._folder))

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        there = len(_files(self._folder)) if self._target is None else self._target
        return {"files": min(there, start["files"] + self._limit)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [_File(str(p)) for p in _files(self._folder)[start["files"] : end["files"]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _File)
        records = [*_read(Path(partition.path))]
        yield pa.RecordBatch.from_pydict(
            {"key": [r.key for r in records], "value": [r.value for r in records]},
            schema=pa.schema([("key", pa.binary()), ("value", pa.binary())]),
        )


@dataclass
class _Written(WriterCommitMessage):
    records: list[Record]


class _Writer(DataSourceStreamWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = Path(options["folder"])

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return _Written([Record(_bytes(row, "key"), _bytes(row, "value")) for row in iterator])

    def commit(self, messages: list[Any], batchId: int) -> None:
        records = [record for message in messages if message for record in message.records]
        if records:
            _write(self._folder, records, name=f"batch-{batchId}")


class _BatchWriter(DataSourceWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = Path(options["folder"])

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return _Written([Record(_bytes(row, "key"), _bytes(row, "value")) for row in iterator])

    def commit(self, messages: list[Any]) -> None:
        records = [record for message in messages if message for record in message.records]
        if records:
            _write(self._folder, records, name=None)


def _bytes(row: Row, name: str) -> bytes | None:
    found = row[name] if name in row.__fields__ else None
    return found.encode() if isinstance(found, str) else None if found is None else bytes(found)
