"""Short constructors of planning values."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.model.shard import Position, SequenceNumber, Shard, ShardState
from tests.support.kinesis.shards import WHOLE


def shard_id(number: int) -> ShardId:
    return ShardId(f"shardId-{number:012d}")


def number(shard: ShardId) -> int:
    """Return the inverse of `shard_id`."""
    return int(shard[-12:])


def states(positions: Mapping[int, Position]) -> dict[ShardId, ShardState]:
    """Return entries of an offset, by the numbers of their shards."""
    return {shard_id(n): ShardState(position=position) for n, position in positions.items()}


def positions(entries: Mapping[ShardId, ShardState]) -> dict[int, Position]:
    """Return the positions of states: the inverse of `states`."""
    return {number(shard): state.position for shard, state in entries.items()}


def listed(of: int, *parents: int, closed: bool = False) -> Shard:
    """Return a shard as ListShards describes it."""
    return Shard(
        shard_id=shard_id(of),
        parents=tuple(shard_id(parent) for parent in parents),
        hash_range=WHOLE,
        first_sequence_number=SequenceNumber(str(1000 + of)),
        closed=closed,
    )
