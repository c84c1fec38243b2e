"""Decides when to stop waiting for a range's end, which the driver has seen.

`MillisBehindLatest` is not trusted: a shard without further records may occasionally return a value
above 0, and an emulator may always do so. Only records count as progress, and a value lower than
all before it, as when empty pages are followed towards the latest record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from spark_ssp.kinesis_source.reading.fetch_rate import END_TIMEOUT_MS, STALL_TIMEOUT_MS

LONGEST_STEP_S: Final = 10.0
"""The most that the time between two pages counts. It is longer if the service throttles or the
task waits for memory, which proves nothing about the end."""


class WaitResult(Enum):
    """The effect of an empty page on the wait for the end."""

    CONTINUE = auto()
    END_MISSING = auto()
    """The latest record was reached long enough ago, and no record followed."""
    STALLED = auto()
    """For long enough, empty pages have come no nearer to the latest record."""


@dataclass(slots=True)
class EndWait:
    """The empty pages since the last record. Times are seconds since the first page, of which steps
    longer than `LONGEST_STEP_S` count only in part."""

    empty_at_latest: int = 0
    """Pages without a record whose `MillisBehindLatest` was 0."""
    waited_ms: int = 0
    """The duration of the wait at the last page."""
    _at_latest_since: float = 0.0
    _nearest: int | None = None
    _nearest_since: float = 0.0
    _last_page_at: float | None = None
    """The monotonic time of the last page."""
    _time: float = 0.0

    def record_page(self, records: int, behind_ms: int, now: float) -> WaitResult:
        """Record a page with this number of records at the monotonic time `now`, and decide."""
        if self._last_page_at is not None:
            self._time += min(now - self._last_page_at, LONGEST_STEP_S)
        self._last_page_at = now
        if records:
            self.empty_at_latest = 0
            self._nearest = None
            return WaitResult.CONTINUE
        if self._nearest is None or behind_ms < self._nearest:
            self._nearest, self._nearest_since = behind_ms, self._time
        if behind_ms > 0:
            self.waited_ms = round((self._time - self._nearest_since) * 1000)
            stalled = self.waited_ms >= STALL_TIMEOUT_MS
            return WaitResult.STALLED if stalled else WaitResult.CONTINUE
        if self.empty_at_latest == 0:
            self._at_latest_since = self._time
        self.empty_at_latest += 1
        self.waited_ms = round((self._time - self._at_latest_since) * 1000)
        done = self.waited_ms >= END_TIMEOUT_MS
        return WaitResult.END_MISSING if done else WaitResult.CONTINUE
