"""The records of one shard, indexed: by sequence number, by arrival time, by cumulative size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass

_COMPACT_AT = 8192


class Record:
    """One stored record. `fragment` caches its JSON form after its first use in a page.

    `partition_key` is None if the producer set none, which AUTO allows.
    """

    __slots__ = ("arrival_ms", "data", "fragment", "partition_key", "sequence_number")

    def __init__(
        self, sequence_number: str, partition_key: str | None, data: bytes, arrival_ms: int
    ) -> None:
        self.sequence_number = sequence_number
        self.partition_key = partition_key
        self.data = data
        self.arrival_ms = arrival_ms
        self.fragment: bytes | None = None

    @property
    def size(self) -> int:
        """The size of the record for the service's limits, in bytes."""
        return len(self.data) + len((self.partition_key or "").encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Consecutive records. `next_ordinal` is the ordinal of the record after the last."""

    records: list[Record]
    size: int
    next_ordinal: int


class RecordLog:
    """Records in sequence order. A record's *ordinal* counts from the shard's beginning, from 0,
    and never changes; records before `horizon` have been trimmed.

    A record may be hidden until a time; until then it and all later records are invisible
    (`visible_end`), so that no reader skips it.
    """

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._numbers: list[int] = []
        self._peaks: list[int] = []  # latest arrival up to and including each record
        self._ends: list[int] = []  # bytes up to and including each record
        self._base = 0  # ordinal of the first entry of the lists
        self._first = 0  # index in the lists of the oldest record not trimmed
        self._hidden: deque[tuple[int, int]] = deque()  # (ordinal, visible from)

    @property
    def horizon(self) -> int:
        """The ordinal of the oldest record that is left (or of the next record)."""
        return self._base + self._first

    @property
    def end(self) -> int:
        """The ordinal of the next record."""
        return self._base + len(self._records)

    def append(self, number: int, record: Record, visible_from_ms: int | None) -> None:
        """Add a record with a larger sequence number than any before."""
        arrival = record.arrival_ms
        if visible_from_ms is not None:
            self._hidden.append((self.end, visible_from_ms))
        self._peaks.append(max(arrival, self._peaks[-1]) if self._peaks else arrival)
        self._ends.append((self._ends[-1] if self._ends else 0) + record.size)
        self._numbers.append(number)
        self._records.append(record)

    def visible_end(self, now_ms: int) -> int:
        """Return the ordinal after the last record that is visible at `now_ms`."""
        while self._hidden:
            ordinal, visible_from_ms = self._hidden[0]
            if visible_from_ms > now_ms and ordinal >= self.horizon:
                return ordinal
            self._hidden.popleft()
        return self.end

    def at_number(self, number: int) -> int:
        """Return the ordinal of the first record whose sequence number is at least `number`."""
        return max(self._base + bisect_left(self._numbers, number), self.horizon)

    def after_number(self, number: int) -> int:
        """Return the ordinal of the first record whose sequence number is above `number`."""
        return max(self._base + bisect_right(self._numbers, number), self.horizon)

    def at_time(self, millis: int) -> int:
        """Return the ordinal of the first record, in sequence order, that arrived at `millis` or
        later."""
        return max(self._base + bisect_left(self._peaks, millis), self.horizon)

    def at(self, ordinal: int) -> Record | None:
        """Return the record at `ordinal`; None if it does not exist yet, or is trimmed."""
        if self.horizon <= ordinal < self.end:
            return self._records[ordinal - self._base]
        return None

    def slice(self, start: int, end: int, *, limit: int, max_bytes: int) -> Slice:
        """Return records from `start` to before `end`: at most `limit` and `max_bytes`, at least
        one."""
        first = max(start, self.horizon) - self._base
        last = min(end - self._base, first + limit)
        if last <= first:
            return Slice(records=[], size=0, next_ordinal=self._base + first)
        before = self._ends[first - 1] if first else 0
        fits = bisect_right(self._ends, before + max_bytes, first, last)
        last = max(fits, first + 1)
        return Slice(
            records=self._records[first:last],
            size=self._ends[last - 1] - before,
            next_ordinal=self._base + last,
        )

    def trim_before_time(self, millis: int) -> int:
        """Drop the oldest records while they arrived before `millis`; return their number."""
        return self.trim_before(self._base + bisect_left(self._peaks, millis))

    def trim_before(self, ordinal: int) -> int:
        """Drop all records before `ordinal`; return their number."""
        first = min(max(ordinal - self._base, self._first), len(self._records))
        dropped = first - self._first
        self._first = first
        if first >= _COMPACT_AT and 2 * first >= len(self._records):
            self._compact()
        return dropped

    def _compact(self) -> None:
        first, before = self._first, self._ends[self._first - 1]
        del self._records[:first]
        del self._numbers[:first]
        del self._peaks[:first]
        self._ends = [end - before for end in self._ends[first:]]
        self._base += first
        self._first = 0
