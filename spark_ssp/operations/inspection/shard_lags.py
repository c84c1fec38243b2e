"""Measures how far positions are behind the latest records of their shards, by the service.

The lag of a position is the age of the next record, by the service's clock; 0 if there is none. It
takes a call of GetShardIterator and usually one of GetRecords for each shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import (
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
)
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.model.shard import Position, ShardEnd, StreamRef

_THREADS: Final = 16
_EMPTY_PAGES: Final = 20
"""Answers without records that are followed: the service returns some at gaps."""


def lags_of(
    positions: Mapping[ShardKey, Position], connection: ConnectionOptions
) -> dict[ShardKey, int | None]:
    """Return the lag of each position in milliseconds; None for a shard that has expired, and for a
    position of another stream."""
    service = connect(connection)

    def measure(item: tuple[ShardKey, Position]) -> int | None:
        return _lag(service, *item)

    with ThreadPoolExecutor(_THREADS) as threads:
        return dict(zip(positions, threads.map(measure, positions.items()), strict=True))


def _lag(service: KinesisService, key: ShardKey, position: Position) -> int | None:
    if isinstance(position, ShardEnd):
        return 0
    stream = StreamRef(name=key.stream)
    try:
        iterator = service.open_iterator(stream, key.shard, position)
        for _ in range(_EMPTY_PAGES):
            page = service.get_records(stream, key.shard, iterator, limit=1)
            if page.arrival_ms:
                return max(0, page.service_time - page.arrival_ms[0])
            if page.millis_behind_latest == 0 or page.next_iterator is None:
                return 0
            iterator = page.next_iterator
    except (InvalidPositionError, ShardNotFoundError):
        return None
    return page.millis_behind_latest
