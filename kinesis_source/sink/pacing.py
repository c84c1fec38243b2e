"""Paces the records of one task to one shard, within the shard's limits and below what the service
throttles: additive increase, multiplicative decrease."""

from __future__ import annotations

from collections import deque
from typing import Final

RECORDS_PER_SECOND: Final = 1_000
BYTES_PER_SECOND: Final = 1 << 20
"""The limits of a shard for all its writers together (Kinesis API reference, PutRecords)."""

_WINDOW_S: Final = 1.05
"""Over a second, since requests reach the service in less regular intervals than they leave."""
_DECREASE: Final = (0.3, 0.85)
"""The least and the most that is left of a share after throttling; else the part of the records
that was stored."""
_INCREASE_PER_S: Final = 0.01
_PATIENCE_S: Final = 30.0
_LATER_INCREASE_PER_S: Final = 0.05
"""After that time without throttling the other writers have probably ended."""
_SMALLEST_SHARE: Final = 0.005
_PART: Final = 4
"""A shard that is behind is served this often per second: smaller parts make more requests."""


class ShardPacer:
    """The use of one shard (or of `shards` together) by this task within the last second.

    Times are in seconds of a monotonic clock. The share of the shard's limits that the task uses
    starts at all of it; the service's throttling makes room for the other writers.
    """

    __slots__ = ("_bytes", "_changed", "_limits", "_records", "_share", "_uses")

    def __init__(self, now: float, *, shards: int = 1) -> None:
        self._limits = (RECORDS_PER_SECOND * shards, BYTES_PER_SECOND * shards)
        self._share = 1.0
        self._changed = now
        self._uses: deque[tuple[float, int, int]] = deque()
        """The end of each use, its records and bytes."""
        self._records = 0
        self._bytes = 0

    def budget(self, now: float) -> tuple[int, int]:
        """Return how many records and bytes may be sent now. If nothing was sent within the last
        second, one record is allowed whatever its size: then `is_idle` is true."""
        uses = self._uses
        while uses and uses[0][0] <= now:
            _, records, size = uses.popleft()
            self._records -= records
            self._bytes -= size
        share = self._current_share(now)
        records, size = self._limits
        return (
            max(1, int(records * share)) - self._records,
            max(1, int(size * share)) - self._bytes,
        )

    @property
    def is_idle(self) -> bool:
        """True if nothing was sent within the last second, as of the last `budget`."""
        return not self._uses

    def part(self, now: float) -> int:
        """Return the number of records for which a request is made if more are waiting."""
        return max(1, int(self._limits[0] * self._current_share(now)) // _PART)

    def sent(self, now: float, records: int, size: int) -> None:
        """Count what is being sent, for a second, or as long as the rate takes for a larger one."""
        seconds = _WINDOW_S * max(1.0, size / self._limits[1])
        self._uses.append((now + seconds, records, size))
        self._records += records
        self._bytes += size

    def throttled(self, now: float, stored: float) -> None:
        """Use a smaller share, at most once in a second: the records of several requests in flight
        are throttled for one reason. `stored` is the part of the records that was stored."""
        if self._share < 1.0 and now - self._changed < _WINDOW_S:
            return
        least, most = _DECREASE
        left = self._current_share(now) * min(most, max(least, stored))
        self._share = max(_SMALLEST_SHARE, left)
        self._changed = now

    def next_budget(self, now: float, records: int) -> float:
        """Return when the budget has grown by this number of records, or nothing is in use."""
        freed = 0
        for end, used, _ in self._uses:
            freed += used
            if freed >= records:
                return end
        return self._uses[-1][0] if self._uses else now

    def _current_share(self, now: float) -> float:
        seconds = now - self._changed
        later = max(0.0, seconds - _PATIENCE_S) * _LATER_INCREASE_PER_S
        return min(1.0, self._share + seconds * _INCREASE_PER_S + later)
