"""Clocks for services under test, and for code that waits."""

from __future__ import annotations

import time


class RealClock:
    """The machine's clock, for a service whose clock cannot be moved."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def advance(self, milliseconds: int) -> None:
        """Wait."""
        time.sleep(milliseconds / 1000)


class ShiftedClock:
    """The machine's clock, which can be moved forward."""

    def __init__(self) -> None:
        self._shift_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._shift_ms

    def advance(self, milliseconds: int) -> None:
        self._shift_ms += milliseconds


class ManualTime:
    """A clock in seconds that a test sets or a sleep advances."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
