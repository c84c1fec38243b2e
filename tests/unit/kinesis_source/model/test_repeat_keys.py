"""Repeat keys: their form, and rows of several attempts of a task dropped by them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    HashRange,
    SequenceNumber,
    ShardId,
    ShardKey,
    StreamName,
)
from spark_ssp.kinesis_source.model.deaggregation import (
    COUNT_TAG,
    WRITE_TAG,
    RowCounter,
    WriteId,
    open_aggregate,
    repeat_keys,
    split,
)
from spark_ssp.kinesis_source.model.shard import RecordPage, Shard
from spark_ssp.kinesis_source.reading.page_rows import build_rows
from spark_ssp.kinesis_source.sink.aggregation import (
    AggregateLimits,
    PackedRecord,
    Packing,
    Row,
    ShardMap,
    take_record,
)
from tests.support.kcl.kpl import chunk, number, seal
from tests.support.kinesis.pages import page, slice_of
from tests.support.kinesis.sink_writer import Entry, rows_of

LIMITS = AggregateLimits(record_bytes=1 << 20)
ORDERS = StreamName("orders")
WRITE = WriteId(source="6f1c", stream=ORDERS, batch=12, task=3)

CONTENTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "bb", "клён"]),
        st.sampled_from([None, "0", "7"]),
        st.sampled_from([b"", b"b", b"x"]),
    ),
    min_size=1,
    max_size=12,
)


def written(contents: list[tuple[str, str | None, bytes]]) -> bytes:
    """An aggregate of rows with their counts."""
    counter = RowCounter()
    rows = deque(Row(*content, repeat=counter.count(*content)) for content in contents)
    record = take_record(rows, LIMITS, WRITE)
    assert not rows
    return record.data


def keys_of(data: bytes, stream: StreamName = ORDERS) -> Sequence[str] | None:
    aggregate = open_aggregate(data)
    assert aggregate is not None
    return repeat_keys(aggregate, stream)


@given(CONTENTS, st.randoms())
def test_a_row_has_the_same_identity_in_every_attempt_and_order(
    contents: list[tuple[str, str | None, bytes]], random: Random
) -> None:
    again = list(contents)
    random.shuffle(again)
    first, second = keys_of(written(contents)) or (), keys_of(written(again)) or ()
    assert sorted(first) == sorted(second)
    assert len(set(first)) == len(contents)
    by_row = dict(zip(contents, first, strict=True))
    for content, key in zip(again, second, strict=True):
        assert key.rpartition(":")[0] == by_row[content].rpartition(":")[0]


def test_golden_repeat_keys() -> None:
    data = written([("a", None, b"x"), ("a", "7", b"x"), ("a", None, b"x")])
    assert data.count(b"6f1c/orders:12:3") == 1
    assert keys_of(data) == [
        "6f1c/orders:12:3:9140eef79c1c434e6dd254456ed53961:0",  # BLAKE2b of "1;-;ax"
        "6f1c/orders:12:3:27568b0b231663a6b2bffb55a734e048:0",  # BLAKE2b of "1;7;ax"
        "6f1c/orders:12:3:9140eef79c1c434e6dd254456ed53961:1",
    ]


@pytest.mark.parametrize("stream", ["copies", "rders", "my.orders", "orders:12"])
def test_an_aggregate_that_was_copied_to_another_stream_has_no_repeat_keys(stream: str) -> None:
    assert keys_of(written([("a", None, b"x")]), StreamName(stream)) is None


def tag(key: bytes, value: bytes) -> bytes:
    return chunk(4, chunk(1, key) + chunk(2, value))


GOOD = tag(WRITE_TAG.encode(), str(WRITE).encode())


def sealed(tags: bytes, others: bytes = b"") -> bytes:
    record = number(1, 0) + chunk(3, b"x")
    return seal(chunk(1, b"k") + chunk(3, record + tags) + chunk(3, record + others))


@pytest.mark.parametrize(
    ("tags", "others"),
    [
        pytest.param(b"", b"", id="no tags"),
        pytest.param(b"", GOOD, id="not in the first user record"),
        pytest.param(tag(b"other", str(WRITE).encode()), b"", id="another tag"),
        pytest.param(chunk(4, chunk(1, WRITE_TAG.encode())), b"", id="no value"),
        pytest.param(tag(WRITE_TAG.encode(), b"6f1c/orders:12"), b"", id="a part is missing"),
        pytest.param(tag(WRITE_TAG.encode(), b"6f1c/orders:12:-1"), b"", id="negative"),
        pytest.param(tag(WRITE_TAG.encode(), b"s/orders:1:" + b"9" * 10), b"", id="too large"),
        pytest.param(tag(WRITE_TAG.encode(), b"\xff/orders:1:2"), b"", id="not UTF-8"),
        pytest.param(tag(WRITE_TAG.encode(), b"a:b/orders:1:2"), b"", id="no id of a query"),
        pytest.param(tag(WRITE_TAG.encode(), b"orders:1:2"), b"", id="no source"),
        pytest.param(GOOD, tag(COUNT_TAG.encode(), b"x"), id="no count"),
        pytest.param(GOOD, tag(COUNT_TAG.encode(), b"01"), id="a second form of a count"),
    ],
)
def test_a_user_record_without_valid_repeat_keys_is_still_read(tags: bytes, others: bytes) -> None:
    data = sealed(tags, others)
    assert keys_of(data) is None
    assert [record.data for record in split(data) or ()] == [b"x", b"x"]


def test_tags_of_others_beside_repeat_keys_do_not_matter() -> None:
    data = sealed(tag(b"trace", b"1") + GOOD, tag(b"trace", b"\xff") + tag(b"t", b""))
    assert keys_of(data) == keys_of(sealed(GOOD))


ORDERS, COPIES = StreamName("orders"), StreamName("copies")
SHARD = ShardId("shardId-000000000000")
MAX_BYTES = 61_100
LARGE = Entry(bytes(MAX_BYTES - 1), "a")
"""A row that fits into a record, and not into an aggregate."""

ROWS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from([b"x", b"y", b"z"])), max_size=20
)


def shards(count: int) -> ShardMap:
    width = (MAX_HASH_KEY + 1) // count
    return ShardMap(
        Shard(
            shard_id=ShardId(f"{count}-{number}"),
            hash_range=HashRange(first=number * width, last=(number + 1) * width - 1),
            first_sequence_number=SequenceNumber("1"),
            closed=False,
        )
        for number in range(count)
    )


def write_of(task: int) -> WriteId:
    return WriteId(source="6f1c", stream=ORDERS, batch=12, task=task)


def attempt(
    rows: Sequence[tuple[str, bytes]], task: int, random: Random, stored: list[PackedRecord]
) -> None:
    """Write the rows of a task, in batches and in some order; up to a failure, if there is one."""
    limits = AggregateLimits(record_bytes=MAX_BYTES, rows=random.randint(1, 4))
    packing = Packing(shards(1), limits, write_of(task))
    waiting = [Entry(data, key) for key, data in random.sample(rows, len(rows))]
    while waiting:
        size = random.randint(1, len(waiting))
        packed = packing.pack(rows_of(waiting[:size]))
        waiting = waiting[size:]
        for record in packed:
            if random.random() < 0.3:  # a reshard; sometimes both forms are read
                packing.shard_map = shards(random.choice([1, 2, 4]))
                if random.random() < 0.5:
                    stored.append(record)
                stored.extend(packing.repack(record.rows))
            else:
                stored.extend([record] * random.choice([1, 1, 1, 2]))  # 2: the answer was lost


def read(stored: Sequence[PackedRecord], stream: StreamName) -> RecordPage:
    count = len(stored)
    records = page(
        [record.data for record in stored],
        keys=[record.partition_key for record in stored],
        numbers=range(100, 100 + count),
    )
    whole = slice_of(0, count)
    shard = ShardKey(stream=stream, shard=SHARD)
    return build_rows(records, whole, shard, deaggregate=True, include_repeat_keys=True).rows


@given(st.lists(ROWS, min_size=1, max_size=3), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_each_row_is_left_once_after_any_attempts(
    tasks: list[list[tuple[str, bytes]]], random: Random
) -> None:
    stored: list[PackedRecord] = []
    for task, rows in enumerate(tasks):
        for _ in range(random.randint(0, 2)):
            failed: list[PackedRecord] = []
            attempt(rows, task, random, failed)
            stored += random.sample(failed, random.randint(0, len(failed)))
        attempt(rows, task, random, stored)
    wanted = Counter(row for rows in tasks for row in rows)
    found = read(random.sample(stored, len(stored)), ORDERS)
    assert found.repeat_keys is not None
    rows_of = dict(
        zip(found.repeat_keys, zip(found.partition_keys, found.data, strict=True), strict=True)
    )
    assert Counter(rows_of.values()) == wanted
    # Copied to another stream, the tags mean nothing: every row stays.
    copied = read(stored, COPIES)
    assert copied.repeat_keys is not None
    assert len(set(copied.repeat_keys)) == len(copied) == len(found)


def test_a_row_that_is_too_large_for_an_aggregate_stays_twice() -> None:
    packing = Packing(shards(1), AggregateLimits(record_bytes=MAX_BYTES), write_of(0))
    stored = [*packing.pack(rows_of([LARGE])), *packing.pack(rows_of([LARGE]))]
    found = read(stored, ORDERS)
    assert found.repeat_keys == [f"orders/{SHARD}/{number}/0" for number in (100, 101)]
