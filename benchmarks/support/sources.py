"""Sources without a service: they measure Spark's own cost for rows that come from Python, and for
the exchange with a source in Python."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

BATCH_ROWS: Final = 10_000


class ReadySource(DataSource):
    """Options: `records`, `size` (bytes of a value), `partitions`. Columns as of Kafka."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return (
            "key binary, value binary, topic string, partition int, offset bigint, "
            "timestamp timestamp, timestampType int"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader({name: int(value) for name, value in self.options.items()})


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, int]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._options["partitions"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        rows = self._options["records"] // self._options["partitions"]
        ready = _batch(min(rows, BATCH_ROWS), self._options["size"])
        for begin in range(0, rows, BATCH_ROWS):
            yield ready.slice(0, min(BATCH_ROWS, rows - begin))


def _batch(rows: int, size: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([b"%08d" % row for row in range(rows)], pa.binary()),
            "value": pa.array([b"x" * size] * rows, pa.binary()),
            "topic": pa.array(["bench"] * rows, pa.string()),
            "partition": pa.array([0] * rows, pa.int32()),
            "offset": pa.array(range(rows), pa.int64()),
            "timestamp": pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * rows, pa.int32()),
        }
    )


class ReadyStreamSource(DataSource):
    """A stream of one batch, planned without any work: measures Spark's own start of a query whose
    source is Python."""

    @classmethod
    def name(cls) -> str:
        return "ready-stream"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader()


class _StreamReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"batch": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield pa.record_batch({"value": pa.array([b""], pa.binary())})


PERIOD_S: Final = 0.39
"""The time of a trigger, about that of an idle shard (`minFetchPeriod`)."""
_OFFSET: Final = {"v": 1}


class IdleSource(DataSource):
    """Has one batch without rows, then none."""

    @classmethod
    def name(cls) -> str:
        return "idle"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _IdleReader()


class _IdleReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self, *_: object) -> dict[str, Any]:
        time.sleep(PERIOD_S)
        return _OFFSET

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(())
