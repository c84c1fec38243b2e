"""The prediction of the shard that stores a record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    HashRange,
    SequenceNumber,
    ShardId,
    digest_of,
    hash_of,
)
from spark_ssp.kinesis_source.model.shard import Shard
from spark_ssp.kinesis_source.sink.aggregation import KeyRoom, ShardMap
from tests.support.kinesis.sink_writer import shard_of


def shard(name: str, first: int, last: int, *, closed: bool = False) -> Shard:
    return Shard(
        shard_id=ShardId(name),
        hash_range=HashRange(first=first, last=last),
        first_sequence_number=SequenceNumber("0"),
        closed=closed,
    )


def test_the_hash_key_is_the_explicit_one_or_the_md5_of_the_key() -> None:
    assert hash_of("a", None) == 0x0CC175B9C0F1B6A831C399E269772661
    assert hash_of("клён", None) == 0x3A394F1DE48269A079793A26FAAFD512
    assert hash_of("a", "7") == 7


@given(st.sets(st.integers(1, MAX_HASH_KEY), max_size=9), st.data())
def test_the_predicted_shard_is_the_open_one_with_the_hash_key(
    bounds: set[int], data: st.DataObject
) -> None:
    firsts = [0, *sorted(bounds)]
    lasts = [first - 1 for first in firsts[1:]] + [MAX_HASH_KEY]
    closed = shard("parent", 0, MAX_HASH_KEY, closed=True)
    shards = [
        shard(str(number), first, last)
        for number, (first, last) in enumerate(zip(firsts, lasts, strict=True))
    ]
    shard_map = ShardMap(data.draw(st.permutations([closed, *shards])))
    edges = st.sampled_from([*firsts, *lasts])
    hash_key = data.draw(st.one_of(edges, st.integers(0, MAX_HASH_KEY)))
    (owner,) = (each for each in shards if hash_key in each.hash_range)
    assert shard_of(shard_map, hash_key) == owner.shard_id
    assert list(shard_map.shards) == [each.shard_id for each in shards]


def test_the_shard_maps_of_a_task_remember_a_number_of_keys_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[str] = []

    def spy(key: str) -> bytes:
        hashed.append(key)
        return digest_of(key)

    monkeypatch.setattr("spark_ssp.kinesis_source.sink.aggregation.digest_of", spy)
    room, half = KeyRoom(4), 1 << 127
    halves = [shard("lower", 0, half - 1), shard("upper", half, MAX_HASH_KEY)]
    one, other = ShardMap(halves, room), ShardMap(halves, room)
    for shard_map, keys, expected in (
        (one, "ab", "ab"),
        (other, "ac", "ac"),
        (one, "ba", ""),
        (one, "ad", "d"),  # there is no room for it beside the others
        (one, "da", "a"),
        (other, "ac", "ac"),
        (other, "ca", ""),
    ):
        hashed.clear()
        assert shard_map.place(keys).tolist() == [int(hash_of(key) >= half) for key in keys]
        assert "".join(hashed) == expected


def test_a_stream_has_an_open_shard() -> None:
    with pytest.raises(ValueError, match="without an open shard"):
        ShardMap([shard("parent", 0, MAX_HASH_KEY, closed=True)])
