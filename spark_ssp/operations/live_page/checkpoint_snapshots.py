"""The batches of a checkpoint as snapshots of its query, for the live page.

A checkpoint has the shards and tasks of each batch and the time of its planning. It has no rows, no
duration and no lag; the lag after the newest batch can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from spark_ssp.checkpoint.leases.checkpoint_position import ShardEnded
from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.common.spark.progress_offsets import Status
from spark_ssp.operations.inspection.folders import Folder
from spark_ssp.operations.inspection.spark_checkpoint import (
    LoggedBatch,
    batches_of,
    parse_offset,
    query_id,
    read_batch,
)
from spark_ssp.operations.model.from_progress import source_snapshot
from spark_ssp.operations.model.snapshot import (
    LeaseCounts,
    QuerySnapshot,
    ShardSnapshot,
    StreamSnapshot,
)

_MOST_OWNERS = 20

Measure = Callable[[Any], Status | None]
"""Returns the status of a source after a batch, from its end offset, a document."""


class CheckpointReader:
    """Reads the batches of a checkpoint while its query runs: each once, the newest again each time
    if its lag is measured."""

    def __init__(self, folder: Folder, location: str, measure: Measure | None = None) -> None:
        self._folder = folder
        self._location = location
        self._measure = measure
        self._newest: LoggedBatch | None = None
        self._id: str | None = None

    def read_new(self, most: int) -> list[QuerySnapshot]:
        """Return the snapshots of the batches since the last call, at most the newest `most`.

        Raises SspError if a file is damaged or cannot be read, or a lag cannot be measured.
        """
        if self._id is None:
            if "metadata" not in self._folder.names():
                return []
            self._id = query_id(self._folder.read("metadata"), self._location)
        last = -1 if self._newest is None else self._newest.batch
        found = [n for n in batches_of(self._folder.names("offsets")) if n > last]
        read = [read_batch(self._folder, self._location, n) for n in found[-most:]]
        batches = [batch for batch in read if batch.planned_ms is not None]
        newest = batches[-1] if batches else self._newest
        if not batches and self._measure is not None and newest is not None:
            batches = [newest]
        snapshots = [
            snapshot_of(
                batch,
                query=self._id,
                location=self._location,
                measure=self._measure if batch is newest else None,
            )
            for batch in batches
        ]
        self._newest = newest  # after an error the batches are read again
        return snapshots


def snapshot_of(
    batch: LoggedBatch, *, query: str, location: str, measure: Measure | None = None
) -> QuerySnapshot:
    """Return the snapshot of a planned batch. The location is the query's name."""
    ends = [parse_offset(text) for text in batch.offsets if text is not None]
    sources = [source_snapshot(end, measure(end) if measure else None, rows=None) for end in ends]
    return QuerySnapshot(
        query_id=query,
        run_id=query,
        name=location,
        batch_id=batch.batch,
        time_ms=batch.planned_ms or 0,
        rows=None,
        phases_ms={},
        sources=tuple(source for source in sources if source is not None),
    )


def with_owners(snapshot: QuerySnapshot, leases: Iterable[Lease]) -> QuerySnapshot:
    """Return the snapshot with the owners of a lease table, of each shard and counted by stream."""
    every = tuple(leases)
    sources = tuple(
        replace(source, streams=tuple(_with_owners(stream, every) for stream in source.streams))
        for source in snapshot.sources
    )
    return replace(snapshot, sources=sources)


def _with_owners(stream: StreamSnapshot, leases: Iterable[Lease]) -> StreamSnapshot:
    found: Mapping[str, Lease] = {
        lease.shard: lease
        for lease in leases
        if lease.stream is None or lease.stream.name == stream.name
    }
    if not found:
        return stream
    counts: dict[str, int] = {}
    free = 0
    for lease in found.values():
        if isinstance(lease.progress, ShardEnded):
            continue
        if lease.holder is None:
            free += 1
        else:
            counts[lease.holder] = counts.get(lease.holder, 0) + 1
    shown = dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_MOST_OWNERS])
    return replace(
        stream,
        shards=tuple(_with_owner(shard, found.get(shard.shard)) for shard in stream.shards),
        leases=LeaseCounts(
            by_owner=shown, free=free, others=sum(counts.values()) - sum(shown.values())
        ),
    )


def _with_owner(shard: ShardSnapshot, lease: Lease | None) -> ShardSnapshot:
    return shard if lease is None or shard.task is None else replace(shard, owner=lease.holder)
