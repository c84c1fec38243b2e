"""Determines which leases are about to change hands, so that waiting for them pays.

A query's first batch waits until leases without an owner have been taken. A run to fixed targets is
over when every shard is finished, read by this worker up to its target, or held by another worker
that is alive: one that has renewed the lease since the run began. The lease of a dead worker
expires, and is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kinesis_source.leases.lease_planning import LeaseTableView, can_start
from kinesis_source.planning.active_shards import Listings
from task_grouping.identifiers import ShardKey

WAIT_FAILOVERS: Final = 4
"""The number of failover times that a run to fixed targets waits for leases without a change."""


def listed_keys(listings: Listings) -> list[ShardKey]:
    """Return every shard of the listings, sorted."""
    return sorted(
        ShardKey(stream=name, shard=shard)
        for name, listing in listings.items()
        for shard in listing
    )


def claimable_shards(
    table: LeaseTableView,
    listings: Listings,
    proposed: Collection[ShardKey],
    most: int | None,
) -> list[ShardKey]:
    """Return the shards whose leases this worker may take soon: without an owner, and ready.

    `proposed`: those whose leases are being created; `most`: the maximum number of leases that it
    may hold.
    """
    if most is not None and len(table.held) >= most:
        return []
    return [
        key
        for key in listed_keys(listings)
        if key in proposed or _is_claimable(key, table, listings)
    ]


def _is_claimable(key: ShardKey, table: LeaseTableView, listings: Listings) -> bool:
    row = table.rows.get(key)
    if row is None or row.holder is not None or table.is_ended(key):
        return False
    return can_start(key, table, listings)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWait:
    """The observations of a run to fixed targets about the leases that it waits for."""

    counters: Mapping[ShardKey, int] = field(default_factory=dict)
    """The first observed counters of other workers' leases."""
    pending: tuple[ShardKey, ...] = ()
    """Shards that are neither finished nor known to be read by any worker."""
    since_ms: int = 0
    """The time when `pending` changed last."""

    def is_over(self, now_ms: int, failover_ms: int) -> bool:
        """Return whether to stop waiting."""
        return not self.pending or now_ms - self.since_ms > WAIT_FAILOVERS * failover_ms


def update_wait(
    before: LeaseWait,
    table: LeaseTableView,
    listings: Listings,
    *,
    claimable: Collection[ShardKey],
    reading: Collection[ShardKey],
    now_ms: int,
) -> LeaseWait:
    """Return the wait after another observation of the table. `claimable`: the result of
    `claimable_shards`; `reading`: this worker's shards."""
    counters = dict(before.counters)
    pending = set(claimable)
    for key in listed_keys(listings):
        row = table.rows.get(key)
        if row is None or row.holder is None or table.is_ended(key):
            continue
        if row.holder != table.worker:
            if counters.setdefault(key, row.counter) == row.counter:
                pending.add(key)
        elif key not in reading and can_start(key, table, listings):
            pending.add(key)  # it is being handed over, or its end is being written
    now = tuple(sorted(pending))
    since = before.since_ms if now == before.pending else now_ms
    return LeaseWait(counters=counters, pending=now, since_ms=since)
