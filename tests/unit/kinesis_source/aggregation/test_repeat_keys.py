"""Repeat keys: read as they were written, the same in every attempt, ignored by other readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.aggregation.deaggregation import open_aggregate, split
from spark_ssp.kinesis_source.aggregation.repeat_keys import (
    COUNT_TAG,
    WRITE_TAG,
    RowCounter,
    WriteId,
    repeat_keys,
)
from spark_ssp.kinesis_source.sink.aggregation import AggregateLimits, Row, take_record
from tests.support.kcl.kpl import seal
from tests.support.kcl.kpl_by_hand import chunk, number

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
