"""Writes the rows of one task to streams, on an executor.

At least once: when `write_batches` returns, the service has acknowledged all rows. When it raises,
some rows are in the streams, and Spark writes the rows of the task again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import pyarrow as pa

from kinesis_source.aggregation.repeat_keys import WriteId
from kinesis_source.client.api import KinesisWriter, ThrottledError, UnreachableError
from kinesis_source.model.shard import PutOutcome, Shard, StreamRef
from kinesis_source.sink.aggregation import AggregateLimits, Packing
from kinesis_source.sink.columns import Rows, SinkColumns, checked_rows, split_by_stream
from kinesis_source.sink.delivery import MAX_BYTES, MAX_RECORDS, PutRequest, StreamDelivery
from kinesis_source.sink.shard_map import ANY, ShardMap
from kinesis_source.sink.targets import Target
from kinesis_source.sink.values import DeliveryMetrics, SinkOptions
from task_grouping.identifiers import StreamName

_log = logging.getLogger(f"spark_ssp.{__name__}")

_ROWS: Final = 10_000
_BYTES: Final = 8 << 20
"""The most rows and data that are encoded at a time: an Arrow batch has a part for each shard, and
the larger it is, the fewer and larger are those of a request."""
_PENDING: Final = 20_000
"""The number of records that wait for requests before more rows are needed, for the same reason."""
_LISTING_PERIOD_S: Final = 2.0
"""The shortest time between two listings of a stream's shards by one task."""
_LISTING_THREADS: Final = 1
_SHORTEST_WAIT_S: Final = 0.05
"""Each look at the queues of all shards costs as much as sending some hundred records."""
_FEW: Final = 2
_SHORTEST_INTERVAL_S: Final = 0.005
"""The interval of requests if more than a few are in flight."""
_LONGEST_WAIT_S: Final = 1.0

T = TypeVar("T")

_InFlight = dict[Future[PutOutcome], tuple[StreamRef, PutRequest]]


@dataclass(slots=True)
class RecordWriter:
    """Writes the rows of one task. `target_of` describes a stream; `write_id` identifies this write
    to a stream, for repeat keys; `monotonic` and `sleep` are in seconds, `random` is uniform in
    [0, 1)."""

    service: KinesisWriter
    target_of: Callable[[StreamRef], Target]
    columns: SinkColumns
    options: SinkOptions
    write_id: Callable[[StreamName], WriteId] | None = None
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random
    _deliveries: dict[StreamRef, StreamDelivery] = field(default_factory=dict)
    _packings: dict[StreamRef, Packing] = field(default_factory=dict)
    _listed: dict[StreamRef, float] = field(default_factory=dict)
    """The time of the last listing of the shards."""
    _listings: dict[Future[tuple[Shard, ...]], StreamRef] = field(default_factory=dict)
    """Listings under way."""
    _sent_at: float = 0.0
    """The time of the last request."""
    _done: SimpleQueue[Future[Any]] = field(default_factory=SimpleQueue)
    """Calls that have ended."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> dict[StreamName, DeliveryMetrics]:
        """Write the rows; return the counts of each stream. Raises SspError.

        Memory is bounded by two Arrow batches, the text of the pending records (`_is_little`) and
        of four parts of batches (`_BYTES`), and that of the requests in flight once more; with
        `write_id`, `RowCounter` adds memory for each row.
        """
        in_flight: _InFlight = {}
        first_row = 0
        with ThreadPoolExecutor(
            self.options.max_requests_in_flight + _LISTING_THREADS, thread_name_prefix="kinesis-put"
        ) as pool:
            for batch in self._receive(batches):
                for delivery, rows in self._rows(batch, first_row):
                    for each in self._deliveries.values():
                        each.age()
                    delivery.add(rows)
                    self._deliver(pool, in_flight, until=self._is_little)
                first_row += batch.num_rows
            self._deliver(pool, in_flight, until=self._is_all_stored)
        return {stream.name: each.metrics for stream, each in self._deliveries.items()}

    def _receive(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches. Waiting for one is no part of the time-outs of records: nothing is
        sent meanwhile."""
        iterator = iter(batches)
        while True:
            since = self.monotonic()
            batch = next(iterator, None)
            waited = self.monotonic() - since
            for delivery in self._deliveries.values():
                delivery.skip(waited)
            if batch is None:
                return
            yield batch

    def _rows(self, batch: pa.RecordBatch, first_row: int) -> Iterator[tuple[StreamDelivery, Rows]]:
        """Yield the rows of a batch in parts, in order for each stream. All rows are checked before
        the first is yielded."""
        checked = []
        for name, (part, numbers) in split_by_stream(batch, self.columns, first_row).items():
            target = self.target_of(self._stream(name))
            rows = checked_rows(part, self.columns, target.limits, numbers)
            checked.append((self._delivery(target), rows))
        for delivery, rows in checked:
            if self.options.is_aggregating:
                # The more rows are packed at once, the larger the aggregates of each shard.
                yield delivery, rows
            else:
                for part in rows.parts(_ROWS, _BYTES):
                    yield delivery, part

    def _stream(self, name: str | None) -> StreamRef:
        if name is not None:
            return StreamRef(name=StreamName(name))
        if self.options.stream is None:
            raise AssertionError("a row without a stream")
        return self.options.stream

    def _delivery(self, target: Target) -> StreamDelivery:
        delivery = self._deliveries.get(target.stream)
        if delivery is None:
            shard_map = ShardMap(target.shards)
            by_key = target.description.placed_by_key
            packing = None
            if self.options.is_aggregating:
                target.check_aggregation()
                limits = AggregateLimits(record_bytes=target.limits.max_bytes)
                write = None if self.write_id is None else self.write_id(target.stream.name)
                packing = self._packings[target.stream] = Packing(shard_map, limits, write)
            delivery = self._deliveries[target.stream] = StreamDelivery(
                target.stream.name,
                shard_map=shard_map if by_key else ANY,
                weight=1 if by_key else len(shard_map.shards),
                packing=packing,
                is_ordered=self.options.is_ordered,
                timeout=self.options.delivery_timeout_ms / 1000,
                now=self.monotonic(),
                random=self.random,
            )
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

    def _deliver(
        self, pool: ThreadPoolExecutor, in_flight: _InFlight, *, until: Callable[[], bool]
    ) -> None:
        """Send records until a condition holds."""
        while True:
            self._list_again(pool)
            self._send(pool, in_flight)
            if until():
                return
            wake_at = min(each.wake_at for each in self._deliveries.values())
            wait = wake_at - self.monotonic()
            pause = _SHORTEST_INTERVAL_S
            if wait > 0:  # else a request waits for its interval
                pause = min(_LONGEST_WAIT_S, max(_SHORTEST_WAIT_S, wait))
            if not in_flight and not self._listings:
                self.sleep(pause)
                continue
            is_full = len(in_flight) >= self.options.max_requests_in_flight
            for future in self._completed(None if is_full else pause):
                if future in self._listings:
                    self._use_listing(self._listings.pop(future), future)
                else:
                    self._settle(*in_flight.pop(future), future)

    def _submit(
        self, pool: ThreadPoolExecutor, call: Callable[..., T], *values: Any, **options: Any
    ) -> Future[T]:
        future = pool.submit(call, *values, **options)
        # `concurrent.futures.wait` would lock every future at each request.
        future.add_done_callback(self._done.put)
        return future

    def _completed(self, timeout: float | None) -> Iterator[Future[Any]]:
        """Yield the calls that have ended; wait for one up to `timeout` seconds."""
        with suppress(Empty):
            yield self._done.get(timeout=timeout)
            while True:
                yield self._done.get_nowait()

    def _send(self, pool: ThreadPoolExecutor, in_flight: _InFlight) -> None:
        for stream, delivery in self._deliveries.items():
            while self._may_send(in_flight):
                request = delivery.take(self.monotonic())
                if request is None:
                    break
                self._sent_at = self.monotonic()
                future = self._submit(pool, self.service.put_records, stream, request.entries)
                in_flight[future] = stream, request

    def _may_send(self, in_flight: _InFlight) -> bool:
        """Return whether another request may be sent now. Few are in flight while the service
        answers fast: each thread that takes part costs processor time."""
        number = len(in_flight)
        if number < _FEW:
            return number < self.options.max_requests_in_flight
        is_slow = self.monotonic() - self._sent_at >= _SHORTEST_INTERVAL_S
        return is_slow and number < self.options.max_requests_in_flight

    def _settle(self, stream: StreamRef, request: PutRequest, future: Future[PutOutcome]) -> None:
        delivery = self._deliveries[stream]
        try:
            outcome = future.result()
        except ThrottledError as error:
            if isinstance(error, UnreachableError):
                _log.warning(
                    "stream %s: sending %d records again: %s",
                    stream.name,
                    request.entries.count,
                    error.found,
                )
            delivery.fail(request, error.code, self.monotonic())
        else:
            delivery.settle(request, outcome, self.monotonic())

    def _list_again(self, pool: ThreadPoolExecutor) -> None:
        """Request the shards of streams that were resharded; deliveries continue meanwhile."""
        for stream, delivery in self._deliveries.items():
            since = self.monotonic() - self._listed.get(stream, -_LISTING_PERIOD_S)
            is_listed = since < _LISTING_PERIOD_S or stream in self._listings.values()
            if delivery.is_outdated and not is_listed:
                future = self._submit(pool, self.service.list_shards, stream, retry=False)
                self._listings[future] = stream

    def _use_listing(self, stream: StreamRef, future: Future[tuple[Shard, ...]]) -> None:
        delivery, now = self._deliveries[stream], self.monotonic()
        self._listed[stream] = now
        try:
            listed = future.result()
        except ThrottledError as error:
            # The old prediction delays records, but loses none.
            _log.warning("stream %s: shards cannot be listed yet: %s", stream.name, error.found)
            delivery.check_listed(now, error.found)
            return
        shard_map = ShardMap(listed)
        _log.info("stream %s was resharded: %d open shards", stream.name, len(shard_map.shards))
        if stream in self._packings:
            self._packings[stream].shard_map = shard_map
        ranges = {shard.shard_id: shard.hash_range for shard in listed}
        delivery.replace_shards(shard_map, ranges, now)
        delivery.check_listed(now, "ListShards without a shard of an answer")
