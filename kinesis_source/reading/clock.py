"""The clock, the waits and the randomness that reading uses; tests replace them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """`monotonic` is in seconds; `wait` returns after that many seconds or once the event is set;
    `random` is uniform in [0, 1)."""

    monotonic: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], object] = threading.Event.wait
    random: Callable[[], float] = random.random


SYSTEM_CLOCK = Clock()
