"""Which records of a page belong to a range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_source.model.shard import AfterRecord, SequenceNumber, ShardEnd
from kinesis_source.reading.range_filter import WHOLE_RECORD, Anchor, Cut, Meeting, cut_page

PAGE = [SequenceNumber(text) for text in ("8", "9", "10", "12", "100")]
"""Ascending as integers; as text they are not."""


def anchor(number: int, after_sub: int = 0) -> Anchor:
    return Anchor(sequence_number=SequenceNumber(str(number)), after_sub=after_sub)


def upto(number: int, sub: int = 0) -> AfterRecord:
    return AfterRecord(sequence_number=SequenceNumber(str(number)), sub=sub)


def cut(
    begin: int,
    end: int,
    *,
    after_sub: int | None = None,
    up_to_sub: int | None = None,
    at_start: Meeting = Meeting.MET,
    instead_of_anchor: str | None = None,
    at_end: Meeting = Meeting.AWAITED,
    instead_of_end: str | None = None,
) -> Cut:
    return Cut(
        begin=begin,
        end=end,
        after_sub=after_sub,
        up_to_sub=up_to_sub,
        anchor=at_start,
        instead_of_anchor=None if instead_of_anchor is None else SequenceNumber(instead_of_anchor),
        finish=at_end,
        instead_of_end=None if instead_of_end is None else SequenceNumber(instead_of_end),
    )


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(None, ShardEnd(), cut(0, 5), id="everything"),
        pytest.param(None, upto(200), cut(0, 5), id="end-later"),
        pytest.param(
            None, upto(10, 7), cut(0, 3, up_to_sub=7, at_end=Meeting.MET), id="end-in-the-midst"
        ),
        pytest.param(None, upto(100), cut(0, 5, up_to_sub=0, at_end=Meeting.MET), id="end-is-last"),
        pytest.param(
            None, upto(11), cut(0, 3, at_end=Meeting.MISSING, instead_of_end="12"), id="end-passed"
        ),
        pytest.param(
            None, upto(2), cut(0, 0, at_end=Meeting.MISSING, instead_of_end="8"), id="all-passed"
        ),
        pytest.param(anchor(8, 3), ShardEnd(), cut(0, 5, after_sub=3), id="anchor-first"),
        pytest.param(
            anchor(10, WHOLE_RECORD),
            ShardEnd(),
            cut(2, 5, after_sub=WHOLE_RECORD),
            id="older-records-before-the-anchor",
        ),
        pytest.param(
            anchor(11),
            upto(100),
            cut(
                3, 5, at_start=Meeting.MISSING, instead_of_anchor="12",
                up_to_sub=0, at_end=Meeting.MET,
            ),
            id="anchor-missing",
        ),
        pytest.param(
            anchor(101), upto(102), cut(5, 5, at_start=Meeting.AWAITED), id="anchor-later"
        ),
        pytest.param(
            anchor(101), upto(9), cut(5, 5, at_start=Meeting.AWAITED), id="end-before-the-anchor"
        ),
        pytest.param(
            anchor(12, 1),
            upto(12, 4),
            cut(3, 4, after_sub=1, up_to_sub=4, at_end=Meeting.MET),
            id="within-one-record",
        ),
        pytest.param(
            anchor(11),
            upto(11),
            cut(
                3, 3, at_start=Meeting.MISSING, instead_of_anchor="12",
                at_end=Meeting.MISSING, instead_of_end="12",
            ),
            id="both-missing",
        ),
    ],
)  # fmt: skip
def test_cuts(start: Anchor | None, end: AfterRecord | ShardEnd, expected: Cut) -> None:
    assert cut_page(PAGE, start, end) == expected


def test_an_empty_page_leaves_everything_awaited() -> None:
    assert cut_page([], anchor(1), upto(2)) == cut(0, 0, at_start=Meeting.AWAITED)
    assert cut_page([], None, ShardEnd()) == cut(0, 0)


@given(
    st.sets(st.integers(0, 30)),
    st.none() | st.integers(0, 30),
    st.none() | st.integers(0, 30),
)
def test_a_cut_is_the_naive_slice(present: set[int], start: int | None, end: int | None) -> None:
    if start is not None and end is not None:
        start, end = min(start, end), max(start, end)
    numbers = sorted(present)
    result = cut_page(
        [SequenceNumber(str(number)) for number in numbers],
        None if start is None else anchor(start),
        ShardEnd() if end is None else upto(end),
    )
    assert numbers[result.begin : result.end] == [
        number
        for number in numbers
        if (start is None or number >= start) and (end is None or number <= end)
    ]
    assert (result.anchor is Meeting.MET) == (start is None or start in present)
    assert (result.finish is Meeting.MET) == (end is not None and end in present)
    if end is not None and end not in present:
        passed = any(number > end for number in numbers)
        assert result.finish is (Meeting.MISSING if passed else Meeting.AWAITED)
