"""A bounded buffer (one monitor) between the threads that fetch pages and the generator that Spark
reads.

It bounds the memory of a task: all bytes fetched and not yet taken by Spark, plus a reservation for
each fetch in progress. A thread reserves before it fetches; reservations are granted in the order
of the requests, each as soon as it fits, and always if nothing else is held. So a limit smaller
than a page slows reading down to one page at a time and never stops it.

It cannot deadlock: the consumer is woken when enough rows are buffered, when memory is short while
any rows are buffered, when the last thread is done, and on the first error. So whenever threads
wait for memory, either a fetch is in progress (and ends), or rows are buffered (and are taken), or
the consumer is passing rows to Spark (and releases their bytes), or nothing is held (and the first
reservation in the queue is granted). A thread whose `try_reserve` was refused either waits for
fetches of its own, which end, or reserves in the queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from spark_ssp.kinesis_source.reading.arrow_batches import MAX_BATCH_BYTES, MAX_BATCH_ROWS, Chunk

ENOUGH_ROWS: Final = 10_000
ENOUGH_BYTES: Final = 4 << 20
"""Rows or bytes that are enough for a batch: fewer wait for more, unless memory is short."""


class StoppedError(Exception):
    """Raised in a fetching thread once its rows are no longer needed. Caught in this package."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Memory reserved for one fetch, and the fetched rows."""

    size: int
    chunk: Chunk | None = None

    def fill(self, chunk: Chunk) -> None:
        """Set the rows that are added to the buffer when the reservation ends."""
        self.chunk = chunk


class FetchBuffer:
    """The buffer. `producers` threads must each call `finished` exactly once."""

    def __init__(self, *, limit: int, producers: int) -> None:
        self.stopping = threading.Event()
        """Set once no more rows are needed: after `close`, or after the first error."""
        self._limit = limit
        self._running = producers
        self._changed = threading.Condition()
        self._held = 0
        self._queue: deque[Reservation] = deque()
        self._is_refused = False
        """The last `try_reserve` found no room: its thread may try again."""
        self._buffered: deque[Chunk] = deque()
        self._buffered_rows = 0
        self._buffered_bytes = 0
        self._error: BaseException | None = None

    # --- For the threads that fetch ---------------------------------------------------------------

    @contextmanager
    def reservation(self, size: int) -> Iterator[Reservation]:
        """Wait until `size` bytes may be held, and hold them within the block. At its end the
        reservation is released, and its chunk, if there is one, is buffered and counts with its own
        size. Raises `StoppedError` once no more rows are needed."""
        reservation = Reservation(size=size)
        self._reserve(reservation)
        try:
            yield reservation
        except BaseException:
            self._settle(reservation.size, None)
            raise
        self.settle(reservation)

    def try_reserve(self, size: int) -> Reservation | None:
        """Hold `size` bytes until `settle`; None if that takes a wait. Raises `StoppedError` once
        no more rows are needed."""
        with self._changed:
            if self.stopping.is_set():
                raise StoppedError
            if self._queue or (self._held and self._held + size > self._limit):
                self._is_refused = True
                self._wake()
                return None
            self._is_refused = False
            self._held += size
            return Reservation(size=size)

    def settle(self, reservation: Reservation) -> None:
        """End a reservation: its chunk, if there is one, is buffered."""
        self._settle(reservation.size, reservation.chunk)

    def shrink(self, reservation: Reservation, size: int) -> None:
        """Release the part of a held reservation beyond `size`."""
        with self._changed:
            if size < reservation.size:
                self._held -= reservation.size - size
                reservation.size = size
                self._wake()

    def finished(self, error: BaseException | None) -> None:
        """Record that a thread is done, with all its shards or because of `error`. The first error
        is kept."""
        with self._changed:
            self._running -= 1
            if error is not None and not isinstance(error, StoppedError):
                if self._error is None and not self.stopping.is_set():
                    self._error = error
                self.stopping.set()
            self._changed.notify_all()

    # --- For the consumer -------------------------------------------------------------------------

    def take(self) -> list[Chunk]:
        """Wait for enough rows and take about one batch of them; empty once everything is read.
        Raises the first error of any thread, even if rows are buffered: the task has failed. The
        rows' bytes stay held until `release`."""
        with self._changed:
            self._changed.wait_for(self._worth_taking)
            if self._error is not None:
                raise self._error
            taken: list[Chunk] = []
            rows = memory_bytes = 0
            while self._buffered:
                chunk = self._buffered[0]
                rows += len(chunk)
                memory_bytes += chunk.memory_bytes
                if taken and (rows > MAX_BATCH_ROWS or memory_bytes > MAX_BATCH_BYTES):
                    break
                taken.append(self._buffered.popleft())
                self._buffered_rows -= len(chunk)
                self._buffered_bytes -= chunk.memory_bytes
            return taken

    def release(self, size: int) -> None:
        """Release the bytes of rows that Spark has taken."""
        with self._changed:
            self._held -= size
            self._wake()

    def close(self) -> None:
        """Stop the threads: those that wait for memory now or later get `StoppedError`."""
        with self._changed:
            self.stopping.set()
            self._changed.notify_all()

    # --- Inside -----------------------------------------------------------------------------------

    def _reserve(self, reservation: Reservation) -> None:
        with self._changed:
            self._queue.append(reservation)
            if self._is_short():
                self._changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: (
                        self.stopping.is_set()
                        or (self._queue[0] is reservation and not self._is_short())
                    )
                )
                if self.stopping.is_set():
                    raise StoppedError
                self._is_refused = False
                self._held += reservation.size
            finally:
                self._queue.remove(reservation)
                self._changed.notify_all()

    def _is_short(self) -> bool:
        """Return whether the first reservation in the queue must wait for memory."""
        if not self._queue or self._held == 0:
            return False
        return self._held + self._queue[0].size > self._limit

    def _settle(self, reserved: int, chunk: Chunk | None) -> None:
        with self._changed:
            self._held -= reserved
            if chunk is not None and len(chunk):
                self._held += chunk.memory_bytes
                self._buffered.append(chunk)
                self._buffered_rows += len(chunk)
                self._buffered_bytes += chunk.memory_bytes
            self._wake()

    def _wake(self) -> None:
        """Wake the waiting threads if one of them can continue. To wake the consumer for each of
        thousands of small pages would be a large part of the work."""
        if self._queue or self._worth_taking():
            self._changed.notify_all()

    def _worth_taking(self) -> bool:
        return (
            self._error is not None
            or self._running == 0
            or self._buffered_rows >= ENOUGH_ROWS
            or self._buffered_bytes >= ENOUGH_BYTES
            or (bool(self._buffered) and (self._is_refused or self._is_short()))
        )
