"""Gathers the snapshots of a query into the bars that the page draws. No I/O. A bar is the time in
which one task read one shard. It consists of spans of equal lag and owner, so that its size depends
on changes and not on the number of batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from spark_ssp.operations.snapshot import (
    QuerySnapshot,
    ReadState,
    ShardSnapshot,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
)

MAX_BATCHES: Final = 240
"""The batches of the time that is shown."""
_MAX_SPANS: Final = 40
"""The spans of a bar. Beyond it the two oldest become one, with the larger lag."""


class LagLevel(IntEnum):
    """A class of lag, from which the page takes a colour."""

    UNKNOWN = 0
    LOW = 1
    MODERATE = 2
    HIGH = 3
    SEVERE = 4


LEVELS: Final = {
    SourceFormat.KINESIS: (10_000, 60_000, 600_000),
    SourceFormat.KAFKA: (1_000, 100_000, 10_000_000),
}
"""The largest lag of the levels `LOW`, `MODERATE` and `HIGH`: milliseconds, or offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One trigger of a query. None: the report does not contain the value."""

    batch_id: int
    time_ms: int
    rows: int | None = None
    duration_ms: int | None = None
    max_lag: int | None = None
    """Of the source, in its unit."""


@dataclass(slots=True, kw_only=True)
class Span:
    """A part of a bar. Times are in epoch milliseconds."""

    start_ms: int
    end_ms: int
    level: LagLevel
    owner: str | None = None


@dataclass(slots=True, kw_only=True)
class Bar:
    """A shard, or partition, while one task reads it."""

    stream: str
    shard: str
    task: str
    state: ReadState
    lag: int | None = None
    parents: tuple[str, ...] = ()
    is_current: bool = True
    """True if the newest snapshot contains it."""
    spans: list[Span] = field(default_factory=list)

    @property
    def start_ms(self) -> int:
        """The start of the first span."""
        return self.spans[0].start_ms

    @property
    def end_ms(self) -> int:
        """The end of the last span."""
        return self.spans[-1].end_ms


class SourceTimeline:
    """One source of a query over the time that is shown."""

    def __init__(self, format_: SourceFormat) -> None:
        self.format = format_
        self.batches: list[Batch] = []
        self.bars: list[Bar] = []
        """In the order of their first snapshot."""
        self.latest: SourceSnapshot | None = None
        self._open: dict[tuple[str, str], Bar] = {}
        """The bars of the newest snapshot, by stream and shard."""

    @property
    def start_ms(self) -> int:
        """The start of the time that is shown."""
        return self.batches[0].time_ms

    @property
    def end_ms(self) -> int:
        """The end of the newest batch, or its start while its duration is not known."""
        return self.batches[-1].time_ms + (self.batches[-1].duration_ms or 0)

    def add(self, query: QuerySnapshot, source: SourceSnapshot) -> None:
        """Add the snapshot of a trigger. One that is older than the newest is ignored; one of the
        same trigger replaces the values of that."""
        newest = self.batches[-1] if self.batches else None
        if newest is not None and query.time_ms < newest.time_ms:
            return
        lags = [each.max_lag for each in source.streams if each.max_lag is not None]
        batch = Batch(
            batch_id=query.batch_id,
            time_ms=query.time_ms,
            rows=source.rows,
            duration_ms=query.phases_ms.get("triggerExecution"),
            max_lag=max(lags, default=None),
        )
        if newest is not None and newest.time_ms == batch.time_ms:
            self.batches[-1] = batch
        else:
            self.batches.append(batch)
        del self.batches[:-MAX_BATCHES]
        self.latest = source
        self._extend(source)
        self._forget()

    def _extend(self, source: SourceSnapshot) -> None:
        open_bars: dict[tuple[str, str], Bar] = {}
        for stream in source.streams:
            for shard in stream.shards:
                if shard.task is None:
                    continue
                key = stream.name, shard.shard
                bar = self._open.pop(key, None)
                if bar is None or bar.task != shard.task:
                    if bar is not None:
                        bar.is_current = False
                    bar = Bar(
                        stream=stream.name, shard=shard.shard, task=shard.task, state=shard.state
                    )
                    self.bars.append(bar)
                self._update(bar, stream, shard)
                open_bars[key] = bar
        for bar in self._open.values():
            bar.is_current = False
        self._open = open_bars

    def _update(self, bar: Bar, stream: StreamSnapshot, shard: ShardSnapshot) -> None:
        bar.state = shard.state
        bar.lag = shard.lag
        bar.parents = shard.parents or bar.parents
        start, end = self.batches[-1].time_ms, self.end_ms
        level = lag_level(self.format, _bound(stream, shard))
        last = bar.spans[-1] if bar.spans else None
        if last is not None and (last.level, last.owner) == (level, shard.owner):
            last.end_ms = max(last.end_ms, end)
            return
        if last is not None:
            last.end_ms = start
            if last.start_ms >= start:
                bar.spans.pop()
        bar.spans.append(Span(start_ms=start, end_ms=end, level=level, owner=shard.owner))
        if len(bar.spans) > _MAX_SPANS:
            first, second = bar.spans[:2]
            second.start_ms = first.start_ms
            second.level = max(first.level, second.level)
            del bar.spans[0]

    def _forget(self) -> None:
        """Remove what ended before the time that is shown."""
        start = self.start_ms
        self.bars = [bar for bar in self.bars if bar.is_current or bar.end_ms >= start]
        for bar in self.bars:
            while len(bar.spans) > 1 and bar.spans[0].end_ms < start:
                del bar.spans[0]


class QueryTimeline:
    """One query over the time that is shown."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.sources: list[SourceTimeline] = []
        self.snapshot: QuerySnapshot | None = None
        self.dropped = 0
        """Rows dropped by the watermark, since the first snapshot."""
        self.is_running = True

    def add(self, snapshot: QuerySnapshot) -> None:
        """Add the snapshot of a trigger."""
        if self.snapshot is None or snapshot.time_ms > self.snapshot.time_ms:
            self.dropped += snapshot.dropped or 0
        self.snapshot = snapshot
        self.label = snapshot.label
        formats = [source.format for source in snapshot.sources]
        if formats != [source.format for source in self.sources]:
            self.sources = [SourceTimeline(each) for each in formats]
        for timeline, source in zip(self.sources, snapshot.sources, strict=True):
            timeline.add(snapshot, source)


def lag_level(format_: SourceFormat, lag: int | None) -> LagLevel:
    """Return the level of a lag in the unit of its source."""
    if lag is None:
        return LagLevel.UNKNOWN
    return LagLevel(1 + sum(lag > most for most in LEVELS[format_]))


def owners_of(bars: Iterable[Bar]) -> list[str]:
    """Return the owners of the leases of bars, sorted."""
    return sorted({span.owner for bar in bars for span in bar.spans if span.owner is not None})


def _bound(stream: StreamSnapshot, shard: ShardSnapshot) -> int | None:
    """Return the lag, or the upper bound of those that a report leaves out."""
    return stream.not_shown_max_lag if shard.lag is None else shard.lag
