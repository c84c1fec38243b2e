"""Runs probes of many shards against the service, side by side."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import (
    ConcurrentService,
    ExpiredIteratorError,
    FailedCall,
    InvalidPositionError,
    KinesisService,
    PendingCalls,
    ThrottledError,
)
from spark_ssp.kinesis_source.model.deaggregation import last_sub
from spark_ssp.kinesis_source.model.shard import RecordPage, ShardIterator, StreamRef
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

MAX_CALLS = 96
"""The most calls under way at the same time: with 12 ms a call, more than one thread can make."""
MAX_PROBE_THREADS = 32
"""The most threads whose probes wait side by side. They run where calls go through botocore, and a
probe each at first, which leaves an open connection to the calls that one thread makes together."""

MAX_HELD_BYTES = 64 * 1024 * 1024
"""The most bytes of the answers to the calls under way, as expected: for each of 64 a record of the
default's largest size, which a probe may find in a shard whose records have no known size. After
its fetch, only the fields of a page's records that planning needs are kept."""

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

    def acquire(self, size: int, *, wait: bool = True) -> bool:
        """Hold `size` bytes until `release`. False if they cannot be held without a wait."""
        with self._changed:
            while self._held and self._held + size > self._limit:
                if not wait:
                    return False
                self._changed.wait()
            self._held += size
            if self._held < self._limit:
                self._changed.notify()  # the next one may fit as well
            return True

    def release(self, size: int) -> None:
        """Hold `size` bytes no longer."""
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
        self._budget.acquire(self._size)

    def __exit__(self, *_: object) -> None:
        self._budget.release(self._size)


class _Run(Generic[R]):
    """One run of a probe, and the counts of its calls."""

    __slots__ = ("_fetched_bytes", "_fetches", "_result", "_steps", "_throttled", "request")

    def __init__(self, probe: Steps[R]) -> None:
        self._steps: Generator[Request, Response, R] = probe()
        self._fetches = self._fetched_bytes = 0
        self._throttled = False
        self._result: R | None = None
        self.request: Request | None = None
        """The request that waits for its response; None at the end."""

    def respond(self, response: Response | None) -> None:
        """Go on with the response to the request; begin with None."""
        if isinstance(response, PageView):
            self._fetched_bytes += response.size_bytes
        self._go_on(self._steps.send, response)

    def fail(self, error: Exception) -> None:
        """Go on with the error of the request; the probe may raise it again."""
        self._throttled |= isinstance(error, ThrottledError)
        self._go_on(self._steps.throw, error)

    def _go_on(self, step: Callable[..., Request], *given: object) -> None:
        try:
            self.request = step(*given)
            self._fetches += isinstance(self.request, FetchPage)
        except StopIteration as done:
            self.request, self._result = None, done.value

    def result(self) -> R:
        """Return the result, with the counts of the calls."""
        result = self._result
        if not isinstance(result, ProbeResult | PositionAnswer):
            raise TypeError(f"a probe returns a result, not {type(result).__name__}")
        counts = fetches, fetched_bytes = self._fetches, self._fetched_bytes
        if (result.fetches, result.fetched_bytes) == counts and not self._throttled:
            return result
        return replace(
            result, fetches=fetches, fetched_bytes=fetched_bytes, throttled=self._throttled
        )


def run_probe(
    probe: Steps[R],
    service: KinesisService,
    stream: StreamRef,
    shard: ShardId,
    *,
    patience: bool,
    budget: PageBudget | None = None,
    begun: _Run[R] | None = None,
    failed: FailedCall | None = None,
) -> R:
    """Run one probe to its end. Errors of the service are thrown into it, then raised. `begun`: a
    run of it whose next call is to be made, or has `failed`."""
    budget = budget or PageBudget()
    expiries = 0
    while True:
        try:
            run = begun
            if run is None:
                run = _Run(probe)
                run.respond(None)
            while run.request is not None:
                try:
                    answer = _answer(
                        run.request, service, stream, shard, budget, failed, patience=patience
                    )
                except (ExpiredIteratorError, InvalidPositionError, ThrottledError) as error:
                    run.fail(error)
                else:
                    run.respond(answer)
                failed = None
            return run.result()
        except ExpiredIteratorError:
            if expiries == MAX_EXPIRIES:
                raise
            expiries += 1
            begun = failed = None  # no offset refers to the iterator: nothing is lost


def _answer(
    request: Request,
    service: KinesisService,
    stream: StreamRef,
    shard: ShardId,
    budget: PageBudget,
    failed: FailedCall | None,
    *,
    patience: bool,
) -> Response:
    def answer() -> ShardIterator | RecordPage:
        if failed is not None:
            return failed.finish(patience)
        if isinstance(request, FetchPage):
            return service.get_records(
                stream, shard, request.iterator, limit=request.limit, retry=patience
            )
        return service.open_iterator(
            stream, shard, request.position, inclusive=request.inclusive, retry=patience
        )

    if not isinstance(request, FetchPage):
        return _response(request, answer())
    with budget.reserved(request.max_bytes):
        return _response(request, answer())


def _response(request: Request | None, answer: ShardIterator | RecordPage) -> Response:
    if isinstance(request, FetchPage) and isinstance(answer, RecordPage):
        return page_view(answer, tuple(last_sub(data) for data in answer.data), request.limit)
    if isinstance(answer, RecordPage):
        raise TypeError("an OpenIterator is answered by an iterator, not a page")
    return answer


class _Work(Generic[R]):
    """The probes of one call of `ProbeRunner.run_all`: those that are not begun, and the outcomes
    of those that ended."""

    def __init__(
        self,
        probes: Mapping[ShardKey, Steps[R]],
        streams: Mapping[StreamName, StreamRef],
        patient: Callable[[ShardKey], bool],
        service: KinesisService,
        budget: PageBudget,
    ) -> None:
        self.probes: Mapping[ShardKey, Steps[R]] = probes
        self.streams = streams
        self.budget = budget
        self.keys = sorted(probes)
        self.waiting = deque(self.keys)
        self.outcomes: dict[ShardKey, R | Exception] = {}
        self._patience = {key: patient(key) for key in self.keys}
        self._service = service

    def next(self) -> ShardKey | None:
        """Return a shard whose probe is to be begun; None if there is none left."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    def run_waiting(self) -> None:
        """Run probes in this thread until none waits. A job for each thread, not for each shard:
        there may be ten thousand."""
        while (key := self.next()) is not None:
            self.run(key)

    def run_next(self) -> None:
        """Run the next probe in this thread."""
        if (key := self.next()) is not None:
            self.run(key)

    def run(
        self, key: ShardKey, begun: _Run[R] | None = None, failed: FailedCall | None = None
    ) -> None:
        """Run a probe, or the rest of one that was begun, in this thread."""
        try:
            self.outcomes[key] = run_probe(
                self.probes[key],
                self._service,
                self.streams[key.stream],
                key.shard,
                patience=self._patience[key],
                budget=self.budget,
                begun=begun,
                failed=failed,
            )
        except Exception as error:  # noqa: BLE001 - handed to the caller, never dropped
            self.outcomes[key] = error


class _Together(Generic[R]):
    """Runs probes in one thread, with many calls under way. A probe whose call cannot be made so,
    or fails, continues in another thread."""

    def __init__(
        self,
        work: _Work[R],
        calls: PendingCalls[tuple[ShardKey, _Run[R]]],
        executor: Callable[[], ThreadPoolExecutor],
    ) -> None:
        self._work: _Work[R] = work
        self._calls: PendingCalls[tuple[ShardKey, _Run[R]]] = calls
        self._executor = executor
        self._most = MAX_CALLS
        self._without_room: deque[tuple[ShardKey, _Run[R]]] = deque()
        """Probes whose next page does not fit into the budget now."""
        self._connections = -1
        """The number of open connections at the last call that found none left; -1 before."""
        self._opening: list[Future[None]] = []
        """The jobs after which there may be more connections."""
        self.jobs: list[Future[None]] = []
        """Those of the other threads."""

    def run(self) -> None:
        """Run probes until none waits, or the others must be begun by threads."""
        self._begin_waiting()
        while len(self._calls) or self._opening:
            if not len(self._calls):
                for job in self._opening:
                    job.result()
            for (key, run), answer in self._calls.answers():
                self._take(key, run, answer)
                self._begin_waiting()
            self._begin_waiting()
        for key, run in self._without_room:
            self._submit(key, run)

    def _begin_waiting(self) -> None:
        for _ in range(len(self._without_room)):
            self._call(*self._without_room.popleft())
        if self._opening and all(job.done() for job in self._opening):
            self._most, self._opening = MAX_CALLS, []
        while len(self._calls) < self._most and not self._without_room:
            key = self._work.next()
            if key is None:
                return
            if not self._proceed(key, _Run(self._work.probes[key])):
                self._open_connections()

    def _open_connections(self) -> None:
        """Let threads run a probe each, which leaves an open connection; if the last ones left
        none, let them run all that wait."""
        self._most = len(self._calls)
        is_new = self._most > self._connections
        self._connections = self._most
        work = self._work.run_next if is_new else self._work.run_waiting
        jobs = [
            self._executor().submit(work)
            for _ in range(min(MAX_PROBE_THREADS - 1, len(self._work.waiting)))
        ]
        self.jobs += jobs
        self._opening = jobs if is_new else []

    def _take(
        self, key: ShardKey, run: _Run[R], answer: ShardIterator | RecordPage | FailedCall
    ) -> None:
        request = run.request
        if isinstance(request, FetchPage):
            self._work.budget.release(request.max_bytes)
        if isinstance(answer, FailedCall):
            self._submit(key, run, answer)
        else:
            self._proceed(key, run, answer)

    def _proceed(
        self, key: ShardKey, run: _Run[R], answer: ShardIterator | RecordPage | None = None
    ) -> bool:
        """Go on with a probe, by the answer to its request, up to its next call or its end; as
        `_call`."""
        try:
            run.respond(None if answer is None else _response(run.request, answer))
            if run.request is not None:
                return self._call(key, run)
            self._work.outcomes[key] = run.result()
        except Exception as error:  # noqa: BLE001 - handed to the caller, never dropped
            self._work.outcomes[key] = error
        return True

    def _call(self, key: ShardKey, run: _Run[R]) -> bool:
        """Begin the next call of a probe. False if it continues in another thread."""
        tag, stream = (key, run), self._work.streams[key.stream]
        match run.request:
            case FetchPage(iterator=iterator, limit=limit, max_bytes=size):
                if not self._work.budget.acquire(size, wait=False):
                    self._without_room.append(tag)
                    return True
                if self._calls.begin_records(stream, key.shard, iterator, limit=limit, tag=tag):
                    return True
                self._work.budget.release(size)
            case OpenIterator(position=position, inclusive=inclusive):
                if self._calls.begin_iterator(
                    stream, key.shard, position, inclusive=inclusive, tag=tag
                ):
                    return True
        self._submit(key, run)
        return False

    def _submit(self, key: ShardKey, run: _Run[R], failed: FailedCall | None = None) -> None:
        self.jobs.append(self._executor().submit(self._work.run, key, run, failed))


class ProbeRunner:
    """Runs probes of many shards: on the calling thread, as far as the service can have many calls
    of one thread under way, and on a pool of threads, which start on first use."""

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
        work = _Work(probes, streams, patient, self._service, self._budget)
        jobs: list[Future[None]] = []
        if len(probes) > 1 and isinstance(self._service, ConcurrentService):
            calls = self._service.pending_calls(min(MAX_CALLS, len(probes)))
            together = _Together(work, calls, self._executor)
            try:
                together.run()
            finally:
                calls.close()
            jobs = together.jobs
        elif len(probes) > 1:
            threads = min(MAX_PROBE_THREADS, len(probes)) - 1
            jobs = [self._executor().submit(work.run_waiting) for _ in range(threads)]
        # The caller is one of the threads: a probe of one shard needs no other.
        work.run_waiting()
        for job in jobs:
            job.result()
        return {key: work.outcomes[key] for key in work.keys}

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
