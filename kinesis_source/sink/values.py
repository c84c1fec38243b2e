"""Values that the driver and the tasks of the Kinesis sink exchange: options, and counts of rows.

This module stays cheap to import, since every executor imports it: it does not load the parser.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of a sink. `stream` None: each row names its stream in the column `stream`.
    `is_ordered`: the order of a partition key is kept within a task. `is_aggregating`: rows are
    written as aggregates of the KPL. `batch_write`: the id of the query and the number of the
    batch, for a batch write in `foreachBatch`."""

    stream: StreamRef | None = None
    is_ordered: bool = False
    is_aggregating: bool = False
    include_repeat_keys: bool = False
    batch_write: tuple[str, int] | None = None
    delivery_timeout_ms: int = 120_000
    max_requests_in_flight: int = 8
    connection: ConnectionOptions


@dataclass(slots=True)
class DeliveryMetrics:
    """Counts of one stream. `repeats`: records sent again, by error code. A record has several
    rows if it is an aggregate."""

    rows: int = 0
    records: int = 0
    bytes: int = 0
    requests: int = 0
    repeats: Counter[str] = field(default_factory=Counter)
    throttled: Counter[ShardId] = field(default_factory=Counter)

    def add(self, other: DeliveryMetrics) -> None:
        """Add the counts of another task."""
        self.rows += other.rows
        self.records += other.records
        self.bytes += other.bytes
        self.requests += other.requests
        self.repeats.update(other.repeats)
        self.throttled.update(other.throttled)

    def __str__(self) -> str:
        repeats = "".join(
            f", {count} sent again after {code}" for code, count in self.repeats.most_common()
        )
        most = ", ".join(
            f"{shard or 'any shard'} {count}" for shard, count in self.throttled.most_common(5)
        )
        return (
            f"{self.rows} rows in {self.records} records of {self.bytes} bytes, "
            f"{self.requests} requests{repeats}" + (f"; throttled most: {most}" if most else "")
        )
