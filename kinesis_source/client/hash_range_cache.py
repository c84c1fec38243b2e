"""Caches the hash key ranges of shards, which never change while a stream exists."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

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
    """A cache that lives as long as the process; thread-safe.

    Its key is connection and stream; of a stream only the newest creation time is kept. A shard
    that is missing from the cache (it is newer) costs another ListShards.
    """

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


PROCESS_WIDE = HashRangeCache()
"""The cache of this process: executors keep their worker processes from task to task."""
