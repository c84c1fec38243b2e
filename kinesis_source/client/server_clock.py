"""An estimate of the service's clock that is never ahead of it.

Every answer over HTTP carries `Date`, the service's clock cut to whole seconds. So an answer that
was asked for at local time `asked` and was there at `received` says two things about the service's
clock at `received`: it was at least `Date`, and less than `Date` + 1 s + (`received` - `asked`).
The estimate runs on with the local monotonic clock, slowed by more than clocks drift, and each
answer moves it into those bounds. So it nears the truth from below as answers fall on different
parts of a second, and a service clock that steps back takes the estimate with it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from kinesis_source.model.shard import EpochMillis

_DRIFT: Final = 0.0005
"""500 parts per million: the most that NTP slews a clock by; quartz drifts by a tenth of that."""

_SECOND: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The service's clock was at least `millis` at the local monotonic time `moment` (seconds)."""

    millis: float
    moment: float

    def at(self, moment: float) -> float:
        """A lower bound of the service's clock at `moment`, before or after the reading."""
        elapsed = (moment - self.moment) * _SECOND
        return self.millis + elapsed * (1 - _DRIFT if elapsed > 0 else 1 + _DRIFT)


def advance(known: Reading | None, *, date: EpochMillis, asked: float, received: float) -> Reading:
    """What is known after an answer with that `Date`; answers may be told of in any order."""
    if known is None:
        return Reading(millis=date, moment=received)
    moment = max(received, known.moment)
    lowest = Reading(millis=date, moment=received).at(moment)
    highest = date + _SECOND + (moment - asked) * _SECOND * (1 + _DRIFT)
    return Reading(millis=min(max(known.at(moment), lowest), highest), moment=moment)


class ServiceClock:
    """The latest reading, shared by the threads of a client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading: Reading | None = None
        self._date: EpochMillis | None = None

    def hear(self, date: EpochMillis, *, asked: float, received: float) -> EpochMillis:
        """Take in an answer; return a time that the service had reached when it answered.

        That is not the same as its time when the answer was here: what arrived at the service
        while the answer was under way must not look older than the answer.
        """
        with self._lock:
            self._reading = advance(self._reading, date=date, asked=asked, received=received)
            self._date = date
            return EpochMillis(max(date, int(self._reading.at(asked))))

    def now(self, moment: float) -> EpochMillis | None:
        """The service's time at the local `moment`, never ahead of it; None before any answer."""
        with self._lock:
            return None if self._reading is None else EpochMillis(int(self._reading.at(moment)))

    def last_date(self) -> EpochMillis | None:
        """The last `Date` as it was: behind the estimate, but surely reached by the service."""
        with self._lock:
            return self._date
