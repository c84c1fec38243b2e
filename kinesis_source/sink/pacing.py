"""Limits what a task sends: to a shard, by pacing the records queued for it, and on the link, by a
window of bytes in flight.

The pace is within the shard's limits and below what the service throttles. Each throttling makes
the task's share of the shard smaller by a factor. The share then returns to the size at which it
was throttled, fast at first and slowly near it, stays there for some seconds, and grows faster and
faster, as the window of TCP CUBIC does (RFC 9438, section 4.2). A linear increase is throttled more
often if it is fast, and leaves a shard unused for a minute after another writer has ended if it is
slow.

All tasks of a machine share its link, and none knows the others. Requests that are larger or more
than the link carries within a time-out all fail together, and are sent again for nothing. So a
window limits the bytes in flight of each task, as the congestion window of TCP does: it starts
small, doubles with each round of requests while these leave fast, then grows by a step in each
round, and shrinks by a factor when they take longer than `TARGET_S`. Then the requests of all tasks
together need about that time, whatever their number and the rate of the link. Only a window that is
in use grows: requests that a shard's rate limits say nothing about the link. It is in use if half
of it is in flight, or if it left out records of a request that is alone: a service that is close
answers each request before the next is made.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from spark_ssp.kinesis_source.sink.encoding import RecordRun

RECORDS_PER_SECOND: Final = 1_000
BYTES_PER_SECOND: Final = 1 << 20
"""The limits of a shard for all its writers together (Kinesis API reference, PutRecords)."""

_WINDOW_S: Final = 1.0
"""The limits hold for any second."""
_LONGEST_FLIGHT_S: Final = 4.0
"""A request without an answer for so long counts as one that was answered then."""
_DECREASE: Final = (0.3, 0.85)
"""The least and the most that is left of a share after throttling; else the part of the records
that was stored."""
_GROWTH: Final = 0.0005
"""Per second cubed: a share that fell by 15 % is back after 7 s, one that fell by 70 % after 11 s,
and twice as large 12 s later."""
_SMALLEST_SHARE: Final = 0.005
_SHARED_PARTS: Final = 4
"""The parts of Arrow batches whose memory the records of all shards share. A shard with older
records is slower than the others."""
_PART: Final = 4
"""A shard that is behind is served this often per second: smaller parts make more requests."""


_MOST_TASKS: Final = 16
"""A stage may have far more tasks than run at a time. The first share doubles with each second."""


def first_share(tasks: int) -> float:
    """Return the share of a shard that a task begins with, which knows only that its stage has at
    least so many tasks: its own number, from 1. The shares of eight tasks are 1.9 in all."""
    return 1.0 if tasks == 1 else 0.5 / min(tasks, _MOST_TASKS)


@dataclass(slots=True, eq=False)
class Use:
    """Records that were sent to a shard. They count until a second after their answer: the service
    has received them at some time before it, and the time until then varies."""

    records: int
    size: int
    ends_at: float
    """The time at which they count no longer."""


def _end_of(use: Use) -> float:
    return use.ends_at


class ShardPacer:
    """The use of one shard (or of `shards` together) by this task: what is in flight, or was
    answered within the last second.

    Times are in seconds of a monotonic clock. The share of the shard's limits that the task uses
    begins at `share` and doubles with each second until the service throttles it, which makes room
    for the other writers.
    """

    __slots__ = (
        "_bytes",
        "_changed",
        "_highest",
        "_is_starting",
        "_limits",
        "_records",
        "_restored",
        "_uses",
        "shards",
    )

    def __init__(self, now: float, *, shards: int = 1, share: float = 1.0) -> None:
        self.shards = shards
        self._limits = (RECORDS_PER_SECOND * shards, BYTES_PER_SECOND * shards)
        self._highest = share
        """The share that was throttled last, or the first one."""
        self._is_starting = True
        """True until the first throttling."""
        self._changed = self._restored = now
        """The times of that throttling, and when the share is as high again."""
        self._uses: list[Use] = []
        """By their ends: a request that is slow does not hold back those that were answered."""
        self._records = 0
        self._bytes = 0

    def budget(self, now: float) -> tuple[int, int]:
        """Return how many records and bytes may be sent now. If nothing is in use, one record is
        allowed whatever its size: then `is_idle` is true."""
        uses = self._uses
        while uses and uses[0].ends_at <= now:
            use = uses.pop(0)
            self._records -= use.records
            self._bytes -= use.size
        share = self._current_share(now)
        records, size = self._limits
        return (
            max(1, int(records * share)) - self._records,
            max(1, int(size * share)) - self._bytes,
        )

    @property
    def is_idle(self) -> bool:
        """True if nothing was in use at the last `budget`."""
        return not self._uses

    def part(self, now: float) -> int:
        """Return the number of records for which a request is made if more are waiting."""
        return max(1, int(self._limits[0] * self._current_share(now)) // _PART)

    def begin(self, now: float, records: int, size: int) -> Use:
        """Count what is being sent, until its answer is passed to `end`."""
        use = Use(records, size, now + _LONGEST_FLIGHT_S + self._seconds(size))
        insort(self._uses, use, key=_end_of)
        self._records += records
        self._bytes += size
        return use

    def end(self, use: Use, now: float) -> None:
        """Count records that were answered, or whose answer was lost, for another second, or as
        long as the rate takes for a larger one."""
        if use in self._uses:  # else it was in flight for too long
            self._uses.remove(use)
            use.ends_at = now + self._seconds(use.size)
            insort(self._uses, use, key=_end_of)

    def _seconds(self, size: int) -> float:
        return _WINDOW_S * max(1.0, size / self._limits[1])

    def throttled(self, now: float, stored: float) -> None:
        """Use a smaller share, at most once in a second: the records of several requests in flight
        are throttled for one reason. `stored` is the part of the records that was stored."""
        share = self._current_share(now)
        if share < 1.0 and not self._is_starting and now - self._changed < _WINDOW_S:
            return
        least, most = _DECREASE
        left = max(_SMALLEST_SHARE, share * min(most, max(least, stored)))
        self._highest = share
        self._is_starting = False
        self._changed = now
        self._restored = now + ((1 - left / share) / _GROWTH) ** (1 / 3)

    def next_budget(self, now: float, records: int) -> float:
        """Return when the budget has grown by this number of records, or nothing is in use. An
        answer may make it earlier."""
        freed = 0
        for use in self._uses:
            freed += use.records
            if freed >= records:
                return use.ends_at
        return self._uses[-1].ends_at if self._uses else now

    def rest(self, seconds: float) -> None:
        """Keep the share through a time in which the task did not write: it has learned nothing of
        the other writers."""
        self._changed += seconds
        self._restored += seconds

    def _current_share(self, now: float) -> float:
        if self._is_starting:
            if self._highest == 1.0:  # the usual case, and this is called for each part
                return 1.0
            doubled: float = 2.0 ** min(now - self._changed, 32.0)
            return min(1.0, self._highest * doubled)
        return min(1.0, self._highest * (1 + _GROWTH * (now - self._restored) ** 3))


Waiting = tuple[RecordRun, float | None]
"""Records, and the time of their first refusal, if any."""


@dataclass(slots=True)
class ShardQueue:
    """The records that wait for one shard."""

    pacer: ShardPacer
    count: int = 0
    """The number of records."""
    failures: int = 0
    """Refusals in a row."""
    not_before: float = float("-inf")
    """The end of the backoff after a refusal."""
    budget_at: float = float("-inf")
    """The time at which the pacer may allow more records."""
    _first: deque[Waiting] = field(default_factory=deque)
    """Records to send before the others: refused ones, and those that may follow in their key's
    order."""
    _fresh: deque[Waiting] = field(default_factory=deque)
    _added: int = 0
    """The number of runs that `_fresh` has received so far."""
    _taken: int = 0
    """The number of those that were taken."""
    _detached: int = 0
    """The number of those, from the first on, that no longer share memory, or were taken."""
    _ages: deque[int] = field(default_factory=lambda: deque([0] * (_SHARED_PARTS - 1)))
    """`_added` before each of the last parts of batches."""

    def add(self, run: RecordRun) -> None:
        """Queue records after all others."""
        self._fresh.append((run, None))
        self._added += 1
        self.count += run.count

    def age(self) -> None:
        """Copy the records of older parts of batches, before those of another are added: a few
        records of a slow shard would keep the memory of all records of their part."""
        self._ages.append(self._added)
        old = self._ages.popleft()
        for number in range(max(self._taken, self._detached), old):
            run, since = self._fresh[number - self._taken]
            self._fresh[number - self._taken] = run.detached(), since
        self._detached = max(self._detached, old)

    def add_first(self, run: RecordRun, since: float | None = None) -> None:
        """Queue records, first refused at a time, before those of `add`."""
        self._first.append((run, since))
        self.count += run.count

    def put_back(self, runs: Sequence[Waiting]) -> None:
        """Queue refused records before all others."""
        self._first.extendleft(reversed(runs))
        self.count += sum(run.count for run, _ in runs)

    @property
    def first_size(self) -> int:
        """The bytes of the next record; there is one."""
        run, _ = (self._first or self._fresh)[0]
        return int(run.sizes[1] - run.sizes[0])

    def take(self, count: int, allowed: int, room: int) -> list[Waiting]:
        """Remove up to `count` records of at most `allowed` bytes, and `room` in the request. A
        record over the shard's rate passes while the shard is idle."""
        taken: list[Waiting] = []
        left = min(allowed, room)
        while count and (source := self._first or self._fresh):
            run, since = source[0]
            fitting = run.fitting(count, left)
            if not fitting and not taken and self.pacer.is_idle and run.part(0, 1).size <= room:
                fitting = 1
            if not fitting:
                break
            part = run.part(0, fitting)
            taken.append((part, since))
            if fitting == run.count:
                source.popleft()
                self._taken += source is self._fresh
            else:
                source[0] = run.part(fitting, run.count), since
            count -= fitting
            left -= part.size
            self.count -= fitting
        return taken

    def take_all(self) -> list[Waiting]:
        """Remove all records."""
        everything = [*self._first, *self._fresh]
        self._first.clear()
        self._taken += len(self._fresh)
        self._fresh.clear()
        self.count = 0
        return everything


TARGET_S: Final = 2.0
"""The longest time in which a request should leave. It is short in comparison with `readTimeout`
(30 s) and with the five minutes for which a signature is valid, and long in comparison with round
trips, which leave the link unused."""
_FAST_S: Final = TARGET_S / 4
"""Requests that leave in half of it let the window double; in more, let it grow by less, so that
the last doubling does not go far beyond."""
_LEAST: Final = 32 << 10
"""The first and the least window, in bytes of data and keys. A process sends its first request by
botocore, for which `readTimeout` is a limit on the whole of it."""
_STEP: Final = 32 << 10
"""The growth of the window in each round of requests."""
_SHARP: Final = 0.25
_GENTLE: Final = (0.5, 0.9)
"""The factors of the window after a lost request; the least and the most after a slow one."""
_NEVER: Final = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A request that was sent, of `size` bytes, at the monotonic time `began`. `in_flight` are the
    bytes of the task's requests at that time, its own included."""

    began: float
    size: int
    in_flight: int
    seconds: float
    """The time that it took to leave."""
    is_measured: bool
    """False: `seconds` includes the time that the service took to answer."""
    is_cut: bool = False
    """True: `request_bytes` left out records that were waiting."""
    is_lost: bool = False
    """True: the connection broke, or nothing left or came for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkWindow:
    """The most bytes in flight of one task."""

    size: int = _LEAST
    reduced_at: float = _NEVER
    """The time of the last reduction: a request that was sent before is no reason for another."""

    @property
    def request_bytes(self) -> int:
        """The most bytes of a request: half of the window, so that one leaves while another is
        answered. A larger record is sent alone."""
        return self.size // 2

    def allows_request(self, in_flight: int) -> bool:
        """Return whether another request may be sent, with these bytes in flight."""
        return in_flight == 0 or in_flight + self.request_bytes <= self.size

    def after(self, upload: Upload, now: float) -> LinkWindow:
        """Return the window after a request was answered, or lost."""
        is_slow = upload.is_lost or upload.seconds > TARGET_S
        if is_slow:
            if not (upload.is_lost or upload.is_measured) or upload.began < self.reduced_at:
                return self
            least, most = _GENTLE
            left = _SHARP if upload.is_lost else min(most, max(least, TARGET_S / upload.seconds))
            return LinkWindow(size=max(_LEAST, int(self.size * left)), reduced_at=now)
        is_alone = upload.in_flight == upload.size
        if upload.in_flight * 2 < self.size and not (is_alone and upload.is_cut):
            return self
        step = _STEP / self.size
        doubling = 2 * (1 - upload.seconds / _FAST_S)
        growth = int(upload.size * min(1.0, max(step, doubling)))
        return replace(self, size=self.size + growth)
