"""A clock for services under test."""

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
