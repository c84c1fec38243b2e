"""A format for Spark whose streams are folders. Each source of a query runs in a separate Python
process, which imports this module: so its imports are few.

A stream is a folder with one file for each commit, numbered from 0; a line of a file is a record as
JSON with `key` and `value` in base64 or null. A batch that Spark writes again after a failure
replaces the earlier one.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import Row, StructType

from spark_ssp.common.spark.pyspark_api import PlanningStreamReader, ReadAllAvailable, ReadLimit

FORMAT: Final = "test-folders"


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None


# --- Files ---------------------------------------------------------------------------------------


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.jsonl"))


def write(folder: Path, records: Iterable[Record], *, name: str | None) -> None:
    """Write a commit. `name` identifies a batch, which a replay replaces."""
    mark = folder / f".{name}"
    number = int(mark.read_text()) if name and mark.exists() else len(files(folder))
    if name:
        mark.write_text(str(number))
    passing = folder / ".passing"
    passing.write_text("".join(json.dumps([_coded(p) for p in r]) + "\n" for r in records))
    os.replace(passing, folder / f"{number:06d}.jsonl")


def read(path: Path) -> Iterator[Record]:
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


class _Reader(PlanningStreamReader):
    """An offset is a number of files. Without the limit a batch takes all there are."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(is_triggered_by_time=False)
        self._folder = Path(options["folder"])
        self._limit = int(options.get("maxFilesPerTrigger", "1000000"))
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"files": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = len(files(self._folder))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def plan_end(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        there = len(files(self._folder)) if self._target is None else self._target
        return {"files": min(there, start["files"] + self._limit)}

    def plan_end_of_all(self, start: dict[str, int]) -> dict[str, int]:
        return {"files": len(files(self._folder))}

    def plan_partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [_File(str(p)) for p in files(self._folder)[start["files"] : end["files"]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _File)
        records = [*read(Path(partition.path))]
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
            write(self._folder, records, name=f"batch-{batchId}")


class _BatchWriter(DataSourceWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = Path(options["folder"])

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return _Written([Record(_bytes(row, "key"), _bytes(row, "value")) for row in iterator])

    def commit(self, messages: list[Any]) -> None:
        records = [record for message in messages if message for record in message.records]
        if records:
            write(self._folder, records, name=None)


def _bytes(row: Row, name: str) -> bytes | None:
    found = row[name] if name in row.__fields__ else None
    return found.encode() if isinstance(found, str) else None if found is None else bytes(found)
