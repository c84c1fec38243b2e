"""The time of a simulated world, of which the threads that read may be ahead.

A reader waits, for its rate or for a record that is still hidden, and the service shows more as
time passes. With one clock for all threads the records shown to a thread would depend on the
scheduling of the others. So each reading thread has a clock, which starts at the world's time and
which the service uses for that thread's requests. After the read the world advances to the time of
the thread that waited longest.
"""

from __future__ import annotations

import threading

from spark_ssp.kinesis_source.reading.shard_retry import Clock
from spark_ssp.testing.kinesis.core.clock import ManualClock

MEETING_SECONDS = 60
"""The longest real time that a thread waits for the others to start."""


class SimulatedClock(ManualClock):
    """A manual clock; `wait` moves it only for the calling thread."""

    def __init__(self) -> None:
        super().__init__()
        self._own = threading.local()

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms()

    def ahead_ms(self) -> int:
        """Return how far the calling thread is ahead of the world."""
        return int(getattr(self._own, "ahead_ms", 0))

    def wait(self, seconds: float) -> None:
        """Advance the time of the calling thread. Rounded up: never shorter than requested."""
        self._own.ahead_ms = self.ahead_ms() + int(seconds * 1000) + 1


class ReadingTime:
    """The waits of one read, in which each shard has a thread.

    The threads meet before the first of them continues, so that none ends early enough to take the
    next shard as well: a shard's time must come only from its own waits.
    """

    def __init__(self, clock: SimulatedClock, shards: int) -> None:
        self._clock = clock
        self._meeting = threading.Barrier(shards)
        self._own = threading.local()
        self._lock = threading.Lock()
        self.longest_ms = 0
        """The longest wait of a thread."""

    @property
    def clock(self) -> Clock:
        """Return the clock for the reader. Its random numbers are 0."""
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
