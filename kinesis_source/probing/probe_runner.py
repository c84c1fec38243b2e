"""Runs probes of many shards against the service, in parallel."""

from __future__ import annotations

import threading
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

MAX_PROBE_THREADS = 32

MAX_HELD_BYTES = 32 * 1024 * 1024
"""The most bytes of the answers that the threads fetch at the same time. After its fetch, only the
fields of a page's records that planning needs are kept."""

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

    def _release(self, size: int) -> None:
        with self._changed:
            self._held -= size
            self._changed.notify_all()


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


class ProbeRunner:
    """Runs probes of many shards on a pool of threads, which start on first use, and on the calling
    thread."""

    def __init__(self, service: KinesisService) -> None:
        self._service = service
        self._budget = PageBudget()
        self._pool: ThreadPoolExecutor | None = None

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

        # The caller is one of the threads: a probe of one shard needs no other.
        jobs = [
            self._threads().submit(work) for _ in range(min(MAX_PROBE_THREADS, len(waiting)) - 1)
        ]
        work()
        for job in jobs:
            job.result()
        return {key: outcomes[key] for key in sorted(outcomes)}

    def _threads(self) -> ThreadPoolExecutor:
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
