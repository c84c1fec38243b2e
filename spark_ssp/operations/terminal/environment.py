"""The clock and the pauses of the commands. Tests give others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine, except for files and connections."""

    now_ms: Callable[[], int]
    """This machine's clock, in milliseconds since the epoch."""
    sleep: Callable[[float], None]
    """Waits, in seconds."""


SYSTEM = Environment(now_ms=lambda: time.time_ns() // 1_000_000, sleep=time.sleep)
