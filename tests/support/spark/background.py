"""Background activity of a test: arriving records, changing streams, watched tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self


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
