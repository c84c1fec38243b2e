"""Waiting for a condition, with a deadline that is generous, since a machine may be slow."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    reached: Callable[[], bool], what: str, *, within_s: float = 60.0, poll_s: float = 0.02
) -> None:
    """Wait for a condition. Raises AssertionError, with `what`, if it is not reached in time."""
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(poll_s)
