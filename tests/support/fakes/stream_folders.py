"""Streams that are folders: a service for pipelines whose rows can be written and read by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_ssp.common.errors import UnsupportedError
from spark_ssp.planner.graph.operators import SystemKind
from spark_ssp.planner.graph.systems import Services, SparkFormat, StreamUse, stream_exists_error
from tests.support.fakes.folder_source import FORMAT, FolderSource, Record, files, read, write

_COUNT = ".partitions"


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

    def create(self, stream: str, partitions: int, *, use: StreamUse = StreamUse.EVENTS) -> None:
        if self.partition_count(stream) is not None:
            raise stream_exists_error(stream, "a folder")
        (self._folder / stream).mkdir(parents=True)
        (self._folder / stream / _COUNT).write_text(str(partitions))

    def reader_format(
        self, stream: str, *, from_start: bool = False, keep_tasks: bool = True
    ) -> SparkFormat:
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
        write(
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
        return [record for path in files(folder) for record in read(path)]

    def values(self, stream: str) -> list[Any]:
        """The JSON in all values."""
        return [json.loads(record.value or b"null") for record in self.records(stream)]


def services(folder: Path, **systems: FolderSystem) -> tuple[Services, FolderSystem]:
    """Services with the system `kafka` in a folder and others beside it."""
    kafka = FolderSystem(folder)
    return Services({"kafka": kafka, **systems}), kafka


def register(spark: SparkSession) -> None:
    # Makes it the active session: formats are registered there, by any session.
    spark.createDataFrame([], "nothing int")
    spark.dataSource.register(FolderSource)
