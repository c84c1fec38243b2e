"""The clock of this machine, which everything else takes as an argument."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
