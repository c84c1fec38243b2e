"""Decides what is sent next to one stream, and what happens to the records of an answer.

No I/O: time, randomness and answers are passed in. Records wait in a queue of their predicted
shard, whose pacer limits them. Those that the service did not store are sent again before the
others, until `timeout` seconds after they were first refused; none is ever dropped.

A request whose answer is lost may have been carried out: its records are sent again, and only then
a stream has a record twice. With `is_ordered`, a record waits until all earlier ones of its
partition key are stored, so at most one of a key is in flight.

With `packing`, entries are aggregates. One that was stored by a shard whose readers would drop some
of its rows counts as not stored: all its rows are packed again, for the shards as they are then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Final

from kinesis_source.model.shard import Entry, PutOutcome
from kinesis_source.sink.pacing import FirstEntry, ShardPacer, ShardQueue
from kinesis_source.sink.packing import Packing
from kinesis_source.sink.values import DeliveryMetrics
from ssp_common.errors import ServiceUnavailableError
from task_grouping.identifiers import HashRange, ShardId

MAX_RECORDS: Final = 500
MAX_BYTES: Final = 10 << 20
"""The limits of a request, which counts data and keys (Kinesis API reference, PutRecords)."""

THROTTLED: Final = "ProvisionedThroughputExceededException"
MOVED: Final = "reshard"
"""The reason for which an aggregate is sent again that another shard has stored."""
ANY_SHARD: Final = ShardId("")
"""The queue of a stream whose records are placed by the service."""

_FIRST_BACKOFF_S: Final = 0.1
_LONGEST_BACKOFF_S: Final = 5.0
_NEVER: Final = float("inf")


Place = Callable[[Sequence[Entry]], Sequence[ShardId]]
"""Returns the predicted shard of each entry."""

_Held = tuple[Entry, int]
"""An entry and its size: bytes of data and key."""


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


class StreamDelivery:
    """The records of one task for one stream. `random` is uniform in [0, 1)."""

    def __init__(
        self,
        stream: str,
        *,
        place: Place,
        shards: Iterable[ShardId],
        weight: int = 1,
        packing: Packing | None = None,
        is_ordered: bool,
        timeout: float,
        now: float,
        random: Callable[[], float],
    ) -> None:
        """`weight` is the number of shards behind one queue."""
        self.metrics = DeliveryMetrics()
        self.pending = 0
        """The number of records that are not stored yet."""
        self.pending_bytes = 0
        self._outdated_since: float | None = None
        """The time of an answer with another shard than predicted, until shards are listed."""
        self._idle = 0.0
        """The seconds in which the task did not send, for which no record can be refused."""
        self.wake_at = now
        """The earliest time of the next request, as of the last `take`."""
        self._stream = stream
        self._is_ordered = is_ordered
        self._timeout = timeout
        self._random = random
        self._place = place
        self._ranges: Mapping[ShardId, HashRange] = {}
        """The hash keys of the shards since the last reshard."""
        self._queues = {shard: ShardQueue(ShardPacer(now, shards=weight)) for shard in shards}
        self._held: dict[str | None, deque[_Held]] = {}
        """By key with a record that is queued or in flight: the records that must follow, whose
        explicit hash keys may place them in other shards."""
        self._packing = packing
        self._misplaced: list[tuple[Entry, int, ShardId]] = []
        """Aggregates with their sizes and the shards that stored them, which were not predicted."""

    @property
    def is_outdated(self) -> bool:
        """True if shards have to be listed before all records can be delivered as predicted."""
        return self._outdated_since is not None and self.pending > 0

    def skip(self, seconds: float) -> None:
        """Exclude a time from `timeout` in which the task waited for rows instead of sending."""
        self._idle += seconds

    def add(self, entries: Sequence[Entry], sizes: Sequence[int]) -> None:
        """Queue entries with their sizes: bytes of data and key."""
        if self._packing is not None:
            entries, sizes = self._packing.pack(entries)
        self.pending += len(entries)
        self.pending_bytes += sum(sizes)
        if self._is_ordered:
            free = [not self._must_wait(each) for each in zip(entries, sizes, strict=True)]
            entries, sizes = list(compress(entries, free)), list(compress(sizes, free))
        self._enqueue(entries, sizes)

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

    def _enqueue(self, entries: Sequence[Entry], sizes: Sequence[int]) -> None:
        queues = self._queues
        for entry, size, shard in zip(entries, sizes, self._place(entries), strict=True):
            queue = queues[shard]
            queue.fresh.append(entry)
            queue.sizes.append(size)

    def replace_shards(
        self,
        place: Place,
        shards: Iterable[ShardId],
        ranges: Mapping[ShardId, HashRange],
        now: float,
    ) -> None:
        """Use another prediction: the stream was resharded. `ranges` are the hash keys of all
        shards, also of closed ones; `packing` has the new shards already."""
        before = self._queues
        self._place = place
        self._ranges = ranges
        self._queues = {
            shard: ShardQueue(before[shard].pacer if shard in before else ShardPacer(now))
            for shard in shards
        }
        for queue in before.values():
            for entry, size, since in queue.first:
                self._place_again(entry, size, since)
            entries, sizes = queue.take_fresh(len(queue.fresh))
            if self._packing is None:
                self._enqueue(entries, sizes)
            else:
                for entry, size in zip(entries, sizes, strict=True):
                    self._place_again(entry, size, None)
        misplaced, self._misplaced = self._misplaced, []
        for entry, size, shard in misplaced:
            if self._packing is None or self._packing.fits(entry, ranges.get(shard)):
                self._stored([entry], size)
            elif shard not in ranges:
                self._misplaced.append((entry, size, shard))
            else:
                self.metrics.repeats[MOVED] += 1
                self._pack_again(entry, size, None)
        if not self._misplaced:
            self._outdated_since = None

    def check_listed(self, now: float, found: str) -> None:
        """Raise ServiceUnavailableError if aggregates have waited for too long for a listing of the
        shards that stored them. `found` is the outcome of the last listing."""
        if not self._misplaced or self._outdated_since is None:
            return
        waited = now - self._idle - self._outdated_since
        if waited >= self._timeout:
            raise ServiceUnavailableError(
                f"stream {self._stream}",
                found=f"{found}, for {waited:.0f} s after a reshard",
                expected="a listing of the shards that have stored aggregates, within "
                "deliveryTimeout",
                next_step="check the service's health; a batch that is written again repeats the "
                "records that were stored",
            )

    def _place_again(self, entry: Entry, size: int, since: float | None) -> None:
        """Move a waiting entry to the queue of its shard, as several if its rows have several."""
        shard = self._place([entry])[0]
        if self._packing is None or self._packing.fits(entry, self._ranges.get(shard)):
            self._queues[shard].first.append((entry, size, since))
        else:
            self._pack_again(entry, size, since)

    def _pack_again(self, entry: Entry, size: int, since: float | None) -> None:
        if self._packing is None:
            raise AssertionError("a record that was not packed")
        entries, sizes = self._packing.repack(entry)
        self.pending += len(entries) - 1
        self.pending_bytes += sum(sizes) - size
        for one, each in zip(entries, sizes, strict=True):
            self._queue_of(one).first.append((one, each, since))

    def _queue_of(self, entry: Entry) -> ShardQueue:
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
                if queue.not_before < self.wake_at:
                    self.wake_at = queue.not_before
                continue
            allowed, size = queue.pacer.budget(now)
            least = min(waiting, queue.pacer.part(now))
            if allowed < least:
                # Not computed again before, for each shard at each request.
                queue.not_before = queue.pacer.next_budget(now, least - allowed)
                self.wake_at = min(self.wake_at, queue.not_before)
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
                self.wake_at = min(self.wake_at, queue.pacer.next_budget(now, 1))
        for part in parts:
            # Those that were not served come first in the next request.
            self._queues[part.shard] = self._queues.pop(part.shard)
        if not entries:
            return None
        self.metrics.requests += 1
        return PutRequest(entries, sizes, parts)

    def _take(
        self,
        queue: ShardQueue,
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
        chunk, used = queue.take_fresh(count - part.count)
        if part.bytes + sum(used) > limit:
            ends = accumulate(used, initial=part.bytes)
            fitting = sum(1 for end in ends if end <= limit) - 1
            if fitting <= 0 and not part.count and used[0] <= room and queue.pacer.is_idle:
                fitting = 1
            fitting = max(0, fitting)
            queue.put_back(chunk[fitting:], used[fitting:])
            del chunk[fitting:], used[fitting:]
        entries += chunk
        sizes += used
        part.count += len(chunk)
        part.bytes += sum(used)

    # --- Answers ---------------------------------------------------------------------------------

    def settle(self, request: PutRequest, outcome: PutOutcome, now: float) -> None:
        """Count what was stored and queue the rest again. Raises ServiceUnavailableError if a
        record was refused for too long."""
        has_errors = any(outcome.codes)
        start = 0
        for part in request.parts:
            stop = start + part.count
            codes = outcome.codes[start:stop]
            shards = outcome.shards[start:stop]
            is_moved = part.shard != ANY_SHARD and not set(shards) <= {part.shard, None}
            if is_moved and self._outdated_since is None:
                self._outdated_since = now - self._idle
            if has_errors and any(codes):
                self._settle_part(request, part, start, codes, shards, now)
            else:
                entries, sizes = request.entries[start:stop], request.sizes[start:stop]
                self._answered(part.shard, entries, sizes, shards)
                if (queue := self._queues.get(part.shard)) is not None:
                    queue.failures = 0
            start = stop

    def fail(self, request: PutRequest, code: str, now: float) -> None:
        """Queue all records again: the request was refused, or its answer was lost."""
        start = 0
        for part in request.parts:
            codes = [code] * part.count
            self._settle_part(request, part, start, codes, [None] * part.count, now)
            start += part.count

    def _settle_part(
        self,
        request: PutRequest,
        part: _Part,
        start: int,
        codes: Sequence[str | None],
        shards: Sequence[ShardId | None],
        now: float,
    ) -> None:
        stop = start + part.count
        times = [*part.refused, *[None] * (part.count - len(part.refused))]
        rows = list(
            zip(
                request.entries[start:stop],
                request.sizes[start:stop],
                times,
                codes,
                shards,
                strict=True,
            )
        )
        stored = [row for row in rows if not row[3]]
        self._answered(
            part.shard,
            [row[0] for row in stored],
            [row[1] for row in stored],
            [row[4] for row in stored],
        )
        again = deque[FirstEntry]()
        active = now - self._idle
        for entry, size, since, code, _ in rows:
            if not code:
                continue
            if since is not None and active - since >= self._timeout:
                raise self._timeout_error(part.shard, code, active - since)
            again.append((entry, size, active if since is None else since))
            self.metrics.repeats[code] += 1
        throttled = codes.count(THROTTLED)
        if throttled:
            self.metrics.throttled[part.shard] += throttled
        queue = self._queues.get(part.shard)
        if queue is None:  # resharded meanwhile
            for again_entry in again:
                self._place_again(*again_entry)
            return
        queue.first.extendleft(reversed(again))
        if throttled:
            queue.pacer.throttled(now, 1 - throttled / part.count)
        queue.failures = 1 if stored else queue.failures + 1
        longest = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(queue.failures, 16))
        queue.not_before = now + longest * (0.5 + self._random() / 2)

    def _answered(
        self,
        predicted: ShardId,
        entries: Sequence[Entry],
        sizes: Sequence[int],
        shards: Sequence[ShardId | None],
    ) -> None:
        """Count entries as stored, except aggregates in other shards than the predicted one."""
        if self._packing is None or set(shards) <= {predicted}:
            self._stored(entries, sum(sizes))
            return
        for entry, size, shard in zip(entries, sizes, shards, strict=True):
            if shard is None or shard == predicted:
                self._stored([entry], size)
            else:
                self._misplaced.append((entry, size, shard))

    def _stored(self, entries: Sequence[Entry], size: int) -> None:
        rows = len(entries) if self._packing is None else self._packing.remove(entries)
        self.pending -= len(entries)
        self.pending_bytes -= size
        self.metrics.rows += rows
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
        remedy = "check the network, the service's health and the quotas of KMS"
        if code == THROTTLED:
            remedy = "add shards, or write less at a time"
        return ServiceUnavailableError(
            f"stream {self._stream}{place}",
            found=f"{code} for a record on every attempt in {seconds:.0f} s",
            expected="a record that is stored within deliveryTimeout",
            next_step=f"{remedy}; a batch that is written again repeats the records that were "
            "stored",
        )
