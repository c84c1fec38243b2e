"""The records of a page in a range, and their rows: those of a page without aggregates are the same
as if each record were split."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.deaggregation import MAGIC, WHOLE_RECORD
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    RecordPage,
    SequenceNumber,
    ShardEnd,
)
from spark_ssp.kinesis_source.reading.arrow_batches import Chunk
from spark_ssp.kinesis_source.reading.page_rows import (
    ExpectedRecord,
    Match,
    PageSlice,
    StragglerFilter,
    _split_rows,
    build_rows,
    slice_page,
)
from tests.support.kcl.kpl import (
    IN_LOWER,
    IN_UPPER,
    LOWER,
    UPPER,
    Put,
    aggregate,
    child,
    chunk,
    seal,
)
from tests.support.kinesis.pages import page, slice_of
from tests.support.kinesis.shards import after

PAGE = [SequenceNumber(text) for text in ("8", "9", "10", "12", "100")]
"""Ascending as integers; as text they are not."""


def record(number: int, after_sub: int = 0) -> ExpectedRecord:
    return ExpectedRecord(sequence_number=SequenceNumber(str(number)), after_sub=after_sub)


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
        pytest.param(None, after(200), part(0, 5), id="end-later"),
        pytest.param(
            None, after(10, 7), part(0, 3, up_to_sub=7, at_end=Match.FOUND), id="end-in-the-midst"
        ),
        pytest.param(None, after(100), part(0, 5, up_to_sub=0, at_end=Match.FOUND), id="end-last"),
        pytest.param(
            None, after(11), part(0, 3, at_end=Match.MISSING, instead_of_end="12"), id="end-passed"
        ),
        pytest.param(
            None, after(2), part(0, 0, at_end=Match.MISSING, instead_of_end="8"), id="all-passed"
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
            after(100),
            part(
                3, 5, at_start=Match.MISSING, instead_of_expected="12",
                up_to_sub=0, at_end=Match.FOUND,
            ),
            id="expected-missing",
        ),
        pytest.param(
            record(101), after(102), part(5, 5, at_start=Match.PENDING), id="expected-later"
        ),
        pytest.param(
            record(101), after(9), part(5, 5, at_start=Match.PENDING), id="end-before-expected"
        ),
        pytest.param(
            record(12, 1),
            after(12, 4),
            part(3, 4, after_sub=1, up_to_sub=4, at_end=Match.FOUND),
            id="within-one-record",
        ),
        pytest.param(
            record(11),
            after(11),
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
    assert slice_page([], record(1), after(2)) == part(0, 0, at_start=Match.PENDING)
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
        ShardEnd() if end is None else after(end),
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


START = 1_700_000_000_000
SHARD = ShardKey(stream=StreamName("orders"), shard=ShardId("shardId-000000000000"))

plain = st.one_of(
    st.binary(max_size=8),
    st.integers(0, len(MAGIC) - 1).map(lambda size: MAGIC[:size]),
    st.just(b"x" + MAGIC),
).filter(lambda data: not data.startswith(MAGIC))
without_user_records = seal(chunk(1, b"k"))
aggregated = st.just(without_user_records) | st.lists(
    st.builds(Put, partition_key=st.text(min_size=1, max_size=3), data=st.binary(max_size=3)),
    min_size=1,
    max_size=4,
).map(aggregate)
damaged = st.one_of(
    st.binary(max_size=40).map(lambda data: MAGIC + data),
    aggregated.map(lambda data: data[:-1]),
)
droppings = st.none() | st.builds(
    StragglerFilter,
    keys=st.sampled_from([child(LOWER), child(UPPER)]),
    since=st.integers(-1, 6).map(lambda n: EpochMillis(START + n)),
)


@st.composite
def pages(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> RecordPage:
    records = draw(st.lists(st.tuples(st.text(max_size=3), data), max_size=6))
    return page(
        [body for _, body in records],
        keys=[key for key, _ in records],
        arrivals=[START + n for n in range(len(records))],
    )


@st.composite
def slices(draw: st.DrawFn, page: RecordPage) -> PageSlice:
    begin, end = sorted(draw(st.tuples(*[st.integers(0, len(page))] * 2)))
    return slice_of(
        begin,
        end,
        after_sub=draw(st.sampled_from([None, -1, 0, 1, WHOLE_RECORD])),
        up_to_sub=draw(st.sampled_from([None, 0, 1, WHOLE_RECORD])),
    )


def rows(read: Chunk) -> Sequence[tuple[object, ...]]:
    """By row; a column that is left out is one of zeros."""
    subs = read.rows.sub_sequence_numbers
    return list(
        zip(
            read.rows.partition_keys,
            read.rows.data,
            read.rows.sequence_numbers,
            [0] * len(read) if subs is None else subs,
            read.rows.arrival_ms,
            strict=True,
        )
    )


@given(st.data(), pages(plain), droppings)
def test_a_page_without_aggregates_is_what_splitting_makes_of_it(
    data: st.DataObject, page: RecordPage, straggler_filter: StragglerFilter | None
) -> None:
    part = data.draw(slices(page))
    slow = _split_rows(page, part, SHARD, straggler_filter)
    for fast in (
        build_rows(page, part, SHARD, deaggregate=True, straggler_filter=lambda: straggler_filter),
        build_rows(page, part, SHARD, deaggregate=False),
    ):
        assert fast.rows.sub_sequence_numbers is None
        assert rows(fast) == rows(slow)
        assert fast.memory_bytes == slow.memory_bytes


@given(st.data(), pages(plain | aggregated | damaged), droppings)
def test_a_page_is_what_each_of_its_records_comes_to(
    data: st.DataObject, page: RecordPage, straggler_filter: StragglerFilter | None
) -> None:
    """Of which those that are plain go the fast way by themselves."""
    part = data.draw(slices(page))
    include_repeat_keys = data.draw(st.booleans())
    together = build_rows(
        page,
        part,
        SHARD,
        deaggregate=True,
        include_repeat_keys=include_repeat_keys,
        straggler_filter=lambda: straggler_filter,
    )
    alone = [
        build_rows(
            page,
            slice_of(
                index,
                index + 1,
                after_sub=part.after_sub if index == part.begin else None,
                up_to_sub=part.up_to_sub if index == part.end - 1 else None,
            ),
            SHARD,
            deaggregate=True,
            include_repeat_keys=include_repeat_keys,
            straggler_filter=lambda: straggler_filter,
        )
        for index in range(part.begin, part.end)
    ]
    assert rows(together) == [row for one in alone for row in rows(one)]
    keys = [key for one in alone for key in one.rows.repeat_keys or ()]
    assert (together.rows.repeat_keys or []) == keys
    assert together.memory_bytes == sum(one.memory_bytes for one in alone)


def test_stragglers_are_left_out_from_the_proven_time_on() -> None:
    puts = [Put(partition_key=key, data=key.encode()) for key in (IN_LOWER, IN_UPPER)]
    of_two = page([aggregate(puts)] * 2, keys=["k", None], arrivals=[START, START + 1])
    straggler_filter = StragglerFilter(keys=child(LOWER), since=EpochMillis(START + 1))
    part = slice_of(0, 2)
    read = build_rows(
        of_two, part, SHARD, deaggregate=True, straggler_filter=lambda: straggler_filter
    )
    assert [(n, key) for key, _, n, _, _ in rows(read)] == [
        ("1", IN_LOWER),
        ("1", IN_UPPER),
        ("2", IN_LOWER),
    ]
