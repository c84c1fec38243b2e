"""Runs probes of many shards against the service, in parallel."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    InvalidPositionError,
    KinesisService,
    ThrottledError,
)
from spark_ssp.kinesis_source.model.deaggregation import last_sub
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.probing.probe_protocol import (
    FetchPage,
    OpenIterator,
    PageView,
    PositionAnswer,
    ProbeResult,
    Request,
    Response,
    page_view,
)

FIRST_PROBE_THREADS = 32
"""The threads that probe side by side at first."""
MAX_PROBE_THREADS = 64
"""The most threads, which they are where calls wait for the service: with 12 ms a call, 32 threads
make 2,000 calls a second with 0.4 of a processor, 64 make 3,200. 128 make 4,100, but use more of it
than they need for calls that do not wait."""
_IDLE = 0.7
_BUSY = 0.95
"""The parts of a processor that the probes use, below and above which the next ones have twice as
many and half as many threads. Python's threads use little more than one together."""

MAX_HELD_BYTES = 64 * 1024 * 1024
"""The most bytes of the answers that the threads fetch at the same time, as expected: for each
thread a record of the default's largest size, which a probe may find in a shard whose records have
no known size. After its fetch, only the fields of a page's records that planning needs are kept."""

MAX_EXPIRIES = 4
"""Iterators that may expire in the middle of one probe; the next one is an error."""

R = TypeVar("R", ProbeResult, PositionAnswer)

Steps = Callable[[], Generator[Request, Response, R]]
"""Starts a probe or a check; called again if an iterator expires in the middle of it."""
Probe = Steps[ProbeResult]


class PageBudget:
    """Bounds the bytes of the pages that threads hold at the same time."""

    def __init__(self, limit: int = MAX_HELD_BYTES) -> None:
        self._limit = limit
        self._held = 0
        self._changed = threading.Condition()

    def reserved(self, size: int) -> _Reservation:
        """Wait until `size` bytes may be held, or nothing else is; hold them within the block."""
        return _Reservation(self, size)

    def _acquire(self, size: int) -> None:
        with self._changed:
            while self._held and self._held + size > self._limit:
                self._changed.wait()
            self._held += size
            if self._held < self._limit:
                self._changed.notify()  # the next one may fit as well

    def _release(self, size: int) -> None:
        with self._changed:
            self._held -= size
            # Not all, of which most would find no room. The one that is called calls the next if it
            # leaves room, and if it finds none, another release is to come.
            self._changed.notify()


class _Reservation:
    """Bytes of a budget, held within a block. A generator would take longer than the rest of it."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: PageBudget, size: int) -> None:
        self._budget = budget
        self._size = size

    def __enter__(self) -> None:
        self._budget._acquire(self._size)

    def __exit__(self, *_: object) -> None:
        self._budget._release(self._size)


def run_probe(
    probe: Steps[R],
    service: KinesisService,
    stream: StreamRef,
    shard: ShardId,
    *,
    patience: bool,
    budget: PageBudget | None = None,
) -> R:
    """Run one probe to its end. Errors of the service are thrown into it, then raised."""
    budget = budget or PageBudget()
    for _ in range(MAX_EXPIRIES):
        try:
            return _run_once(probe(), service, stream, shard, budget, patience=patience)
        except ExpiredIteratorError:
            continue  # no offset refers to the iterator: nothing is lost
    return _run_once(probe(), service, stream, shard, budget, patience=patience)


def _run_once(
    steps: Generator[Request, Response, R],
    service: KinesisService,
    stream: StreamRef,
    shard: ShardId,
    budget: PageBudget,
    *,
    patience: bool,
) -> R:
    fetches = fetched_bytes = 0
    throttled = False
    try:
        request = next(steps)
        while True:
            fetches += isinstance(request, FetchPage)
            try:
                answer = _answer(request, service, stream, shard, budget, patience=patience)
                if isinstance(answer, PageView):
                    fetched_bytes += answer.size_bytes
            except (ExpiredIteratorError, InvalidPositionError, ThrottledError) as error:
                throttled |= isinstance(error, ThrottledError)
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as done:
        result: R = done.value
        if not isinstance(result, ProbeResult | PositionAnswer):
            raise TypeError(f"a probe returns a result, not {type(result).__name__}") from None
        if (result.fetches, result.fetched_bytes) == (fetches, fetched_bytes) and not throttled:
            return result
        return replace(result, fetches=fetches, fetched_bytes=fetched_bytes, throttled=throttled)


def _answer(
    request: Request,
    service: KinesisService,
    stream: StreamRef,
    shard: ShardId,
    budget: PageBudget,
    *,
    patience: bool,
) -> Response:
    match request:
        case OpenIterator():
            return service.open_iterator(
                stream,
                shard,
                request.position,
                inclusive=request.inclusive,
                retry=patience,
            )
        case FetchPage():
            with budget.reserved(request.max_bytes):
                page = service.get_records(
                    stream, shard, request.iterator, limit=request.limit, retry=patience
                )
                return page_view(page, tuple(last_sub(data) for data in page.data), request.limit)


def next_threads(threads: int, *, wall_s: float, cpu_s: float) -> int:
    """Return the number of threads for the next probes, from the time that the last ones took with
    `threads`, and the processor time that this process used meanwhile."""
    if cpu_s < _IDLE * wall_s:
        return min(2 * threads, MAX_PROBE_THREADS)
    if cpu_s > _BUSY * wall_s:
        return max(threads // 2, FIRST_PROBE_THREADS)
    return threads


class ProbeRunner:
    """Runs probes of many shards on a pool of threads, which start on first use, and on the calling
    thread. `wall_clock` and `cpu_clock` are in seconds, the latter of all threads of this
    process."""

    def __init__(
        self,
        service: KinesisService,
        *,
        wall_clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._service = service
        self._wall_clock = wall_clock
        self._cpu_clock = cpu_clock
        self._budget = PageBudget()
        self._pool: ThreadPoolExecutor | None = None
        self.threads = FIRST_PROBE_THREADS
        """The number of threads of the next probes."""

    def run_all(
        self,
        probes: Mapping[ShardKey, Steps[R]],
        streams: Mapping[StreamName, StreamRef],
        *,
        patient: Callable[[ShardKey], bool],
    ) -> dict[ShardKey, R | Exception]:
        """Return one outcome for each shard, in order of the keys. An exception is an outcome as
        well: the caller decides which ones matter."""
        outcomes: dict[ShardKey, R | Exception] = {}
        waiting = deque((key, patient(key)) for key in sorted(probes))

        def work() -> None:
            # A job for each thread, not for each shard: there may be ten thousand.
            while True:
                try:
                    key, patience = waiting.popleft()
                except IndexError:
                    return
                try:
                    outcomes[key] = run_probe(
                        probes[key],
                        self._service,
                        streams[key.stream],
                        key.shard,
                        patience=patience,
                        budget=self._budget,
                    )
                except Exception as error:  # noqa: BLE001 - handed to the caller, never dropped
                    outcomes[key] = error

        began, used = self._wall_clock(), self._cpu_clock()
        threads, count = min(self.threads, MAX_PROBE_THREADS), len(waiting)
        # The caller is one of the threads: a probe of one shard needs no other.
        jobs = [self._executor().submit(work) for _ in range(min(threads, count) - 1)]
        work()
        for job in jobs:
            job.result()
        if count >= 4 * FIRST_PROBE_THREADS:  # else the threads are not what it waits for
            wall_s, cpu_s = self._wall_clock() - began, self._cpu_clock() - used
            self.threads = next_threads(threads, wall_s=wall_s, cpu_s=cpu_s)
        return {key: outcomes[key] for key in sorted(outcomes)}

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                MAX_PROBE_THREADS - 1, thread_name_prefix="kinesis-probe"
            )
        return self._pool

    def close(self) -> None:
        """Stop the threads; waits for calls in progress."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
