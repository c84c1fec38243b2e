"""Writes the rows of one task to streams, on an executor.

At least once: when `write_batches` returns, the service has acknowledged all rows. When it raises,
some rows are in the streams, and Spark writes the rows of the task again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from kinesis_source.aggregation.repeat_keys import WriteId
from kinesis_source.client.api import KinesisWriter, ThrottledError, UnreachableError
from kinesis_source.model.shard import Entry, PutOutcome, Shard, StreamRef
from kinesis_source.sink.aggregation import AggregateLimits
from kinesis_source.sink.columns import (
    SinkColumns,
    checked_sizes,
    split_by_stream,
    to_entries,
)
from kinesis_source.sink.delivery import (
    ANY_SHARD,
    MAX_BYTES,
    MAX_RECORDS,
    PutRequest,
    StreamDelivery,
)
from kinesis_source.sink.packing import Packing
from kinesis_source.sink.shard_map import ShardMap
from kinesis_source.sink.targets import Target
from kinesis_source.sink.values import DeliveryMetrics, SinkOptions
from task_grouping.identifiers import ShardId, StreamName

_log = logging.getLogger(f"spark_ssp.{__name__}")

_ROWS: Final = 2_000
"""The rows that become Python objects at a time: those of a whole batch of Spark, 10,000, do not
fit into the cache of a processor, which doubles the costs of each."""
_LISTING_PERIOD_S: Final = 2.0
"""The shortest time between two listings of a stream's shards by one task."""
_LISTING_THREADS: Final = 1
_SHORTEST_WAIT_S: Final = 0.02
"""Each look at the queues of all shards costs as much as sending some hundred records."""
_LONGEST_WAIT_S: Final = 1.0

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

    def write(self, batches: Iterable[pa.RecordBatch]) -> dict[StreamName, DeliveryMetrics]:
        """Write the rows; return the counts of each stream. Raises SspError.

        Memory is bounded by two Arrow batches and twice the size of the requests in flight; with
        `write_id`, `RowCounter` adds memory for each row.
        """
        in_flight: _InFlight = {}
        first_row = 0
        with ThreadPoolExecutor(
            self.options.max_requests_in_flight + _LISTING_THREADS, thread_name_prefix="kinesis-put"
        ) as pool:
            for batch in self._receive(batches):
                for delivery, entries, sizes in self._entries(batch, first_row):
                    delivery.add(entries, sizes)
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

    def _entries(
        self, batch: pa.RecordBatch, first_row: int
    ) -> Iterator[tuple[StreamDelivery, list[Entry], list[int]]]:
        """Yield the entries of a batch, in order for each stream, with their sizes. All rows are
        checked before the first is yielded."""
        checked = []
        for name, (rows, numbers) in split_by_stream(batch, self.columns, first_row).items():
            target = self.target_of(self._stream(name))
            sizes = checked_sizes(rows, self.columns, target.limits, numbers)
            checked.append((self._delivery(target), rows, sizes))
        for delivery, rows, sizes in checked:
            # The more rows are packed at once, the larger the aggregates of each shard.
            most = max(1, rows.num_rows) if self.options.is_aggregating else _ROWS
            for start in range(0, rows.num_rows, most):
                part = to_entries(rows.slice(start, most), self.columns)
                yield delivery, part, sizes.slice(start, most).to_pylist()

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
                place=shard_map.place if by_key else _any_shard,
                shards=shard_map.shards if by_key else (ANY_SHARD,),
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
            sum(each.pending for each in deliveries) <= MAX_RECORDS * requests
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
            pause = min(_LONGEST_WAIT_S, max(_SHORTEST_WAIT_S, wake_at - self.monotonic()))
            if not in_flight and not self._listings:
                self.sleep(pause)
                continue
            is_full = len(in_flight) >= self.options.max_requests_in_flight
            calls: list[Future[Any]] = [*in_flight, *self._listings]
            wait(calls, timeout=None if is_full else pause, return_when=FIRST_COMPLETED)
            for listing in [each for each in self._listings if each.done()]:
                self._use_listing(self._listings.pop(listing), listing)
            for future in [each for each in in_flight if each.done()]:
                self._settle(*in_flight.pop(future), future)

    def _send(self, pool: ThreadPoolExecutor, in_flight: _InFlight) -> None:
        for stream, delivery in self._deliveries.items():
            while len(in_flight) < self.options.max_requests_in_flight:
                request = delivery.take(self.monotonic())
                if request is None:
                    break
                future = pool.submit(self.service.put_records, stream, request.entries)
                in_flight[future] = stream, request

    def _settle(self, stream: StreamRef, request: PutRequest, future: Future[PutOutcome]) -> None:
        delivery = self._deliveries[stream]
        try:
            outcome = future.result()
        except ThrottledError as error:
            if isinstance(error, UnreachableError):
                _log.warning(
                    "stream %s: sending %d records again: %s",
                    stream.name,
                    len(request.entries),
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
                future = pool.submit(self.service.list_shards, stream, retry=False)
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
        delivery.replace_shards(shard_map.place, shard_map.shards, ranges, now)
        delivery.check_listed(now, "ListShards without a shard of an answer")


def _any_shard(entries: Sequence[Entry]) -> Sequence[ShardId]:
    return [ANY_SHARD] * len(entries)
