"""Predicts the shard that stores a record: the open shard whose hash keys include the record's."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, cast

from kinesis_source.model.shard import Entry, Shard
from task_grouping.identifiers import ShardId, hash_of

_MAX_CACHED: Final = 100_000


class ShardMap:
    """The open shards of a stream, by hash key."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        """Raises ValueError if no shard is open."""
        listed = sorted(
            (shard for shard in shards if not shard.closed), key=lambda each: each.hash_range.first
        )
        if not listed:
            raise ValueError("a stream without an open shard")
        self._first = [shard.hash_range.first for shard in listed]
        self._ids = [shard.shard_id for shard in listed]
        self._by_key: dict[str | None, ShardId] = {}

    @property
    def shards(self) -> Sequence[ShardId]:
        """The open shards, in the order of their hash keys."""
        return self._ids

    def shard_of(self, hash_key: int) -> ShardId:
        """Return the shard that the hash key belongs to."""
        return self._ids[max(0, bisect_right(self._first, hash_key) - 1)]

    def place(self, entries: Sequence[Entry]) -> Sequence[ShardId]:
        """Return the shard of each entry; all have a partition key. Keys repeat, and a lookup costs
        a tenth of the hash."""
        known = self._by_key
        if len(known) > _MAX_CACHED:
            known.clear()
        get = known.get
        shards = [
            None if entry.explicit_hash_key else get(entry.partition_key) for entry in entries
        ]
        if None not in shards:
            return cast("list[ShardId]", shards)
        return [
            self._place(entry) if shard is None else shard
            for entry, shard in zip(entries, shards, strict=True)
        ]

    def _place(self, entry: Entry) -> ShardId:
        key, explicit = cast("str", entry.partition_key), entry.explicit_hash_key
        shard = self.shard_of(hash_of(key, explicit))
        if explicit is None:
            self._by_key[key] = shard
        return shard
