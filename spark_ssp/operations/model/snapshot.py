"""Values: what a query's progress report shows of its sources. No I/O, no Spark.

A Kinesis stream has shards and a Kafka topic has partitions: both are `ShardSnapshot`, and the slot
or the task that reads one is its `task`. A value that a report does not contain is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class SourceFormat(StrEnum):
    """The format of a source of this package."""

    KINESIS = "kinesis-ssp"
    KAFKA = "kafka-ssp"


class ReadState(StrEnum):
    """The state of a shard for the query. A partition is always `OPEN`."""

    OPEN = "open"
    """Being read. A shard that a split or a merge has closed counts as open until the reader's
    listing shows it closed."""
    CLOSED = "closed"
    """Being read, and closed: it gets no further records."""
    WAITING = "waiting"
    """Not read yet: its parents come first."""
    ENDED = "ended"
    """Closed and planned to its end; the next batch leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSnapshot:
    """One shard or partition. With leases, only the shards that this query's worker holds."""

    shard: str
    """The shard id, or the partition's number."""
    state: ReadState
    task: str | None = None
    """The number of its slot, or the name of its task; None if it waits."""
    lag: int | None = None
    """In the unit of its source; None if the report does not show it."""
    owner: str | None = None
    """The worker that holds its lease; None without leases."""
    parents: tuple[str, ...] | None = None
    """The shards that it came from. None if the report does not contain them: it does so for some
    minutes after a reshard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCounts:
    """The leases of a stream as its reader last observed the table."""

    by_owner: Mapping[str, int] = field(default_factory=dict)
    """The owners of the most leases."""
    free: int = 0
    """Leases without an owner, those of ended shards excluded."""
    others: int = 0
    """Leases of owners that are not shown."""
    not_read: int = 0
    """Shards that no worker reads until a row of the table that cannot be parsed is repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutCounts:
    """The shards of the last batch with enhanced fan-out, as the driver chose."""

    pushed: int
    polled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSnapshot:
    """A stream or topic, after the batch planned last."""

    name: str
    shards: tuple[ShardSnapshot, ...]
    """Sorted, partitions by number."""
    max_lag: int | None = None
    """Of all its shards, shown or not. None without a status of the reader."""
    total_lag: int | None = None
    not_shown: int = 0
    """Shards whose lag the report does not contain: a report shows those farthest behind."""
    not_shown_max_lag: int | None = None
    """An upper bound of the lag of those: the smallest lag shown."""
    states: Mapping[ReadState, int] = field(default_factory=dict)
    """The number of shards in each state, of all its shards."""
    leases: LeaseCounts | None = None
    fan_out: FanOutCounts | None = None
    """None without enhanced fan-out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSnapshot:
    """A source of a query."""

    format: SourceFormat
    streams: tuple[StreamSnapshot, ...]
    """Sorted by name."""
    tasks: tuple[str, ...]
    """All slots, in the order of their numbers, or all tasks, in the order of theirs."""
    rows: int | None
    """Rows read in the batch; None from a checkpoint, which does not have them."""
    counters: Mapping[str, int] | None = None
    """Cumulative counts of the reader on the driver since it started, by name; None without a
    status of the reader."""
    worker: str | None = None
    """The id by which the query holds leases; None without leases."""

    @property
    def lag_unit(self) -> str:
        """The unit of lag: `ms` or `offsets`."""
        return "ms" if self.format is SourceFormat.KINESIS else "offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySnapshot:
    """A query after one trigger."""

    query_id: str
    """The same in all runs of the query from one checkpoint."""
    run_id: str
    name: str | None
    batch_id: int
    time_ms: int
    """The start of the trigger, in epoch milliseconds."""
    rows: int | None
    """Rows that all sources read in the batch, those of other packages included; None from a
    checkpoint."""
    phases_ms: Mapping[str, int]
    """The durations of the trigger's phases by Spark's names; `triggerExecution` is the whole."""
    sources: tuple[SourceSnapshot, ...]
    """The sources of this package."""

    @property
    def label(self) -> str:
        """The name of the query if it has one, else its id."""
        return self.name or self.query_id
