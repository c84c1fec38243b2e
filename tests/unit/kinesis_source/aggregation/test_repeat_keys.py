"""Repeat keys: read as they were written, the same in every attempt, ignored by other readers."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_source.aggregation.deaggregation import split
from kinesis_source.aggregation.repeat_keys import (
    COUNT_TAG,
    WRITE_TAG,
    RepeatKeys,
    RowCounter,
    WriteId,
    read_repeat_keys,
)
from kinesis_source.sink.aggregation import AggregateLimits, Row, take_record
from tests.support.kcl.kpl import seal
from tests.support.kcl.kpl_by_hand import chunk, number

LIMITS = AggregateLimits(record_bytes=1 << 20)
WRITE = WriteId(source="6f1c/orders", batch=12, attempt_ms=1_763_894_400_000, task=3)

CONTENTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "bb", "клён"]),
        st.sampled_from([None, "0", "7"]),
        st.sampled_from([b"", b"b", b"x"]),
    ),
    min_size=1,
    max_size=12,
)


def written(contents: list[tuple[str, str | None, bytes]], write: WriteId = WRITE) -> bytes:
    """An aggregate of rows with their counts."""
    counter = RowCounter()
    rows = deque(Row(*content, repeat=counter.count(*content)) for content in contents)
    record = take_record(rows, LIMITS, write)
    assert not rows
    return record.data


def keys_of(data: bytes) -> RepeatKeys:
    keys = read_repeat_keys(data)
    assert keys is not None
    return keys


@given(CONTENTS, st.randoms())
def test_a_row_has_the_same_identity_in_every_attempt_and_order(
    contents: list[tuple[str, str | None, bytes]], random: Random
) -> None:
    again = list(contents)
    random.shuffle(again)
    later = WriteId(source=WRITE.source, batch=WRITE.batch, attempt_ms=WRITE.attempt_ms + 1, task=3)
    first, second = keys_of(written(contents)), keys_of(written(again, later))
    assert (first.write, second.write) == (WRITE, later)
    assert sorted(first.rows) == sorted(second.rows)
    assert len(set(first.rows)) == len(contents)
    by_row = dict(zip(contents, first.rows, strict=True))
    for content, row in zip(again, second.rows, strict=True):
        assert row.rpartition(":")[0] == by_row[content].rpartition(":")[0]


def test_golden_repeat_keys() -> None:
    data = written([("a", None, b"x"), ("a", "7", b"x"), ("a", None, b"x")])
    assert data.count(b"6f1c/orders:12:1763894400000:3") == 1
    assert keys_of(data) == RepeatKeys(
        write=WRITE,
        rows=[
            "3:9140eef79c1c434e6dd254456ed53961:0",  # BLAKE2b of "1;-;ax"
            "3:27568b0b231663a6b2bffb55a734e048:0",  # BLAKE2b of "1;7;ax"
            "3:9140eef79c1c434e6dd254456ed53961:1",
        ],
    )


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
        pytest.param(tag(WRITE_TAG.encode(), b"6f1c/orders:12:3"), b"", id="a part is missing"),
        pytest.param(tag(WRITE_TAG.encode(), b"6f1c/orders:12:-1:3"), b"", id="negative"),
        pytest.param(tag(WRITE_TAG.encode(), b"s:1:2:" + b"9" * 10), b"", id="too large"),
        pytest.param(tag(WRITE_TAG.encode(), b"\xff:1:2:3"), b"", id="not UTF-8"),
        pytest.param(GOOD, tag(COUNT_TAG.encode(), b"x"), id="no count"),
        pytest.param(GOOD, tag(COUNT_TAG.encode(), b"01"), id="a second form of a count"),
    ],
)
def test_a_user_record_without_valid_repeat_keys_is_still_read(tags: bytes, others: bytes) -> None:
    data = sealed(tags, others)
    assert read_repeat_keys(data) is None
    assert [record.data for record in split(data) or ()] == [b"x", b"x"]


def test_tags_of_others_beside_repeat_keys_do_not_matter() -> None:
    data = sealed(tag(b"trace", b"1") + GOOD, tag(b"trace", b"\xff") + tag(b"t", b""))
    assert keys_of(data).write == WRITE


@pytest.mark.parametrize("data", [b"", b"plain", sealed(GOOD)[:-1], seal(chunk(1, b"k"))])
def test_a_record_that_is_no_aggregate_has_no_repeat_keys(data: bytes) -> None:
    assert read_repeat_keys(data) is None
