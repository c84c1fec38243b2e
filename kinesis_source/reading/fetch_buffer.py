"""Between the threads that fetch pages and the generator that Spark pulls: one monitor.

It bounds the memory of a task. What counts is every byte fetched and not yet taken by Spark, plus a
reservation for each fetch under way. A thread reserves before it fetches; reservations are granted
in the order they were asked for, each as soon as it fits, and always when nothing else is held. So
a limit smaller than a page slows reading down to one page at a time and never stops it.

Why it cannot lock up: the consumer is woken when enough rows wait, when memory is short while any
rows wait, when the last thread is done, and on the first error. So whenever
threads wait for memory, either a fetch is under way (and ends), or rows wait (and are taken), or
the consumer is handing rows to Spark (and gives their bytes back), or nothing is held (and the
first in line is let through).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from kinesis_source.reading.arrow_batches import MAX_BATCH_BYTES, MAX_BATCH_ROWS, Chunk

ENOUGH_ROWS: Final = 10_000
ENOUGH_BYTES: Final = 4 << 20
"""Rows or bytes worth a batch of their own: fewer wait for more, unless memory is short."""


class StoppedError(Exception):
    """Raised in a fetching thread once nobody wants its rows any more. Never leaves this package's
    threads."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Memory set aside for one fetch, and the rows that came of it."""

    size: int
    chunk: Chunk | None = None

    def fill(self, chunk: Chunk) -> None:
        """Hand over what was fetched when the reservation ends."""
        self.chunk = chunk


class FetchBuffer:
    """See the module. `producers` threads must each call `finished` exactly once."""

    def __init__(self, *, limit: int, producers: int) -> None:
        self.stopping = threading.Event()
        """Set once nothing more is wanted: after `close`, or after the first error."""
        self._limit = limit
        self._running = producers
        self._changed = threading.Condition()
        self._held = 0
        self._line: deque[Reservation] = deque()
        self._waiting: deque[Chunk] = deque()
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._error: BaseException | None = None

    # --- For the threads that fetch ---------------------------------------------------------------

    @contextmanager
    def reservation(self, size: int) -> Iterator[Reservation]:
        """Wait until `size` bytes may be held, and hold them within the block.

        At its end a chunk that was filled in waits for the consumer at its own weight, and what
        was reserved is given back. Raises `StoppedError` when nothing more is wanted.
        """
        reservation = Reservation(size=size)
        self._reserve(reservation)
        try:
            yield reservation
        except BaseException:
            self._settle(reservation.size, None)
            raise
        self._settle(reservation.size, reservation.chunk)

    def shrink(self, reservation: Reservation, size: int) -> None:
        """Release the part of a held reservation beyond `size`."""
        with self._changed:
            if size < reservation.size:
                self._held -= reservation.size - size
                reservation.size = size
                self._changed.notify_all()

    def finished(self, error: BaseException | None) -> None:
        """A thread is done: with all its shards, or because of `error`. The first error counts."""
        with self._changed:
            self._running -= 1
            if error is not None and not isinstance(error, StoppedError):
                if self._error is None and not self.stopping.is_set():
                    self._error = error
                self.stopping.set()
            self._changed.notify_all()

    # --- For the consumer -------------------------------------------------------------------------

    def take(self) -> list[Chunk]:
        """Wait for rows worth a batch and take about one batch of them; empty: all is read.

        Raises the first error of any thread, even while rows wait: the task has failed. The rows'
        bytes stay held until `release`.
        """
        with self._changed:
            self._changed.wait_for(self._worth_taking)
            if self._error is not None:
                raise self._error
            taken: list[Chunk] = []
            rows = memory_bytes = 0
            while self._waiting:
                chunk = self._waiting[0]
                rows += len(chunk)
                memory_bytes += chunk.memory_bytes
                if taken and (rows > MAX_BATCH_ROWS or memory_bytes > MAX_BATCH_BYTES):
                    break
                taken.append(self._waiting.popleft())
                self._waiting_rows -= len(chunk)
                self._waiting_bytes -= chunk.memory_bytes
            return taken

    def release(self, size: int) -> None:
        """Spark has taken rows of this weight."""
        with self._changed:
            self._held -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more is wanted: threads that wait here, or ask later, get `StoppedError`."""
        with self._changed:
            self.stopping.set()
            self._changed.notify_all()

    # --- Inside -----------------------------------------------------------------------------------

    def _reserve(self, reservation: Reservation) -> None:
        with self._changed:
            self._line.append(reservation)
            if self._is_short():
                self._changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: (
                        self.stopping.is_set()
                        or (self._line[0] is reservation and not self._is_short())
                    )
                )
                if self.stopping.is_set():
                    raise StoppedError
                self._held += reservation.size
            finally:
                self._line.remove(reservation)
                self._changed.notify_all()

    def _is_short(self) -> bool:
        """Whether the first in line must wait for memory."""
        if not self._line or self._held == 0:
            return False
        return self._held + self._line[0].size > self._limit

    def _settle(self, reserved: int, chunk: Chunk | None) -> None:
        with self._changed:
            self._held -= reserved
            if chunk is not None and len(chunk):
                self._held += chunk.memory_bytes
                self._waiting.append(chunk)
                self._waiting_rows += len(chunk)
                self._waiting_bytes += chunk.memory_bytes
            self._changed.notify_all()

    def _worth_taking(self) -> bool:
        return (
            self._error is not None
            or self._running == 0
            or self._waiting_rows >= ENOUGH_ROWS
            or self._waiting_bytes >= ENOUGH_BYTES
            or (bool(self._waiting) and self._is_short())
        )
