"""Waiting for conditions, and work in the background of a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self


def until(
    reached: Callable[[], bool], what: str, *, within_s: float = 60.0, poll_s: float = 0.02
) -> None:
    """Wait for a condition. Raises AssertionError, with `what`, if it is not reached in time."""
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(poll_s)


class Background:
    """A thread that calls `work` again and again, `pause_s` seconds after the last call, until the
    block ends. Its failure fails the block."""

    def __init__(self, work: Callable[[], object], pause_s: float) -> None:
        self._work = work
        self._pause_s = pause_s
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)

    @property
    def alive(self) -> bool:
        """Return whether it still runs; False after a failure."""
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop, and return after the last call has. Raises the exception of `work`."""
        self._ending.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._pause_s):
                self._work()
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            self._failure = error
