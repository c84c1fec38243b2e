"""Remembers shards in a worker process, from task to task: their hash keys, and their read rates.

Hash key ranges never change while a stream exists.

A shard grants 5 GetRecords calls and 2 MiB per second to all its readers together (Kinesis API
reference, GetRecords). Real endpoints always enforce this. A service on the same machine may grant
any rate, so its streams are read at full speed until the first throttled answer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_ssp.common.options.values import is_loopback
from spark_ssp.grouping.identifiers import HashRange, ShardId
from spark_ssp.kinesis_source.client.api import KinesisService, ShardNotFoundError
from spark_ssp.kinesis_source.model.ranges import ShardRange
from spark_ssp.kinesis_source.model.shard import EpochMillis, StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions

MAX_KEPT: Final = 64
"""The most streams, by connection, in the cache. Session credentials are part of a connection, so a
worker may see many; the one listed longest ago is dropped."""


@dataclass(slots=True)
class HashRangeCache:
    """A cache that lives as long as the process; thread-safe. Its key is connection and stream; of
    a stream only the newest creation time is kept. A shard that is missing from the cache (it is
    newer) costs another ListShards."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: dict[
        tuple[ConnectionOptions, StreamRef], tuple[EpochMillis, Mapping[ShardId, HashRange]]
    ] = field(default_factory=dict)

    def get(
        self, range_: ShardRange, connection: ConnectionOptions, service: KinesisService
    ) -> HashRange:
        """Return the hash keys of the range's shard. Raises ShardNotFoundError if not listed."""
        if range_.hash_range is not None:
            return range_.hash_range
        place = (connection, range_.stream)
        with self._lock:
            created, ranges = self._kept.get(place, (range_.created, {}))
            if created != range_.created or range_.shard not in ranges:
                listed = service.list_shards(range_.stream)
                ranges = {shard.shard_id: shard.hash_range for shard in listed}
                self._kept.pop(place, None)
                self._kept[place] = (range_.created, ranges)
                if len(self._kept) > MAX_KEPT:
                    del self._kept[next(iter(self._kept))]
        if range_.shard not in ranges:
            raise ShardNotFoundError(
                f"shard {range_.key}",
                found="the shard missing from ListShards",
                expected="a shard that still has records",
                next_step="set failOnDataLoss=false to continue without the shard's records, which "
                "have passed the stream's retention",
            )
        return ranges[range_.shard]


HASH_RANGES = HashRangeCache()
"""The cache of this process: executors keep their worker processes from task to task."""


_StreamKey = tuple[str | None, str | None, str, str | None]
_MAX_REMEMBERED: Final = 10_000
"""Shards whose next call is remembered. Beyond it, those that may be called already are dropped."""


@dataclass(slots=True)
class ReadRates:
    """The rates of the streams that one process reads. Thread-safe. Times are monotonic seconds."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _throttled: set[_StreamKey] = field(default_factory=set)
    _next_calls: dict[tuple[_StreamKey, ShardId], float] = field(default_factory=dict)

    def are_enforced(self, range_: ShardRange, connection: ConnectionOptions) -> bool:
        """Return whether reads of this stream must keep to the API's rates."""
        if not is_loopback(connection.endpoint_url):
            return True
        with self._lock:
            return _stream_key(range_, connection) in self._throttled

    def record_throttling(self, range_: ShardRange, connection: ConnectionOptions) -> None:
        """Remember that the service enforces its rates on this stream."""
        with self._lock:
            self._throttled.add(_stream_key(range_, connection))

    def next_call(self, range_: ShardRange, connection: ConnectionOptions, now: float) -> float:
        """Return the time of the shard's next call, as the last reader of this process left it."""
        with self._lock:
            return self._next_calls.get((_stream_key(range_, connection), range_.shard), now)

    def set_next_call(
        self, range_: ShardRange, connection: ConnectionOptions, until: float, now: float
    ) -> None:
        """Record at the end of a range that the shard should not be called before `until`."""
        with self._lock:
            if len(self._next_calls) >= _MAX_REMEMBERED:
                self._next_calls = {
                    key: time for key, time in self._next_calls.items() if time > now
                }
            self._next_calls[_stream_key(range_, connection), range_.shard] = until


READ_RATES = ReadRates()
"""Executors keep their worker process, and this with it, from task to task."""


def _stream_key(range_: ShardRange, connection: ConnectionOptions) -> _StreamKey:
    stream = range_.stream
    return connection.endpoint_url, connection.region, stream.name, stream.arn
