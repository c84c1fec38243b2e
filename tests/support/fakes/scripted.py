"""A `KinesisService` that follows a script, page by page, and a clock that waits in no time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from spark_ssp.common.errors import SspError
from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange, ShardId, StreamName
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    FailedCall,
    ShardNotFoundError,
    ThrottledError,
    UnreachableError,
)
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    RecordPage,
    SequenceNumber,
    Shard,
    ShardIterator,
    StreamDescription,
    StreamRef,
    sequence_order,
)
from spark_ssp.kinesis_source.reading.shard_retry import Clock
from tests.support.kinesis.pages import page

CREATED = EpochMillis(1_700_000_000_000)
NOW = EpochMillis(1_700_100_000_000)
RETENTION = 24 * 3_600_000
STREAM = StreamRef(name=StreamName("orders"))
FULL_RANGE = HashRange(first=0, last=MAX_HASH_KEY)


# --- Steps of calls, instead of an answer with all records ----------------------------------------


@dataclass(frozen=True, slots=True)
class Page:
    """Answer with at most this number of records."""

    records: int


@dataclass(frozen=True, slots=True)
class Empty:
    """Answer with no record, although some may follow."""

    millis_behind: int = 1_000


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise this."""

    error: SspError


@dataclass(frozen=True, slots=True)
class Do:
    """Run this, then continue with the script."""

    action: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Ended:
    """Answer with at most this number of records, and as if the shard ended with them."""

    records: int


Step = Page | Empty | Ended | Fail | Do


def throttle() -> Fail:
    """The service has had enough for now."""
    return Fail(
        ThrottledError(
            "a call", found="too many requests", expected="an answer", next_step="try again"
        )
    )


def unreachable() -> Fail:
    """The service does not answer."""
    return Fail(
        UnreachableError(
            "a call", found="no connection", expected="an answer", next_step="try again"
        )
    )


def expire() -> Fail:
    """The iterator is too old."""
    return Fail(
        ExpiredIteratorError(
            "a call", found="an old iterator", expected="a fresh one", next_step="open another"
        )
    )


def shard_gone() -> Fail:
    """The shard has expired."""
    return Fail(
        ShardNotFoundError("a call", found="no such shard", expected="it", next_step="none")
    )


# --- Shards ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rec:
    """One Kinesis record. Its arrival is derived from its sequence number."""

    sequence: int
    data: bytes = b""
    key: str = "k"

    @property
    def number(self) -> SequenceNumber:
        return SequenceNumber(str(self.sequence))

    @property
    def arrival(self) -> EpochMillis:
        return EpochMillis(CREATED + self.sequence)


@dataclass(slots=True, kw_only=True)
class ScriptedShard:
    """The records of a shard and the script of its calls; a test may change it during a read.
    `script` and `opening` are used up call by call by GetRecords and GetShardIterator; then the
    shard answers with all that a call may have. `hidden` newest records are not visible yet."""

    shard_id: ShardId
    records: list[Rec] = field(default_factory=list)
    closed: bool = False
    hidden: int = 0
    script: deque[Step] = field(default_factory=deque)
    opening: deque[Step] = field(default_factory=deque)
    hash_range: HashRange = FULL_RANGE

    def trim(self, before: int) -> None:
        """Forget the records below this sequence number."""
        self.records[:] = [record for record in self.records if record.sequence >= before]


def recs(*sequences: int, data: Callable[[int], bytes] = lambda n: b"%d" % n) -> list[Rec]:
    """Plain records with these sequence numbers."""
    return [Rec(sequence=n, data=data(n), key=f"key-{n}") for n in sequences]


class ScriptedService:
    """Serves `shards` of one stream. Thread-safe. `before_fetch` runs ahead of each GetRecords."""

    def __init__(
        self,
        shards: Iterable[ScriptedShard],
        *,
        created: EpochMillis = CREATED,
        before_fetch: Callable[[ShardId], object] = lambda shard: None,
        after_fetch: Callable[[ShardId, RecordPage], object] = lambda shard, page: None,
    ) -> None:
        self.shards: Mapping[ShardId, ScriptedShard] = {shard.shard_id: shard for shard in shards}
        self.created = created
        self.retention = RETENTION
        self.now = NOW
        self.describe_error: SspError | None = None
        self.opened: list[tuple[ShardId, Position, bool]] = []
        self.fetched: list[ShardId] = []
        self.listed = 0
        self.described = 0
        self._before_fetch = before_fetch
        self._after_fetch = after_fetch
        self._lock = threading.RLock()

    def describe(self, stream: StreamRef, *, retry: bool = True) -> StreamDescription:
        with self._lock:
            self.described += 1
            if self.describe_error is not None:
                raise self.describe_error
            return StreamDescription(
                name=stream.name,
                arn=f"arn:aws:kinesis:us-east-1:000000000000:stream/{stream.name}",
                created=self.created,
                retention_ms=self.retention,
            )

    def list_shards(self, stream: StreamRef) -> tuple[Shard, ...]:
        with self._lock:
            self.listed += 1
            return tuple(
                Shard(
                    shard_id=shard_id,
                    hash_range=shard.hash_range,
                    first_sequence_number=SequenceNumber("1"),
                    closed=shard.closed,
                )
                for shard_id, shard in sorted(self.shards.items())
            )

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
            self.opened.append((shard, position, inclusive))
            held = self.shards[shard]
            _next_step(held.opening)
            match position:
                case AfterRecord(sequence_number=number):
                    lowest = sequence_order(number) + (0 if inclusive else 1)
                case AtTimestamp(millis=millis):
                    lowest = int(millis - CREATED)
                case _:
                    lowest = 0
            return ShardIterator(str(lowest))

    def get_records(
        self,
        stream: StreamRef,
        shard: ShardId,
        iterator: ShardIterator,
        *,
        limit: int,
        retry: bool = True,
    ) -> RecordPage:
        self._before_fetch(shard)
        with self._lock:
            self.fetched.append(shard)
            held = self.shards[shard]
            step = _next_step(held.script)
            page = self._page(held, int(iterator), step, limit)
        self._after_fetch(shard, page)
        return page

    def service_time(self) -> EpochMillis:
        return self.now

    def _page(
        self, shard: ScriptedShard, lowest: int, step: Page | Empty | Ended | None, limit: int
    ) -> RecordPage:
        visible = shard.records[: len(shard.records) - shard.hidden]
        following = [record for record in visible if record.sequence >= lowest]
        most = limit
        if isinstance(step, Page | Ended):
            most = min(limit, step.records)
        elif isinstance(step, Empty):
            most = 0
        records = following[:most]
        left = len(following) - len(records)
        next_lowest = records[-1].sequence + 1 if records else lowest
        ended = isinstance(step, Ended) or (shard.closed and not shard.hidden and not left)
        behind = step.millis_behind if isinstance(step, Empty) else left * 10_000
        if isinstance(step, Ended):
            behind = 0
        return page_of(
            records, None if ended else ShardIterator(str(next_lowest)), behind, self.now
        )


def page_of(
    records: Sequence[Rec], next_iterator: ShardIterator | None, behind: int, now: EpochMillis
) -> RecordPage:
    return page(
        [record.data for record in records],
        keys=[record.key for record in records],
        numbers=[record.sequence for record in records],
        arrivals=[record.arrival for record in records],
        following=next_iterator,
        behind=behind,
        now=now,
    )


def _next_step(script: deque[Step]) -> Page | Empty | Ended | None:
    while script:
        match script.popleft():
            case Do(action=action):
                action()
            case Fail(error=error):
                raise error
            case step:
                return step
    return None


# --- Calls of one thread ----------------------------------------------------------------------


class OneThread(ScriptedService):
    """A service that has calls of one thread under way, and answers them in any order. It begins
    those that `begins` returns True for."""

    def __init__(
        self, shards: Iterable[ScriptedShard], chance: Random, begins: Callable[[], bool]
    ) -> None:
        super().__init__(shards)
        self.chance = chance
        self.begins = begins
        self.closed = 0

    def pending_calls(self, most: int) -> UnderWay:
        return UnderWay(self, most)

    def note(self, tags: Sequence[Any]) -> None:
        """Called with the tags of the calls under way, once one more has begun."""


class UnderWay:
    """`PendingCalls` of `OneThread`."""

    def __init__(self, service: OneThread, most: int) -> None:
        self._service = service
        self._most = most
        self._begun: list[tuple[Any, Callable[[], ShardIterator | RecordPage]]] = []

    def __len__(self) -> int:
        return len(self._begun)

    def begin_iterator(
        self, stream: StreamRef, shard: ShardId, position: Position, *, inclusive: bool, tag: Any
    ) -> bool:
        return self._begin(
            tag, lambda: self._service.open_iterator(stream, shard, position, inclusive=inclusive)
        )

    def begin_records(
        self, stream: StreamRef, shard: ShardId, iterator: ShardIterator, *, limit: int, tag: Any
    ) -> bool:
        return self._begin(
            tag, lambda: self._service.get_records(stream, shard, iterator, limit=limit)
        )

    def _begin(self, tag: Any, call: Callable[[], ShardIterator | RecordPage]) -> bool:
        if len(self._begun) == self._most or not self._service.begins():
            return False
        self._begun.append((tag, call))
        self._service.note([tag for tag, _ in self._begun])
        return True

    def answers(self) -> Iterator[tuple[Any, ShardIterator | RecordPage | FailedCall]]:
        for _ in range(min(len(self._begun), 1 + self._service.chance.randrange(3))):
            tag, call = self._begun.pop(self._service.chance.randrange(len(self._begun)))
            try:
                yield tag, call()
            except SspError as error:
                failed = error

                def finish(_: bool, failed: SspError = failed) -> ShardIterator | RecordPage:
                    raise failed

                yield tag, FailedCall(finish=finish)

    def close(self) -> None:
        self._service.closed += 1


# --- Time -----------------------------------------------------------------------------------------


class FakeTime:
    """Each thread has its own clock, which moves only by its own waits and by `advance`."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._local = threading.local()

    @property
    def clock(self) -> Clock:
        return Clock(monotonic=self.monotonic, wait=self.wait, random=lambda: 0.0)

    def monotonic(self) -> float:
        return float(getattr(self._local, "now", 1_000.0))

    def advance(self, seconds: float) -> None:
        self._local.now = self.monotonic() + seconds

    def wait(self, stopping: threading.Event, seconds: float) -> None:
        self.waits.append(seconds)
        self.advance(seconds)
