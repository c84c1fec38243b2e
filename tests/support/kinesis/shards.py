"""Short constructors of shards and slots."""

from __future__ import annotations

from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    HashRange,
    ShardId,
    ShardKey,
    SlotId,
    StreamName,
)
from spark_ssp.grouping.slots import MappableShard
from spark_ssp.kinesis_source.model.shard import AfterRecord, SequenceNumber

WHOLE = HashRange(first=0, last=MAX_HASH_KEY)


def key(number: int, stream: str = "orders") -> ShardKey:
    return ShardKey(stream=StreamName(stream), shard=ShardId(f"shardId-{number:012d}"))


def after(number: int, sub: int = 0) -> AfterRecord:
    return AfterRecord(sequence_number=SequenceNumber(str(number)), sub=sub)


def shard(
    number: int,
    *parents: int,
    stream: str = "orders",
    hash_range: HashRange = WHOLE,
) -> MappableShard:
    return MappableShard(
        key=key(number, stream),
        parents=tuple(key(parent, stream) for parent in parents),
        hash_range=hash_range,
    )


def placed(slots: dict[int, int]) -> dict[ShardKey, SlotId]:
    return {key(number): SlotId(slot) for number, slot in slots.items()}


def ranged(number: int, first: int, last: int, *parents: int) -> MappableShard:
    return shard(number, *parents, hash_range=HashRange(first=first, last=last))
