"""Limits how often the driver probes a shard.

A shard answers five GetRecords a second, for all its consumers together (Kinesis API reference). A
query takes `SHARE` of them, the driver's probes and its tasks' fetches together: each call is
followed by the time in which the query's share allows one, and by `minFetchPeriod` at least. A
shorter `minFetchPeriod` takes a larger share.

A shard is *starved* if other readers use up its GetRecords while enhanced fan-out pushes its
records to this query: their ends are found by GetRecords, of which few succeed. So a throttled
probe is repeated within the trigger, at most `RETRIES` times, and the first call that succeeds
finds an end near the latest record (`batch_end_probe.probe_starved`). So is one of a shard that
would end the batch in all others (`alignment.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import BYTES_PER_SECOND, MAX_PAGE_BYTES
from spark_ssp.kinesis_source.model.ranges import ExpectedSize

T = TypeVar("T")

CALLS_PER_SECOND = 5
SHARE = 0.595
"""The share of a shard's calls for one query: a second query can use most of the rest, and a third
one is throttled."""
BLOCK_SLACK_S = 0.08
"""The shortest time between planning a batch and the answer to a task's fetch."""
LONGEST_SLEEP_S = 1.0
"""Spark can only end the query between two sleeps."""
THROTTLED_PERIOD_MS = 1000
"""The longest pause after a probe that was throttled; the first is half as long."""
RETRY_AFTER_FAULTS = 3
"""After this number of probes in a row that met faults, one is made that retries, and fails the
query if that does not help. Throttling does not count."""


def count_fetches(expected: ExpectedSize | None, most: int) -> tuple[int, int]:
    """Return the least number of GetRecords of at most `most` records that a task makes for one
    shard of a batch, and the bytes that they return."""
    if expected is None:
        return 1, 0
    size = expected.size_bytes or 0
    return max(1, -(-expected.records // most), -(-size // MAX_PAGE_BYTES)), size


class ProbeRateLimiter:
    """The time when each shard may be probed next. `monotonic` and `sleep` are in seconds.
    `enforced`: the service enforces its read rate; one on this machine may not, until it
    throttles."""

    def __init__(
        self,
        *,
        period_ms: int,
        enforced: bool = True,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._period = period_ms / 1000
        self._call = min(self._period, 1 / (SHARE * CALLS_PER_SECOND))
        self._enforced = enforced
        self._monotonic = monotonic
        self._sleep = sleep
        self._due: dict[ShardKey, float] = {}
        self._share_at: dict[ShardKey, float] = {}
        """The time when the calls made so far are within the query's share."""
        self._free: dict[ShardKey, float] = {}
        """The time when the shard has read rate left after the batch planned last."""
        self._answers: dict[ShardKey, deque[tuple[float, int]]] = {}
        """The size of the answers of the last second, or longer if they block the shard for longer,
        each with the time when it no longer counts."""
        self._paused: dict[ShardKey, float] = {}
        """The end of the pause of each shard whose last probe was throttled; not `minFetchPeriod`.
        """
        self._faults: dict[ShardKey, int] = {}

    def is_due(self, key: ShardKey) -> bool:
        """Return whether the shard may be probed now."""
        return self._due.get(key, float("-inf")) <= self._monotonic()

    def is_paused(self, key: ShardKey) -> bool:
        """Return whether the shard was throttled so recently that another probe would be in vain,
        whatever `minFetchPeriod` is."""
        return self._paused.get(key, float("-inf")) > self._monotonic()

    def wait(self, keys: Collection[ShardKey], *, for_all: bool = False) -> bool:
        """Sleep until one of the shards may be probed, or all of them; otherwise Spark calls again
        immediately. Never for long: Spark can only end the query in between. Return whether the
        time was long enough."""
        if not keys:
            return True
        due = (self._due.get(key, float("-inf")) for key in keys)
        left = (max(due) if for_all else min(due)) - self._monotonic()
        if left > 0:
            self._sleep(min(left, LONGEST_SLEEP_S))
        return left <= LONGEST_SLEEP_S

    def wait_for_tasks(self, keys: Collection[ShardKey]) -> None:
        """Sleep until the shards answer tasks again, which may be seconds after a page that was
        larger than expected. A task that is throttled would wait longer than that."""
        now = self._monotonic()
        delay = max((self._readable_at(key, now) - now for key in keys), default=0.0)
        if delay > 0 and self._enforced:
            self._sleep(delay)

    def record_probe(self, key: ShardKey, *, calls: int, size: int = 0) -> None:
        """Record a probe with its number of GetRecords calls and the bytes that they returned."""
        now = self._monotonic()
        share_at = self._count_calls(key, calls, now)
        free = self._free[key] = now + self._seconds(size)
        self._count_bytes(key, size, now)
        self._due[key] = max(now + self._period, share_at, free)
        self._faults.pop(key, None)
        self._paused.pop(key, None)

    def reserve_reads(self, key: ShardKey, *, calls: int, size: int) -> None:
        """Record the GetRecords calls that tasks will make for a result, and the bytes that they
        fetch. A response above the read rate blocks the shard until it is paid for."""
        due = self._due.get(key)
        if due is not None:
            now = self._monotonic()
            share_at = self._count_calls(key, calls, now)
            free = self._free[key] = self._free[key] + self._seconds(size)
            self._count_bytes(key, size, now)
            slack = BLOCK_SLACK_S if size > BYTES_PER_SECOND else 0
            self._due[key] = max(due, share_at, free + slack)

    def record_throttle(self, key: ShardKey) -> None:
        """Record a probe that was throttled: pause probes of the shard for a while."""
        self._enforced = True
        self.count_calls(key, 1)
        now = self._free[key] = self._monotonic()
        pause = THROTTLED_PERIOD_MS / 1000
        if key not in self._paused:
            pause /= 2
        self._paused[key] = now + pause
        self._due[key] = max(now + self._period, now + pause, self._share_at[key])

    def _seconds(self, size: int) -> float:
        """Return how long this number of bytes uses up a shard's read rate."""
        return size / BYTES_PER_SECOND if self._enforced else 0.0

    def _count_bytes(self, key: ShardKey, size: int, now: float) -> None:
        if size:
            answers = self._answers.get(key)
            if answers is None:  # an empty deque, made in vain for each call, takes 600 bytes
                answers = self._answers[key] = deque()
            while answers and answers[0][0] <= now:
                answers.popleft()
            answers.append((now + max(1.0, size / BYTES_PER_SECOND), size))

    def _readable_at(self, key: ShardKey, now: float) -> float:
        """Return the time when the answers of a second are below the shard's read rate."""
        ends = [(end, size) for end, size in self._answers.get(key, ()) if end > now]
        total = sum(size for _, size in ends)
        until = now
        for end, size in sorted(ends):
            if total < BYTES_PER_SECOND:
                break
            until = end
            total -= size
        return until

    def count_calls(self, key: ShardKey, calls: int) -> None:
        """Count calls of GetRecords against the query's share. An unused share is kept for a
        second."""
        self._count_calls(key, calls, self._monotonic())

    def record_check(self, key: ShardKey, *, calls: int) -> None:
        """Record a check that a probe follows at once, also if it was throttled before it was
        answered."""
        self.count_calls(key, calls)
        if self._paused.pop(key, None) is not None:
            del self._due[key]

    def _count_calls(self, key: ShardKey, calls: int, now: float) -> float:
        """Return the time when the calls are within the share."""
        since = max(self._share_at.get(key, now), now - LONGEST_SLEEP_S)
        share_at = self._share_at[key] = since + calls * self._call
        return share_at

    def record_failure(self, key: ShardKey) -> None:
        """Record a probe that met a fault."""
        self.record_throttle(key)
        self._faults[key] = self._faults.get(key, 0) + 1

    def is_retry_due(self, key: ShardKey) -> bool:
        """Return whether the next probe of the shard should retry, and report a failure."""
        return self._faults.get(key, 0) >= RETRY_AFTER_FAULTS

    def retain(self, keys: Collection[ShardKey]) -> None:
        """Drop the state of shards not among `keys`."""
        tables = self._due, self._share_at, self._free, self._answers, self._paused, self._faults
        for table in tables:
            for key in [key for key in table if key not in keys]:
                del table[key]


STARVED_S: Final = 60.0
"""The time after a throttled probe in which a shard counts as starved."""
RETRIES: Final = 20
PAUSE_S: Final = 0.1


class StarvedShards:
    """The shards of one query whose probes were throttled in the last minute. They count as starved
    if that is `enabled`. `monotonic` and `sleep` are in seconds."""

    def __init__(
        self, *, enabled: bool, monotonic: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._enabled = enabled
        self._monotonic = monotonic
        self._sleep = sleep
        self._throttled: dict[ShardKey, float] = {}
        self._without_answer: set[ShardKey] = set()
        """The shards whose last probe has no result because it was throttled."""

    def __contains__(self, key: ShardKey) -> bool:
        throttled = self._throttled.get(key) if self._enabled else None
        return throttled is not None and self._monotonic() - throttled < STARVED_S

    def record_probe(self, key: ShardKey, *, throttled: bool, failed: bool) -> None:
        """Record a probe that was throttled or not; one that was may have a result."""
        if throttled:
            self._throttled[key] = self._monotonic()
        if throttled and failed:
            self._without_answer.add(key)
        else:
            self._without_answer.discard(key)

    def repeat(
        self,
        keys: Collection[ShardKey],
        results: dict[ShardKey, T],
        probe_again: Callable[[Sequence[ShardKey]], Mapping[ShardKey, T]],
    ) -> None:
        """Probe those of the shards again that have no result because they were throttled; add the
        results. A probe that failed otherwise, as one that was refused, is left to a later trigger.
        """
        for _ in range(RETRIES):
            missing = [key for key in keys if key not in results and key in self._without_answer]
            if not missing:
                return
            self._sleep(PAUSE_S)
            results.update(probe_again(missing))

    def retain(self, keys: Collection[ShardKey]) -> None:
        """Drop shards not among `keys`."""
        self._throttled = {key: at for key, at in self._throttled.items() if key in keys}
        self._without_answer.intersection_update(keys)
