"""The time of a simulated world, of which the threads that read may be ahead.

A reader waits, for its pace or for a record that is hidden still, and the service shows more as
time goes by. With one clock for all threads what a thread is shown would depend on how the others
happen to run. So each thread that reads has a clock of its own, which starts at the world's time
and which the service goes by when that thread asks. After the read the world has come to the time
of the thread that waited longest.
"""

from __future__ import annotations

import threading

from embedded_kinesis.core.clock import ManualClock
from kinesis_source.reading.clock import Clock

MEETING_SECONDS = 60
"""So long, by the real clock, a thread waits for the others to start."""


class SimulatedClock(ManualClock):
    """A manual clock; `wait` moves it for the calling thread alone."""

    def __init__(self) -> None:
        super().__init__()
        self._own = threading.local()

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms()

    def ahead_ms(self) -> int:
        """How far the calling thread is ahead of the world."""
        return int(getattr(self._own, "ahead_ms", 0))

    def wait(self, seconds: float) -> None:
        """Let the time of the calling thread go by. Rounded up: never shorter than asked for."""
        self._own.ahead_ms = self.ahead_ms() + int(seconds * 1000) + 1


class ReadingTime:
    """The waits of one read, in which each shard has a thread of its own.

    The threads meet before the first of them goes on, so that none is done early enough to take
    the next shard as well: a shard's time is to come of its own waits only.
    """

    def __init__(self, clock: SimulatedClock, shards: int) -> None:
        self._clock = clock
        self._meeting = threading.Barrier(shards)
        self._own = threading.local()
        self._lock = threading.Lock()
        self.longest_ms = 0
        """How long the thread waited that waited longest."""

    @property
    def clock(self) -> Clock:
        """To be handed to the reader. Chance always gives 0."""
        return Clock(monotonic=self._monotonic, wait=self._wait, random=lambda: 0.0)

    def _monotonic(self) -> float:
        if not hasattr(self._own, "met"):
            self._meeting.wait(MEETING_SECONDS)
            self._own.met = True
        return self._clock.now_ms() / 1000

    def _wait(self, stopping: threading.Event, seconds: float) -> None:
        self._clock.wait(seconds)
        with self._lock:
            self.longest_ms = max(self.longest_ms, self._clock.ahead_ms())
