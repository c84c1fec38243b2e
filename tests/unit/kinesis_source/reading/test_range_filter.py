"""Slices of pages by range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.kinesis_source.model.shard import AfterRecord, SequenceNumber, ShardEnd
from spark_ssp.kinesis_source.reading.range_filter import (
    WHOLE_RECORD,
    ExpectedRecord,
    Match,
    PageSlice,
    slice_page,
)

PAGE = [SequenceNumber(text) for text in ("8", "9", "10", "12", "100")]
"""Ascending as integers; as text they are not."""


def record(number: int, after_sub: int = 0) -> ExpectedRecord:
    return ExpectedRecord(sequence_number=SequenceNumber(str(number)), after_sub=after_sub)


def upto(number: int, sub: int = 0) -> AfterRecord:
    return AfterRecord(sequence_number=SequenceNumber(str(number)), sub=sub)


def part(
    begin: int,
    end: int,
    *,
    after_sub: int | None = None,
    up_to_sub: int | None = None,
    at_start: Match = Match.FOUND,
    instead_of_expected: str | None = None,
    at_end: Match = Match.PENDING,
    instead_of_end: str | None = None,
) -> PageSlice:
    return PageSlice(
        begin=begin,
        end=end,
        after_sub=after_sub,
        up_to_sub=up_to_sub,
        start_match=at_start,
        instead_of_expected=None
        if instead_of_expected is None
        else SequenceNumber(instead_of_expected),
        end_match=at_end,
        instead_of_end=None if instead_of_end is None else SequenceNumber(instead_of_end),
    )


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(None, ShardEnd(), part(0, 5), id="everything"),
        pytest.param(None, upto(200), part(0, 5), id="end-later"),
        pytest.param(
            None, upto(10, 7), part(0, 3, up_to_sub=7, at_end=Match.FOUND), id="end-in-the-midst"
        ),
        pytest.param(None, upto(100), part(0, 5, up_to_sub=0, at_end=Match.FOUND), id="end-last"),
        pytest.param(
            None, upto(11), part(0, 3, at_end=Match.MISSING, instead_of_end="12"), id="end-passed"
        ),
        pytest.param(
            None, upto(2), part(0, 0, at_end=Match.MISSING, instead_of_end="8"), id="all-passed"
        ),
        pytest.param(record(8, 3), ShardEnd(), part(0, 5, after_sub=3), id="expected-first"),
        pytest.param(
            record(10, WHOLE_RECORD),
            ShardEnd(),
            part(2, 5, after_sub=WHOLE_RECORD),
            id="older-records-before-expected",
        ),
        pytest.param(
            record(11),
            upto(100),
            part(
                3, 5, at_start=Match.MISSING, instead_of_expected="12",
                up_to_sub=0, at_end=Match.FOUND,
            ),
            id="expected-missing",
        ),
        pytest.param(
            record(101), upto(102), part(5, 5, at_start=Match.PENDING), id="expected-later"
        ),
        pytest.param(
            record(101), upto(9), part(5, 5, at_start=Match.PENDING), id="end-before-expected"
        ),
        pytest.param(
            record(12, 1),
            upto(12, 4),
            part(3, 4, after_sub=1, up_to_sub=4, at_end=Match.FOUND),
            id="within-one-record",
        ),
        pytest.param(
            record(11),
            upto(11),
            part(
                3, 3, at_start=Match.MISSING, instead_of_expected="12",
                at_end=Match.MISSING, instead_of_end="12",
            ),
            id="both-missing",
        ),
    ],
)  # fmt: skip
def test_slices(
    start: ExpectedRecord | None, end: AfterRecord | ShardEnd, expected: PageSlice
) -> None:
    assert slice_page(PAGE, start, end) == expected


def test_an_empty_page_leaves_everything_pending() -> None:
    assert slice_page([], record(1), upto(2)) == part(0, 0, at_start=Match.PENDING)
    assert slice_page([], None, ShardEnd()) == part(0, 0)


@given(
    st.sets(st.integers(0, 30)),
    st.none() | st.integers(0, 30),
    st.none() | st.integers(0, 30),
)
def test_a_slice_is_the_naive_slice(present: set[int], start: int | None, end: int | None) -> None:
    if start is not None and end is not None:
        start, end = min(start, end), max(start, end)
    numbers = sorted(present)
    result = slice_page(
        [SequenceNumber(str(number)) for number in numbers],
        None if start is None else record(start),
        ShardEnd() if end is None else upto(end),
    )
    assert numbers[result.begin : result.end] == [
        number
        for number in numbers
        if (start is None or number >= start) and (end is None or number <= end)
    ]
    assert (result.start_match is Match.FOUND) == (start is None or start in present)
    assert (result.end_match is Match.FOUND) == (end is not None and end in present)
    if end is not None and end not in present:
        passed = any(number > end for number in numbers)
        assert result.end_match is (Match.MISSING if passed else Match.PENDING)
