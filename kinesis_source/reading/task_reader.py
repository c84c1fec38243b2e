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
from spark_ssp.kinesis_source.client.api import KinesisService, Subscriber
from spark_ssp.kinesis_source.model.ranges import (
    MAX_SUBSCRIPTIONS,
    MAX_THREADS,
    ShardRange,
    SlotRange,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.reading.arrow_batches import REPEAT_KEY, all_columns, to_batches
from spark_ssp.kinesis_source.reading.fetch_buffer import FetchBuffer
from spark_ssp.kinesis_source.reading.process_wide import HASH_RANGES, HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.pushed_pages import OnDemandSubscriber
from spark_ssp.kinesis_source.reading.shard_reader import ReadContext, ShardReader
from spark_ssp.kinesis_source.reading.shard_retry import SYSTEM_CLOCK, Clock

_MIN_WINDOW: Final = 64 << 10
_MAX_WINDOW: Final = 1 << 20

OpenSubscriber = Callable[[int], Subscriber]
"""Returns a subscriber with this window, in bytes, for each subscription."""


class ReadOrder:
    """The order in which threads read the ranges of a task, each after those in its `after`."""

    def __init__(self, shards: Sequence[ShardRange]) -> None:
        self._pending = deque(shards)
        self._unread = {shard.key for shard in shards}
        self._changed = threading.Condition()

    def next(self) -> ShardRange | None:
        """Wait for a range that may be read, and take it; None if all are taken, or after
        `stop`."""
        with self._changed:
            while self._pending:
                for place, shard in enumerate(self._pending):
                    if not any(
                        ShardKey(stream=shard.stream.name, shard=parent) in self._unread
                        for parent in shard.after
                    ):
                        del self._pending[place]
                        return shard
                self._changed.wait()
            return None

    def finished(self, shard: ShardRange) -> None:
        """Record that all rows of a range are in the buffer, which keeps their order."""
        with self._changed:
            self._unread.remove(shard.key)
            self._changed.notify_all()

    def stop(self) -> None:
        """Give out no more ranges."""
        with self._changed:
            self._pending.clear()
            self._changed.notify_all()


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
    columns = columns or all_columns(include_repeat_keys=options.include_repeat_keys)
    order = ReadOrder(range_.shards)
    is_pushed = open_subscriber is not None and any(each.is_pushed for each in range_.shards)
    limit = options.max_bytes_in_flight
    count = min(len(range_.shards), MAX_SUBSCRIPTIONS if is_pushed else MAX_THREADS)
    subscriber: Subscriber | None = None
    if open_subscriber is not None and any(each.consumer for each in range_.shards):
        count, window = _windows(count, limit)
        limit -= count * window
        subscriber = OnDemandSubscriber(partial(open_subscriber, window))
    buffer = FetchBuffer(limit=limit, producers=count)
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

    def work() -> None:
        error: BaseException | None = None
        try:
            while (shard := order.next()) is not None:
                ShardReader(shard, context).run()
                order.finished(shard)
        except BaseException as caught:  # noqa: BLE001 - the consumer raises it
            error = caught
            order.stop()
        buffer.finished(error)

    threads: list[threading.Thread] = []
    try:
        for number in range(count):
            name = f"kinesis-read-{range_.slot}-{number}"
            thread = threading.Thread(target=work, name=name, daemon=True)
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


def _windows(shards: int, limit: int) -> tuple[int, int]:
    """Return the number of threads for this many shards, and the window of each one's subscription:
    together about a quarter of the memory, at most a half."""
    threads = max(1, min(shards, limit // 2 // _MIN_WINDOW))
    return threads, max(_MIN_WINDOW, min(_MAX_WINDOW, limit // 4 // threads))
