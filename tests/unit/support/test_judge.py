"""The judge of the peers finds each fault, and only that."""

from __future__ import annotations

import pytest

from tests.support.judge import Processed, Put, Verdict, judge

PUT = [Put(key, number) for number, key in enumerate("abababab")]
RIGHT = [Processed(at, row.key, row.number) for at, row in enumerate(PUT)]


def test_nothing_is_wrong() -> None:
    assert judge(PUT, RIGHT) == Verdict(rows=8)


def test_the_order_is_that_of_the_times_not_of_the_files() -> None:
    assert judge(PUT, reversed(RIGHT)) == Verdict(rows=8)


def test_a_row_that_was_passed_over_is_lost() -> None:
    assert judge(PUT, RIGHT[:2] + RIGHT[3:]) == Verdict(rows=8, lost=1)


def test_rows_that_were_not_reached_are_stuck() -> None:
    assert judge(PUT, RIGHT[:5]) == Verdict(rows=8, stuck=3)


def test_nothing_was_read() -> None:
    assert judge(PUT, []) == Verdict(rows=8, stuck=8)


def test_rows_that_come_again_are_repeated_and_in_order() -> None:
    again = [row._replace(at=row.at + 100) for row in RIGHT[:3]]
    assert judge(PUT, RIGHT + again) == Verdict(rows=8, repeated=3)


def test_a_row_after_a_later_one_of_its_key_is_out_of_order() -> None:
    late = RIGHT[2]._replace(at=100)
    assert judge(PUT, [*RIGHT[:2], *RIGHT[3:], late]) == Verdict(rows=8, disordered=1)


def test_all_that_come_after_a_later_one_are_out_of_order() -> None:
    first = RIGHT[6]._replace(at=-1)
    assert judge(PUT, [first, *RIGHT[:6], RIGHT[7]]) == Verdict(rows=8, disordered=3)


def test_rows_that_no_window_counts_are_late() -> None:
    assert judge(PUT, RIGHT, ({0: 5, 1: 3}, {0: 4})) == Verdict(rows=8, late=4)
    assert judge(PUT, RIGHT, ({0: 5, 1: 3}, {0: 5, 1: 3})) == Verdict(rows=8, late=0)


def test_late_rows_are_unknown_where_rows_were_never_read() -> None:
    assert judge(PUT, RIGHT[:5], ({0: 5, 1: 3}, {0: 5})) == Verdict(rows=8, stuck=3)


def test_no_reader_invents_rows_or_counts_one_twice() -> None:
    with pytest.raises(AssertionError, match="never put"):
        judge(PUT, [Processed(0, "a", 17)])
    with pytest.raises(AssertionError, match="too much"):
        judge(PUT, RIGHT, ({0: 5}, {0: 6}))


def test_verdicts_of_several_runs_add_up() -> None:
    once = Verdict(rows=8, lost=1, late=2)
    assert once + once == Verdict(rows=16, lost=2, late=4)
    assert Verdict() + Verdict(rows=8) == Verdict(rows=8)
