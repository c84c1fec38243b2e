"""Reads the ranges of one slot concurrently, as Arrow record batches. A Spark task runs this."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from spark_ssp.common.columns import Column
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import (
    ConcurrentService,
    FailedCall,
    KinesisService,
    PendingCalls,
    Subscriber,
)
from spark_ssp.kinesis_source.model.ranges import (
    MAX_SUBSCRIPTIONS,
    MAX_THREADS,
    ShardRange,
    SlotRange,
)
from spark_ssp.kinesis_source.model.shard import RecordPage
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.reading.arrow_batches import REPEAT_KEY, all_columns, to_batches
from spark_ssp.kinesis_source.reading.fan_out import OnDemandSubscriber
from spark_ssp.kinesis_source.reading.fetch_buffer import FetchBuffer, Reservation, StoppedError
from spark_ssp.kinesis_source.reading.fetch_pacing import MIN_RESERVED_BYTES
from spark_ssp.kinesis_source.reading.process_wide import HASH_RANGES, HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.shard_reader import FirstCall, ReadContext, ShardReader
from spark_ssp.kinesis_source.reading.shard_retry import SYSTEM_CLOCK, Clock

_MIN_WINDOW: Final = 64 << 10
_MAX_WINDOW: Final = 1 << 20

MAX_FIRST_CALLS: Final = 64
"""The most first calls under way."""

OpenSubscriber = Callable[[int], Subscriber]
"""Returns a subscriber with this window, in bytes, for each subscription."""


class ReadOrder:
    """The order in which threads read the ranges of a task, each after those in its `after`. The
    `first` ones are for `FirstCalls`, until it gives them to the threads."""

    def __init__(self, shards: Sequence[ShardRange], first: Sequence[ShardRange] = ()) -> None:
        self._first = deque(first)
        self._pending = deque(shards)
        self._unread = {shard.key for shard in (*shards, *first)}
        self._under_way = {shard.key for shard in first}
        """The first ranges that the threads may still have to read."""
        self._given: dict[ShardKey, ShardReader] = {}
        self._is_shared = False
        self._changed = threading.Condition()

    def next(self) -> ShardRange | None:
        """Wait for a range that may be read, and take it; None if all are taken, or after
        `stop`."""
        with self._changed:
            while self._pending or self._under_way:
                if self._is_shared and self._first:
                    shard = self._first.popleft()
                    self._under_way.remove(shard.key)
                    return shard
                for place, shard in enumerate(self._pending):
                    if not any(
                        ShardKey(stream=shard.stream.name, shard=parent) in self._unread
                        for parent in shard.after
                    ):
                        del self._pending[place]
                        return shard
                self._changed.wait()
            return None

    def next_first(self) -> ShardRange | None:
        """Take one of the first ranges; None if there is none left."""
        with self._changed:
            return self._first.popleft() if self._first else None

    def share(self) -> None:
        """Give the first ranges to the threads too."""
        with self._changed:
            self._is_shared = True
            self._changed.notify_all()

    def give(self, shard: ShardRange, reader: ShardReader) -> None:
        """Give one of the first ranges to the threads, with the reader that has begun it."""
        with self._changed:
            if shard.key in self._under_way:  # else the task has stopped
                self._given[shard.key] = reader
                self._under_way.remove(shard.key)
                self._pending.appendleft(shard)
                self._changed.notify_all()

    def given(self, shard: ShardRange) -> ShardReader | None:
        """Return the reader that has begun a range, once."""
        with self._changed:
            return self._given.pop(shard.key, None)

    def finished(self, shard: ShardRange) -> None:
        """Record that all rows of a range are in the buffer, which keeps their order."""
        with self._changed:
            self._unread.remove(shard.key)
            self._under_way.discard(shard.key)
            if self._pending or not self._under_way:
                self._changed.notify_all()

    def stop(self) -> None:
        """Give out no more ranges."""
        with self._changed:
            self._first.clear()
            self._pending.clear()
            self._under_way.clear()
            self._changed.notify_all()


class FirstCalls:
    """Makes the first calls of ranges in one thread, many at a time. Near the latest record that is
    the only call of a range; the threads read the rest of the others."""

    def __init__(
        self, order: ReadOrder, context: ReadContext, calls: PendingCalls[_Begun], most: int
    ) -> None:
        self._order = order
        self._context = context
        self._calls = calls
        self._most = most
        self._waiting: ShardReader | None = None
        """The reader for whose call there is no memory."""

    def run(self) -> None:
        """Read ranges until none is left. Raises the errors of `ShardReader.run`."""
        self._begin()
        while len(self._calls):
            for (reader, call, reservation), answer in self._calls.answers():
                if not isinstance(answer, RecordPage | FailedCall):
                    raise TypeError("a call of GetRecords returns a page")
                is_finished = reader.take_first(call, answer, reservation)
                self._context.buffer.settle(reservation)
                if is_finished:
                    self._order.finished(reader.range)
                else:
                    self._order.give(reader.range, reader)
                self._begin()
            if self._context.buffer.stopping.is_set():
                raise StoppedError
        # What does not fit beside rows that wait for Spark: the threads wait for that.
        if self._waiting is not None:
            self._order.give(self._waiting.range, self._waiting)
        self._order.share()

    def _begin(self) -> None:
        while len(self._calls) < self._most:
            reader = self._waiting or self._next()
            if reader is None:
                return
            self._waiting = None
            call = reader.first_call()
            if call is None:
                self._order.give(reader.range, reader)
                continue
            reservation = self._context.buffer.try_reserve(call.memory)
            if reservation is None:
                self._waiting = reader
                return
            tag, shard = (reader, call, reservation), reader.range
            if not self._calls.begin_records(
                shard.stream, shard.shard, call.iterator, limit=call.limit, tag=tag
            ):
                # There are no more open connections than these. Threads open others.
                self._context.buffer.settle(reservation)
                self._most = len(self._calls)
                self._order.give(reader.range, reader)
                self._order.share()

    def _next(self) -> ShardReader | None:
        shard = self._order.next_first()
        return None if shard is None else ShardReader(shard, self._context)


_Begun = tuple[ShardReader, FirstCall, Reservation]


def read_slot(
    range_: SlotRange,
    options: KinesisOptions,
    service: KinesisService,
    *,
    rates: ReadRates,
    columns: Sequence[Column] | None = None,
    open_subscriber: OpenSubscriber | None = None,
    clock: Clock = SYSTEM_CLOCK,
    hash_ranges: HashRangeCache = HASH_RANGES,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `range_`, with these columns, by default all of the options; the rows of
    a shard keep their order, and follow those of the shards in its range's `after`.

    Reading it again yields the same rows, in batches that may be split elsewhere. Batches hold
    about 10,000 rows or 4 MiB, more or fewer at the end and when `maxBytesInFlight` is short.

    Reading starts with the first `next`. The first error of any shard is raised as soon as it
    happens and stops the reading of all. When this returns, raises or is closed, its threads have
    ended; that may take as long as the calls they are in, at most the read timeout.
    """
    if not range_.shards:
        return
    columns = columns or all_columns(include_repeat_keys=options.include_repeat_keys)
    is_pushed = open_subscriber is not None and any(each.is_pushed for each in range_.shards)
    limit = options.max_bytes_in_flight
    count = min(len(range_.shards), MAX_SUBSCRIPTIONS if is_pushed else MAX_THREADS)
    subscriber: Subscriber | None = None
    if open_subscriber is not None and any(each.consumer for each in range_.shards):
        count, window = _windows(count, limit)
        limit -= count * window
        subscriber = OnDemandSubscriber(partial(open_subscriber, window))
    first, others = _first_ranges(range_.shards, service)
    order = ReadOrder(others, first)
    buffer = FetchBuffer(limit=limit, producers=count + bool(first))
    context = ReadContext(
        options=options,
        service=service,
        buffer=buffer,
        clock=clock,
        hash_ranges=hash_ranges,
        rates=rates,
        include_repeat_keys=any(column.name == REPEAT_KEY for column in columns),
        subscriber=subscriber,
    )

    def read_others() -> None:
        while (shard := order.next()) is not None:
            reader = order.given(shard) or ShardReader(shard, context)
            reader.run()
            order.finished(shard)

    def read_first() -> None:
        if not isinstance(service, ConcurrentService):
            raise TypeError("first ranges of a service without calls of one thread")
        # Within three quarters of the memory: rows that wait for Spark have the rest.
        most = max(1, min(MAX_FIRST_CALLS, limit * 3 // 4 // MIN_RESERVED_BYTES))
        calls = service.pending_calls(min(most, len(first)))
        try:
            FirstCalls(order, context, calls, most).run()
        finally:
            calls.close()

    def work(read: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            read()
        except BaseException as caught:  # noqa: BLE001 - the consumer raises it
            error = caught
        buffer.finished(error)  # before others end because of it
        if error is not None:
            order.stop()

    threads: list[threading.Thread] = []
    try:
        for number, read in enumerate([read_others] * count + [read_first] * bool(first)):
            name = f"kinesis-read-{range_.slot}-{number}"
            thread = threading.Thread(target=work, args=(read,), name=name, daemon=True)
            thread.start()
            threads.append(thread)
        while chunks := buffer.take():
            memory_bytes = sum(chunk.memory_bytes for chunk in chunks)
            yield from to_batches(chunks, range_.slot, columns)
            del chunks  # before their memory is released to others
            buffer.release(memory_bytes)
    finally:
        buffer.close()
        order.stop()
        for thread in threads:
            thread.join()
        if subscriber is not None:
            subscriber.close()


def _first_ranges(
    shards: Sequence[ShardRange], service: KinesisService
) -> tuple[list[ShardRange], list[ShardRange]]:
    """Divide ranges into those whose first call can be made together with others, and the rest."""
    if not isinstance(service, ConcurrentService):
        return [], list(shards)
    first = [
        shard
        for shard in shards
        if shard.iterator is not None and shard.consumer is None and not shard.after
    ]
    if len(first) < 2:
        return [], list(shards)
    keys = {shard.key for shard in first}
    return first, [shard for shard in shards if shard.key not in keys]


def _windows(shards: int, limit: int) -> tuple[int, int]:
    """Return the number of threads for this many shards, and the window of each one's subscription:
    together about a quarter of the memory, at most a half."""
    threads = max(1, min(shards, limit // 2 // _MIN_WINDOW))
    return threads, max(_MIN_WINDOW, min(_MAX_WINDOW, limit // 4 // threads))
