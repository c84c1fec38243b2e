"""Deciding when a range's end, which the driver has seen, has failed to appear.

`MillisBehindLatest` is not taken at its word: a shard at its tip may answer a value above 0 now and
then, and an emulator may always do so. Only records count as progress, and a value lower than all
before it: that is what following empty pages towards the tip looks like.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kinesis_source.fetch_pacing import STALL_PATIENCE_MILLIS, TIP_PATIENCE_MILLIS

LONGEST_STEP_SECONDS: Final = 10.0
"""What the time from one page to the next counts for at most. It is longer where the service
throttles or memory is awaited, and that says nothing of the end."""


class Verdict(Enum):
    """What an empty page means for the wait for the end."""

    READ_ON = auto()
    NOT_AT_TIP = auto()
    """The shard's tip was reached long enough ago, and there is nothing more at it."""
    STALLED = auto()
    """Empty pages have not come nearer to the tip for long enough."""


@dataclass(slots=True)
class EndWatch:
    """The empty pages since the last record. Times are seconds since the first page, as far as they
    count."""

    empty_at_tip: int = 0
    """Pages without a record that were at the tip."""
    waited_millis: int = 0
    """How long the wait has lasted, at the last verdict."""
    _at_tip_since: float = 0.0
    _nearest: int | None = None
    _nearest_since: float = 0.0
    _judged: float | None = None
    """The monotonic time of the last verdict."""
    _time: float = 0.0

    def judge(self, records: int, millis_behind: int, now: float) -> Verdict:
        """Take note of a page of so many records at the monotonic time `now`, and decide."""
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
