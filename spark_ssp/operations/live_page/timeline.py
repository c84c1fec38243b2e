"""The course of a query over time: its snapshots as the bars that the page draws, and the events
between them, in words. No I/O. A bar is the time in which one task read one shard. It consists of
spans of equal delay and owner, so that its size depends on changes and not on the number of
batches. A span keeps its level: later ones do not change it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, repeat
from typing import Final

from spark_ssp.common.logs import abbreviate, count_of
from spark_ssp.operations.observed_queries import Delay, PartKey, is_older
from spark_ssp.operations.snapshot import (
    QuerySnapshot,
    ReadState,
    ShardSnapshot,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
    short_name,
)

MAX_BATCHES: Final = 240
"""The batches of the time that is shown."""
_MAX_EVENTS: Final = 50


class DelayLevel(IntEnum):
    """A class of delay, from which the page takes a colour."""

    UNKNOWN = 0
    """The report does not have it."""
    LOW = 1
    MODERATE = 2
    HIGH = 3
    SEVERE = 4
    """Beyond the limit of a healthy query."""


def level_bounds(limit_ms: int) -> tuple[int, int, int]:
    """Return the largest delay of the levels `LOW`, `MODERATE` and `HIGH`: a tenth of the limit, a
    half, and the limit."""
    return limit_ms // 10, limit_ms // 2, limit_ms


def delay_level(delay: Delay | None, limit_ms: int) -> DelayLevel:
    """Return the level of a delay. Of one that is at least so long, it is known only if that is
    beyond the limit."""
    if delay is None or (delay.is_bound and delay.ms <= limit_ms):
        return DelayLevel.UNKNOWN
    return DelayLevel(1 + sum(delay.ms > most for most in level_bounds(limit_ms)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One trigger of a query. None: the report does not contain the value."""

    batch_id: int
    time_ms: int
    rows: int | None = None
    duration_ms: int | None = None
    delay_ms: int | None = None
    """The largest known delay of the source at the end of the batch."""


@dataclass(slots=True, kw_only=True)
class Span:
    """A part of a bar. Times are in epoch milliseconds."""

    start_ms: int
    end_ms: int
    level: DelayLevel
    owner: str | None = None


@dataclass(slots=True, kw_only=True)
class Bar:
    """A shard, or partition, while one task reads it."""

    stream: str
    shard: str
    task: str
    state: ReadState
    lag: int | None = None
    """By the newest snapshot, in the unit of its source."""
    delay: Delay | None = None
    """At the end of the batch of that."""
    parents: tuple[str, ...] = ()
    is_current: bool = True
    """True if the newest snapshot contains it."""
    spans: list[Span] = field(default_factory=list)

    @property
    def key(self) -> PartKey:
        """The stream and the shard."""
        return self.stream, self.shard

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
        self.delays: dict[PartKey, Delay] = {}
        """The planned delays of the newest snapshot."""
        self.numbers: dict[PartKey, int] = {}
        """A number for each shard of the newest snapshot, which it keeps."""
        self._numbered = 0
        self._open: dict[PartKey, Bar] = {}
        """The bars of the newest snapshot."""

    @property
    def start_ms(self) -> int:
        """The start of the time that is shown."""
        return self.batches[0].time_ms

    @property
    def end_ms(self) -> int:
        """The end of the newest batch, or its start while its duration is not known."""
        return self.batches[-1].time_ms + (self.batches[-1].duration_ms or 0)

    def add(
        self,
        query: QuerySnapshot,
        source: SourceSnapshot,
        delays: Mapping[PartKey, Delay],
        limit_ms: int,
    ) -> None:
        """Add the snapshot of a trigger, not older than the newest. One of the same trigger
        replaces the values of that. `delays`: those of Kafka's partitions."""
        self.latest = source
        self.delays = _planned(source, delays)
        duration = query.phases_ms.get("triggerExecution")
        largest = _largest(source, self.delays)
        batch = Batch(
            batch_id=query.batch_id,
            time_ms=query.time_ms,
            rows=source.rows,
            duration_ms=duration,
            delay_ms=None if largest is None else largest + (duration or 0),
        )
        if self.batches and self.batches[-1].time_ms == batch.time_ms:
            self.batches[-1] = batch
        else:
            self.batches.append(batch)
        del self.batches[:-MAX_BATCHES]
        self._extend(source, limit_ms)
        self._forget()

    def _extend(self, source: SourceSnapshot, limit_ms: int) -> None:
        open_bars: dict[PartKey, Bar] = {}
        numbers: dict[PartKey, int] = {}
        for stream in source.streams:
            for shard in stream.shards:
                key = stream.name, shard.shard
                if key not in self.numbers:
                    self._numbered += 1
                numbers[key] = self.numbers.get(key, self._numbered)
                if shard.task is None:
                    continue
                bar = self._open.pop(key, None)
                if bar is None or bar.task != shard.task:
                    if bar is not None:
                        bar.is_current = False
                    bar = Bar(
                        stream=stream.name, shard=shard.shard, task=shard.task, state=shard.state
                    )
                    self.bars.append(bar)
                self._update(bar, shard, self.delays.get(key), limit_ms)
                open_bars[key] = bar
        for bar in self._open.values():
            bar.is_current = False
        self._open, self.numbers = open_bars, numbers

    def _update(self, bar: Bar, shard: ShardSnapshot, planned: Delay | None, limit_ms: int) -> None:
        bar.state, bar.lag = shard.state, shard.lag
        bar.parents = shard.parents or bar.parents
        start, end = self.batches[-1].time_ms, self.end_ms
        bar.delay = None
        if planned is not None:
            bar.delay = Delay(ms=planned.ms + end - start, is_bound=planned.is_bound)
        level = delay_level(bar.delay, limit_ms)
        if bar.spans:
            if bar.spans[-1].start_ms >= start:  # of the same trigger
                bar.spans.pop()
            else:
                bar.spans[-1].end_ms = start
        last = bar.spans[-1] if bar.spans else None
        if last is not None and (last.level, last.owner) == (level, shard.owner):
            last.end_ms = end
            return
        bar.spans.append(Span(start_ms=start, end_ms=end, level=level, owner=shard.owner))

    def _forget(self) -> None:
        """Remove the bars and spans that ended before the time that is shown."""
        start = self.start_ms
        self.bars = [bar for bar in self.bars if bar.is_current or bar.end_ms >= start]
        for bar in self.bars:
            past = 0
            while past < len(bar.spans) - 1 and bar.spans[past].end_ms < start:
                past += 1
            del bar.spans[:past]


class QueryTimeline:
    """One query over the time that is shown, in all its runs."""

    def __init__(self, number: int, run_id: str) -> None:
        self.number = number
        """By which the parts of the page are named."""
        self.run_id = run_id
        """The newest run."""
        self.version = 0
        """Increases with each change."""
        self.sources: list[SourceTimeline] = []
        self.snapshot: QuerySnapshot | None = None
        self.dropped = 0
        """Rows dropped by the watermark, since the first snapshot."""
        self.events: deque[Event] = deque(maxlen=_MAX_EVENTS)

    def add(
        self, snapshot: QuerySnapshot, delays: Sequence[Mapping[PartKey, Delay]], limit_ms: int
    ) -> None:
        """Add the snapshot of a trigger; one that is older than the newest of its run is ignored.
        `delays`: those of Kafka's partitions that are known, for each source. `limit_ms`: the limit
        of a healthy query's delay."""
        before = self.snapshot
        if self.run_id == snapshot.run_id and is_older(snapshot, before):
            return
        if before is not None and snapshot.time_ms < before.time_ms:
            self.sources = []  # the clock was set back: the time that is shown begins again
        if before is None or snapshot.time_ms != before.time_ms:
            self.dropped += snapshot.dropped or 0
        if self.run_id != snapshot.run_id:
            self.note(snapshot.time_ms, "restarted")
        self.version += 1
        self.run_id, self.snapshot = snapshot.run_id, snapshot
        formats = [source.format for source in snapshot.sources]
        if formats != [source.format for source in self.sources]:
            self.sources = [SourceTimeline(each) for each in formats]
        every = zip(self.sources, snapshot.sources, chain(delays, repeat({})), strict=False)
        for timeline, source, known in every:
            if timeline.latest is not None:
                for text in events_between(timeline.latest, source):
                    self.note(snapshot.time_ms, text)
            timeline.add(snapshot, source, known, limit_ms)

    def note(self, time_ms: int, text: str) -> None:
        """Add an event."""
        self.version += 1
        self.events.append(Event(time_ms=time_ms, text=text))


def owners_of(bars: Iterable[Bar]) -> list[str]:
    """Return the owners of the leases of bars, sorted."""
    return sorted({span.owner for bar in bars for span in bar.spans if span.owner is not None})


def _planned(source: SourceSnapshot, delays: Mapping[PartKey, Delay]) -> dict[PartKey, Delay]:
    """Return the planned delays that are known, by shard. A shard that the report leaves out has
    none: the bound of those is not its own delay."""
    found = {}
    for stream in source.streams:
        for shard in stream.shards:
            key = stream.name, shard.shard
            if source.format is SourceFormat.KAFKA and shard.lag != 0:
                if key in delays:
                    found[key] = delays[key]
            elif shard.lag is not None:
                found[key] = Delay(ms=shard.lag)
    return found


def _largest(source: SourceSnapshot, planned: Mapping[PartKey, Delay]) -> int | None:
    if source.format is SourceFormat.KAFKA:
        return max((delay.ms for delay in planned.values()), default=None)
    return max((one.max_lag for one in source.streams if one.max_lag is not None), default=None)


# --- Events --------------------------------------------------------------------------------------


_NAMED: Final = 3
"""The most reshards of a report that get a line each, and shards that a line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a query."""

    time_ms: int
    text: str


def events_between(before: SourceSnapshot, after: SourceSnapshot) -> Iterator[str]:
    """Yield the events that a later snapshot shows since an earlier one."""
    if len(before.tasks) != len(after.tasks):
        noun = "slots" if after.format is SourceFormat.KINESIS else "tasks"
        yield f"{noun}: {len(before.tasks)} became {len(after.tasks)}"
    earlier = {stream.name: stream for stream in before.streams}
    for stream in after.streams:
        known = earlier.pop(stream.name, None)
        if known is None:
            yield f"{stream.name} is read too"
        elif after.format is SourceFormat.KAFKA:
            yield from _expansion(known, stream)
        else:
            yield from _reshards(known, stream, is_leased=after.worker is not None)
            yield from _owners(known, stream)
    yield from (f"{name} is no longer read" for name in earlier)


def _expansion(before: StreamSnapshot, after: StreamSnapshot) -> Iterator[str]:
    if len(after.shards) > len(before.shards):
        yield (
            f"expansion of topic {after.name}: {len(before.shards)} partitions became "
            f"{len(after.shards)}"
        )


def _reshards(before: StreamSnapshot, after: StreamSnapshot, *, is_leased: bool) -> Iterator[str]:
    known = {shard.shard: shard for shard in before.shards}
    now = {shard.shard: shard for shard in after.shards}
    new = [
        shard
        for shard in after.shards
        # Without a status, a report has a new shard and not its parents.
        if shard.shard not in known or (shard.parents and known[shard.shard].parents is None)
    ]
    splits: dict[str, list[str]] = {}
    merges: list[str] = []
    for shard in new:
        child, parents = short_name(shard.shard), [short_name(one) for one in shard.parents or ()]
        if len(parents) == 1:
            splits.setdefault(parents[0], []).append(child)
        elif parents:
            merges.append(f"{' and '.join(parents)} into {child}")
    split = [f"{parent} into {' and '.join(children)}" for parent, children in splits.items()]
    yield from _lines("split of shard", "splits", split, after.name)
    yield from _lines("merge of shards", "merges", merges, after.name)
    if is_leased:
        taken = [one for one in now if one not in known and not now[one].parents]
        yield from _handed("taken over from other workers", taken, after.name)
        gone = {parent for shard in after.shards for parent in shard.parents or ()}
        left = [
            name
            for name, shard in known.items()
            if name not in now and name not in gone and shard.state is not ReadState.ENDED
        ]
        yield from _handed("handed over to other workers", left, after.name)


def _lines(one_of: str, many: str, found: list[str], stream: str) -> Iterator[str]:
    if len(found) > _NAMED:
        yield f"{len(found)} {many} of {stream}"
    else:
        yield from (f"{one_of} {one} ({stream})" for one in found)


def _handed(verb: str, shards: list[str], stream: str) -> Iterator[str]:
    if shards:
        names = abbreviate([short_name(shard) for shard in shards], _NAMED)
        yield f"{count_of(len(shards), 'lease')} of {stream} {verb}: shard {names}"


def _owners(before: StreamSnapshot, after: StreamSnapshot) -> Iterator[str]:
    """Yield workers that come and go, if the reports name all of them."""
    one, other = before.leases, after.leases
    if one is None or other is None or one.others or other.others:
        return
    for owner in sorted(other.by_owner.keys() - one.by_owner.keys()):
        yield f"worker {owner} has leases of {after.name}"
    for owner in sorted(one.by_owner.keys() - other.by_owner.keys()):
        yield f"worker {owner} has no lease of {after.name} any more"
