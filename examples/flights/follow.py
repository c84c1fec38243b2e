"""Follows the query: turns Spark's progress reports and the service's shards into the view.

Pure functions, except `Follower`, which keeps the reports of Spark's listener.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

RATE_SECONDS: Final = 10.0
"""Rates are means over so long."""

SHARD_END: Final = "SHARD_END"


class Status(StrEnum):
    """The status of a shard, as shown."""

    OPEN = "open"
    CLOSED = "closed, reading on"
    DONE = "closed, read to its end"
    WAITING = "waits until its parent is read"
    UNSEEN = "not begun"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInService:
    """A shard as the service has it. `read`: returns the number of records up to a position."""

    shard: str
    parents: tuple[str, ...]
    open: bool
    records: int
    read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One of Spark's progress reports, as far as it is shown.

    `positions`: each shard's sequence number (None before its first record, SHARD_END after its
    last one); `slots`: the slot of each; `waiting`: those held back; `lag_ms`: by shard.
    """

    batch: int
    records: int
    seconds: float
    positions: Mapping[str, str | None] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()
    lag_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRow:
    """A shard as it is shown."""

    shard: str
    parents: tuple[str, ...]
    slot: int | None
    status: Status
    records: int
    read: int
    lag_ms: int | None
    owner: str | None = None
    """The owner in the lease table."""

    @property
    def behind(self) -> int:
        return self.records - self.read


def report(progress: Mapping[str, Any], stream: str) -> BatchReport:
    """Read a progress report (`StreamingQueryProgress.json`, parsed)."""
    source = progress["sources"][0]
    offset = _document(source["endOffset"])
    positions: dict[str, str | None] = {}
    slots: dict[str, int] = {}
    for slot, streams in offset.get("ssp", {}).items():
        for shard, entry in streams.get(stream, {}).items():
            slots[shard] = int(slot)
            positions[shard] = SHARD_END if entry.get("at") == SHARD_END else entry.get("after")
    lag = _document(source.get("latestOffset")).get(stream, {}).get("millisBehindLatest", {})
    return BatchReport(
        batch=progress["batchId"],
        records=progress["numInputRows"],
        seconds=progress["durationMs"].get("triggerExecution", 0) / 1000,
        positions=positions,
        slots=slots,
        waiting=frozenset(offset.get("waiting", {}).get(stream, {})),
        lag_ms=lag,
    )


def _document(text: Any) -> dict[str, Any]:
    """An offset in a report: JSON, or JSON within a string, or nothing."""
    while isinstance(text, str):
        text = json.loads(text)
    return text if isinstance(text, dict) else {}


def rows(
    shards: Sequence[ShardInService],
    latest: BatchReport | None,
    owners: Mapping[str, str | None],
) -> list[ShardRow]:
    """Every shard as it is shown, in the service's order, in which parents come first. `owners`:
    the owner of each shard that has a lease."""
    known = latest or BatchReport(batch=-1, records=0, seconds=0.0)
    statuses: dict[str, Status] = {}
    for shard in shards:
        held_back = any(statuses.get(parent) is not Status.DONE for parent in shard.parents)
        statuses[shard.shard] = _status(shard, known, held_back=held_back)
    return [_row(shard, statuses[shard.shard], known, owners.get(shard.shard)) for shard in shards]


def _row(shard: ShardInService, status: Status, latest: BatchReport, owner: str | None) -> ShardRow:
    return ShardRow(
        shard=shard.shard,
        parents=shard.parents,
        slot=latest.slots.get(shard.shard),
        status=status,
        records=shard.records,
        read=shard.read,
        lag_ms=latest.lag_ms.get(shard.shard) if status is not Status.DONE else None,
        owner=owner,
    )


def _status(shard: ShardInService, latest: BatchReport, *, held_back: bool) -> Status:
    if shard.shard in latest.positions:
        if latest.positions[shard.shard] == SHARD_END:
            return Status.DONE
        return Status.OPEN if shard.open else Status.CLOSED
    if shard.shard in latest.waiting or held_back:
        return Status.WAITING
    # Not in the offset: it has left it, which only a shard read to its end does, or is too new.
    return Status.UNSEEN if shard.open or shard.read < shard.records else Status.DONE


def is_finished(shards: Sequence[ShardRow]) -> bool:
    """Return whether all records are in committed batches."""
    return all(row.behind == 0 and row.status in (Status.OPEN, Status.DONE) for row in shards)


def changes(before: BatchReport | None, after: BatchReport) -> list[str]:
    """Return the changes of a batch in the slots, as sentences."""
    old = before.slots if before else {}
    new = sorted(after.slots.keys() - old.keys())
    found = []
    if new:
        found.append("begins " + ", ".join(f"{short(s)} in slot {after.slots[s]}" for s in new))
    ended = _ended(before, after)
    if ended:
        found.append(f"ends {', '.join(map(short, ended))}: read completely")
    return [f"batch {after.batch} {text}" for text in found]


def _ended(before: BatchReport | None, after: BatchReport) -> list[str]:
    """The shards that this batch, and none before it, has read to the end."""
    old = before.positions if before else {}
    now_ended = {shard for shard, at in after.positions.items() if at == SHARD_END}
    left = old.keys() - after.positions.keys()
    return sorted(shard for shard in now_ended | left if old.get(shard) != SHARD_END)


def short(shard: str) -> str:
    """`shardId-000000000003` as `shard 3`."""
    return f"shard {int(shard.rpartition('-')[2])}"


class Rate:
    """Records per second over the last while, out of a growing count."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, seconds: float, count: int) -> None:
        """The count at a time (by any clock that only goes forward)."""
        self._samples.append((seconds, count))
        while len(self._samples) > 2 and self._samples[1][0] <= seconds - RATE_SECONDS:
            self._samples.popleft()

    def per_second(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (began, before), (ended, after) = self._samples[0], self._samples[-1]
        return (after - before) / (ended - began) if ended > began else 0.0


class Follower(StreamingQueryListener):
    """Takes Spark's progress reports, in a thread of Spark's, and hands them on."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._reports: list[BatchReport] = []

    def take(self) -> list[BatchReport]:
        """The reports that came since the last call."""
        with self._lock:
            found, self._reports = self._reports, []
            return found

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to show."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch was committed (or, now and then, there was none)."""
        read = report(json.loads(event.progress.json), self._stream)
        with self._lock:
            self._reports.append(read)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to show."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Ignored: the query's exception has the reason."""
