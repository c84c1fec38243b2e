"""Threads that make many short calls of a service, and take their next call themselves.

A pool hands each call to a thread, and each result back to the thread that submits calls. In Python
that costs a tenth of the processor time of a task that sends small requests. Here the thread that
has made a call also uses its result, and goes on with the next call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar

from spark_ssp.common.errors import SspError

_log: Final = logging.getLogger(__name__)

_NOW: Final = float("-inf")

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
    """Makes the calls that `next_call` returns, up to `most` at a time.

    A fast service is called by one thread: the next call is made when none is under way, when a
    call has ended that took `interval` seconds or longer, or `interval` seconds after the last was
    started.

    `next_call` and the functions `use` run one at a time, under a lock, as does the body of
    `changing`: what they share needs no other lock. Of the idle threads, the leader waits until it
    is time for the next call, and the followers wait to become leader. Threads start when they are
    needed.

    The owner is the thread that enters the context; it calls `changing` and `wait_until`, which
    raise the error of a thread. An error ends all threads. Leaving the context waits for the calls
    that are under way, and logs an error that was not raised.
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
        self._followers = threading.Condition(self._lock)
        self._following = 0
        """The number of followers."""
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

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with self._lock:
            self._end()
        for thread in self._threads:
            thread.join()
        lost = self._error
        if lost is not None and lost is not error:
            # Only the text of our errors is free of data and credentials.
            text = lost if isinstance(lost, SspError) else type(lost).__name__
            _log.warning("%s: an error that nothing has waited for: %s", self._name, text)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock for a change after which there may be another next call."""
        with self._lock:
            self._raise_error()
            yield
            self._look_by(_NOW)

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
        self._followers.notify_all()

    def _look_by(self, until: float) -> None:
        """Let an idle thread look for the next call at a time, or earlier."""
        if self._leader_until is not None:
            if until < self._leader_until:
                self._leader.notify()
        elif self._following:
            self._followers.notify()
        elif len(self._threads) < self._most:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        # Else all are busy, or about to look.

    def _take(self, *, may_start: bool = False) -> Call[Any] | None:
        """Return the next call when it is time for it; None at the end. `may_start`: the interval
        is over."""
        while not self._is_ended:
            now, wait = self._monotonic(), 0.0
            if self._running and not may_start:
                wait = self._last_start + self._interval - now
            if wait <= 0:
                found = self._next_call()
                if isinstance(found, Call):
                    self._running += 1
                    self._last_start = now
                    self._look_by(now + self._interval)
                    return found
                wait = found
            self._wait(now + wait, wait)
            may_start = False
        return None

    def _wait(self, until: float, seconds: float) -> None:
        if self._leader_until is None:
            self._leader_until = until
            self._leader.wait(min(seconds, threading.TIMEOUT_MAX))
            self._leader_until = None
            return
        self._look_by(until)
        self._following += 1
        self._followers.wait()
        self._following -= 1

    # --- Threads ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._lock:
                call = self._take()
            while call is not None:
                begin = self._monotonic()
                result = call.make()
                is_slow = self._monotonic() - begin >= self._interval
                with self._lock:
                    self._running -= 1
                    call.use(result)
                    if self._awaited is not None and self._awaited():
                        self._owner.notify()
                    call = self._take(may_start=is_slow)
        except BaseException as error:  # noqa: BLE001 - raised in the owner's thread
            with self._lock:
                if self._error is None:
                    self._error = error
                self._end()
                self._owner.notify()
