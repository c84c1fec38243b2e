"""The rate at which a shard took in records, from the records of pages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_source.probing.intake_rate import FIRST_TRUST, LONGEST_TRUST, Intake, count
from tests.support.kinesis.probes import row

STEADY = [row(n, 2 * n) for n in range(501)]
"""One record of 100 bytes every 2 ms."""


def test_records_are_counted_from_the_first_to_the_last() -> None:
    assert count(STEADY, None) == Intake(records=500, size_bytes=50_000, millis=1000)


@pytest.mark.parametrize("rows", [[], [row(1)], [row(1, 5), row(2, 5)], [row(1, 5), row(2, 4)]])
def test_nothing_is_learned_where_no_time_passes(rows: list[object]) -> None:
    known = Intake(records=1, size_bytes=1, millis=1)
    assert count(rows, known) == known  # type: ignore[arg-type]
    assert count(rows, None) is None  # type: ignore[arg-type]


@given(clump=st.integers(1, 300), first=st.integers(0, 299), length=st.integers(700, 2000))
def test_records_that_arrive_together_may_be_cut_anywhere(
    clump: int, first: int, length: int
) -> None:
    """One record a millisecond, `clump` at a time."""
    rows = [row(n, n // clump * clump) for n in range(first, first + length)]
    found = count(rows, None)
    assert found is not None
    assert found.records / found.millis == pytest.approx(1, rel=0.5)
    assert found.clump <= clump


def test_counts_that_agree_are_trusted_for_longer_and_one_that_differs_is_not() -> None:
    found = count(STEADY, None)
    for _ in range(9):
        assert found is not None
        found = count(STEADY, replace(found, used=found.trust))
    assert found is not None
    assert (found.trust, found.used, found.is_trusted) == (LONGEST_TRUST, 0, True)
    assert found.records / found.millis == pytest.approx(0.5)
    faster = count([row(n, n) for n in range(501)], found)
    assert faster == Intake(records=500, size_bytes=50_000, millis=500, trust=FIRST_TRUST)


def test_trust_is_used_up() -> None:
    found = Intake(records=1, size_bytes=100, millis=1)
    for _ in range(FIRST_TRUST):
        assert found.is_trusted
        found = found.record_use()
    assert not found.is_trusted


@pytest.mark.parametrize(("records", "size", "span"), [(1000, None, 1999), (1000, 50_000, 999)])
def test_the_time_that_a_limit_takes(records: int, size: int | None, span: int) -> None:
    found = Intake(records=500, size_bytes=50_000, millis=1000)
    assert found.span_ms(records, size) == span
    assert found.within(span + 1) == (round((span + 1) / 2), (span + 1) * 50)


def test_half_a_clump_less_is_aimed_at_but_not_less_than_half_the_limit() -> None:
    found = Intake(records=1000, size_bytes=100_000, millis=1000, clump=500)
    assert found.span_ms(1000, None) == 750
    assert found.span_ms(100, None) == 50
