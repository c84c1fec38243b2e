"""The rate at which a shard took in records, from the records of pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.model.shard import EpochMillis
from spark_ssp.kinesis_source.probing.intake_rate import (
    FIRST_TRUST,
    INTAKE_BYTES_PER_MS,
    LONGEST_TRUST,
    Intake,
    count,
)
from tests.support.kinesis.probes import ms, row

STEADY = [row(n, 2 * n) for n in range(501)]
"""One record of 100 bytes every 2 ms."""


def test_records_are_counted_from_the_record_before_them() -> None:
    expected = Intake(records=500, size_bytes=50_000, millis=1000, largest=100)
    assert count(STEADY, None, None) == expected
    assert count(STEADY[1:], ms(0), None) == expected


@pytest.mark.parametrize(
    ("rows", "since"), [([], 5), ([row(1)], None), ([row(1, 5), row(2, 5)], 5), ([row(1, 4)], 5)]
)
def test_nothing_is_learned_where_no_time_passes(rows: list[object], since: int | None) -> None:
    known = Intake(records=1, size_bytes=1, millis=1)
    before = None if since is None else EpochMillis(ms(since))
    assert count(rows, before, known) == known  # type: ignore[arg-type]
    assert count(rows, before, None) is None  # type: ignore[arg-type]


@given(clump=st.integers(1, 300), first=st.integers(0, 299), length=st.integers(700, 2000))
def test_records_that_arrive_together_may_be_cut_anywhere(
    clump: int, first: int, length: int
) -> None:
    """One record a millisecond, `clump` at a time."""
    rows = [row(n, n // clump * clump) for n in range(first, first + length)]
    found = count(rows, None, None)
    assert found is not None
    assert found.records / found.millis == pytest.approx(1, rel=0.5)
    assert found.clump <= clump


def test_counts_that_agree_are_trusted_for_longer_and_one_that_differs_is_not() -> None:
    found = count(STEADY, None, None)
    for _ in range(9):
        assert found is not None
        found = count(STEADY, None, replace(found, used=found.trust))
    assert found is not None
    assert (found.trust, found.used, found.is_trusted) == (LONGEST_TRUST, 0, True)
    assert found.records / found.millis == pytest.approx(0.5)
    faster = count([row(n, n // 2) for n in range(501)], None, found)
    assert faster is not None
    assert faster.records / faster.millis == pytest.approx(2, rel=0.01)
    assert faster.trust == FIRST_TRUST


def test_trust_is_used_up_and_ends_with_a_larger_record() -> None:
    found = Intake(records=1, size_bytes=100, millis=1, largest=100)
    for _ in range(FIRST_TRUST):
        assert found.is_trusted
        found = found.record_end(100)
    assert not found.is_trusted
    assert not replace(found, used=0).record_end(101).is_trusted


@given(
    rate=st.floats(0.001, 1.5),
    size=st.integers(1000, 10**9),
    excess=st.sampled_from([1.0, 1.1, 4.0]),
    least_ms=st.integers(0, 10**6),
)
def test_a_limit_is_kept_even_if_the_rate_rises_to_the_quota(
    rate: float, size: int, excess: float, least_ms: int
) -> None:
    counted = INTAKE_BYTES_PER_MS * rate
    found = Intake(records=1, size_bytes=counted, millis=1)
    span = found.span_ms(10**9, size, excess=excess)
    assert span * counted <= size * 1.001
    assert span * INTAKE_BYTES_PER_MS <= excess * size * 1.001
    assert found.span_ms(500, None) <= 1.1 * 500
    longer = found.span_ms(10**9, size, excess=excess, least_ms=least_ms)
    assert longer == max(span, min(least_ms, int(size / counted)))


def test_a_service_without_quotas_is_recognized() -> None:
    assert Intake(records=1, size_bytes=2 * INTAKE_BYTES_PER_MS, millis=1).exceeds_quota
    assert Intake(records=2, size_bytes=2, millis=1).exceeds_quota
    assert not Intake(records=1, size_bytes=INTAKE_BYTES_PER_MS, millis=1).exceeds_quota
