"""A query of the acceptance: the planner and the tasks of the Kinesis source, without Spark.

Spark asks a source for the end of a batch, then for its ranges, and reads these in tasks; here one
task is read after the other. The planner's offsets pass through their JSON, as through a
checkpoint.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_ssp.common import structs
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.batch_read import plan_read
from spark_ssp.kinesis_source.client.api import Subscriber, Subscription
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset, decode, encode
from spark_ssp.kinesis_source.model.ranges import SlotRange
from spark_ssp.kinesis_source.model.shard import (
    ConsumerArn,
    Position,
    RecordPage,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.shard_retry import Clock
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from spark_ssp.operations.acceptance.account import Account
from spark_ssp.operations.acceptance.rules import Row

_EMPTY_TRIGGERS: Final = 5
"""Triggers without a batch after which a query has read everything: the newest records may not be
visible yet."""
_TRIGGER_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """A batch, from one offset to the next, and the rows of its tasks."""

    start: Offset
    end: Offset
    tasks: tuple[tuple[Row, ...], ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(map(len, self.tasks))


def query_options(stream: str, connection: ConnectionOptions) -> KinesisOptions:
    """Return the options of a query that reads a stream from its beginning."""
    return KinesisOptions(
        streams=(StreamRef(name=StreamName(stream)),),
        starting_position=StartingPosition(default=TrimHorizon()),
        connection=connection,
        shard_discovery_interval_ms=0,
    )


class Query:
    """A streaming query. Used by one thread; `close` stops its threads.

    `ignored`: data of records whose put had no answer, so that they may be there or not.
    """

    def __init__(
        self, options: KinesisOptions, account: Account, *, ignored: Collection[bytes]
    ) -> None:
        self._options = options
        self._account = account
        self._ignored = ignored
        self._streams = {ref.name: ref for ref in options.streams}
        self._planner = BatchPlanner(
            options, account.reader, monotonic=account.monotonic, sleep=account.sleep
        )
        self._at = BEFORE_FIRST_BATCH

    def close(self) -> None:
        """Stop the planner."""
        self._planner.close()

    def batches(self, rows: int) -> list[PlannedBatch]:
        """Run triggers until the batches have this number of rows, or none follow."""
        found: list[PlannedBatch] = []
        empty = 0
        while empty < _EMPTY_TRIGGERS and sum(batch.rows for batch in found) < rows:
            batch = self.trigger()
            if batch is not None:
                found.append(batch)
            if batch is None or not batch.rows:
                empty += 1
                self._account.sleep(_TRIGGER_S)
        return found

    def trigger(self) -> PlannedBatch | None:
        """Plan and read the next batch; None if there is none."""
        start = self._at
        end = self._planner.next_offset(start, UNLIMITED)
        if end is None:
            return None
        self._at = decode(json.loads(json.dumps(encode(end))))
        ranges = plan_ranges(
            start,
            self._at,
            self._streams,
            self._planner.hash_ranges(end),
            self._planner.expected_sizes(end),
        )
        return PlannedBatch(start=start, end=self._at, tasks=self._read(ranges))

    def replay(self, batch: PlannedBatch) -> PlannedBatch:
        """Read a batch again, as another process would that only has the offsets."""
        ranges = plan_ranges(batch.start, batch.end, self._streams)
        return replace(batch, tasks=self._read(ranges))

    def _read(self, ranges: Sequence[SlotRange]) -> tuple[tuple[Row, ...], ...]:
        return read_tasks(ranges, self._options, self._account, ignored=self._ignored)


def batch_read(
    options: KinesisOptions,
    account: Account,
    *,
    ignored: Collection[bytes],
    consumer: ConsumerArn | None = None,
) -> tuple[tuple[tuple[Row, ...], ...], frozenset[ShardKey]]:
    """Read everything once, as a batch read; with a consumer, by subscriptions. Return the rows of
    each task, and the shards of which a subscription has returned records."""
    ranges = plan_read(options, account.reader, monotonic=account.monotonic, sleep=account.sleep)
    if consumer is None:
        return read_tasks(ranges, options, account, ignored=ignored), frozenset()
    pushed = [
        structs.replace(
            slot, shards=tuple(structs.replace(one, consumer=consumer) for one in slot.shards)
        )
        for slot in ranges
    ]
    watched = _Watched()
    tasks = read_tasks(pushed, options, account, ignored=ignored, watched=watched)
    return tasks, frozenset(watched.shards)


def read_tasks(
    ranges: Sequence[SlotRange],
    options: KinesisOptions,
    account: Account,
    *,
    ignored: Collection[bytes],
    watched: _Watched | None = None,
) -> tuple[tuple[Row, ...], ...]:
    """Return the rows of each task."""

    def wait(stopped: threading.Event, seconds: float) -> None:
        if not stopped.is_set():
            account.sleep(seconds)

    clock = Clock(monotonic=account.monotonic, wait=wait, random=account.random)

    def open_subscriber(window: int) -> Subscriber:
        return _WatchedSubscriber(account.open_subscriber(window), watched or _Watched())

    tasks = []
    for slot in ranges:
        batches = read_slot(
            slot,
            options,
            account.reader,
            rates=ReadRates(),
            clock=clock,
            hash_ranges=HashRangeCache(),
            open_subscriber=None if watched is None else open_subscriber,
        )
        tasks.append(
            tuple(
                Row(shard, number)
                for batch in batches
                for shard, number, data in zip(
                    *(batch.column(name).to_pylist() for name in _COLUMNS), strict=True
                )
                if data not in ignored
            )
        )
    return tuple(tasks)


_COLUMNS: Final = ("shardId", "sequenceNumber", "data")


# --- Pushed shards -------------------------------------------------------------------------------


class _Watched:
    """The shards of which a subscription has returned records. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.shards: set[ShardKey] = set()

    def add(self, shard: ShardKey) -> None:
        with self._lock:
            self.shards.add(shard)


class _WatchedSubscriber:
    """A `Subscriber` that notes the shards of its subscriptions: a task whose subscription fails
    reads the same records by GetRecords."""

    def __init__(self, subscriber: Subscriber, watched: _Watched) -> None:
        self._subscriber = subscriber
        self._watched = watched

    def subscribe(
        self,
        consumer: ConsumerArn,
        shard: ShardKey,
        position: Position,
        *,
        inclusive: bool = False,
    ) -> Subscription:
        """As `Subscriber.subscribe`."""
        found = self._subscriber.subscribe(consumer, shard, position, inclusive=inclusive)
        return _WatchedSubscription(found, shard, self._watched)

    def close(self) -> None:
        """Close the connections."""
        self._subscriber.close()


class _WatchedSubscription:
    def __init__(self, subscription: Subscription, shard: ShardKey, watched: _Watched) -> None:
        self._subscription = subscription
        self._shard = shard
        self._watched = watched

    def next_size(self) -> int | None:
        return self._subscription.next_size()

    def next_page(self) -> RecordPage:
        page = self._subscription.next_page()
        if len(page):
            self._watched.add(self._shard)
        return page

    def close(self) -> None:
        self._subscription.close()
