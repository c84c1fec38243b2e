"""The pause between two fetches of a shard."""

from __future__ import annotations

import pytest

from spark_ssp.kinesis_source.model.shard import RecordPage
from spark_ssp.kinesis_source.reading.fetch_pacing import backoff_ms, block_ms, pause_ms
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
