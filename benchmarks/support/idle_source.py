"""A source without records: measures Spark's own exchange with a source in Python."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

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
        return _Reader()


class _Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self, *_: object) -> dict[str, Any]:
        time.sleep(PERIOD_S)
        return _OFFSET

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(())
