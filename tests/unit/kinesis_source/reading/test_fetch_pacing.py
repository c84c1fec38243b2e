"""The pause between two fetches of a shard, and their sizes."""

from __future__ import annotations

import pytest

from spark_ssp.kinesis_source.client.api import MAX_PAGE_BYTES
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import RecordPage
from spark_ssp.kinesis_source.reading.arrow_batches import ROW_OVERHEAD_BYTES
from spark_ssp.kinesis_source.reading.fetch_pacing import (
    MIN_RESERVED_BYTES,
    FetchSizer,
    backoff_ms,
    block_ms,
    pause_ms,
)
from tests.support.kinesis.pages import page


def records(count: int, *, behind: int, size: int = 10) -> RecordPage:
    return page([b"x" * size] * count, following="next", behind=behind)


@pytest.mark.parametrize(
    ("got", "empty_at_latest", "enforced", "expected"),
    [
        pytest.param(records(5, behind=60_000), 0, False, 0, id="far-behind"),
        pytest.param(records(5, behind=60_000), 0, True, 250, id="far-behind-at-the-calls-granted"),
        pytest.param(records(5, behind=60_000, size=1 << 20), 0, False, 0, id="big-unlimited"),
        pytest.param(records(5, behind=60_000, size=1 << 20), 0, True, 2_501, id="bytes-granted"),
        pytest.param(records(5, behind=0), 0, False, 400, id="near-the-tip"),
        pytest.param(records(5, behind=0), 0, True, 400, id="near-the-tip-at-the-calls-granted"),
        pytest.param(records(100, behind=0), 0, False, 0, id="full-by-count"),
        pytest.param(records(2, behind=0, size=1 << 20), 0, False, 0, id="full-by-size"),
        pytest.param(records(2, behind=0, size=1 << 20), 0, True, 1_001, id="full-and-bytes"),
        pytest.param(records(0, behind=5_000), 0, False, 250, id="a-gap"),
        pytest.param(records(0, behind=0), 1, False, 400, id="the-tip"),
        pytest.param(records(0, behind=0), 2, False, 800, id="the-tip-again"),
        pytest.param(records(0, behind=0), 90, False, 5_000, id="the-tip-for-long"),
    ],
)
def test_pauses(got: RecordPage, empty_at_latest: int, enforced: bool, expected: int) -> None:
    assert (
        pause_ms(
            got,
            empty_at_latest=empty_at_latest,
            limit=100,
            enforced=enforced,
            min_fetch_period_ms=400,
        )
        == expected
    )


def test_the_largest_answer_blocks_a_shard_for_five_seconds() -> None:
    assert block_ms(10 << 20) == 5_000


def test_a_long_fetch_period_binds_at_the_latest_record_too() -> None:
    nothing = records(0, behind=0)
    pauses = [
        pause_ms(
            nothing, empty_at_latest=times, limit=100, enforced=False, min_fetch_period_ms=9_000
        )
        for times in (1, 2, 3)
    ]
    assert pauses == [9_000, 9_000, 9_000]


def test_back_off_doubles_up_to_the_longest() -> None:
    assert [backoff_ms(n, longest=1_000, draw=1.0) for n in (1, 2, 3, 4, 99)] == [
        *(200, 400, 800, 1_000, 1_000),
    ]


def test_eight_attempts_outlast_the_five_seconds_after_a_full_answer() -> None:
    shortest = sum(backoff_ms(n, longest=10_000, draw=0.0) for n in range(1, 8))
    assert shortest > 5_000


# --- Sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "most"), [(200, 100), (100_000, 9), (900_000, 1), (9 << 20, 1)])
@pytest.mark.parametrize("is_expected", [False, True])
@pytest.mark.parametrize("repeated", [0, 1])
def test_what_is_requested_after_an_empty_page_fits_into_what_is_reserved(
    size: int, most: int, repeated: int, *, is_expected: bool
) -> None:
    """Known by the driver, or from the pages before the gap; also by a new iterator in the gap,
    which begins with the last record."""
    expected = ExpectedSize(records=5_000, size_bytes=5_000 * size if is_expected else None)
    sizer = FetchSizer(10_000, expected)
    if not is_expected:
        sizer.record_page(20, 20 * (size + ROW_OVERHEAD_BYTES))
    sizer.record_page(0, 0)
    assert sizer.record_limit(repeated=repeated) == most + repeated
    reserved = sizer.bytes_to_reserve(most + repeated)
    assert min((most + 1) * size, MAX_PAGE_BYTES) <= reserved
    assert reserved <= max(MIN_RESERVED_BYTES, (most + 1) * (size + ROW_OVERHEAD_BYTES))


@pytest.mark.parametrize("expected", [None, ExpectedSize(records=5_000)])
def test_a_record_of_unknown_size_is_requested_after_an_empty_page_and_shows_the_size(
    expected: ExpectedSize | None,
) -> None:
    sizer = FetchSizer(10_000, expected)
    assert sizer.bytes_to_reserve(sizer.record_limit(repeated=0)) > MAX_PAGE_BYTES
    sizer.record_page(0, 0)
    assert sizer.record_limit(repeated=0) == 1
    assert sizer.bytes_to_reserve(1) == MIN_RESERVED_BYTES
    sizer.record_page(1, 1_000)
    limit = sizer.record_limit(repeated=0)
    assert limit > 1_000
    assert sizer.bytes_to_reserve(limit) == limit * 1_000
