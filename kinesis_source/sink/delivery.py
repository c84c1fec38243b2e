"""Decides what is sent next to one stream, and what happens to the records of an answer.

No I/O: time, randomness and answers are passed in. Records wait in a queue of their predicted
shard, whose pacer limits them. Those that the service did not store are sent again before the
others, until `timeout` seconds after they were first refused; none is ever dropped.

A request whose answer is lost may have been carried out: its records are sent again, and only then
a stream has a record twice. With `is_ordered`, a record waits until all earlier ones of its
partition key are stored, so at most one of a key is in flight.

With `packing`, records are aggregates. One that was stored by a shard whose readers would drop some
of its rows counts as not stored: all its rows are packed again, for the shards as they are then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from spark_ssp.common.errors import ServiceUnavailableError, UnsupportedError
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.identifiers import HashRange, ShardId, hash_of
from spark_ssp.kinesis_source.model.shard import PutEntries, PutOutcome
from spark_ssp.kinesis_source.sink.aggregation import (
    ANY_SHARD,
    Packing,
    Row,
    ShardMap,
    are_read_from,
    rows_of,
    unsupported_aggregates,
)
from spark_ssp.kinesis_source.sink.columns import Rows
from spark_ssp.kinesis_source.sink.encoding import (
    RecordRun,
    encode_by_shard,
    encode_entry,
    encode_rows,
)
from spark_ssp.kinesis_source.sink.pacing import ShardPacer, ShardQueue, Use, Waiting

MAX_RECORDS: Final = 500
MAX_BYTES: Final = 10 << 20
"""The limits of a request, which counts data and keys (Kinesis API reference, PutRecords)."""

THROTTLED: Final = "ProvisionedThroughputExceededException"
MOVED: Final = "reshard"
"""The reason for which an aggregate is sent again that another shard has stored."""

_FIRST_BACKOFF_S: Final = 0.1
_LONGEST_BACKOFF_S: Final = 5.0
_NEVER: Final = float("inf")
_NOW: Final = float("-inf")


@dataclass(slots=True)
class DeliveryMetrics:
    """Counts of one stream. `repeats`: records sent again, by error code. A record has several
    rows if it is an aggregate."""

    rows: int = 0
    records: int = 0
    bytes: int = 0
    requests: int = 0
    repeats: Counter[str] = field(default_factory=Counter)
    throttled: Counter[ShardId] = field(default_factory=Counter)

    def add(self, other: DeliveryMetrics) -> None:
        """Add the counts of another task."""
        self.rows += other.rows
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
            f"{self.rows} rows in {self.records} records of {self.bytes} bytes, "
            f"{self.requests} requests{repeats}" + (f"; throttled most: {most}" if most else "")
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """The records of a request for one shard."""

    shard: ShardId
    runs: Sequence[Waiting]
    count: int
    use: Use
    """The use of the shard's limits by these records."""


@dataclass(frozen=True, slots=True)
class PutRequest:
    """A request to make: its records, in parts by shard."""

    parts: Sequence[_Part]
    size: int
    """The bytes of its data and keys."""
    is_cut: bool
    """True: it has fewer records than the limits of the service and of the shards allow, by the
    limit that `take` was given."""

    @property
    def entries(self) -> PutEntries:
        """Its records for the client."""
        return PutEntries(
            count=sum(part.count for part in self.parts),
            text=[run.entries for part in self.parts for run, _ in part.runs],
        )


class StreamDelivery:
    """The records of one task for one stream. `random` is uniform in [0, 1)."""

    def __init__(
        self,
        stream: str,
        *,
        shard_map: ShardMap,
        weight: int = 1,
        share: float = 1.0,
        pacers: Mapping[ShardId, ShardPacer] | None = None,
        packing: Packing | None = None,
        is_ordered: bool,
        timeout: float,
        now: float,
        random: Callable[[], float],
    ) -> None:
        """`weight` is the number of shards behind one queue, `share` the first share of each shard;
        `pacers` are those of an earlier task that have one."""
        self.metrics = DeliveryMetrics()
        self.pending = 0
        """The number of records that are not stored yet."""
        self.pending_bytes = 0
        self._outdated_since: float | None = None
        """The time of an answer with another shard than predicted, until shards are listed."""
        self.wake_at = now
        """The earliest time of the next request."""
        self._stream = stream
        self._is_ordered = is_ordered
        self._timeout = timeout
        self._random = random
        self._shard_map = shard_map
        self._ranges = shard_map.ranges
        """The hash keys of all shards that were listed."""
        self._share = share
        known = {} if pacers is None else pacers
        self._queues = {
            shard: ShardQueue(
                known[shard]
                if shard in known and known[shard].shards == weight
                else ShardPacer(now, shards=weight, share=share)
            )
            for shard in shard_map.shards
        }
        self._held: dict[str | None, deque[RecordRun]] = {}
        """By key with a record that is queued or in flight: the records that must follow, one in
        each run, whose explicit hash keys may place them in other shards."""
        self._packing = packing
        self._misplaced: list[tuple[RecordRun, ShardId]] = []
        """Aggregates with the shards that stored them, which were not predicted."""

    @property
    def pacers(self) -> Mapping[ShardId, ShardPacer]:
        """The pacers of its shards."""
        return {shard: queue.pacer for shard, queue in self._queues.items()}

    @property
    def is_outdated(self) -> bool:
        """True if shards have to be listed before all records can be delivered as predicted."""
        return self._outdated_since is not None and self.pending > 0

    def add(self, rows: Rows) -> None:
        """Queue rows, of which there is one or more."""
        self.wake_at = _NOW
        if self._packing is not None:
            for record in self._packing.pack(rows):
                run = encode_entry(record)
                self._count(run)
                self._queue_of(run).add(run)
            return
        if self._is_ordered:
            rows = self._without_held(rows)
        for shard, run in encode_by_shard(rows, self._shard_map):
            self._count(run)
            self._queues[shard].add(run)

    def age(self) -> None:
        """Copy the waiting records of older parts of batches; called before a part is added."""
        for queue in self._queues.values():
            queue.age()

    def _count(self, run: RecordRun) -> None:
        self.pending += run.count
        self.pending_bytes += run.size

    def _without_held(self, rows: Rows) -> Rows:
        """Hold each row back whose key has an earlier one that is not stored yet; return the
        others."""
        free: list[int] = []
        waiting: list[int] = []
        keys = rows.keys.to_pylist()
        for row, key in enumerate(keys):
            if key in self._held:
                waiting.append(row)
                continue
            free.append(row)
            if key is not None:
                self._held[key] = deque()
        if waiting:
            held = encode_rows(rows.take(np.array(waiting)))
            self._count(held)
            for row, (_, run) in zip(waiting, held.split(waiting), strict=True):
                self._held[keys[row]].append(run)
        return rows.take(np.array(free, np.int64))

    def replace_shards(
        self, shard_map: ShardMap, ranges: Mapping[ShardId, HashRange], now: float
    ) -> None:
        """Use another prediction: the stream was resharded. `ranges` are the hash keys of all
        shards, also of closed ones; `packing` has the new shards already. Raises UnsupportedError
        if keys no longer decide the shard of an aggregate, or the stream is another one."""
        self._check_same_stream(ranges)
        self.wake_at = _NOW
        before = self._queues
        self._shard_map = shard_map
        self._ranges = {**self._ranges, **ranges}
        self._queues = {
            shard: ShardQueue(
                before[shard].pacer if shard in before else ShardPacer(now, share=self._share)
            )
            for shard in shard_map.shards
        }
        for queue in before.values():
            for run, since in queue.take_all():
                self._place_again(run, since)
        misplaced, self._misplaced = self._misplaced, []
        for run, shard in misplaced:
            if shard not in self._ranges:
                self._misplaced.append((run, shard))
            elif rows := self._dropped_rows(run, shard):
                self._check_placed_by_key(rows[0], self._ranges[shard])
                self.metrics.repeats[MOVED] += 1
                self._pack_again(run, rows, None)
            else:
                self._stored(run)
        if not self._misplaced:
            self._outdated_since = None

    def _check_same_stream(self, ranges: Mapping[ShardId, HashRange]) -> None:
        """Raise UnsupportedError if a shard has other hash keys than before: a recreated stream has
        the shard ids of the former one, so aggregates that were packed for the former hash keys may
        count as stored, and readers drop their rows."""
        if self._packing is None:
            return
        for shard, hash_range in ranges.items():
            if self._ranges.get(shard, hash_range) != hash_range:
                raise UnsupportedError(
                    f"stream {self._stream}, shard {shard}",
                    found="other hash keys than before, with aggregation=true: the stream was "
                    "deleted and created again while the task wrote to it",
                    expected="the stream that the task began with",
                    next_step="start the query again, which writes the batch for the present "
                    "shards; stop queries before a stream that they write to is created again",
                )

    def _check_placed_by_key(self, first: Row, stored_in: HashRange) -> None:
        """Raise UnsupportedError if a shard has stored an aggregate whose hash key, that of its
        first row, it does not have, which no reshard explains: the next shard would be as wrong,
        without end."""
        if hash_of(first.partition_key, first.explicit_hash_key) not in stored_in:
            raise unsupported_aggregates(
                self._stream, "aggregates in shards that do not have their hash keys"
            )

    def check_listed(self, now: float, found: str) -> None:
        """Raise ServiceUnavailableError if aggregates have waited for too long for a listing of the
        shards that stored them. `found` is the outcome of the last listing."""
        if not self._misplaced or self._outdated_since is None:
            return
        waited = now - self._outdated_since
        if waited >= self._timeout:
            raise ServiceUnavailableError(
                f"stream {self._stream}",
                found=f"{found}, for {seconds_text(waited)} after a reshard",
                expected="a listing of the shards that have stored aggregates, within "
                "deliveryTimeout",
                next_step="check the service's health; a batch that is written again repeats the "
                "records that were stored",
            )

    def _place_again(self, run: RecordRun, since: float | None) -> None:
        """Move waiting records to the queues of their shards, as others if their rows have to be
        packed again."""
        for place, part in run.split(self._places(run).tolist()):
            shard = self._shard_map.shards[place]
            if rows := self._dropped_rows(part, shard):
                self._pack_again(part, rows, since)
            else:
                self._queues[shard].add_first(part, since)

    def _dropped_rows(self, run: RecordRun, shard: ShardId) -> Sequence[Row]:
        """Return the rows to pack again if readers of a listed shard drop some or all of them."""
        if run.aggregated is None:
            return ()
        rows = rows_of(run.data)
        return () if are_read_from(self._ranges[shard], rows) else rows

    def _pack_again(self, run: RecordRun, rows: Sequence[Row], since: float | None) -> None:
        if self._packing is None:
            raise AssertionError("a record that was not packed")
        self.pending -= 1
        self.pending_bytes -= run.size
        for record in self._packing.repack(rows):
            new = encode_entry(record)
            self._count(new)
            self._queue_of(new).add_first(new, since)

    def _queue_of(self, run: RecordRun) -> ShardQueue:
        """Return the queue of a run of one record."""
        (place,) = self._places(run)
        return self._queues[self._shard_map.shards[place]]

    def _places(self, run: RecordRun) -> Any:
        keys = run.keys
        hash_keys = [each.explicit_hash_key for each in keys]
        return self._shard_map.place(
            [each.partition_key for each in keys], hash_keys if any(hash_keys) else None
        )

    # --- Requests --------------------------------------------------------------------------------

    def take(self, now: float, most: int = MAX_BYTES) -> PutRequest | None:
        """Return the next request, of at most `most` bytes or one larger record, or None if none
        may be made before `wake_at`."""
        if now < self.wake_at:
            return None
        parts: list[_Part] = []
        is_full = False
        left, room, total = MAX_RECORDS, min(MAX_BYTES, most), 0
        for shard, queue in self._queues.items():
            if not left:
                break
            if not queue.count or now < queue.not_before or now < queue.budget_at:
                continue
            allowed, size = queue.pacer.budget(now)
            least = min(queue.count, queue.pacer.part(now))
            if allowed < least:
                # Not computed again before, for each shard at each request.
                queue.budget_at = queue.pacer.next_budget(now, least - allowed)
                continue
            waiting = queue.count
            if not parts:
                room = max(room, queue.first_size)
            runs = queue.take(min(allowed, left), size, room)
            if runs:
                count, used = waiting - queue.count, sum([run.size for run, _ in runs])
                parts.append(_Part(shard, runs, count, queue.pacer.begin(now, count, used)))
                left -= count
                room -= used
                total += used
            elif size <= room:
                queue.budget_at = queue.pacer.next_budget(now, 1)
            else:  # not the shard
                is_full = True
        if not parts:
            times = [
                max(queue.not_before, queue.budget_at)
                for queue in self._queues.values()
                if queue.count
            ]
            self.wake_at = min(times, default=_NEVER)
            return None
        last = self._queues[parts[-1].shard]
        is_full = is_full or bool(left and last.count and last.first_size > room)
        for part in parts:
            # Those that were not served come first in the next request.
            self._queues[part.shard] = self._queues.pop(part.shard)
        self.metrics.requests += 1
        return PutRequest(parts, total, is_full and most < MAX_BYTES)

    # --- Answers ---------------------------------------------------------------------------------

    def settle(self, request: PutRequest, outcome: PutOutcome, now: float) -> None:
        """Count what was stored and queue the rest again. Raises ServiceUnavailableError if a
        record was refused for too long."""
        has_errors = any(outcome.codes)
        self._end_uses(request, now)
        start = 0
        for part in request.parts:
            stop = start + part.count
            # A closed shard stores nothing more, so one record of a part shows a reshard; but
            # readers drop rows of an aggregate by the shard that stored it.
            is_each_checked = has_errors or self._packing is not None
            shards = outcome.shards[start : stop if is_each_checked else start + 1]
            is_moved = any(shard not in (part.shard, None) for shard in shards)
            if is_moved and part.shard != ANY_SHARD and self._outdated_since is None:
                self._outdated_since = now
            codes = outcome.codes[start:stop]
            if any(codes):
                self._settle_part(part, codes, shards, now)
            else:
                self._answered(part.shard, (run for run, _ in part.runs), shards)
                if (queue := self._queues.get(part.shard)) is not None:
                    queue.failures = 0
            start = stop

    def fail(self, request: PutRequest, code: str, now: float) -> None:
        """Queue all records again: the request was refused, or its answer was lost."""
        self._end_uses(request, now)
        for part in request.parts:
            self._settle_part(part, [code] * part.count, [None] * part.count, now)

    def _end_uses(self, request: PutRequest, now: float) -> None:
        for part in request.parts:
            queue = self._queues.get(part.shard)
            if queue is not None:
                queue.pacer.end(part.use, now)
                queue.budget_at = min(queue.budget_at, part.use.ends_at)
                if queue.count:
                    self.wake_at = min(self.wake_at, part.use.ends_at)

    def _settle_part(
        self,
        part: _Part,
        codes: Sequence[str | None],
        shards: Sequence[ShardId | None],
        now: float,
    ) -> None:
        self.wake_at = _NOW
        again: list[Waiting] = []
        start = 0
        for run, since in part.runs:
            for code, some in run.split(codes[start : start + run.count]):
                end = start + some.count
                if not code:
                    self._answered(part.shard, [some], shards[start:end])
                elif since is not None and now - since >= self._timeout:
                    raise self._timeout_error(part.shard, code, now - since)
                else:
                    again.append((some, now if since is None else since))
                    self.metrics.repeats[code] += some.count
                start = end
        throttled = codes.count(THROTTLED)
        if throttled:
            self.metrics.throttled[part.shard] += throttled
        queue = self._queues.get(part.shard)
        if queue is None:  # resharded meanwhile
            for run, since in again:
                self._place_again(run, since)
            return
        queue.put_back(again)
        if throttled:
            queue.pacer.throttled(now, 1 - throttled / part.count)
        queue.failures = queue.failures + 1 if all(codes) else 1
        longest = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(queue.failures, 16))
        queue.not_before = now + longest * (0.5 + self._random() / 2)

    def _answered(
        self, predicted: ShardId, runs: Iterable[RecordRun], shards: Sequence[ShardId | None]
    ) -> None:
        """Count records as stored, except aggregates in other shards than the predicted one. Each
        aggregate is a run. The shards of other records are not needed."""
        for number, run in enumerate(runs):
            if run.aggregated is None or (shard := shards[number]) in (None, predicted):
                self._stored(run)
            else:
                self._misplaced.append((run, shard))
            if self._is_ordered:
                for each in run.keys:
                    self._release(each.partition_key)

    def _stored(self, run: RecordRun) -> None:
        self.pending -= run.count
        self.pending_bytes -= run.size
        self.metrics.rows += run.count if run.aggregated is None else run.aggregated
        self.metrics.records += run.count
        self.metrics.bytes += run.size

    def _release(self, key: str | None) -> None:
        """Let the next record of the key follow."""
        if key is None:
            return
        held = self._held[key]
        if held:
            self.wake_at = _NOW
            follower = held.popleft()
            self._queue_of(follower).add_first(follower)
        else:
            del self._held[key]

    def _timeout_error(self, shard: ShardId, code: str, seconds: float) -> ServiceUnavailableError:
        place = f", shard {shard}" if shard != ANY_SHARD else ""
        remedy = "check the network, the service's health and the quotas of KMS"
        if code == THROTTLED:
            remedy = "add shards, or write less at a time"
        return ServiceUnavailableError(
            f"stream {self._stream}{place}",
            found=f"{code} for a record on every attempt in {seconds_text(seconds)}",
            expected="a record that is stored within deliveryTimeout",
            next_step=f"{remedy}; a batch that is written again repeats the records that were "
            "stored",
        )
