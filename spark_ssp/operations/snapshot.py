"""The state of a running query after a trigger, as values, and how a progress report of Spark has
it.

A Kinesis stream has shards and a Kafka topic has partitions: both are `ShardSnapshot`, and the slot
or the task that reads one is its `task`. A value that a report does not contain is None, never 0.

A report contains the end offset of each source, which has the shards with their slots, or the
partitions with their tasks; and, from PySpark 4.2 on, the status of the source's reader: lag,
counts and states. Before, the status comes from a file of the reader; without any, the snapshot has
the shards and tasks only. Until a report's own status is read, it has that of the report before, so
a shard may be only in one of the two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from spark_ssp.common.spark.reader_status import Status, parsed, status_in
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kafka_source.model import offset as kafka_offset
from spark_ssp.kinesis_source.model import offset as kinesis_offset
from spark_ssp.kinesis_source.model.shard import ShardEnd

_PARTITION: Final = re.compile(r"SystemStreamPartition \[\w+, (.+), ([0-9]+)\]")


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
    position: int | None = None
    """Of a partition: the next offset to be read."""
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
    stale: int | None = 0
    """Leases of owners that do not renew them; None if that is not known."""
    not_read: int = 0
    """Shards that no worker reads until a row of the table that cannot be parsed is repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutCounts:
    """The shards of the last batch with enhanced fan-out, as the driver chose."""

    pushed: int
    polled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentSnapshot:
    """The distance of the batch planned last from one instant."""

    spread_ms: int
    """By how much a shard was read ahead of an unread record of another one, in all streams of the
    source."""
    left_behind: int
    """Shards of the stream that could not be read for so long that the others do not wait."""
    holds_back: str | None = None
    """The shard of the stream that the others wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSnapshot:
    """A stream or topic, after the batch planned last."""

    name: str
    shards: tuple[ShardSnapshot, ...]
    """Sorted, partitions by number."""
    max_lag: int | None = None
    """Of all its shards, shown or not. None without a status of the reader."""
    total_lag: int | None = None
    not_shown_max_lag: int | None = None
    """An upper bound of the lag of shards whose lag the report does not contain: the smallest lag
    shown. A report shows the shards farthest behind."""
    states: Mapping[ReadState, int] = field(default_factory=dict)
    """The number of shards in each state, of all its shards."""
    leases: LeaseCounts | None = None
    fan_out: FanOutCounts | None = None
    """None without enhanced fan-out."""
    alignment: AlignmentSnapshot | None = None
    """None if batches are not aligned."""
    retention_ms: int | None = None
    """None if the report does not contain it."""


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
    dropped: int | None = None
    """Rows that Spark dropped in the batch because they were late for the watermark; None from a
    checkpoint."""

    @property
    def label(self) -> str:
        """The name of the query if it has one, else its id."""
        return self.name or self.query_id

    @property
    def ran_batch(self) -> bool:
        """Return whether the trigger has run a batch; else it has found nothing to read."""
        return "addBatch" in self.phases_ms

    @property
    def end_ms(self) -> int:
        """The end of the trigger, or its start if the duration is not known."""
        return self.time_ms + self.phases_ms.get("triggerExecution", 0)


def short_name(shard: str) -> str:
    """Return a shard id without the prefix and zeros that all ids have."""
    number = shard.removeprefix("shardId-")
    return number.lstrip("0") or "0" if number != shard else shard


def task_text(name: str | None) -> str | None:
    """Return a task's name; for a task of one partition, the partition's name."""
    match = _PARTITION.fullmatch(name or "")
    return f"{match[1]}-{match[2]}" if match else name


# --- From a progress report -----------------------------------------------------------------------


def query_snapshot(
    progress: Mapping[str, Any], statuses: Sequence[Status | None] | None = None
) -> QuerySnapshot:
    """Return the snapshot of a progress report. `statuses`: of its sources, in their order; without
    them, those that the report contains. Raises IncompatibleStateError for an offset that this
    version cannot read."""
    sources = progress["sources"]
    if statuses is None:
        statuses = [status_in(source) for source in sources]
    found = [
        source_snapshot(parsed(source["endOffset"]), status, rows=_rows(source))
        for source, status in zip(sources, statuses, strict=True)
    ]
    total = progress.get("numInputRows")
    return QuerySnapshot(
        query_id=str(progress["id"]),
        run_id=str(progress["runId"]),
        name=progress.get("name"),
        batch_id=int(progress["batchId"]),
        time_ms=round(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000),
        rows=sum(map(_rows, sources)) if total is None else int(total),
        phases_ms={name: int(taken) for name, taken in (progress.get("durationMs") or {}).items()},
        sources=tuple(source for source in found if source is not None),
        dropped=sum(
            int(operator["numRowsDroppedByWatermark"])
            for operator in progress.get("stateOperators") or ()
        ),
    )


def source_snapshot(end: Any, status: Status | None, *, rows: int | None) -> SourceSnapshot | None:
    """Return the snapshot of a source from the end offset of its batch, a document, and the status
    of its reader. None for a source of another package."""
    if kinesis_offset.is_offset(end):
        return _kinesis_source(kinesis_offset.decode(end), status or {}, rows)
    if kafka_offset.is_offset(end):
        return _kafka_source(kafka_offset.decode(end), status or {}, rows)
    return None


def _rows(source: Mapping[str, Any]) -> int:
    return int(source.get("numInputRows") or 0)


# --- Kinesis --------------------------------------------------------------------------------------


def _kinesis_source(end: kinesis_offset.Offset, status: Status, rows: int | None) -> SourceSnapshot:
    entries = [entry for entry in status.values() if isinstance(entry, dict)]
    first = entries[0] if entries else {}
    keys: dict[StreamName, list[ShardKey]] = {name: [] for name in end.streams}
    for key in (*end.states, *end.waiting):
        keys[key.stream].append(key)
    return SourceSnapshot(
        format=SourceFormat.KINESIS,
        streams=tuple(
            _kinesis_stream(name, keys[name], end, status.get(name) or {}) for name in sorted(keys)
        ),
        tasks=tuple(str(slot) for slot in range(end.slots)),
        rows=rows,
        counters=first.get("counters"),
        worker=first.get("worker"),
    )


def _kinesis_stream(
    name: StreamName, keys: Sequence[ShardKey], end: kinesis_offset.Offset, entry: Status
) -> StreamSnapshot:
    lag: Mapping[str, int] = entry.get("millisBehindLatest") or {}
    closed = frozenset(entry.get("closedShards") or ())
    parents: Mapping[str, Sequence[str]] = entry.get("parents") or {}
    owner = entry.get("worker")
    found: dict[str, ShardSnapshot] = {}
    for key in keys:
        reading = key in end.states
        found[key.shard] = ShardSnapshot(
            shard=key.shard,
            state=_state(end, key, closed),
            task=str(end.assignment[key]) if reading else None,
            lag=lag.get(key.shard),
            owner=owner if reading else None,
            parents=_parents(parents, key.shard),
        )
    for shard in lag.keys() - found.keys():  # listed, not in the offset
        found[shard] = ShardSnapshot(
            shard=shard,
            state=ReadState.WAITING,
            lag=lag[shard],
            parents=_parents(parents, shard),
        )
    shards = tuple(found[shard] for shard in sorted(found))
    return StreamSnapshot(
        name=name,
        shards=shards,
        max_lag=entry.get("maxMillisBehindLatest"),
        total_lag=entry.get("sumMillisBehindLatest"),
        not_shown_max_lag=min(lag.values(), default=None) if entry.get("shardsNotShown") else None,
        states=_states(entry.get("shards"), shards),
        leases=_leases(entry.get("leases")),
        fan_out=_fan_out(entry.get("fanOut")),
        alignment=_alignment(entry.get("alignment")),
        retention_ms=entry.get("retentionMillis"),
    )


def _state(end: kinesis_offset.Offset, key: ShardKey, closed: frozenset[str]) -> ReadState:
    if key in end.waiting:
        return ReadState.WAITING
    if isinstance(end.states[key].position, ShardEnd):
        return ReadState.ENDED
    return ReadState.CLOSED if key.shard in closed else ReadState.OPEN


def _parents(parents: Mapping[str, Sequence[str]], shard: str) -> tuple[str, ...] | None:
    return tuple(parents[shard]) if shard in parents else None


def _states(
    counts: Mapping[str, int] | None, shards: Sequence[ShardSnapshot]
) -> dict[ReadState, int]:
    """Return the reader's counts, which include shards that the report does not show; else those of
    the offset."""
    if counts is None:
        counts = Counter(shard.state for shard in shards)
    return {state: int(counts.get(state, 0)) for state in ReadState}


def _leases(document: Mapping[str, Any] | None) -> LeaseCounts | None:
    if document is None:
        return None
    return LeaseCounts(
        by_owner=dict(document["owners"]),
        free=int(document.get("free", 0)),
        others=int(document.get("others", 0)),
        stale=None if (stale := document.get("stale", 0)) is None else int(stale),
        not_read=int(document.get("notRead", 0)),
    )


def _fan_out(document: Mapping[str, Any] | None) -> FanOutCounts | None:
    if document is None:
        return None
    return FanOutCounts(pushed=int(document["pushed"]), polled=int(document["polled"]))


def _alignment(document: Mapping[str, Any] | None) -> AlignmentSnapshot | None:
    if document is None:
        return None
    return AlignmentSnapshot(
        spread_ms=int(document["spreadMillis"]),
        left_behind=int(document["leftBehind"]),
        holds_back=document.get("holdsBack"),
    )


# --- Kafka ----------------------------------------------------------------------------------------


def _kafka_source(end: kafka_offset.Offset, status: Status, rows: int | None) -> SourceSnapshot:
    lags = status.get("topics") or {}
    owners = end.assignment.owners()
    partitions: dict[StreamName, dict[int, tuple[str | None, int]]] = {
        name: {} for name in end.topics
    }
    for ssp, position in end.positions.items():
        partitions[ssp.stream][ssp.partition] = owners.get(ssp), position
    return SourceSnapshot(
        format=SourceFormat.KAFKA,
        streams=tuple(
            _topic(name, partitions[name], lags.get(name) or {}) for name in sorted(partitions)
        ),
        tasks=tuple(sorted(end.assignment.tasks, key=_task_order)),
        rows=rows,
        counters=status.get("counters"),
    )


def _task_order(task: str) -> tuple[str, int, str]:
    """Return the order of a task: `Partition 2` comes before `Partition 10`."""
    number = re.search(r"\d+$", task)
    return ("", 0, task) if number is None else (task[: number.start()], int(number[0]), task)


def _topic(
    name: StreamName,
    partitions: Mapping[int, tuple[str | None, int]],
    entry: Mapping[str, Any],
) -> StreamSnapshot:
    lag: Mapping[str, int] = entry.get("offsetsBehindLatest") or {}
    return StreamSnapshot(
        name=name,
        shards=tuple(
            ShardSnapshot(
                shard=str(partition),
                state=ReadState.OPEN,
                task=task,
                lag=lag.get(str(partition)),
                position=position,
            )
            for partition, (task, position) in sorted(partitions.items())
        ),
        max_lag=entry.get("maxOffsetsBehindLatest"),
        total_lag=entry.get("sumOffsetsBehindLatest"),
        states=_states({ReadState.OPEN: len(partitions)}, ()),
    )
