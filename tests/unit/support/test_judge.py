"""The judge of histories finds each fault, and only that."""

from __future__ import annotations

import pytest

from tests.support.judge import (
    Processed,
    Put,
    Verdict,
    Written,
    judge,
    judge_readers,
    late_rows,
    wide_batches,
)

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


# --- Files ----------------------------------------------------------------------------------------

FILES = [
    Written(
        key=row.key,
        number=row.number,
        at_s=float(row.number),
        batch=row.number // 4,
        file=f"file-{row.key}",
        position=row.number,
        written_ns=row.number // 4,
    )
    for row in PUT
]


def test_files_of_one_reader_or_of_several() -> None:
    assert judge_readers(PUT, [FILES]) == (Verdict(rows=8), 0)
    assert judge_readers(PUT, [FILES[::2], [], FILES[1::2]]) == (Verdict(rows=8), 0)


def test_rows_of_two_readers_are_told_from_those_that_one_has_twice() -> None:
    assert judge_readers(PUT, [FILES, FILES[:3]]) == (Verdict(rows=8), 3)
    assert judge_readers(PUT, [FILES + FILES[:3], []]) == (Verdict(rows=8, repeated=3), 0)


def test_the_order_of_a_key_is_that_of_batches_and_of_places_in_a_file() -> None:
    later = FILES[0]._replace(batch=2)
    assert judge_readers(PUT, [[*FILES[1:], later]])[0].disordered == 1
    behind = FILES[0]._replace(position=FILES[2].position + 1)
    assert judge_readers(PUT, [[*FILES[1:], behind]])[0].disordered == 1


def test_the_order_from_reader_to_reader_is_that_of_the_files() -> None:
    late = [row._replace(written_ns=row.written_ns + 10) for row in FILES[:4]]
    assert judge_readers(PUT, [late, FILES[4:]])[0].disordered == 4


def test_a_key_in_two_files_of_a_batch_has_no_order() -> None:
    parted = [FILES[0]._replace(file="another"), *FILES[1:]]
    assert judge_readers(PUT, [parted])[0].disordered >= 1
    assert wide_batches(parted, 2) == 1
    assert wide_batches(FILES, 2) == 0


def test_a_row_behind_the_watermark_of_the_batches_before_it_is_late() -> None:
    assert late_rows(FILES, 0.0) == 0
    behind = FILES[0]._replace(batch=1)
    assert late_rows([*FILES[1:], behind], 3.0) == 0
    assert late_rows([*FILES[1:], behind], 2.5) == 1
