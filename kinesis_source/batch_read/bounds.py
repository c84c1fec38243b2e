"""Determines where a batch read starts and ends in each listed shard. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ssp.common.logs import abbreviate
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.read_loss import admit_child
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    Latest,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.shard_lineage import (
    UnnamedShardError,
    check_named_shards,
    start_points,
)
from spark_ssp.kinesis_source.probing.latest_probe import EndPoint


def start_states(
    stream: StreamName,
    listing: Mapping[ShardId, Shard],
    start: StartingPosition,
    created: EpochMillis,
) -> dict[ShardKey, ShardState]:
    """Return the start of each listed shard, closed ones included.

    As in a streaming query, the records of a shard whose parent is listed are all there when the
    read is planned, so one that is trimmed before its task reads it is lost; the oldest records of
    other shards were never promised. Raises UnnamedShardError if the option misses a shard.
    """
    points = dict.fromkeys(listing, TrimHorizon()) | start_points(
        stream, list(listing.values()), start
    )
    states: dict[ShardKey, ShardState] = {}
    for shard, point in points.items():
        if isinstance(point, Latest | ShardEnd):
            raise TypeError(f"a batch read cannot start at {point}")
        state = ShardState(position=point)
        if any(parent in listing for parent in listing[shard].parents):
            state = admit_child(state, created)
        states[ShardKey(stream=stream, shard=shard)] = state
    return states


def has_fixed_end(end: StartingPosition | None) -> bool:
    """Return whether a plan made later ends at the same records: `end` is nowhere the latest
    record."""
    return end is not None and not any(
        isinstance(point, Latest) for point in (end.default, *end.by_shard.values())
    )


def end_points(
    stream: StreamName, listing: Mapping[ShardId, Shard], end: StartingPosition
) -> dict[ShardKey, EndPoint]:
    """Return the end of each shard that has another one than its latest record. Raises
    UnnamedShardError if the option misses a shard, or names one that is not listed."""
    check_named_shards("endingPosition", stream, listing, end)
    points: dict[ShardKey, EndPoint] = {}
    unnamed: list[ShardId] = []
    for shard in sorted(listing):
        key = ShardKey(stream=stream, shard=shard)
        point = end.by_shard.get(key, end.default)
        if point is None:
            unnamed.append(shard)
        elif isinstance(point, TrimHorizon):
            raise TypeError("a batch read cannot end at TRIM_HORIZON")
        elif not isinstance(point, Latest):
            points[key] = point
    if unnamed:
        raise UnnamedShardError(
            f"option endingPosition, stream {stream}",
            found=f"no position for {abbreviate(unnamed)}",
            expected="a position for each shard of the stream, or a default for the rest",
            next_step='name them, or add "default": "latest" (or another position)',
        )
    return points
