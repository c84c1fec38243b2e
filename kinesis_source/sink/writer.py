"""Writes the rows of one task to streams, on an executor. At least once: when `write_batches`
returns, the service has acknowledged all rows. When it raises, some rows are in the streams, and
Spark writes the rows of the task again.

Descriptions of streams, and the rates that a task has learned, are kept in the process for the
tasks after it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

import pyarrow as pa

from spark_ssp.common import structs
from spark_ssp.common.errors import ServiceUnavailableError, SspError, StreamNotFoundError
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.client.api import KinesisWriter, ThrottledError, UnreachableError
from spark_ssp.kinesis_source.model.deaggregation import WriteId
from spark_ssp.kinesis_source.model.shard import PutOutcome, Shard, StreamDescription, StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.sink.aggregation import (
    ANY,
    AggregateLimits,
    KeyRoom,
    Packing,
    ShardMap,
    check_wrapping,
    unsupported_aggregates,
)
from spark_ssp.kinesis_source.sink.columns import (
    RecordLimits,
    RecordTooLargeError,
    Rows,
    SinkColumns,
    checked_rows,
    split_by_stream,
)
from spark_ssp.kinesis_source.sink.delivery import (
    MAX_BYTES,
    MAX_RECORDS,
    DeliveryMetrics,
    PutRequest,
    StreamDelivery,
)
from spark_ssp.kinesis_source.sink.options import SinkOptions
from spark_ssp.kinesis_source.sink.pacing import LinkWindow, ShardPacer, Upload

_log = logging.getLogger(__name__)

# --- Kept from task to task ----------------------------------------------------------------------


_DESCRIPTION_KEPT_S: Final = 60.0
"""The service allows 20 descriptions a second for all streams of an account, and each executor
process describes a stream by itself."""
_MAX_TARGETS: Final = 4_096
"""Beyond it, streams are described again for each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A stream to write to, and its shards when it was described."""

    stream: StreamRef
    description: StreamDescription
    shards: tuple[Shard, ...]

    @property
    def is_placed_by_key(self) -> bool:
        """True if the shards of records are predicted from their keys. Also if it is not known: by
        default keys decide, and a wrong prediction only affects the pace of records."""
        return self.description.placed_by_key is not False

    @property
    def limits(self) -> RecordLimits:
        """The rules for its records."""
        return RecordLimits(
            max_bytes=self.description.max_record_bytes,
            needs_key=self.is_placed_by_key,
        )

    def check_aggregation(self) -> None:
        """Raise UnsupportedError if readers could not tell the rows of aggregates apart."""
        if not self.is_placed_by_key:
            raise unsupported_aggregates(
                self.stream.name,
                "the record distribution strategy AUTO, or one that this release does not know",
            )


@dataclass(slots=True)
class TargetCache:
    """The targets that this process has described lately; thread-safe."""

    monotonic: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: dict[tuple[ConnectionOptions, StreamRef], tuple[float, Target]] = field(
        default_factory=dict
    )

    def get(
        self,
        stream: StreamRef,
        connection: ConnectionOptions,
        service: KinesisWriter,
        *,
        with_current_shards: bool = False,
        needs_shards: bool = True,
        within: float | None = None,
    ) -> Target:
        """Return the target, described within the last minute. `with_current_shards`: its shards
        are listed now; if the service does not answer and they are not needed, the kept ones are
        returned. Aggregates need them; for other records they only affect the pace.
        `within`: the seconds for which throttling of each call is waited out. Raises the errors of
        `KinesisService.describe`."""
        place = (connection, stream)
        with self._lock:
            described, target = self._kept.get(place, (0.0, None))
            if target is None or self.monotonic() - described >= _DESCRIPTION_KEPT_S:
                target = Target(
                    stream=stream,
                    description=service.describe(stream, within=within),
                    shards=service.list_shards(stream, within=within),
                )
                self._kept.pop(place, None)
                self._kept[place] = (self.monotonic(), target)
                if len(self._kept) > _MAX_TARGETS:
                    del self._kept[next(iter(self._kept))]
                return target
        if not with_current_shards:
            return target
        try:
            return replace(target, shards=service.list_shards(stream, within=within))
        except ServiceUnavailableError:
            if needs_shards:
                raise
            return target


TARGETS = TargetCache()
"""The cache of this process: Spark keeps its worker processes from task to task."""


_RATES_KEPT_S: Final = 600.0
_MAX_RATES_KEPT: Final = 1_000
"""Streams whose pacers are kept, each for `_RATES_KEPT_S` after its last task."""

_Pacers = Mapping[ShardId, ShardPacer]


@dataclass(slots=True)
class LearnedRates:
    """The last window of each connection, and the pacers of the shards of each stream; thread-safe.
    Times are in seconds of a monotonic clock."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _windows: dict[ConnectionOptions, LinkWindow] = field(default_factory=dict)
    _pacers: dict[tuple[ConnectionOptions, StreamRef], tuple[float, _Pacers]] = field(
        default_factory=dict
    )

    def window(self, connection: ConnectionOptions) -> LinkWindow:
        """Return the window that a task begins with."""
        with self._lock:
            return self._windows.get(connection, LinkWindow())

    def keep_window(self, connection: ConnectionOptions, window: LinkWindow) -> None:
        """Keep the window of a task that ends."""
        with self._lock:
            self._windows[connection] = window

    def take_pacers(self, connection: ConnectionOptions, stream: StreamRef, now: float) -> _Pacers:
        """Return the pacers that a task begins with, for it alone until it keeps them."""
        with self._lock:
            kept_at, pacers = self._pacers.pop((connection, stream), (now, {}))
        if now - kept_at > _RATES_KEPT_S:
            return {}
        for pacer in pacers.values():
            pacer.rest(now - kept_at)
        return pacers

    def keep_pacers(
        self, connection: ConnectionOptions, stream: StreamRef, pacers: _Pacers, now: float
    ) -> None:
        """Keep the pacers of a task that ends."""
        with self._lock:
            self._pacers[connection, stream] = (now, pacers)
            if len(self._pacers) > _MAX_RATES_KEPT:
                del self._pacers[next(iter(self._pacers))]


LEARNED_RATES: Final = LearnedRates()
"""Those of this process: Spark keeps its worker processes from task to task."""


# --- Threads that take their next call themselves ------------------------------------------------

# A pool hands each call to a thread, and each result back to the thread that submits calls. In
# Python that costs a tenth of the processor time of a task that sends small requests. Here the
# thread that has made a call also uses its result, and goes on with the next call.

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


# --- The writer of a task ------------------------------------------------------------------------

_ROWS: Final = 10_000
_BYTES: Final = 8 << 20
"""The most rows and data of a part of a batch, which is encoded at a time: it has a part for each
shard, and the larger it is, the fewer and larger are those of a request."""
_PENDING: Final = 20_000
"""The number of records that wait for requests before more rows are needed, for the same reason."""
_LISTING_PERIOD_S: Final = 2.0
"""The shortest time between two listings of a stream's shards by one task."""
_LISTING_THREADS: Final = 1
"""The number of threads beside those of the requests in flight."""
_INTERVAL_S: Final = 0.005
"""The time after which a request is made while another one is under way: each thread that takes
part costs processor time."""
_SHORTEST_WAIT_S: Final = 0.05
"""The shortest wait for the next request: a look at the queues of all shards costs as much as
sending some hundred records."""
_LONGEST_WAIT_S: Final = 1.0
"""The longest wait: `wake_at` does not include the time of the next listing."""
_LOST: Final = frozenset({"ConnectionClosedError", "ConnectTimeoutError", "ReadTimeoutError"})
"""The errors of the SDK for a link that carries too little, or nothing."""
_WARNING_PERIOD_S: Final = 30.0
_NEVER: Final = float("inf")

_Listing = tuple[Shard, ...] | ThrottledError


@dataclass(slots=True)
class RecordWriter:
    """Writes the rows of one task. `target_of` describes a stream; `write_id` identifies this write
    to a stream, for repeat keys; `learned` is shared with the tasks before and after, `share` is
    the first share of each shard; `monotonic` is in seconds, `random` is uniform in [0, 1).

    The lock of `CallThreads` guards its private fields, except that the thread of the task adds
    streams without it, their deliveries and packings, and changes the limits of packings.
    """

    service: KinesisWriter
    target_of: Callable[[StreamRef], Target]
    columns: SinkColumns
    options: SinkOptions
    write_id: Callable[[StreamName], WriteId] | None = None
    learned: LearnedRates = field(default_factory=LearnedRates)
    share: float = 1.0
    monotonic: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random
    _deliveries: Mapping[StreamRef, StreamDelivery] = field(default_factory=dict)
    """Replaced when a stream is added: the threads iterate over it."""
    _targets: dict[StreamRef, Target] = field(default_factory=dict)
    """Described once for the task, since the service allows few descriptions, and again for a row
    that is too large: the limit may have been raised since."""
    _packings: dict[StreamRef, Packing] = field(default_factory=dict)
    _room: KeyRoom = field(default_factory=KeyRoom)
    _warned: dict[tuple[StreamRef, str], tuple[float, int, int]] = field(default_factory=dict)
    """By kind of failed request: the time of the last warning, and the requests and records since.
    """
    _listed: dict[StreamRef, float] = field(default_factory=dict)
    """The time of the last listing of the shards."""
    _listing: set[StreamRef] = field(default_factory=set)
    """Streams whose shards are being listed."""
    _turn: int = 0
    """The place among the deliveries of the stream whose turn it is."""
    _in_flight: int = 0
    """The number of requests under way."""
    _bytes_in_flight: int = 0
    _window: LinkWindow = field(default_factory=LinkWindow)

    def write(self, batches: Iterable[pa.RecordBatch]) -> dict[StreamName, DeliveryMetrics]:
        """Write the rows; return the counts of each stream. Raises SspError.

        Memory is bounded by two Arrow batches, the text of the pending records (`_is_little`) and
        of four parts of batches (`_BYTES`), and that of the requests in flight once more; with
        `write_id`, `RowCounter` adds memory for each row.
        """
        connection = self.options.connection
        self._window = self.learned.window(connection)
        try:
            self._write(batches)
        except StreamNotFoundError as error:
            if self.columns.stream is None:  # an option names it
                raise
            raise StreamNotFoundError(
                error.subject,
                found=error.found,
                expected="the name of an existing stream in the column stream",
                next_step="correct the column or create the stream, else check region and "
                "endpointUrl",
            ) from error
        finally:
            self.learned.keep_window(connection, self._window)
            now = self.monotonic()
            for stream, delivery in self._deliveries.items():
                self.learned.keep_pacers(connection, stream, delivery.pacers, now)
        return {stream.name: each.metrics for stream, each in self._deliveries.items()}

    def _write(self, batches: Iterable[pa.RecordBatch]) -> None:
        first_row = 0
        with CallThreads(
            self._next_call,
            interval=_INTERVAL_S,
            most=self.options.max_requests_in_flight + _LISTING_THREADS,
            name="kinesis-put",
            monotonic=self.monotonic,
        ) as threads:
            for batch in batches:
                rows_left = bytes_left = 0
                for delivery, rows in self._rows(batch, first_row):
                    size = int(rows.sizes.sum())
                    # Small parts of many streams count as one.
                    is_next = len(rows) > rows_left or size > bytes_left
                    if is_next:
                        rows_left, bytes_left = _ROWS, _BYTES
                    rows_left -= len(rows)
                    bytes_left -= size
                    with threads.changing():
                        for each in self._deliveries.values() if is_next else ():
                            each.age()
                        delivery.add(rows)
                    threads.wait_until(self._is_little)
                first_row += batch.num_rows
            threads.wait_until(self._is_all_stored)

    def _rows(self, batch: pa.RecordBatch, first_row: int) -> Iterator[tuple[StreamDelivery, Rows]]:
        """Yield the rows of a batch in parts, in order for each stream. All rows are checked before
        the first is yielded."""
        checked = []
        for name, (part, numbers) in split_by_stream(batch, self.columns, first_row).items():
            stream = self._stream(name)
            if stream not in self._targets:
                target = self.target_of(stream)
                if self.options.is_aggregating:
                    target.check_aggregation()
                self._targets[stream] = target
            rows = self._checked(stream, part, numbers)
            checked.append((self._delivery(self._targets[stream]), rows))
        for delivery, rows in checked:
            if self.options.is_aggregating:
                # The more rows are packed at once, the larger the aggregates of each shard.
                yield delivery, rows
            else:
                for part in rows.parts(_ROWS, _BYTES):
                    yield delivery, part

    def _checked(self, stream: StreamRef, part: pa.RecordBatch, numbers: Iterable[int]) -> Rows:
        target = self._targets[stream]
        try:
            return self._rows_within(target.limits, part, numbers)
        except RecordTooLargeError as too_large:
            within = self.options.delivery_timeout_ms / 1000
            try:
                most = self.service.describe(stream, within=within).max_record_bytes
            except SspError as error:
                raise too_large from error
        description = structs.replace(target.description, max_record_bytes=most)
        target = self._targets[stream] = replace(target, description=description)
        if (packing := self._packings.get(stream)) is not None:
            packing.limits = replace(packing.limits, record_bytes=most)
        return self._rows_within(target.limits, part, numbers)

    def _rows_within(
        self, limits: RecordLimits, part: pa.RecordBatch, numbers: Iterable[int]
    ) -> Rows:
        rows = checked_rows(part, self.columns, limits, numbers)
        if self.options.is_aggregating:
            check_wrapping(rows, limits.max_bytes, numbers)
        return rows

    def _stream(self, name: str | None) -> StreamRef:
        if name is not None:
            return StreamRef(name=StreamName(name))
        if self.options.stream is None:
            raise AssertionError("a row without a stream")
        return self.options.stream

    def _delivery(self, target: Target) -> StreamDelivery:
        delivery = self._deliveries.get(target.stream)
        if delivery is None:
            shard_map, now = ShardMap(target.shards, self._room), self.monotonic()
            by_key = target.is_placed_by_key
            packing = None
            if self.options.is_aggregating:
                limits = AggregateLimits(record_bytes=target.limits.max_bytes)
                write = None if self.write_id is None else self.write_id(target.stream.name)
                packing = self._packings[target.stream] = Packing(shard_map, limits, write)
            delivery = StreamDelivery(
                target.stream.name,
                shard_map=shard_map if by_key else ANY,
                weight=1 if by_key else len(shard_map.shards),
                share=self.share,
                pacers=self.learned.take_pacers(self.options.connection, target.stream, now),
                packing=packing,
                is_ordered=self.options.is_ordered,
                timeout=self.options.delivery_timeout_ms / 1000,
                now=now,
                random=self.random,
            )
            self._deliveries = {**self._deliveries, target.stream: delivery}
        return delivery

    def _is_all_stored(self) -> bool:
        return not any(each.pending for each in self._deliveries.values())

    def _is_little(self) -> bool:
        """Return whether more rows are needed for full requests."""
        deliveries = self._deliveries.values()
        requests = self.options.max_requests_in_flight
        return (
            sum(each.pending for each in deliveries) <= max(_PENDING, MAX_RECORDS * requests)
            and sum(each.pending_bytes for each in deliveries) <= MAX_BYTES * requests
        )

    def _next_call(self) -> Call[PutOutcome | ThrottledError] | Call[_Listing] | float:
        """Return the next request or listing, or the seconds until one may be made."""
        deliveries, now = self._deliveries, self.monotonic()
        for stream, delivery in deliveries.items():
            if self._needs_listing(stream, delivery, now):
                self._listing.add(stream)
                return Call(partial(self._list, stream), partial(self._use_listing, stream))
        window, in_flight = self._window, self._bytes_in_flight
        most = self.options.max_requests_in_flight
        if self._in_flight >= most or not window.allows_request(in_flight):
            return _LONGEST_WAIT_S
        every = list(deliveries.items())
        for number in range(self._turn, self._turn + len(every)):
            stream, delivery = every[number % len(every)]
            request = delivery.take(now, window.request_bytes)
            if request is not None:
                # Else the first streams would use the whole link, or all requests in flight.
                self._turn = (number + 1) % len(every)
                self._in_flight += 1
                self._bytes_in_flight += request.size
                return Call(
                    partial(self._put, stream, request),
                    partial(self._settle, stream, request, now, self._bytes_in_flight),
                )
        wake_at = min((each.wake_at for each in deliveries.values()), default=_NEVER)
        return min(_LONGEST_WAIT_S, max(_SHORTEST_WAIT_S, wake_at - now))

    def _put(self, stream: StreamRef, request: PutRequest) -> PutOutcome | ThrottledError:
        try:
            return self.service.put_records(stream, request.entries)
        except ThrottledError as error:
            return error

    def _settle(
        self,
        stream: StreamRef,
        request: PutRequest,
        began: float,
        in_flight: int,
        outcome: PutOutcome | ThrottledError,
    ) -> None:
        self._in_flight -= 1
        self._bytes_in_flight -= request.size
        delivery, now = self._deliveries[stream], self.monotonic()
        seconds = None if isinstance(outcome, ThrottledError) else outcome.send_seconds
        upload = Upload(
            began=began,
            size=request.size,
            in_flight=in_flight,
            seconds=now - began if seconds is None else seconds,
            is_measured=seconds is not None,
            is_cut=request.is_cut,
            is_lost=isinstance(outcome, UnreachableError) and outcome.code in _LOST,
        )
        self._window = self._window.after(upload, now)
        if not isinstance(outcome, ThrottledError):
            delivery.settle(request, outcome, now)
            return
        if isinstance(outcome, UnreachableError):
            self._warn(stream, outcome, request.entries.count, now)
        delivery.fail(request, outcome.code, now)

    def _warn(self, stream: StreamRef, error: UnreachableError, records: int, now: float) -> None:
        """Log the failed requests of a stream and kind at most once per period, with their number.
        The counts of the batch have all of them."""
        kind = (stream, error.code)
        warned, requests, waiting = self._warned.get(kind, (-_NEVER, 0, 0))
        requests, waiting = requests + 1, waiting + records
        if now - warned >= _WARNING_PERIOD_S:
            _log.warning(
                "stream %s: sending %d records of %d failed requests again: %s",
                *(stream.name, waiting, requests, error.found),
            )
            warned, requests, waiting = now, 0, 0
        self._warned[kind] = (warned, requests, waiting)

    def _needs_listing(self, stream: StreamRef, delivery: StreamDelivery, now: float) -> bool:
        """Return whether the shards are to be listed again: the stream was resharded."""
        return (
            delivery.is_outdated
            and stream not in self._listing
            and now - self._listed.get(stream, -_NEVER) >= _LISTING_PERIOD_S
        )

    def _list(self, stream: StreamRef) -> _Listing:
        try:
            return self.service.list_shards(stream, retry=False)
        except ThrottledError as error:
            return error

    def _use_listing(self, stream: StreamRef, listed: _Listing) -> None:
        delivery, now = self._deliveries[stream], self.monotonic()
        self._listing.remove(stream)
        self._listed[stream] = now
        if isinstance(listed, ThrottledError):
            # The old prediction delays records, but loses none.
            _log.warning("stream %s: shards cannot be listed yet: %s", stream.name, listed.found)
            delivery.check_listed(now, listed.found)
            return
        shard_map = ShardMap(listed, self._room)
        _log.info("stream %s was resharded: %d open shards", stream.name, len(shard_map.shards))
        if stream in self._packings:
            self._packings[stream].shard_map = shard_map
        ranges = {shard.shard_id: shard.hash_range for shard in listed}
        delivery.replace_shards(shard_map, ranges, now)
        delivery.check_listed(now, "ListShards without a shard of an answer")
