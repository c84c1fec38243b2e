"""One shard: its place in the hash key space, its lineage, its records and their sequence numbers.

A sequence number has 186 bits and 56 decimal digits, like those of the service. From the top:

    version (2) | era, 36 bits | shard, low 4 bits | index, 64 bits | 0, 8 bits
    | second of arrival, 36 bits | shard, 32 bits | version (2), 4 bits

The *era* is a number in seconds assigned to each stream creation, split and merge, never before the
clock and never twice in one service. So a child's numbers are larger than its parents', and a
number that cannot belong to a shard is detected.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field

from spark_ssp.grouping.identifiers import HashRange

_COMPACT_AT = 8192


class Record:
    """One stored record. `fragment` caches its JSON form after its first use in a page.
    `partition_key` is None if the producer set none, which AUTO allows."""

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


@dataclass(slots=True, kw_only=True)
class Shard:
    """Mutable: `put` appends to it, `close` ends it."""

    index: int
    era: int
    hash_range: HashRange
    created_ms: int
    parent: str | None = None
    adjacent_parent: str | None = None
    closed_ms: int | None = None
    ending_number: int | None = None
    children: tuple[str, ...] = ()
    log: RecordLog = field(default_factory=RecordLog)
    _base: int = field(init=False)
    _next_index: int = 1
    last_number: int = field(init=False)
    """The largest sequence number assigned so far; before the first, the StartingSequenceNumber."""

    def __post_init__(self) -> None:
        self._base = base_number(self.era, self.index)
        self.last_number = self.starting_number

    @property
    def shard_id(self) -> str:
        return shard_id(self.index)

    @property
    def starting_number(self) -> int:
        return compose_number(self._base, 0, self.created_ms // 1000)

    @property
    def parents(self) -> tuple[str, ...]:
        return tuple(p for p in (self.parent, self.adjacent_parent) if p is not None)

    @property
    def is_open(self) -> bool:
        return self.ending_number is None

    def put(
        self,
        partition_key: str | None,
        data: bytes,
        arrival_ms: int,
        visible_from_ms: int | None = None,
    ) -> Record:
        """Append a record to this open shard."""
        self.last_number = self._number(arrival_ms)
        record = Record(str(self.last_number), partition_key, data, arrival_ms)
        self.log.append(self.last_number, record, visible_from_ms)
        return record

    def close(self, now_ms: int, children: tuple[str, ...]) -> None:
        """End the shard. Its EndingSequenceNumber is above that of its last record."""
        self.closed_ms = now_ms
        self.ending_number = self._number(now_ms)
        self.children = children

    def last_possible_number(self) -> int:
        """Return the largest number that a position in this shard can have."""
        if self.ending_number is not None:
            return self.ending_number
        return at_latest_second(self.last_number)

    def position_number(self, ordinal: int, now_ms: int) -> int:
        """Return the number of the position before the record at `ordinal`: above that of the
        record before it, and larger the later the time."""
        return compose_number(self._base, ordinal, now_ms // 1000)

    def _number(self, now_ms: int) -> int:
        number = compose_number(self._base, self._next_index, now_ms // 1000)
        self._next_index += 1
        return number


def shard_id(index: int) -> str:
    """Return `shardId-` and twelve digits, as in the service."""
    return f"shardId-{index:012d}"


# --- Sequence numbers -----------------------------------------------------------------------------


_VERSION = 2
_ERA_BITS = 36
_SECOND_BITS = 36
_MAX_SHARD = (1 << 32) - 1
MAX_SECOND = (1 << _SECOND_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The parts of a sequence number."""

    era: int
    shard_index: int
    index: int


def base_number(era: int, shard_index: int) -> int:
    """Return the part that all numbers of a shard share; `compose_number` adds the rest."""
    return (
        (_VERSION << 184)
        | ((era & ((1 << _ERA_BITS) - 1)) << 148)
        | ((shard_index & 0xF) << 144)
        | ((shard_index & _MAX_SHARD) << 4)
        | _VERSION
    )


def compose_number(shard_base: int, index: int, second: int) -> int:
    """Return the number of a shard's record `index` (0: the shard's StartingSequenceNumber)."""
    return shard_base | (index << 80) | ((second & MAX_SECOND) << 36)


def at_latest_second(number: int) -> int:
    """Return the largest number of the same record, whose time is unknown."""
    return number | (MAX_SECOND << 36)


def next_second(number: int) -> int:
    """Return the number of the same shard and index one second later."""
    return min(number + (1 << 36), at_latest_second(number))


def decode_number(number: int) -> Decoded | None:
    """Return the parts of a number of this layout, or None for any other number."""
    if number >> 184 != _VERSION or number & 0xF != _VERSION or (number >> 72) & 0xFF:
        return None
    shard_index = (number >> 4) & _MAX_SHARD
    if (number >> 144) & 0xF != shard_index & 0xF:
        return None
    return Decoded(
        era=(number >> 148) & ((1 << _ERA_BITS) - 1),
        shard_index=shard_index,
        index=(number >> 80) & ((1 << 64) - 1),
    )
