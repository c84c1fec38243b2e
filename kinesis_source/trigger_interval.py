"""The interval of a query's trigger, which Spark does not pass to a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

IDLE_S: Final = 1.0
"""Spark waits for less than this from one batch to the next, if it does not wait for the time."""


class TriggerInterval:
    """What shows of the interval. A batch that takes longer than it tells nothing: Spark plans the
    next one at once. `monotonic` is in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began: float | None = None
        self._finished: float | None = None
        self._longest_ms = 0

    def begin(self) -> int:
        """Note that a trigger begins; the longest interval so far in milliseconds, 0 for none."""
        now = self._monotonic()
        waited = self._finished is not None and now - self._finished >= IDLE_S
        if waited and self._began is not None:
            self._longest_ms = max(self._longest_ms, round((now - self._began) * 1000))
        self._began = now
        return self._longest_ms

    def finish(self) -> None:
        """Note that a trigger is over: its batch, if there was one, is committed."""
        self._finished = self._monotonic()
