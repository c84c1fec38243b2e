"""The lineage of a stream's shards as a forest, in the order of their hash keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from spark_ssp.grouping.identifiers import MAX_HASH_KEY, ShardId
from spark_ssp.kinesis_source.model.shard import Shard
from spark_ssp.kinesis_source.planning.active_shards import children_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """A shard in its place. The child of a merge is below its parent with the lower hash keys."""

    shard: Shard
    branch: str
    """The lines before its name."""
    other_parents: tuple[ShardId, ...] = ()
    """Parents it is not below: the others of a merge, and those that have expired."""


def tree_rows(listed: Collection[Shard]) -> list[TreeRow]:
    """Return every shard once."""
    by_id = {shard.shard_id: shard for shard in listed}
    children = children_of(listed)
    place = {
        shard.shard_id: min(
            (parent for parent in shard.parents if parent in by_id),
            key=lambda parent: by_id[parent].hash_range.first,
            default=None,
        )
        for shard in listed
    }
    rows: list[TreeRow] = []

    def add(shard_id: ShardId, branch: str, below: str) -> None:
        shard = by_id[shard_id]
        others = tuple(parent for parent in shard.parents if parent != place[shard_id])
        rows.append(TreeRow(shard=shard, branch=branch, other_parents=others))
        own = [child for child in children.get(shard_id, ()) if place[child] == shard_id]
        for n, child in enumerate(sorted(own, key=lambda one: _order(by_id, one)), start=1):
            last = n == len(own)
            add(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))

    for shard_id in sorted(by_id, key=lambda one: _order(by_id, one)):
        if place[shard_id] is None:
            add(shard_id, "", "")
    return rows


def _order(by_id: Mapping[ShardId, Shard], shard: ShardId) -> tuple[int, ShardId]:
    return by_id[shard].hash_range.first, shard


def percent_of_keys(shard: Shard) -> tuple[float, float]:
    """Return the start and the end of a shard's hash keys, in percent of all."""
    whole = MAX_HASH_KEY + 1
    keys = shard.hash_range
    return 100 * keys.first / whole, 100 * (keys.last + 1) / whole
