"""A Kinesis account under a manual clock, and a naive record of all that was ever put into it.

The record keeps what the service forgets (trimmed records, expired shards, deleted streams), so
that a test can tell what a query should have delivered.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from embedded_kinesis.calls import Call
from embedded_kinesis.faults import Fault
from embedded_kinesis.state import KinesisState
from kinesis_source.model import Position, RecordPage, ShardIterator, StreamRef
from task_grouping.identifiers import MAX_HASH_KEY, ShardId
from tests.support.in_process import InProcessKinesis
from tests.support.kpl import Put as KplPut
from tests.support.kpl import aggregate
from tests.support.simulated_clock import SimulatedClock

HOUR_MS = 3_600_000
RETENTION_MS = 24 * HOUR_MS
KEYS = tuple(f"key-{number}" for number in range(12))
LONGEST_HIDDEN_MS = 5_000
"""No record takes longer to be seen."""
PAYLOAD = "payload-"
"""What the data of every record begins with: it must never be seen outside the rows."""


class ShardLife(NamedTuple):
    """One shard of one life of a stream: a stream that was recreated has another `created`."""

    stream: str
    created: int
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A Kinesis record as it was put. `ids` are the user records to be delivered of it, in order:
    none for an aggregate that came to a wrong shard."""

    ids: tuple[int, ...]
    key: str
    sequence_number: int
    arrival: int
    size: int
    visible_from: int


class World:
    """Streams, and what was put into them. Times are the clock's, in milliseconds."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.state = KinesisState(clock=self.clock)
        self.service = InterruptedKinesis(self.state)
        self.entries: dict[ShardLife, list[Entry]] = {}
        self.parents: dict[ShardLife, tuple[ShardLife, ...]] = {}
        self.owners: dict[int, tuple[ShardLife, int]] = {}
        """Where each user record was put: the shard, and the place in its list of entries."""
        self.happened: Counter[str] = Counter()
        self.faults_on = True
        self._next_id = 0
        self._lock = threading.Lock()

    # --- Streams and shards -----------------------------------------------------------------------

    def create(self, stream: str, shards: int) -> None:
        """Create a stream."""
        self.state.create_stream(stream, shards)
        self._note_shards(stream)

    def recreate(self, stream: str, shards: int) -> None:
        """Delete a stream, and create one of the same name."""
        self.state.delete_stream(stream)
        self.pass_time(1000)
        self.create(stream, shards)
        self.happened["stream recreated"] += 1

    def open_shards(self, stream: str) -> list[ShardLife]:
        """Those that take records, by hash key."""
        return [self.life(stream, shard) for shard in self.state.open_shard_ids(stream)]

    def life(self, stream: str, shard: str) -> ShardLife:
        """The shard in the stream's present life."""
        return ShardLife(stream, self.state.stream(stream).created_ms, shard)

    def lives(self, stream: str) -> list[ShardLife]:
        """Every shard that the service lists, in order of creation."""
        listed = self.state.stream(stream).shards(self.clock.now_ms())
        return [self.life(stream, shard.shard_id) for shard in listed]

    def split(self, stream: str, index: int) -> None:
        """Split the open shard number `index`, counted round and round."""
        opened = self.open_shards(stream)
        shard = opened[index % len(opened)].shard
        hash_range = self.state.shard(stream, shard).hash_range
        if hash_range.first < hash_range.last:
            self.state.split(stream, shard)
            self._note_shards(stream)
            self.happened["split"] += 1

    def merge(self, stream: str, index: int) -> None:
        """Merge the open shard number `index` with the next one, if there are two."""
        opened = self.open_shards(stream)
        if len(opened) > 1:
            first = index % (len(opened) - 1)
            self.state.merge(stream, opened[first].shard, opened[first + 1].shard)
            self._note_shards(stream)
            self.happened["merge"] += 1

    def ancestors(self, life: ShardLife) -> set[ShardLife]:
        """All shards that `life` came of."""
        found: set[ShardLife] = set()
        line = list(self.parents.get(life, ()))
        while line:
            parent = line.pop()
            if parent not in found:
                found.add(parent)
                line.extend(self.parents.get(parent, ()))
        return found

    def _note_shards(self, stream: str) -> None:
        for shard in self.state.stream(stream).shards(self.clock.now_ms()):
            life = self.life(stream, shard.shard_id)
            self.entries.setdefault(life, [])
            self.parents[life] = tuple(self.life(stream, parent) for parent in shard.parents)

    # --- Records ----------------------------------------------------------------------------------

    def put(
        self,
        stream: str,
        key: str,
        *,
        users: int = 0,
        stray: bool = False,
        padding: int = 0,
        hidden_ms: int = 0,
        shift_ms: int = 0,
        into: str | None = None,
    ) -> Entry:
        """Put one record: plain, or (`users`) an aggregate of so many user records.

        `stray`: the user records belong to another shard. `hidden_ms`: it can be read only after
        that time. `shift_ms`: its arrival time is off by so much. `into`: the open shard that
        takes it, whatever its key.
        """
        assert hidden_ms <= LONGEST_HIDDEN_MS
        with self._lock:
            explicit = None
            if into is not None:
                explicit = self.state.shard(stream, into).hash_range.first
            target = self.state.stream(stream).route(key, explicit)
            ids = tuple(range(self._next_id, self._next_id + max(1, users)))
            self._next_id += len(ids)
            data = f"{PAYLOAD}{ids[0]}".encode() + b" " * padding
            if users:
                belongs = (target.hash_range.first + (MAX_HASH_KEY // 2 if stray else 0)) % (
                    MAX_HASH_KEY + 1
                )
                stray = stray and belongs not in target.hash_range
                data = aggregate(
                    [
                        KplPut(
                            partition_key=key,
                            data=f"{PAYLOAD}{number}".encode(),
                            explicit_hash_key=str(belongs),
                        )
                        for number in ids
                    ]
                )
            now = self.clock.now_ms()
            record = self.state.put(
                stream,
                key,
                data,
                explicit_hash_key=explicit,
                arrival_ms=now + shift_ms,
                visible_from_ms=now + hidden_ms if hidden_ms else None,
            )
            life = self.life(stream, target.shard_id)
            entry = Entry(
                ids=() if stray else ids,
                key=key,
                sequence_number=int(record.sequence_number),
                arrival=record.arrival_ms,
                size=record.size,
                visible_from=now + hidden_ms,
            )
            for number in ids:
                self.owners[number] = (life, len(self.entries[life]))
            self.entries[life].append(entry)
            return entry

    def kept_from(self, life: ShardLife) -> int:
        """The index of the shard's oldest entry that the service still has, or will have."""
        if not self.exists(life):
            return len(self.entries[life])
        return self.state.shard(life.stream, life.shard).log.horizon

    def visible_to(self, life: ShardLife) -> int:
        """The index after the shard's last entry that can be read now."""
        return self.state.shard(life.stream, life.shard).log.visible_end(self.clock.now_ms())

    def exists(self, life: ShardLife) -> bool:
        """Whether the service still lists the shard, in this life of its stream."""
        return life.stream in self.state.stream_names() and life in self.lives(life.stream)

    # --- Trouble ----------------------------------------------------------------------------------

    def inject(self, fault: Fault, operation: str, life: ShardLife, count: int) -> None:
        """Let the next `count` such calls go wrong: those about the shard, or for calls that are
        about no shard, about its stream. Always named, so that threads do not race for faults."""
        by_shard = operation in ("GetRecords", "GetShardIterator")
        self.state.faults.add(
            fault,
            operation=operation,
            stream=life.stream,
            shard=life.shard if by_shard else None,
            count=count,
            when=self._faults_are_on,
        )

    def _faults_are_on(self, _: Call) -> bool:
        return self.faults_on

    def pass_time(self, milliseconds: int) -> None:
        """Let the clock go on."""
        self.clock.advance(milliseconds)


class InterruptedKinesis(InProcessKinesis):
    """In-process Kinesis in which something may happen between two calls of a planner.

    `meanwhile` is carried out just before the `nth` GetRecords on the shard it names. What happens
    may concern that shard alone, so that the outcome does not depend on which thread comes first.
    """

    def __init__(self, state: KinesisState) -> None:
        super().__init__(state)
        self._due: dict[tuple[str, str], list[tuple[int, Callable[[], None]]]] = defaultdict(list)
        self._lock = threading.Lock()
        self.listening = False
        self.opened: Counter[str] = Counter()
        """How many iterators were asked for, by the kind of position."""

    def open_iterator(
        self,
        stream: StreamRef,
        shard: ShardId,
        position: Position,
        *,
        inclusive: bool = False,
        patience: bool = True,
    ) -> ShardIterator:
        with self._lock:
            self.opened[type(position).__name__] += 1
        return super().open_iterator(
            stream, shard, position, inclusive=inclusive, patience=patience
        )

    def interrupt(self, life: ShardLife, nth: int, meanwhile: Callable[[], None]) -> None:
        """Carry out `meanwhile` before the `nth` call from now on the shard."""
        self._due[life.stream, life.shard].append((nth, meanwhile))

    def flush(self) -> None:
        """Carry out what is still due."""
        due = [meanwhile for _, line in sorted(self._due.items()) for _, meanwhile in line]
        self._due.clear()
        for meanwhile in due:
            meanwhile()

    def get_records(
        self,
        stream: StreamRef,
        shard: ShardId,
        iterator: ShardIterator,
        *,
        limit: int,
        patience: bool = True,
    ) -> RecordPage:
        if self.listening:
            for meanwhile in self._now_due(stream.name, shard):
                meanwhile()
        return super().get_records(stream, shard, iterator, limit=limit, patience=patience)

    def _now_due(self, stream: str, shard: str) -> Sequence[Callable[[], None]]:
        with self._lock:
            line = self._due.pop((stream, shard), [])
            later = [(nth - 1, meanwhile) for nth, meanwhile in line if nth > 1]
            if later:
                self._due[stream, shard] = later
            return [meanwhile for nth, meanwhile in line if nth <= 1]
