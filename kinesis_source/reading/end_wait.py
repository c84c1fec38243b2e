"""Decides when to stop waiting for a range's end, which the driver has seen.

`MillisBehindLatest` is not trusted: a shard at its tip may occasionally answer a value above 0, and
an emulator may always do so. Only records count as progress, and a value lower than all before it,
as when following empty pages towards the tip.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kinesis_source.reading.fetch_rate import STALL_PATIENCE_MILLIS, TIP_PATIENCE_MILLIS

LONGEST_STEP_SECONDS: Final = 10.0
"""The most that the time between two pages counts. It is longer if the service throttles or the
task waits for memory, which proves nothing about the end."""


class Verdict(Enum):
    """The effect of an empty page on the wait for the end."""

    READ_ON = auto()
    NOT_AT_TIP = auto()
    """The shard's tip was reached long enough ago, and no record followed."""
    STALLED = auto()
    """For long enough, empty pages have come no nearer to the tip."""


@dataclass(slots=True)
class EndWatch:
    """The empty pages since the last record. Times are seconds since the first page, as far as they
    count."""

    empty_at_tip: int = 0
    """Pages without a record that were at the tip."""
    waited_millis: int = 0
    """The duration of the wait at the last verdict."""
    _at_tip_since: float = 0.0
    _nearest: int | None = None
    _nearest_since: float = 0.0
    _judged: float | None = None
    """The monotonic time of the last verdict."""
    _time: float = 0.0

    def judge(self, records: int, millis_behind: int, now: float) -> Verdict:
        """Note a page with this number of records at the monotonic time `now`, and decide."""
        if self._judged is not None:
            self._time += min(now - self._judged, LONGEST_STEP_SECONDS)
        self._judged = now
        if records:
            self.empty_at_tip = 0
            self._nearest = None
            return Verdict.READ_ON
        if self._nearest is None or millis_behind < self._nearest:
            self._nearest, self._nearest_since = millis_behind, self._time
        if millis_behind > 0:
            self.waited_millis = round((self._time - self._nearest_since) * 1000)
            stalled = self.waited_millis >= STALL_PATIENCE_MILLIS
            return Verdict.STALLED if stalled else Verdict.READ_ON
        if self.empty_at_tip == 0:
            self._at_tip_since = self._time
        self.empty_at_tip += 1
        self.waited_millis = round((self._time - self._at_tip_since) * 1000)
        done = self.waited_millis >= TIP_PATIENCE_MILLIS
        return Verdict.NOT_AT_TIP if done else Verdict.READ_ON
