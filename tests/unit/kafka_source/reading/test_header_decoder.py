"""Headers are found in the bytes of many records as a reader of one record finds them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from spark_ssp.kafka_source.reading.arrow_batches import (
    binary_column,
    header_bytes,
    headers_column,
    headers_from_counts,
)
from spark_ssp.kafka_source.reading.librdkafka import HeaderPositions, find_headers
from spark_ssp.kafka_source.source import spark_schema
from tests.support.spark.arrow_schemas import arrow_schema_of

Headers = Sequence[tuple[bytes, bytes | None]]

NAMES = st.binary(max_size=3) | st.sampled_from([b"", b"a", b"trace-id", b"x" * 64, b"y" * 9_000])
VALUES = st.none() | st.binary(max_size=4) | st.sampled_from([b"", b"v" * 63, b"w" * 8_192])
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=4)
RECORDS = st.lists(HEADERS, max_size=60) | st.builds(
    lambda headers, copies: [headers] * copies, HEADERS, st.integers(0, 60)
)


def varint(number: int, *, length: int = 1) -> bytes:
    """Zigzag, seven bits to a byte; as if it needed so many bytes."""
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest > 127 or len(found) + 1 < length:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


def encoded(headers: Headers) -> bytes:
    found = varint(len(headers))
    for name, value in headers:
        found += varint(len(name)) + name
        found += varint(-1) if value is None else varint(len(value)) + value
    return found


def found_in(records: Sequence[bytes]) -> list[Headers] | None:
    """What is found in the records' bytes when they lie apart from each other, among others."""
    memory = bytearray(b"\xff" * 7)
    places: list[tuple[int, int]] = []
    for record in records:
        places.append((len(memory), len(memory) + len(record)))
        memory += record + b"\x80\xff"
    begins, ends = np.array(places, np.int64).reshape(-1, 2).T
    found = find_headers(np.frombuffer(memory, np.uint8), begins, ends)
    return None if found is None else as_lists(bytes(memory), found)


def as_lists(memory: bytes, found: HeaderPositions) -> list[Headers]:
    def text(place: int, size: int) -> bytes | None:
        assert place >= 0 or size == 0
        return None if place < 0 else memory[place : place + size]

    pairs = [
        (text(name, name_size) or b"", text(value, value_size))
        for name, name_size, value, value_size in zip(
            found.names, found.name_sizes, found.values, found.value_sizes, strict=True
        )
    ]
    firsts = np.cumsum(found.counts) - found.counts
    return [pairs[first : first + count] for first, count in zip(firsts, found.counts, strict=True)]


@given(RECORDS)
def test_headers_are_found_as_they_were_written(records: list[Headers]) -> None:
    assert found_in([encoded(headers) for headers in records]) == [list(one) for one in records]


SHORT = st.tuples(st.text(max_size=15), st.none() | st.binary(max_size=63))


@given(st.lists(SHORT, max_size=63))
def test_headers_that_are_decoded_count_as_their_bytes(
    headers: list[tuple[str, bytes | None]],
) -> None:
    """But for the byte of their number."""
    pairs = [(name.encode(), value) for name, value in headers]
    assert header_bytes(headers) == len(encoded(pairs)) - 1


def test_a_record_of_an_old_format_has_no_bytes_for_headers() -> None:
    assert found_in([b"", encoded([(b"a", b"1")]), b""]) == [[], [(b"a", b"1")], []]
    assert found_in([]) == []


def test_a_record_with_many_headers_among_many_with_few() -> None:
    many: Headers = [(b"%d" % number, b"v" * (number % 200)) for number in range(3_000)]
    few: Headers = [(b"a", None)]
    records = [few] * 50 + [many] + [few] * 50
    assert found_in([encoded(headers) for headers in records]) == records


SOME: Headers = [(b"name", b"value"), (b"", None), (b"n" * 100, b"v" * 200)]


@pytest.mark.parametrize("copies", [1, 100])
def test_bytes_that_end_too_early_are_reported(copies: int) -> None:
    whole = encoded(SOME)
    for size in range(1, len(whole)):
        assert found_in([whole] * copies + [whole[:size]]) is None
    assert found_in([whole] * copies) == [SOME] * copies


@pytest.mark.parametrize("copies", [1, 100])
@pytest.mark.parametrize(
    "odd",
    [
        encoded(SOME) + b"\0",
        varint(2) + varint(-1) + varint(-1) + varint(0) + varint(0),
        varint(1) + varint(0) + varint(-2),
        varint(1) + varint(-3) + b"abcdefgh",
        varint(1) + varint(1 << 33) + b"abcdefgh",
        varint(1) + varint(1) + b"a" + varint(1 << 33) + b"abcdefgh",
        varint(1) + varint(0, length=6) + varint(0),
        varint(1 << 40),
        varint(1 << 20) + b"\0" * 100,
        b"\xff" * 12,
    ],
    ids=[
        "more bytes than headers",
        "name without a size",
        "value of a negative size",
        "name of a negative size",
        "name beyond the end",
        "value beyond the end",
        "number of six bytes",
        "count of six bytes",
        "count beyond the end",
        "number without an end",
    ],
)
def test_a_value_that_is_not_a_header_is_reported(odd: bytes, copies: int) -> None:
    good = [encoded([])] * copies
    assert found_in([*good, odd]) is None
    assert found_in([odd] * copies) is None


def test_numbers_may_take_more_bytes_than_they_need() -> None:
    record = varint(1, length=5) + varint(1, length=2) + b"a" + varint(0, length=5)
    assert found_in([record] * 50) == [[(b"a", b"")]] * 50
    assert found_in([record]) == [[(b"a", b"")]]


def test_no_count_of_headers_is_none_whatever_follows() -> None:
    """As the library has it."""
    assert found_in([varint(-1), varint(0) + b"more"]) == [[], []]


# --- The column -----------------------------------------------------------------------------------


@given(RECORDS)
def test_the_column_is_that_of_texts(records: list[Headers]) -> None:
    flat = [pair for headers in records for pair in headers]
    column = headers_from_counts(
        np.array([len(headers) for headers in records], np.int64),
        binary_column([name for name, _ in flat]),
        binary_column([value for _, value in flat]),
    )
    column.validate(full=True)
    expected = headers_column(
        [[(name.decode(errors="replace"), value) for name, value in headers] for headers in records]
    )
    assert column.equals(expected)


@pytest.mark.parametrize(
    "names",
    [
        [b"caf\xc3", b"\xa9"],
        [b"\xa9"],
        [b"caf\xe9", b"ok"],
        [b"\xed\xa0\x80"],
        ["é".encode(), b"", "€".encode(), b""],
        [b"", b""],
    ],
)
def test_each_name_is_text_by_itself(names: list[bytes]) -> None:
    """Also where all of them in a row would be."""
    column = headers_from_counts(
        np.array([len(names)]), binary_column(names), binary_column([None] * len(names))
    )
    column.validate(full=True)
    headers = spark_schema(include_headers=True, include_task=False)["headers"]
    (found,) = column.to_pylist()
    assert [one["key"] for one in found] == [name.decode(errors="replace") for name in names]
    assert column.type == arrow_schema_of(StructType([headers])).field(0).type


_ODD = st.builds(
    lambda headers, at, byte: (
        bytes([*(old := encoded(headers))[: at % len(old)], byte]) + old[at % len(old) + 1 :]
    ),
    HEADERS,
    st.integers(0, 1_000),
    st.integers(0, 255),
)


@given(
    st.lists(st.binary(max_size=12) | _ODD, max_size=6),
    st.integers(1, 40),
)
def test_of_any_bytes_headers_are_found_within_their_record_or_not_at_all(
    records: list[bytes], copies: int
) -> None:
    """`copies`, so that both ways of reading are taken."""
    records = records * copies
    found = found_in(records)
    if found is None:
        return
    for record, headers in zip(records, found, strict=True):
        assert sum(len(name) + len(value or b"") for name, value in headers) <= len(record)
        assert all(name in record and (value or b"") in record for name, value in headers)
    assert [found_in([record]) for record in records] == [[headers] for headers in found]
