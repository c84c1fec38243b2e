"""Estimates the service's clock. The estimate is never ahead of it.

Each HTTP response has a `Date` header, the service's clock in whole seconds, rounded down. At the
time `received` of a response that was requested at local time `requested_at`, the service's clock
was at least `Date`, and less than `Date` + 1 s + (`received` - `requested_at`). The estimate
advances with the local monotonic clock, slowed by more than clocks drift, and each response moves
it into those bounds. It approaches the true time from below, since responses are sent at different
fractions of a second, and follows a service clock that is set back.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from spark_ssp.kinesis_source.model.shard import EpochMillis

_DRIFT: Final = 0.0005
"""500 parts per million: the most that NTP slews a clock by; quartz drifts by a tenth of that."""

_SECOND_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """A lower bound `epoch_ms` of the service's clock at the local monotonic time `local_s`."""

    epoch_ms: float
    local_s: float

    def at(self, local_s: float) -> float:
        """Return a lower bound of the service's clock at `local_s`, before or after the reading."""
        elapsed = (local_s - self.local_s) * _SECOND_MS
        return self.epoch_ms + elapsed * (1 - _DRIFT if elapsed > 0 else 1 + _DRIFT)


def update_estimate(
    known: ClockReading | None, *, date: EpochMillis, requested_at: float, received: float
) -> ClockReading:
    """Return the estimate after a response with that `Date`. Responses may come in any order."""
    if known is None:
        return ClockReading(epoch_ms=date, local_s=received)
    local_s = max(received, known.local_s)
    lowest = ClockReading(epoch_ms=date, local_s=received).at(local_s)
    highest = date + _SECOND_MS + (local_s - requested_at) * _SECOND_MS * (1 + _DRIFT)
    return ClockReading(epoch_ms=min(max(known.at(local_s), lowest), highest), local_s=local_s)


class ServerClock:
    """The latest estimate, shared by the threads of a client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading: ClockReading | None = None
        self._date: EpochMillis | None = None

    def record(self, date: EpochMillis, *, requested_at: float, received: float) -> EpochMillis:
        """Record a response; return a time that the service had reached when it responded.

        That is earlier than its time when the response was received: records that arrive at the
        service while the response is transferred must not look older than the response.
        """
        with self._lock:
            self._reading = update_estimate(
                self._reading, date=date, requested_at=requested_at, received=received
            )
            self._date = date
            return EpochMillis(max(date, int(self._reading.at(requested_at))))

    def now(self, local_s: float) -> EpochMillis | None:
        """Return the estimate at local time `local_s`; None before any response."""
        with self._lock:
            return None if self._reading is None else EpochMillis(int(self._reading.at(local_s)))

    def last_date(self) -> EpochMillis | None:
        """Return the last `Date`: behind the estimate, but certainly reached by the service."""
        with self._lock:
            return self._date
