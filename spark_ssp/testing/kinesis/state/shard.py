"""One shard: its place in the hash key space, its lineage, its records, its numbering."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_ssp.grouping.identifiers import HashRange
from spark_ssp.testing.kinesis.state import sequence
from spark_ssp.testing.kinesis.state.records import Record, RecordLog


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
        self._base = sequence.base(self.era, self.index)
        self.last_number = self.starting_number

    @property
    def shard_id(self) -> str:
        return shard_id(self.index)

    @property
    def starting_number(self) -> int:
        return sequence.compose(self._base, 0, self.created_ms // 1000)

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
        return sequence.at_latest_second(self.last_number)

    def position_number(self, ordinal: int, now_ms: int) -> int:
        """Return the number of the position before the record at `ordinal`: above that of the
        record before it, and larger the later the time."""
        return sequence.compose(self._base, ordinal, now_ms // 1000)

    def _number(self, now_ms: int) -> int:
        number = sequence.compose(self._base, self._next_index, now_ms // 1000)
        self._next_index += 1
        return number


def shard_id(index: int) -> str:
    """Return `shardId-` and twelve digits, as in the service."""
    return f"shardId-{index:012d}"
