"""A clock for services under test."""

from __future__ import annotations

import time


class ShiftedClock:
    """The machine's clock, which can be moved forward."""

    def __init__(self) -> None:
        self._shift_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._shift_ms

    def advance(self, milliseconds: int) -> None:
        self._shift_ms += milliseconds
