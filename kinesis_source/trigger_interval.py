"""Derives the interval of a query's trigger, which Spark does not pass to a source.

A source only sees the start of a trigger: Spark calls it once before a batch and not after it. So
the time between two starts is either the interval or the duration of a batch. Spark starts the
triggers of an interval at multiples of it since the epoch, and a batch ends at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LATE_MS: Final = 2000
"""The maximum delay of the call in a trigger: Spark calls one source after the other."""
LATE_SHARE: Final = 50
"""At most 1/50 of the interval, or short batches would often count as an interval."""
_SECOND_MS: Final = 1000


class TriggerInterval:
    """The interval, derived from the starts of triggers. `time` is in seconds since the epoch, by
    the clock of the driver's machine."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._began: int | None = None
        self._supposed: int | None = None
        self._known_ms = 0

    def begin(self) -> int:
        """Record the start of a trigger; return the interval in milliseconds, 0 while it is
        unknown.

        Two successive times must agree, in whole seconds: one batch in hundreds ends at such a time
        by chance. A trigger that was delayed by its batch is ignored.
        """
        now = round(self._time() * 1000)
        before, self._began = self._began, now
        supposed = None if before is None else _multiple_of(now - before, now)
        if supposed is not None and supposed == self._supposed:
            self._known_ms = supposed
        self._supposed = supposed
        return self._known_ms


def _multiple_of(passed_ms: int, now_ms: int) -> int | None:
    """Return `passed_ms` in whole seconds if triggers of that interval start now."""
    interval_ms = round(passed_ms / _SECOND_MS) * _SECOND_MS
    late_ms = min(LATE_MS, interval_ms // LATE_SHARE)
    return interval_ms if interval_ms and now_ms % interval_ms <= late_ms else None
