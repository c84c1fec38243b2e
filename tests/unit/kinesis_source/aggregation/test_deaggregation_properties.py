"""Properties of the splitting for all aggregates: valid, damaged and unusual."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange
from spark_ssp.kinesis_source.aggregation import kpl_proto
from spark_ssp.kinesis_source.aggregation.deaggregation import (
    MAGIC,
    UserRecord,
    has_aggregate_magic,
    last_sub,
    split,
)
from tests.support.kcl.kpl import Put, aggregate, seal
from tests.support.kcl.kpl_by_hand import (
    IN_LOWER,
    IN_UPPER,
    LOWER,
    UPPER,
    child,
    chunk,
    expect_whole,
    hash_of,
    payloads,
    user_record,
)

puts_strategy = st.lists(
    st.builds(
        Put,
        partition_key=st.text(min_size=1, max_size=8) | st.sampled_from([IN_LOWER, IN_UPPER]),
        data=st.binary(max_size=40),
        explicit_hash_key=st.none() | st.integers(0, MAX_HASH_KEY).map(str),
    ),
    min_size=1,
    max_size=12,
)
range_strategy = st.tuples(st.integers(0, MAX_HASH_KEY), st.integers(0, MAX_HASH_KEY)).map(
    lambda ends: HashRange(first=min(ends), last=max(ends))
)


def effective_hash_key(put: Put) -> int:
    explicit = put.explicit_hash_key
    return hash_of(put.partition_key) if explicit is None else int(explicit)


@given(puts_strategy)
def test_what_was_aggregated_comes_back(puts: list[Put]) -> None:
    data = aggregate(puts)
    assert has_aggregate_magic(data)
    assert split(data) == tuple(
        UserRecord(partition_key=put.partition_key, data=put.data, sub=sub)
        for sub, put in enumerate(puts)
    )
    assert last_sub(data) == len(puts) - 1


@given(puts_strategy, range_strategy | st.sampled_from([LOWER, UPPER]))
def test_a_shard_gets_just_the_user_records_that_are_its_own(
    puts: list[Put], shard: HashRange
) -> None:
    data = aggregate(puts)
    records = split(data, child(shard))
    assert records is not None
    assert [record.sub for record in records] == [
        sub for sub, put in enumerate(puts) if shard.first <= effective_hash_key(put) <= shard.last
    ]
    assert set(records) <= set(split(data) or ())
    assert last_sub(data) == len(puts) - 1


@given(st.binary(max_size=200))
def test_plain_data_is_never_touched(data: bytes) -> None:
    expect_whole(data)
    expect_whole(MAGIC + data)


@given(puts_strategy, st.data())
def test_a_damaged_aggregate_passes_through_whole(puts: list[Put], draw: st.DataObject) -> None:
    data = aggregate(puts)
    at = draw.draw(st.integers(0, len(data) - 1))
    flipped = data[at] ^ draw.draw(st.integers(1, 255))
    expect_whole(data[:at] + bytes([flipped]) + data[at + 1 :])
    expect_whole(data[:at])
    expect_whole(data[:at] + data[at + 1 :])
    expect_whole(data + data[at : at + 1])


@pytest.mark.parametrize("flip", [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF])
def test_damage_at_every_single_byte(flip: int) -> None:
    data = aggregate(
        [Put(partition_key="k", data=b"1", explicit_hash_key="5"), Put(partition_key="l", data=b"")]
    )
    for at in range(len(data)):
        expect_whole(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


@given(puts_strategy, st.data())
def test_a_strange_message_with_a_right_checksum_never_raises_and_never_loses(
    puts: list[Put], draw: st.DataObject
) -> None:
    """It is either split, then into as many user records as it has, or passed through whole."""
    message = bytearray(aggregate(puts)[len(MAGIC) : -16])
    for _ in range(draw.draw(st.integers(1, 4))):
        message[draw.draw(st.integers(0, len(message) - 1))] = draw.draw(st.integers(0, 255))
    data = seal(bytes(message))
    records = split(data)
    if records is None:
        expect_whole(data)
        return
    parsed = kpl_proto.parse(bytes(message))
    assert parsed is not None
    assert len(records) == len(parsed.records)
    assert records or not kpl_proto.has_unknown_fields(parsed)
    assert [record.sub for record in records] == list(range(len(records)))
    assert last_sub(data) == max(0, len(records) - 1)


@given(
    st.lists(st.binary(min_size=1, max_size=6), max_size=4),
    st.lists(st.binary(max_size=6), max_size=3),
    st.lists(
        st.tuples(st.integers(0, 5), st.binary(max_size=10), st.none() | st.integers(0, 4)),
        max_size=6,
    ),
)
def test_tables_and_indices_of_every_kind(
    keys: list[bytes], explicit: list[bytes], entries: list[tuple[int, bytes, int | None]]
) -> None:
    message = b"".join(
        [chunk(1, key) for key in keys]
        + [chunk(2, key) for key in explicit]
        + [user_record(*entry) for entry in entries]
    )
    records = split(seal(message))
    if records is None:
        expect_whole(seal(message))
    else:
        assert [record.data for record in records] == payloads(message)
        assert [record.partition_key.encode() for record in records] == [
            keys[index] for index, _, _ in entries
        ]
