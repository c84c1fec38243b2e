"""Keeps the rows of each aggregate until it is stored by a shard that may have it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from kinesis_source.aggregation.repeat_keys import RowCounter, WriteId
from kinesis_source.model.shard import Entry
from kinesis_source.sink.aggregation import (
    AggregateLimits,
    PackedRecord,
    Row,
    group_by_shard,
    take_record,
)
from kinesis_source.sink.shard_map import ShardMap
from task_grouping.identifiers import HashRange, ShardId


class Packing:
    """The aggregates of one stream that are not stored yet. With `write` they contain repeat keys,
    which a row keeps when it is packed again."""

    def __init__(
        self, shard_map: ShardMap, limits: AggregateLimits, write: WriteId | None = None
    ) -> None:
        self.shard_map = shard_map
        self._limits = limits
        self._write = write
        self._counter = None if write is None else RowCounter()
        self._packed: dict[int, tuple[Entry, PackedRecord]] = {}
        """By the identity of the entry, which is equal to others."""

    def pack(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[int]]:
        """Return records of the rows, one or more for each predicted shard, and their sizes."""
        groups: dict[ShardId, deque[Row]] = {}
        for each, shard in zip(entries, self.shard_map.place(entries), strict=True):
            key, hash_key, data = each.partition_key or "", each.explicit_hash_key, each.data
            repeat = 0 if self._counter is None else self._counter.count(key, hash_key, data)
            row = Row(key, hash_key, data, repeat)
            group = groups.get(shard)
            if group is None:
                groups[shard] = deque((row,))
            else:
                group.append(row)
        return self._pack(groups)

    def _pack(self, groups: Mapping[ShardId, deque[Row]]) -> tuple[list[Entry], list[int]]:
        entries: list[Entry] = []
        sizes: list[int] = []
        for group in groups.values():
            while group:
                packed = take_record(group, self._limits, self._write)
                entry = Entry(packed.data, packed.partition_key, packed.explicit_hash_key)
                self._packed[id(entry)] = entry, packed
                entries.append(entry)
                sizes.append(packed.size)
        return entries, sizes

    def fits(self, entry: Entry, shard: HashRange | None) -> bool:
        """Return whether all rows of a record are read from a shard with these hash keys. None: the
        shard is not known."""
        _, packed = self._packed[id(entry)]
        return not packed.is_aggregate or (shard is not None and packed.fits(shard))

    def repack(self, entry: Entry) -> tuple[list[Entry], list[int]]:
        """Return records of the same rows for the current shards, and their sizes."""
        _, packed = self._packed.pop(id(entry))
        return self._pack(group_by_shard(packed.rows, self.shard_map))

    def remove(self, entries: Sequence[Entry]) -> int:
        """Forget stored records; return the number of their rows."""
        return sum(len(self._packed.pop(id(entry))[1].rows) for entry in entries)
