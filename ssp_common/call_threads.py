"""Threads for many short calls of a service, each of which takes its next call itself.

A pool hands each call to a thread, and each result back. Between threads of Python that costs as
much as the rest of a small request, so here a thread that has made a call also uses its result, and
goes on with the next call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar

_log: Final = logging.getLogger(f"spark_ssp.{__name__}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A call to make: `make` at the same time as others, and then `use` with its result, under the
    lock of the threads."""

    make: Callable[[], T]
    use: Callable[[T], None]


NextCall = Callable[[], "Call[Any] | float"]
"""Returns the next call, or the seconds to wait for one if nothing changes before."""


class CallThreads:
    """Makes the calls that `next_call` returns: another one when the last has ended, or has lasted
    for `interval` seconds, up to `most` at a time. So a fast service is called by one thread.

    `next_call` and the functions `use` run one at a time, under a lock, as does the body of
    `changing`: what they share needs no other lock. Of the threads that are idle, one waits until
    it is time for the next call (the leader), and the others until it has taken one. Threads start
    when they are needed.

    An error in a thread ends all of them; `changing` and `wait_until` raise it. Leaving the context
    waits for the calls that are under way.
    """

    def __init__(
        self,
        next_call: NextCall,
        *,
        interval: float,
        most: int,
        name: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._next_call = next_call
        self._interval = interval
        self._most = most
        self._name = name
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._leader = threading.Condition(self._lock)
        self._leader_until: float | None = None
        """The time until which the leader waits; None if there is no leader."""
        self._others = threading.Condition(self._lock)
        self._idle = 0
        """The number of other idle threads."""
        self._owner = threading.Condition(self._lock)
        self._awaited: Callable[[], bool] | None = None
        """The condition that the owner waits for."""
        self._threads: list[threading.Thread] = []
        self._running = 0
        """The number of calls under way."""
        self._last_start = 0.0
        self._is_ended = False
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._end()
        for thread in self._threads:
            thread.join()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock for a change after which there may be another next call."""
        with self._lock:
            self._raise_error()
            yield
            self._look_by(self._monotonic())

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, which may change with each use of a result."""
        with self._lock:
            self._raise_error()
            self._awaited = condition
            while not condition():
                self._owner.wait()
                self._raise_error()
            self._awaited = None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # --- Under the lock --------------------------------------------------------------------------

    def _end(self) -> None:
        self._is_ended = True
        self._leader.notify()
        self._others.notify_all()

    def _look_by(self, time: float) -> None:
        """Let an idle thread look for the next call at a time, or earlier."""
        if self._leader_until is not None:
            if time < self._leader_until:
                self._leader.notify()
        elif self._idle:
            self._others.notify()
        elif len(self._threads) < self._most:
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
            self._threads[-1].start()
        # Else all are busy, or about to look.

    def _take(self) -> Call[Any] | None:
        """Return the next call when it is time for it; None at the end."""
        while not self._is_ended:
            now = self._monotonic()
            wait = self._last_start + self._interval - now if self._running else 0.0
            if wait <= 0:
                found = self._next_call()
                if isinstance(found, Call):
                    self._running += 1
                    self._last_start = now
                    self._look_by(now + self._interval)
                    return found
                wait = found
            self._wait(now + wait, wait)
        return None

    def _wait(self, until: float, seconds: float) -> None:
        if self._leader_until is None:
            self._leader_until = until
            self._leader.wait(min(seconds, threading.TIMEOUT_MAX))
            self._leader_until = None
            return
        self._look_by(until)
        self._idle += 1
        self._others.wait()
        self._idle -= 1

    # --- Threads ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._lock:
                call = self._take()
            while call is not None:
                result = call.make()
                with self._lock:
                    self._running -= 1
                    call.use(result)
                    if self._awaited is not None and self._awaited():
                        self._owner.notify()
                    call = self._take()
        except BaseException as error:  # noqa: BLE001 - raised in the owner's thread
            with self._lock:
                if self._is_ended:
                    _log.warning("%s: %s after the end", self._name, type(error).__name__)
                else:
                    self._error = error
                self._end()
                self._owner.notify()
