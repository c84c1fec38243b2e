"""Ends a batch at one instant in all partitions, so that no partition is read ahead of another.

A query has one watermark, which follows its newest records. A limit that is divided by backlog lets
partitions advance through time at different speeds, so the records of the slower ones come behind
the watermark, and Spark drops them without an error. An aligned batch instead reads each partition
up to its first record of an instant or later. So all its records are older than the instant, and
what a partition has left begins with a record that is not.

`find_aligned_end` searches for the latest instant at which the batch is within its limits. It is a
generator: it yields times, is sent the first record at or after each in every partition, and
returns the end. It does no I/O, so the same code runs against a model and the brokers.

In any order of times within a partition, the first offset at or after a time does not decrease as
the time increases, so the search is a bisection. All offsets of an end are from one lookup. Up to
the time of the found record the offset stays the same, so the search skips times without records,
and ends exactly. If a single millisecond has more records than the limit, these are the smallest
step: the limit divides them by backlog, as without alignment. Their times are equal, so no
partition is ahead.

Times within a partition may decrease, by the clocks of producers (CreateTime) or of a new leader
(LogAppendTime). A record then counts as if it had the latest time before it in its partition, and
may come late by the difference, as in any reading of that partition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final

from spark_ssp.grouping.identifiers import EpochMillis, SystemStreamPartition
from spark_ssp.kafka_source.client.api import TimedOffset
from spark_ssp.kafka_source.planning.rate_limit import Lags, ReadLimits

Unread = Mapping[SystemStreamPartition, range]
"""The offsets to read in each partition, at least one."""

FirstRecords = Mapping[SystemStreamPartition, TimedOffset | None]
"""The first record at or after a time in each partition, None if there is none. A partition that
the answer lacks is unknown to the brokers: the batch reads nothing of it, and it holds back no
other."""

FULL: Final = 0.9
"""The part of the limit at which an end is late enough."""
ENOUGH_LOOKUPS: Final = 12
"""The number of lookups after which an end is late enough if it has a record before it."""
_AIM: Final = (FULL + 1) / 2
"""The part of the limit that a lookup aims at."""
_FIRST_SPAN_MS: Final = 60_000.0
"""The span of a full batch that is assumed while it is unknown."""
_WIDENING_FACTOR: Final = 8
_LAST_TIME: Final = (1 << 63) - 1
"""The latest time that a record may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The instant of the last aligned end, and the milliseconds that a full batch spans: where the
    next search starts. A wrong one only costs lookups."""

    time_ms: int
    span_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedEnd:
    """The end of an aligned batch. `lags` has the number of offsets before it, of the partitions
    that have some. Together they exceed the limits only if they are the smallest step. `time_ms` is
    the instant, None if every known partition is read to its latest offset."""

    lags: Lags
    time_ms: EpochMillis | None
    pace: Pace | None
    lookups: int


LookupSteps = Generator[EpochMillis, FirstRecords, AlignedEnd]


def run_lookups(steps: LookupSteps, look_up: Callable[[EpochMillis], FirstRecords]) -> AlignedEnd:
    """Run a search with the answers of `look_up`."""
    try:
        time = next(steps)
        while True:
            time = steps.send(look_up(time))
    except StopIteration as stop:
        end: AlignedEnd = stop.value
        return end


def find_aligned_end(unread: Unread, limits: ReadLimits, pace: Pace | None) -> LookupSteps:
    """Find the aligned end of a batch whose `unread` offsets exceed the limits.

    It is the latest one within the limits, or an earlier one that uses `FULL` of them or was the
    latest after `ENOUGH_LOOKUPS`. If there is none with a record before it, it is the earliest that
    has one.

    With the pace of the batch before, a search takes one to four lookups where the density of
    records changes little. Until an end within the limits is found, every other lookup at least
    halves the times that remain: their number is bounded by `ENOUGH_LOOKUPS` and about twice the
    binary logarithm of the milliseconds that the records span.
    """
    search = _Search(unread, limits, pace)
    time = search.first_time()
    while True:
        search.add(time, (yield EpochMillis(time)))
        if search.is_done:
            return search.end()
        time = search.next_time()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lookup:
    """The offsets before a time, within the batch."""

    time: int
    constant_until: int
    """The latest time with the same offsets in all partitions."""
    lags: Lags
    usage: float
    """The part of the limits that `lags` use. If there are none, the negative part that leads from
    the found records to the start of the batch."""


class _Search:
    """The latest lookup within the limits, the earliest beyond them, and the time of the next."""

    def __init__(self, unread: Unread, limits: ReadLimits, pace: Pace | None) -> None:
        self._unread = dict(unread)
        """Without the partitions that an answer lacked."""
        self._limits = limits
        self._pace = pace
        self._span = _FIRST_SPAN_MS if pace is None else pace.span_ms
        self._widening = 1
        self._low = _Lookup(time=-1, constant_until=-1, lags={}, usage=0.0)
        self._high: _Lookup | None = None
        self._begin = 0 if pace is None else pace.time_ms
        """The latest time found that has no record of the batch before it."""
        self._lookups = 0

    def first_time(self) -> int:
        """Return the first time to look up."""
        if self._pace is None:
            return 0
        return _within(self._pace.time_ms + _AIM * self._span, 0, _LAST_TIME)

    def add(self, time: int, answer: FirstRecords) -> None:
        """Add the answer for a time."""
        self._lookups += 1
        for ssp in self._unread.keys() - answer.keys():
            del self._unread[ssp]
        lookup = self._lookup(time, answer)
        if not self._limits.allow(lookup.lags):
            self._high = lookup
            return
        self._low = lookup
        if not lookup.lags or time == 0:  # Before time 0 there are only records without a time.
            self._begin = max(self._begin, lookup.constant_until)

    def _lookup(self, time: int, answer: FirstRecords) -> _Lookup:
        lags: dict[SystemStreamPartition, int] = {}
        behind: dict[SystemStreamPartition, int] = {}
        constant_until = _LAST_TIME
        for ssp, offsets in self._unread.items():
            first = answer[ssp]
            if first is None or first.offset >= offsets.stop:
                lags[ssp] = len(offsets)
                continue
            constant_until = min(constant_until, max(time, first.time_ms))
            if first.offset > offsets.start:
                lags[ssp] = first.offset - offsets.start
            else:
                behind[ssp] = offsets.start - first.offset
        return _Lookup(
            time=time,
            constant_until=constant_until,
            lags=lags,
            usage=self._limits.usage(lags) if lags else -self._limits.usage(behind),
        )

    @property
    def is_done(self) -> bool:
        """True if the end is found."""
        low, high = self._low, self._high
        beyond = _LAST_TIME + 1 if high is None else high.time
        return (
            low.usage >= FULL
            or low.constant_until + 1 >= beyond
            or (self._lookups >= ENOUGH_LOOKUPS and bool(low.lags))
        )

    def next_time(self) -> int:
        """Return the next time to look up, one of those that remain."""
        low, high = self._low, self._high
        earliest = low.constant_until + 1
        if high is None:
            wanted = max(_AIM - low.usage, 1 - FULL) if low.lags else 1.0
            return _within(low.constant_until + wanted * self._widened_span(), earliest, _LAST_TIME)
        latest = high.time - 1
        if low.time < 0:
            return self._begin if self._begin < high.time else 0
        width = latest - earliest
        if self._lookups % 2 == 0:
            part = (_AIM - low.usage) / (high.usage - low.usage)
            return _within(earliest + part * width, earliest, latest)
        # Records come in bursts: the next one begins at `earliest`, after a gap, and may be short.
        return earliest + (math.isqrt(width) if low.lags else width // 2)

    def _widened_span(self) -> float:
        span = self._span * self._widening
        self._widening *= _WIDENING_FACTOR
        return span

    def end(self) -> AlignedEnd:
        """Return the end that was found."""
        low, high = self._low, self._high
        if low.lags:
            to_end = all(low.lags.get(ssp) == len(offsets) for ssp, offsets in self._unread.items())
            return AlignedEnd(
                lags=low.lags,
                time_ms=None if to_end else EpochMillis(low.time),
                # A batch far below the limit ends before a burst: a full one spans little more.
                pace=Pace(
                    time_ms=low.time,
                    span_ms=max(1, low.time - self._begin) / max(low.usage, 0.5),
                ),
                lookups=self._lookups,
            )
        if high is None:
            return AlignedEnd(
                lags={ssp: len(offsets) for ssp, offsets in self._unread.items()},
                time_ms=None,
                pace=self._pace,
                lookups=self._lookups,
            )
        # The next batch may begin with the rest of the same millisecond.
        return AlignedEnd(
            lags={ssp: lag for ssp, lag in high.lags.items() if ssp in self._unread},
            time_ms=EpochMillis(high.time),
            pace=Pace(time_ms=high.time - 1, span_ms=1.0),
            lookups=self._lookups,
        )


def _within(guess: float, first: int, last: int) -> int:
    return max(first, min(int(guess), last))
