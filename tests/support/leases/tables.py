"""Listings, offsets and tables of leases, by the numbers of shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange, ShardId, SlotId, StreamName
from spark_ssp.kinesis_source.leases.lease_table import LeaseKeys, LeaseTableView
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    SequenceNumber,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    TrimHorizon,
)
from tests.support.kinesis.shards import key
from tests.support.leases.values import ANNE, lease

ORDERS = StreamName("orders")
NAMES = LeaseKeys(streams={ORDERS: None}, created={ORDERS: EpochMillis(1)})
TRIM, END = TrimHorizon(), ShardEnd()
FROM_TRIM = StartingPosition(default=TRIM)


def after(number: int) -> AfterRecord:
    return AfterRecord(sequence_number=SequenceNumber(str(number)))


def listing(shards: Mapping[int, tuple[int, ...]]) -> dict[ShardId, Shard]:
    """Shards by number, each with the numbers of its parents."""
    return {
        key(n).shard: Shard(
            shard_id=key(n).shard,
            parents=tuple(key(parent).shard for parent in parents),
            hash_range=HashRange(first=0, last=MAX_HASH_KEY),
            first_sequence_number=SequenceNumber("0"),
            closed=any(n in others for others in shards.values()),
        )
        for n, parents in shards.items()
    }


SPLIT = listing({0: (), 1: (), 2: (0,), 3: (0,)})
"""0 was split into 2 and 3."""


def offset(positions: Mapping[int, ShardState], waiting: Mapping[int, ShardState] = {}) -> Offset:
    return Offset(
        slots=4,
        streams={ORDERS: StreamEntry(created=EpochMillis(1))},
        assignment={key(n): SlotId(0) for n in positions},
        states={key(n): state for n, state in positions.items()},
        waiting={key(n): state for n, state in waiting.items()},
    )


def row(number: int, **more: Any) -> Lease:
    return lease(key(number).shard, **more)


def table(
    *rows: Lease,
    held: tuple[int, ...] = (),
    asked: tuple[int, ...] = (),
    unreadable: tuple[int, ...] = (),
) -> LeaseTableView:
    return LeaseTableView(
        worker=ANNE,
        rows={key(int(each.shard[-3:])): each for each in rows},
        held=frozenset(key(n) for n in held),
        requested=frozenset(key(n) for n in asked),
        unreadable=frozenset(key(n) for n in unreadable),
    )


FAMILY = {0: (), 1: (), 2: (0,), 3: (0,), 4: (1, 3)}
"""0 was split into 2 and 3; 1 and 3 were merged into 4."""
