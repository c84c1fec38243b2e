"""One stream: its shards, the routing of keys, splits and merges, retention; and of each shard its
place in the hash key space, its lineage, its records and their sequence numbers.

A sequence number has 186 bits and 56 decimal digits, like those of the service. From the top:

    version (2) | era, 36 bits | shard, low 4 bits | index, 64 bits | 0, 8 bits
    | second of arrival, 36 bits | shard, 32 bits | version (2), 4 bits

The *era* is a number in seconds assigned to each stream creation, split and merge, never before the
clock and never twice in one service. So a child's numbers are larger than its parents', and a
number that cannot belong to a shard is detected.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange
from spark_ssp.testing.kinesis.state.errors import in_use, invalid_argument, not_found

# --- Shards --------------------------------------------------------------------------------------


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


# --- Streams -------------------------------------------------------------------------------------


HOUR_MS = 3_600_000
MIN_RETENTION_HOURS = 24
MAX_RETENTION_HOURS = 8760


class StreamMode(StrEnum):
    """The capacity mode: only an on-demand stream has a record distribution strategy."""

    PROVISIONED = "PROVISIONED"
    ON_DEMAND = "ON_DEMAND"


class Distribution(StrEnum):
    """The record distribution strategy: whether the service or the key chooses the shard of a
    record."""

    AUTO = "AUTO"
    """The service chooses, regardless of the record's keys. Here: each open shard in turn."""
    USER_PARTITION_KEY = "USER_PARTITION_KEY"


class StreamStatus(StrEnum):
    CREATING = "CREATING"
    DELETING = "DELETING"
    ACTIVE = "ACTIVE"
    UPDATING = "UPDATING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the stream that takes effect at `due_ms`."""

    due_ms: int
    status: StreamStatus
    apply: Callable[[int], object]


class Stream:
    """A stream. Times are passed as `now_ms`; `next_era` returns the era of the next new shards
    (see the sequence numbers). Not thread-safe: `KinesisState` locks."""

    def __init__(
        self,
        name: str,
        *,
        arn: str,
        created_ms: int,
        shard_count: int,
        next_era: Callable[[], int],
        mode: StreamMode = StreamMode.PROVISIONED,
        distribution: Distribution = Distribution.USER_PARTITION_KEY,
        max_record_bytes: int = 1024 * 1024,
    ) -> None:
        self.name = name
        self.arn = arn
        self.created_ms = created_ms
        self.retention_hours = MIN_RETENTION_HOURS
        self.mode = mode
        self.distribution = distribution
        self.max_record_bytes = max_record_bytes
        self.tags: dict[str, str] = {}
        self._next_era = next_era
        self._shards: dict[str, Shard] = {}  # in order of creation
        self._shard_count = 0  # ever created
        self._open: list[Shard] = []  # by first hash key
        self._open_firsts: list[int] = []
        self._pending: Change | None = None
        self._turn = 0  # which open shard takes the next record under AUTO
        self._add_equal_shards(shard_count, created_ms)

    # --- Queries ----------------------------------------------------------------------------

    @property
    def status(self) -> StreamStatus:
        return self._pending.status if self._pending else StreamStatus.ACTIVE

    @property
    def retention_ms(self) -> int:
        return self.retention_hours * HOUR_MS

    def oldest_ms(self, now_ms: int) -> int:
        """Return the time before which arrived records have expired."""
        return now_ms - self.retention_ms

    def horizon_ms(self, now_ms: int) -> int:
        """Return the stream's TRIM_HORIZON as a time: no earlier than its creation."""
        return max(self.created_ms, self.oldest_ms(now_ms))

    def shards(self, now_ms: int) -> list[Shard]:
        """Return every shard that has not expired, in order of creation. A closed shard expires
        with its last record: one retention period after it was closed."""
        oldest = self.oldest_ms(now_ms)
        expired = [
            shard
            for shard in self._shards.values()
            if shard.closed_ms is not None and shard.closed_ms < oldest
        ]
        for shard in expired:
            del self._shards[shard.shard_id]
        return list(self._shards.values())

    def open_shards(self) -> list[Shard]:
        """Return the open shards, by hash key."""
        return list(self._open)

    def shard(self, wanted: str, now_ms: int) -> Shard:
        """Return a shard, trimmed to the retention period; raise ResourceNotFound if it does not
        exist."""
        shard = self.living(wanted, now_ms)
        if shard is None:
            raise not_found(f"Shard {wanted} in stream {self.name} does not exist.")
        shard.log.trim_before_time(self.oldest_ms(now_ms))
        return shard

    def living(self, wanted: str, now_ms: int) -> Shard | None:
        """Return a shard, or None if it has expired or never existed."""
        shard = self._shards.get(wanted)
        if shard is None or shard.closed_ms is None or shard.closed_ms >= self.oldest_ms(now_ms):
            return shard
        return None

    def open_shard(self, wanted: str, now_ms: int) -> Shard:
        """Return the shard with that id; InvalidArgument if it is closed."""
        shard = self.shard(wanted, now_ms)
        if not shard.is_open:
            raise invalid_argument(f"Shard {wanted} in stream {self.name} has already been closed.")
        return shard

    def route(self, partition_key: str | None, explicit_hash_key: int | None = None) -> Shard:
        """Return the open shard that takes the next record. Under AUTO its keys are ignored."""
        if self.distribution is Distribution.AUTO:
            self._turn += 1
            return self._open[self._turn % len(self._open)]
        if partition_key is None:
            raise invalid_argument(
                "A record without partition key is taken only under the record distribution "
                "strategy AUTO."
            )
        hash_key = explicit_hash_key
        if hash_key is None:
            digest = hashlib.md5(partition_key.encode(), usedforsecurity=False).digest()
            hash_key = int.from_bytes(digest, "big")
        return self._open[bisect_right(self._open_firsts, hash_key) - 1]

    # --- Changes ------------------------------------------------------------------------------

    def set_mode(self, mode: StreamMode) -> None:
        """Change the capacity mode. A provisioned stream places records by their keys."""
        self.mode = mode
        if mode is StreamMode.PROVISIONED:
            self.distribution = Distribution.USER_PARTITION_KEY

    def set_distribution(self, distribution: Distribution) -> None:
        """Change the distribution of records put from now on; InvalidArgument unless the stream is
        on-demand."""
        if self.mode is not StreamMode.ON_DEMAND:
            raise invalid_argument(
                f"Stream {self.name} is in the capacity mode PROVISIONED, which does not support "
                "a record distribution strategy."
            )
        self.distribution = distribution

    def require_active(self) -> None:
        """Raise ResourceInUse while the stream is being created, changed or deleted."""
        if self.status is not StreamStatus.ACTIVE:
            raise in_use(f"Stream {self.name} is not ACTIVE, instead it is in state {self.status}.")

    def schedule(self, change: Change) -> None:
        """Register `change`, which `settle` applies when it is due."""
        self._pending = change

    def settle(self, now_ms: int) -> None:
        """Apply the change if it is due."""
        change = self._pending
        if change is not None and change.due_ms <= now_ms:
            self._pending = None
            change.apply(now_ms)

    def set_retention_hours(self, hours: int, now_ms: int) -> None:
        """Change the retention period; records that are already trimmed stay trimmed."""
        for shard in self.shards(now_ms):
            shard.log.trim_before_time(self.oldest_ms(now_ms))
        self.retention_hours = hours

    def check_split(self, shard_to_split: str, new_first: int, now_ms: int) -> None:
        """Refuse, as the service does, an invalid split."""
        shard = self.open_shard(shard_to_split, now_ms)
        if not shard.hash_range.first < new_first <= shard.hash_range.last:
            raise invalid_argument(
                f"NewStartingHashKey {new_first} used in SplitShard() on shard {shard_to_split} "
                f"in stream {self.name} does not divide the shard's hash keys, "
                f"{shard.hash_range.first} to {shard.hash_range.last}."
            )

    def split(self, shard_to_split: str, new_first: int, now_ms: int) -> tuple[Shard, Shard]:
        """Close a shard; its lower child ends before `new_first`, its upper child begins there."""
        self.check_split(shard_to_split, new_first, now_ms)
        parent = self._shards[shard_to_split]
        era = self._next_era()
        lower = HashRange(first=parent.hash_range.first, last=new_first - 1)
        upper = HashRange(first=new_first, last=parent.hash_range.last)
        first = self._add(lower, era, now_ms, parent=parent.shard_id)
        second = self._add(upper, era, now_ms, parent=parent.shard_id)
        parent.close(now_ms, (first.shard_id, second.shard_id))
        self._replace(1, [first, second])
        return first, second

    def check_merge(self, shard_to_merge: str, adjacent: str, now_ms: int) -> None:
        """Refuse, as the service does, an invalid merge."""
        one, other = self.open_shard(shard_to_merge, now_ms), self.open_shard(adjacent, now_ms)
        if (
            one.hash_range.last + 1 != other.hash_range.first
            and other.hash_range.last + 1 != one.hash_range.first
        ):
            raise invalid_argument(
                f"Shards {shard_to_merge} and {adjacent} in stream {self.name} are not an "
                f"adjacent pair of shards eligible for merging."
            )

    def merge(self, shard_to_merge: str, adjacent: str, now_ms: int) -> Shard:
        """Close two adjacent shards; their child has both ranges."""
        self.check_merge(shard_to_merge, adjacent, now_ms)
        one, other = self._shards[shard_to_merge], self._shards[adjacent]
        both = HashRange(
            first=min(one.hash_range.first, other.hash_range.first),
            last=max(one.hash_range.last, other.hash_range.last),
        )
        child = self._add(
            both, self._next_era(), now_ms, parent=one.shard_id, adjacent_parent=other.shard_id
        )
        for parent in (one, other):
            parent.close(now_ms, (child.shard_id,))
        self._replace(2, [child])
        return child

    def scale(self, target: int, now_ms: int) -> None:
        """Split and merge until there are `target` open shards of equal size. As with the service's
        uniform scaling, short-lived shards may be created in between."""
        ranges = equal_ranges(target)
        for cut in (wanted.first for wanted in ranges[1:]):
            holder = self._open[bisect_right(self._open_firsts, cut) - 1]
            if holder.hash_range.first != cut:
                self.split(holder.shard_id, cut, now_ms)
        for wanted in ranges:
            start = bisect_left(self._open_firsts, wanted.first)
            inside = self._open[start : bisect_right(self._open_firsts, wanted.last)]
            merged = inside[0]
            for neighbour in inside[1:]:
                merged = self.merge(merged.shard_id, neighbour.shard_id, now_ms)

    # --- Helpers ------------------------------------------------------------------------------

    def _add_equal_shards(self, count: int, now_ms: int) -> None:
        era = self._next_era()
        shards = [self._add(hash_range, era, now_ms) for hash_range in equal_ranges(count)]
        self._replace(0, shards)

    def _add(
        self,
        hash_range: HashRange,
        era: int,
        now_ms: int,
        *,
        parent: str | None = None,
        adjacent_parent: str | None = None,
    ) -> Shard:
        shard = Shard(
            index=self._shard_count,
            era=era,
            hash_range=hash_range,
            created_ms=now_ms,
            parent=parent,
            adjacent_parent=adjacent_parent,
        )
        self._shards[shard_id(self._shard_count)] = shard
        self._shard_count += 1
        return shard

    def _replace(self, parents: int, children: list[Shard]) -> None:
        """Replace that many parents by `children` in the order of hash keys."""
        at = bisect_left(self._open_firsts, children[0].hash_range.first)
        self._open[at : at + parents] = children
        self._open_firsts[at : at + parents] = [c.hash_range.first for c in children]


def equal_ranges(count: int) -> list[HashRange]:
    """Split the hash key space into `count` equal parts; the last takes the remainder."""
    size = (MAX_HASH_KEY + 1) // count
    firsts = [i * size for i in range(count)]
    lasts = [first - 1 for first in firsts[1:]] + [MAX_HASH_KEY]
    return [HashRange(first=first, last=last) for first, last in zip(firsts, lasts, strict=True)]
