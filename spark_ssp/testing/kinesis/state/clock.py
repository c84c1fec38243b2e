"""Clocks: everything in this package that depends on time reads one of these."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The service's clock."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01T00:00:00Z."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that only moves by `advance` and `set`. Thread-safe."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, milliseconds: int) -> int:
        """Move by `milliseconds` (negative: backwards, as real clocks do); return the new time."""
        with self._lock:
            self._now_ms += milliseconds
            return self._now_ms

    def set(self, now_ms: int) -> None:
        """Jump to `now_ms`."""
        with self._lock:
            self._now_ms = now_ms


class FunctionClock:
    """A clock that calls a function of epoch milliseconds."""

    def __init__(self, function: Callable[[], int]) -> None:
        self._function = function

    def now_ms(self) -> int:
        return self._function()


def as_clock(clock: Clock | Callable[[], int] | None) -> Clock:
    """Return a `Clock` for a clock, a function of epoch milliseconds, or None (the machine's)."""
    if clock is None:
        return SystemClock()
    if hasattr(clock, "now_ms"):
        return clock
    return FunctionClock(clock)
