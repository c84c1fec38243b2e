"""A Kinesis account under a manual clock, and a simple record of all puts. The record keeps data
that the service discards (trimmed records, expired shards, deleted streams), so that a test can
compute the records that a query should have delivered."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_ssp.grouping.identifiers import ShardId, ShardKey
from spark_ssp.kinesis_source.model.ranges import ShardRange
from spark_ssp.kinesis_source.model.shard import Position, RecordPage, ShardIterator, StreamRef
from spark_ssp.kinesis_source.planning.shard_discovery import LONGEST_GAP_S
from spark_ssp.kinesis_source.reading.shard_retry import Clock
from spark_ssp.kinesis_source.reading.task_reader import ReadOrder
from spark_ssp.testing.kinesis.dispatch import KinesisState
from spark_ssp.testing.kinesis.state.clock import ManualClock
from spark_ssp.testing.kinesis.state.faults import Call, Fault
from spark_ssp.testing.kinesis.state.stream import Distribution, Shard, StreamMode
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.kcl.kpl import Put as KplPut
from tests.support.kcl.kpl import aggregate

HOUR_MS = 3_600_000
RETENTION_MS = 24 * HOUR_MS
KEYS = tuple(f"key-{number}" for number in range(12))
LONGEST_HIDDEN_MS = 5_000
"""No record takes longer to be seen."""
PAYLOAD = "payload-"
"""The prefix of the data of every record: it must never be seen outside the rows."""


class ShardLife(NamedTuple):
    """One shard of one life of a stream: a stream that was recreated has another `created`."""

    stream: str
    created: int
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A Kinesis record as it was put. `ids` are the user records in it, in order. `straggler`: its
    producer sees that it arrived at another shard than it was made for and puts the user records
    again. They may be delivered or left out."""

    ids: tuple[int, ...]
    key: str | None
    sequence_number: int
    arrival: int
    size: int
    visible_from: int
    straggler: bool = False


class World:
    """Streams, and their puts. Times are the clock's, in milliseconds."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.state = KinesisState(clock=self.clock)
        self.service = InterruptedKinesis(self.state)
        self.entries: dict[ShardLife, list[Entry]] = {}
        self.parents: dict[ShardLife, tuple[ShardLife, ...]] = {}
        self.owners: dict[int, tuple[ShardLife, int]] = {}
        """The shard of each user record, and its place in the list of entries."""
        self.happened: Counter[str] = Counter()
        self.faults_on = True
        self.pushes = False
        """True if tasks read half of their ranges by subscriptions, many of which fail."""
        self._next_id = 0
        self._auto_since: dict[str, int] = {}
        self._lock = threading.Lock()

    # --- Streams and shards -----------------------------------------------------------------------

    def create(self, stream: str, shards: int) -> None:
        """Create a stream."""
        self.state.create_stream(stream, shards, mode=StreamMode.ON_DEMAND)
        self._auto_since.pop(stream, None)
        self._note_shards(stream)

    def recreate(self, stream: str, shards: int) -> None:
        """Delete a stream, and create one of the same name."""
        self.state.delete_stream(stream)
        self.pass_time(1000)
        self.create(stream, shards)
        self.happened["stream recreated"] += 1

    def switch_distribution(self, stream: str) -> None:
        """Switch to the distribution strategy AUTO, or back; AUTO lasts long enough to be noticed
        by a query that checks often enough."""
        begun = self._auto_since.pop(stream, None)
        if begun is None:
            self.state.set_distribution(stream, Distribution.AUTO)
            self._auto_since[stream] = self.clock.now_ms()
        else:
            shortest = round(LONGEST_GAP_S * 1000) + 1
            self.pass_time(max(0, begun + shortest - self.clock.now_ms()))
            self.state.set_distribution(stream, Distribution.USER_PARTITION_KEY)
        self.happened["distribution switched"] += 1

    def is_auto(self, stream: str) -> bool:
        """Return whether the service chooses the shards of the stream's records."""
        return stream in self._auto_since

    def open_shards(self, stream: str) -> list[ShardLife]:
        """Return the shards that take records, by hash key."""
        return [self.life(stream, shard) for shard in self.state.open_shard_ids(stream)]

    def life(self, stream: str, shard: str) -> ShardLife:
        """Return the shard in the stream's present life."""
        return ShardLife(stream, self.state.stream(stream).created_ms, shard)

    def lives(self, stream: str) -> list[ShardLife]:
        """Return every listed shard, in order of creation."""
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
        """Return all ancestors of `life`."""
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
        """Put one record: plain, or (`users`) an aggregate of this number of user records.

        `stray`: the aggregate was made for a shard that was split since, and its user records
        belong to a sibling of the shard that takes it. Under AUTO it was made for any shard, and a
        plain record has no key. `hidden_ms`: it can be read only after that time. `shift_ms`: the
        error of its arrival time. `into`: the open shard that takes it, for any key.
        """
        assert hidden_ms <= LONGEST_HIDDEN_MS
        with self._lock:
            auto = self.is_auto(stream)
            if into is not None:
                target = self.state.shard(stream, into)
            else:
                target = self.state.stream(stream).route(key)
            given_key = None if auto and not users else key
            belongs, straggler = target.hash_range.first, False
            if auto:
                opened = self.open_shards(stream)
                made_for = opened[self._next_id % len(opened)]
                belongs = self.state.shard(stream, made_for.shard).hash_range.first
                self.happened["put under auto"] += 1
            elif stray:
                belongs, straggler = self._siblings_key(stream, target)
            ids = tuple(range(self._next_id, self._next_id + max(1, users)))
            self._next_id += len(ids)
            data = f"{PAYLOAD}{ids[0]}".encode() + b" " * padding
            if users:
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
                given_key,
                data,
                shard_id=target.shard_id,
                arrival_ms=now + shift_ms,
                visible_from_ms=now + hidden_ms if hidden_ms else None,
            )
            life = self.life(stream, target.shard_id)
            entry = Entry(
                ids=ids,
                straggler=straggler,
                key=given_key,
                sequence_number=int(record.sequence_number),
                arrival=record.arrival_ms,
                size=record.size,
                visible_from=now + hidden_ms,
            )
            for number in ids:
                self.owners[number] = (life, len(self.entries[life]))
            self.entries[life].append(entry)
            return entry

    def _siblings_key(self, stream: str, target: Shard) -> tuple[int, bool]:
        """Return a hash key of a shard's parent that is not the shard's; its own without such a
        parent."""
        listed = {
            shard.shard_id: shard for shard in self.state.stream(stream).shards(self.clock.now_ms())
        }
        own = target.hash_range
        for parent in target.parents:
            wider = listed[parent].hash_range if parent in listed else own
            for belongs in (wider.first, wider.last):
                if belongs not in own:
                    self.happened["put: straggler"] += 1
                    return belongs, True
        return own.first, False

    def kept_from(self, life: ShardLife) -> int:
        """Return the index of the shard's oldest entry that the service still has, or will have."""
        if not self.exists(life):
            return len(self.entries[life])
        return self.state.shard(life.stream, life.shard).log.horizon

    def visible_to(self, life: ShardLife) -> int:
        """Return the index after the shard's last entry that can be read now."""
        return self.state.shard(life.stream, life.shard).log.visible_end(self.clock.now_ms())

    def exists(self, life: ShardLife) -> bool:
        """Return whether the service still lists the shard, in this life of its stream."""
        return life.stream in self.state.stream_names() and life in self.lives(life.stream)

    # --- Trouble ----------------------------------------------------------------------------------

    def inject(self, fault: Fault, operation: str, life: ShardLife, count: int) -> None:
        """Let the next `count` such calls fail: those about the shard, or for calls that are not
        about a shard, about its stream. Always named, so that threads do not race for faults."""
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
        """Advance the clock."""
        self.clock.advance(milliseconds)


class InterruptedKinesis(InProcessKinesis):
    """In-process Kinesis in which an event may happen between two calls of a planner. `meanwhile`
    is called just before the `nth` GetRecords on the shard it names. The event may concern only
    that shard, so that the outcome does not depend on the order of threads."""

    def __init__(self, state: KinesisState) -> None:
        super().__init__(state)
        self._due: dict[tuple[str, str], list[tuple[int, Callable[[], None]]]] = defaultdict(list)
        self._lock = threading.Lock()
        self.listening = False
        self.opened: Counter[str] = Counter()
        """The number of opened iterators, by the kind of position."""

    def open_iterator(
        self,
        stream: StreamRef,
        shard: ShardId,
        position: Position,
        *,
        inclusive: bool = False,
        retry: bool = True,
    ) -> ShardIterator:
        with self._lock:
            self.opened[type(position).__name__] += 1
        return super().open_iterator(stream, shard, position, inclusive=inclusive, retry=retry)

    def interrupt(self, life: ShardLife, nth: int, meanwhile: Callable[[], None]) -> None:
        """Call `meanwhile` before the `nth` call from now on the shard."""
        self._due[life.stream, life.shard].append((nth, meanwhile))

    def flush(self) -> None:
        """Call the events that are still due."""
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
        retry: bool = True,
    ) -> RecordPage:
        if self.listening:
            for meanwhile in self._now_due(stream.name, shard):
                meanwhile()
        return super().get_records(stream, shard, iterator, limit=limit, retry=retry)

    def _now_due(self, stream: str, shard: str) -> Sequence[Callable[[], None]]:
        with self._lock:
            line = self._due.pop((stream, shard), [])
            later = [(nth - 1, meanwhile) for nth, meanwhile in line if nth > 1]
            if later:
                self._due[stream, shard] = later
            return [meanwhile for nth, meanwhile in line if nth <= 1]


MEETING_SECONDS = 60
"""The longest real time that a thread waits for the others to start."""


class SimulatedClock(ManualClock):
    """A manual clock; `wait` moves it only for the calling thread.

    A reader waits, for its rate or for a record that is still hidden, and the service shows more as
    time passes. With one clock for all threads the records shown to a thread would depend on the
    scheduling of the others. So each reading thread has a clock, which starts at the world's time
    and which the service uses for that thread's requests. After the read the world advances to the
    time of the thread that waited longest.
    """

    def __init__(self) -> None:
        super().__init__()
        self._own = threading.local()

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms()

    def ahead_ms(self) -> int:
        """Return how far the calling thread is ahead of the world."""
        return int(getattr(self._own, "ahead_ms", 0))

    def wait(self, seconds: float) -> None:
        """Advance the time of the calling thread. Rounded up: never shorter than requested."""
        self.start_at(self.ahead_ms() + int(seconds * 1000) + 1)

    def start_at(self, ahead_ms: int) -> None:
        """Set how far the calling thread is ahead of the world."""
        self._own.ahead_ms = ahead_ms


class ReadingTime:
    """The waits of one read, in which each shard has a thread.

    The threads of the shards that are read first meet before the first of them continues, so that
    none ends early enough to take the next shard as well: a shard's time must come only from its
    own waits, and from those of the shards that are read before it.
    """

    def __init__(self, clock: SimulatedClock, shards: Sequence[ShardRange]) -> None:
        self._clock = clock
        self._meeting = threading.Barrier(sum(not shard.after for shard in shards))
        self._ended_ms: dict[ShardKey, int] = {}
        self._lock = threading.Lock()
        self.longest_ms = 0
        """The longest wait of a thread."""

    @property
    def clock(self) -> Clock:
        """Return the clock for the reader. Its random numbers are 0."""
        return Clock(monotonic=self._monotonic, wait=self._wait, random=lambda: 0.0)

    def order(self, shards: Sequence[ShardRange], first: Sequence[ShardRange] = ()) -> ReadOrder:
        """Return the reader's order, which sets the times of its threads. All ranges are read by
        them: there are no `first` ones."""
        assert not first
        return _TimedOrder(shards, self)

    def begin(self, shard: ShardRange) -> None:
        """Begin to read a shard in this thread: when those before it have been read."""
        if not shard.after:
            self._meeting.wait(MEETING_SECONDS)
            return
        older = [ShardKey(stream=shard.stream.name, shard=one) for one in shard.after]
        with self._lock:
            self._clock.start_at(max(self._ended_ms[key] for key in older))

    def end(self, shard: ShardRange) -> None:
        """Record that this thread has read a shard."""
        with self._lock:
            self._ended_ms[shard.key] = self._clock.ahead_ms()

    def _monotonic(self) -> float:
        return self._clock.now_ms() / 1000

    def _wait(self, stopping: threading.Event, seconds: float) -> None:
        self._clock.wait(seconds)
        with self._lock:
            self.longest_ms = max(self.longest_ms, self._clock.ahead_ms())


class _TimedOrder(ReadOrder):
    """The order of a read, with the time at which each shard begins."""

    def __init__(self, shards: Sequence[ShardRange], time: ReadingTime) -> None:
        super().__init__(shards)
        self._time = time

    def next(self) -> ShardRange | None:
        """Take a range, at its time."""
        shard = super().next()
        if shard is not None:
            self._time.begin(shard)
        return shard

    def finished(self, shard: ShardRange) -> None:
        """Record the time, before others may begin."""
        self._time.end(shard)
        super().finished(shard)
