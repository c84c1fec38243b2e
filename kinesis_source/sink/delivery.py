"""Decides what is sent next to one stream, and what happens to the records of an answer.

No I/O: time, randomness and answers are passed in. Records wait in a queue of their predicted
shard, whose pacer limits them. Those that the service did not store are sent again before the
others, until `timeout` seconds after they were first refused; none is ever dropped.

A request whose answer is lost may have been carried out: its records are sent again, and only then
a stream has a record twice. With `is_ordered`, a record waits until all earlier ones of its
partition key are stored, so at most one of a key is in flight.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress
from typing import Final

from kinesis_source.model.shard import Entry, PutOutcome
from kinesis_source.sink.pacing import ShardPacer
from ssp_common.errors import ServiceUnavailableError
from task_grouping.identifiers import ShardId

MAX_RECORDS: Final = 500
MAX_BYTES: Final = 10 << 20
"""The limits of a request, which counts data and keys (Kinesis API reference, PutRecords)."""

THROTTLED: Final = "ProvisionedThroughputExceededException"
ANY_SHARD: Final = ShardId("")
"""The queue of a stream whose records are placed by the service."""

_FIRST_BACKOFF_S: Final = 0.1
_LONGEST_BACKOFF_S: Final = 5.0
_NEVER: Final = float("inf")


Place = Callable[[Sequence[Entry]], Sequence[ShardId]]
"""Returns the predicted shard of each entry."""

_Held = tuple[Entry, int]
"""An entry and its size: bytes of data and key."""
_First = tuple[Entry, int, float | None]
"""The same, and the time of its first refusal, if any."""


@dataclass(slots=True)
class _ShardQueue:
    pacer: ShardPacer
    first: deque[_First] = field(default_factory=deque)
    """Entries to send before the others: refused ones, and those that may follow in their key's
    order."""
    fresh: deque[Entry] = field(default_factory=deque)
    sizes: deque[int] = field(default_factory=deque)
    """Those of `fresh`; a tuple for each entry would cost as much as sending it."""
    failures: int = 0
    """Refusals in a row."""
    not_before: float = 0.0

    def size(self) -> int:
        return len(self.first) + len(self.fresh)


@dataclass(slots=True)
class _Part:
    """The entries of a request for one shard: first those of `refused`, with their times."""

    shard: ShardId
    count: int
    bytes: int
    refused: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True)
class PutRequest:
    """A request to make: its entries with their sizes, in parts by shard."""

    entries: Sequence[Entry]
    sizes: Sequence[int]
    parts: Sequence[_Part]


@dataclass(slots=True)
class DeliveryMetrics:
    """Counts of one stream. `repeats`: records sent again, by error code."""

    records: int = 0
    bytes: int = 0
    requests: int = 0
    repeats: Counter[str] = field(default_factory=Counter)
    throttled: Counter[ShardId] = field(default_factory=Counter)

    def add(self, other: DeliveryMetrics) -> None:
        """Add the counts of another task."""
        self.records += other.records
        self.bytes += other.bytes
        self.requests += other.requests
        self.repeats.update(other.repeats)
        self.throttled.update(other.throttled)

    def __str__(self) -> str:
        repeats = "".join(
            f", {count} sent again after {code}" for code, count in self.repeats.most_common()
        )
        most = ", ".join(
            f"{shard or 'any shard'} {count}" for shard, count in self.throttled.most_common(5)
        )
        return (
            f"{self.records} records of {self.bytes} bytes in {self.requests} requests{repeats}"
            + (f"; throttled most: {most}" if most else "")
        )


class StreamDelivery:
    """The records of one task for one stream. `random` is uniform in [0, 1)."""

    def __init__(
        self,
        stream: str,
        *,
        place: Place,
        shards: Iterable[ShardId],
        weight: int = 1,
        is_ordered: bool,
        timeout: float,
        now: float,
        random: Callable[[], float],
    ) -> None:
        """`weight` is the number of shards behind one queue."""
        self.metrics = DeliveryMetrics()
        self.is_outdated = False
        """True since a record was stored in another shard than predicted."""
        self.wake_at = now
        """The earliest time of the next request, as of the last `take`."""
        self._stream = stream
        self._is_ordered = is_ordered
        self._timeout = timeout
        self._random = random
        self._place = place
        self._queues = {shard: _ShardQueue(ShardPacer(now, shards=weight)) for shard in shards}
        self._held: dict[str | None, deque[_Held]] = {}
        """By key that is in flight or waits in `first`: the records that must follow."""
        self._waiting = 0
        self._in_flight = 0

    @property
    def pending(self) -> int:
        """The number of records that are not stored yet."""
        return self._waiting + self._in_flight

    def add(self, entries: Sequence[Entry], sizes: Sequence[int]) -> None:
        """Queue entries with their sizes: bytes of data and key."""
        self._enqueue(entries, sizes)
        self._waiting += len(entries)

    def _enqueue(self, entries: Sequence[Entry], sizes: Sequence[int]) -> None:
        queues = self._queues
        for entry, size, shard in zip(entries, sizes, self._place(entries), strict=True):
            queue = queues[shard]
            queue.fresh.append(entry)
            queue.sizes.append(size)

    def replace_shards(self, place: Place, shards: Iterable[ShardId], now: float) -> None:
        """Use another prediction: the stream was resharded."""
        before = self._queues
        self._place = place
        self._queues = {
            shard: _ShardQueue(before[shard].pacer if shard in before else ShardPacer(now))
            for shard in shards
        }
        for queue in before.values():
            for each in queue.first:
                self._queue_of(each[0]).first.append(each)
            self._enqueue(queue.fresh, queue.sizes)
        self.is_outdated = False

    def _queue_of(self, entry: Entry) -> _ShardQueue:
        return self._queues[self._place([entry])[0]]

    # --- Requests --------------------------------------------------------------------------------

    def take(self, now: float) -> PutRequest | None:
        """Return the next request, or None if none may be made before `wake_at`."""
        entries: list[Entry] = []
        sizes: list[int] = []
        parts: list[_Part] = []
        room = MAX_BYTES
        self.wake_at = _NEVER
        for shard, queue in self._queues.items():
            if len(entries) == MAX_RECORDS:
                break
            waiting = queue.size()
            if not waiting:
                continue
            if now < queue.not_before:
                self.wake_at = min(self.wake_at, queue.not_before)
                continue
            allowed, size = queue.pacer.budget(now)
            if allowed < min(waiting, queue.pacer.part(now)):
                self.wake_at = min(self.wake_at, queue.pacer.next_budget(now))
                continue
            part = _Part(shard, 0, 0)
            self._take(
                queue, part, min(allowed, MAX_RECORDS - len(entries)), size, room, entries, sizes
            )
            if part.count:
                queue.pacer.sent(now, part.count, part.bytes)
                parts.append(part)
                room -= part.bytes
            elif queue.size():
                self.wake_at = min(self.wake_at, queue.pacer.next_budget(now))
        for part in parts:
            # Those that were not served come first in the next request.
            self._queues[part.shard] = self._queues.pop(part.shard)
        if not entries:
            return None
        self._in_flight += len(entries)
        self._waiting -= len(entries)
        self.metrics.requests += 1
        return PutRequest(entries, sizes, parts)

    def _take(
        self,
        queue: _ShardQueue,
        part: _Part,
        count: int,
        allowed: int,
        room: int,
        entries: list[Entry],
        sizes: list[int],
    ) -> None:
        """Move up to `count` entries of at most `allowed` bytes, and `room` in the request, to
        `entries` and `sizes`. An entry over the shard's rate passes while the shard is idle."""
        limit = min(allowed, room)
        refused: list[float | None] = []
        while queue.first and part.count < count:
            entry, size, since = queue.first[0]
            if part.bytes + size > limit and (part.count or size > room or not queue.pacer.is_idle):
                break
            queue.first.popleft()
            refused.append(since)
            entries.append(entry)
            sizes.append(size)
            part.count += 1
            part.bytes += size
        part.refused = refused
        if queue.first:
            return
        chunk, used = self._take_fresh(queue, count - part.count)
        if part.bytes + sum(used) > limit:
            ends = accumulate(used, initial=part.bytes)
            fitting = sum(1 for end in ends if end <= limit) - 1
            if fitting <= 0 and not part.count and used[0] <= room and queue.pacer.is_idle:
                fitting = 1
            fitting = max(0, fitting)
            self._put_back(queue, list(zip(chunk[fitting:], used[fitting:], strict=True)))
            del chunk[fitting:], used[fitting:]
        entries += chunk
        sizes += used
        part.count += len(chunk)
        part.bytes += sum(used)

    def _take_fresh(self, queue: _ShardQueue, count: int) -> tuple[list[Entry], list[int]]:
        """Remove the next entries, up to `count`, and hold those back that must wait."""
        count = min(count, len(queue.fresh))
        chunk = [queue.fresh.popleft() for _ in range(count)]
        sizes = [queue.sizes.popleft() for _ in range(count)]
        if not self._is_ordered:
            return chunk, sizes
        free = [not self._must_wait(each) for each in zip(chunk, sizes, strict=True)]
        return list(compress(chunk, free)), list(compress(sizes, free))

    def _must_wait(self, each: _Held) -> bool:
        """Hold the entry back if an earlier one of its key is not stored yet."""
        key = each[0].partition_key
        if key is None:
            return False
        held = self._held.get(key)
        if held is None:
            self._held[key] = deque()
            return False
        held.append(each)
        return True

    def _put_back(self, queue: _ShardQueue, removed: Sequence[_Held]) -> None:
        """Queue entries again that are not sent after all, each before those that follow it."""
        for each in reversed(removed):
            key = each[0].partition_key
            followers = self._held.pop(key) if self._is_ordered and key is not None else ()
            for entry, size in reversed((each, *followers)):
                queue.fresh.appendleft(entry)
                queue.sizes.appendleft(size)

    # --- Answers ---------------------------------------------------------------------------------

    def settle(self, request: PutRequest, outcome: PutOutcome, now: float) -> None:
        """Count what was stored and queue the rest again. Raises ServiceUnavailableError if a
        record was refused for too long."""
        has_errors = any(outcome.codes)
        start = 0
        for part in request.parts:
            stop = start + part.count
            codes = outcome.codes[start:stop]
            if has_errors and any(codes):
                self._settle_part(request, part, start, codes, now)
            else:
                self._in_flight -= part.count
                self._stored(request.entries[start:stop], part.bytes)
                if (queue := self._queues.get(part.shard)) is not None:
                    queue.failures = 0
            if part.shard != ANY_SHARD and not set(outcome.shards[start:stop]) <= {
                part.shard,
                None,
            }:
                self.is_outdated = True
            start = stop

    def fail(self, request: PutRequest, code: str, now: float) -> None:
        """Queue all records again: the request was refused, or its answer was lost."""
        start = 0
        for part in request.parts:
            self._settle_part(request, part, start, [code] * part.count, now)
            start += part.count

    def _settle_part(
        self,
        request: PutRequest,
        part: _Part,
        start: int,
        codes: Sequence[str | None],
        now: float,
    ) -> None:
        stop = start + part.count
        times = [*part.refused, *[None] * (part.count - len(part.refused))]
        rows = list(
            zip(request.entries[start:stop], request.sizes[start:stop], times, codes, strict=True)
        )
        self._in_flight -= part.count
        stored = [row for row in rows if not row[3]]
        self._stored([row[0] for row in stored], sum([row[1] for row in stored]))
        again = deque[_First]()
        for entry, size, since, code in rows:
            if not code:
                continue
            if since is not None and now - since >= self._timeout:
                raise self._timeout_error(part.shard, code, now - since)
            again.append((entry, size, now if since is None else since))
            self.metrics.repeats[code] += 1
        self._waiting += len(again)
        throttled = codes.count(THROTTLED)
        if throttled:
            self.metrics.throttled[part.shard] += throttled
        queue = self._queues.get(part.shard)
        if queue is None:  # resharded meanwhile
            for each in again:
                self._queue_of(each[0]).first.append(each)
            return
        queue.first.extendleft(reversed(again))
        if throttled:
            queue.pacer.throttled(now)
        queue.failures = 1 if stored else queue.failures + 1
        longest = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(queue.failures, 16))
        queue.not_before = now + longest * (0.5 + self._random() / 2)

    def _stored(self, entries: Sequence[Entry], size: int) -> None:
        self.metrics.records += len(entries)
        self.metrics.bytes += size
        if self._is_ordered:
            for entry in entries:
                self._release(entry)

    def _release(self, entry: Entry) -> None:
        """Let the next entry of the key follow."""
        key = entry.partition_key
        if key is None:
            return
        held = self._held[key]
        if held:
            follower, size = held.popleft()
            self._queue_of(follower).first.append((follower, size, None))
        else:
            del self._held[key]

    def _timeout_error(self, shard: ShardId, code: str, seconds: float) -> ServiceUnavailableError:
        place = f", shard {shard}" if shard != ANY_SHARD else ""
        return ServiceUnavailableError(
            f"stream {self._stream}{place}",
            found=f"{code} for a record on every attempt in {seconds:.0f} s",
            expected="a record that is stored within deliveryTimeout",
            next_step="add shards, or write less at a time; a batch that is written again repeats "
            "the records that were stored",
        )
