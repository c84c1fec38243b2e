"""The lineage of shards as a tree of text."""

from __future__ import annotations

from spark_ssp.grouping.identifiers import HashRange, ShardId
from spark_ssp.kinesis_source.model.shard import SequenceNumber, Shard
from spark_ssp.operations.commands.shards import tree_rows


def _shard(number: int, keys: tuple[int, int], *parents: int) -> Shard:
    return Shard(
        shard_id=ShardId(f"s{number}"),
        parents=tuple(ShardId(f"s{parent}") for parent in parents),
        hash_range=HashRange(first=keys[0], last=keys[1]),
        first_sequence_number=SequenceNumber("0"),
        closed=False,
    )


def test_splits_merges_and_expired_parents() -> None:
    shards = [
        _shard(1, (0, 9)),
        _shard(2, (10, 19), 0),
        _shard(4, (5, 9), 1),
        _shard(3, (0, 4), 1),
        _shard(5, (5, 19), 4, 2),
        _shard(6, (5, 7), 5),
        _shard(7, (8, 19), 5),
    ]
    rows = tree_rows(shards)
    assert [f"{row.branch}{row.shard.shard_id}" for row in rows] == [
        "s1",
        "├─ s3",
        "└─ s4",
        "   └─ s5",
        "      ├─ s6",
        "      └─ s7",
        "s2",
    ]
    others = {row.shard.shard_id: row.other_parents for row in rows if row.other_parents}
    assert others == {"s5": ("s2",), "s2": ("s0",)}
