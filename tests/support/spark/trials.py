"""A query of the stream `orders` from run to run: one checkpoint, one sink, one feed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.kinesis.feeds import Feed, Record
from tests.support.spark.queries import (
    Sink,
    check_exactly_once,
    failure_of,
    load,
    run_to_end,
    running,
    start,
    wait_for_rows,
)

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(kw_only=True)
class Trial:
    """A checkpoint and its runs. Options that a run changes apply only to that run."""

    spark: SparkSession
    feed: Feed
    options: dict[str, str]
    checkpoint: Path
    sink: Sink = field(default_factory=Sink)

    def create(self, records: int, *, shards: int = 1) -> None:
        """Create the stream, with `records` records."""
        self.feed.create("orders", shards=shards)
        self.feed.put("orders", records)

    def put(self, records: int) -> list[Record]:
        return self.feed.put("orders", records)

    def running(
        self, changed: Mapping[str, str] = _NOTHING
    ) -> AbstractContextManager[StreamingQuery]:
        """A run until the block ends."""
        return running(self._frame(changed), self.sink, self.checkpoint)

    def run_to_end(self, changed: Mapping[str, str] = _NOTHING) -> None:
        """A run with Trigger.AvailableNow."""
        run_to_end(self._frame(changed), self.sink, self.checkpoint)

    def failure(self) -> str:
        """The message of a run that fails."""
        return failure_of(start(self._frame(_NOTHING), self.sink, self.checkpoint))

    def _frame(self, changed: Mapping[str, str]) -> DataFrame:
        return load(self.spark, {**self.options, **changed})

    def wait_for_all(self, query: StreamingQuery) -> None:
        """Until the sink has as many rows as records were put."""
        wait_for_rows(query, self.sink, len(self.feed.records))

    def check(self) -> None:
        """Each record that was put came exactly once."""
        check_exactly_once(self.sink, self.feed.records)
