"""The clock, the waiting and the chance that reading uses, handed in from outside."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """`monotonic` in seconds; `wait` returns after so many seconds or once the event is set;
    `random` is uniform in [0, 1)."""

    monotonic: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], object] = threading.Event.wait
    random: Callable[[], float] = random.random


SYSTEM_CLOCK = Clock()
