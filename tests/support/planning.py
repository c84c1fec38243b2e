"""Short ways to write down the values that planning speaks in."""

from __future__ import annotations

from kinesis_source.model import SequenceNumber, Shard
from task_grouping.identifiers import ShardId
from tests.support.shards import WHOLE


def shard_id(number: int) -> ShardId:
    return ShardId(f"shardId-{number:012d}")


def listed(number: int, *parents: int, closed: bool = False) -> Shard:
    """A shard as ListShards gives it."""
    return Shard(
        shard_id=shard_id(number),
        parents=tuple(shard_id(parent) for parent in parents),
        hash_range=WHOLE,
        first_sequence_number=SequenceNumber(str(1000 + number)),
        closed=closed,
    )
