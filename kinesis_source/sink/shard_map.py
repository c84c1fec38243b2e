"""Predicts the shard that stores a record: the open shard whose hash keys include the record's."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import numpy as np

from spark_ssp.grouping.identifiers import (
    HASH_BYTES,
    MAX_HASH_KEY,
    HashRange,
    SequenceNumber,
    ShardId,
    digest_of,
)
from spark_ssp.kinesis_source.model.shard import Shard

ANY_SHARD: Final = ShardId("")
"""The queue of a stream whose records are placed by the service."""

_MAX_CACHED: Final = 100_000


class _PlaceByKey(dict[str | None, int]):
    """The places of partition keys, computed when they are looked up first: keys repeat, and a
    lookup costs a tenth of the hash."""

    def __init__(self, first: Sequence[bytes]) -> None:
        """`first` has the first hash key of each shard, in order."""
        self._first = first

    def __missing__(self, key: str | None) -> int:
        place = self[key] = _place_of(digest_of(cast("str", key)), self._first)
        return place


class ShardMap:
    """The open shards of a stream, by hash key."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        """Raises ValueError if no shard is open."""
        listed = sorted(
            (shard for shard in shards if not shard.closed), key=lambda each: each.hash_range.first
        )
        if not listed:
            raise ValueError("a stream without an open shard")
        # Big-endian, so that they compare as the numbers do.
        self._first = [shard.hash_range.first.to_bytes(HASH_BYTES) for shard in listed]
        self._ids = [shard.shard_id for shard in listed]
        self._by_key = _PlaceByKey(self._first)
        # The smallest integer type: NumPy sorts it many times as fast.
        self._type = np.min_scalar_type(len(listed))

    @property
    def shards(self) -> Sequence[ShardId]:
        """The open shards, in the order of their hash keys."""
        return self._ids

    def shard_of(self, hash_key: int) -> ShardId:
        """Return the shard that the hash key belongs to."""
        return self._ids[_place_of(hash_key.to_bytes(HASH_BYTES), self._first)]

    def place(
        self, keys: Sequence[str | None], hash_keys: Sequence[str | None] | None = None
    ) -> Any:
        """Return the place in `shards` of each record's shard, from the partition keys and explicit
        hash keys, as a NumPy array of integers. Only one shard has records without a partition
        key."""
        if len(self._ids) == 1:
            return np.zeros(len(keys), self._type)
        if len(self._by_key) > _MAX_CACHED:
            self._by_key.clear()
        places: Iterable[int] = map(self._by_key.__getitem__, keys)
        if hash_keys is not None:
            places = (
                self._by_key[key]
                if hash_key is None
                else _place_of(int(hash_key).to_bytes(HASH_BYTES), self._first)
                for key, hash_key in zip(keys, hash_keys, strict=True)
            )
        return np.fromiter(places, self._type, len(keys))


def _place_of(digest: bytes, first: Sequence[bytes]) -> int:
    return max(0, bisect_right(first, digest) - 1)


ANY: Final = ShardMap(
    [
        Shard(
            shard_id=ANY_SHARD,
            hash_range=HashRange(first=0, last=MAX_HASH_KEY),
            first_sequence_number=SequenceNumber("0"),
            closed=False,
        )
    ]
)
"""One queue for all records, whose keys may be missing."""
