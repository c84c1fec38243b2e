"""Ends under a limit above a small page: counted now and then, found by time in between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinesis_source.client.api import ThrottledError
from kinesis_source.model.ranges import ExpectedSize
from kinesis_source.probing.intake_rate import Intake
from kinesis_source.probing.limited_end_probe import COUNT_BYTES, EXACT_RECORDS
from kinesis_source.probing.probe_protocol import (
    PROBE_RECORDS,
    ProbeResult,
    QuietPeriod,
    ShardCursor,
)
from tests.support.kinesis.ends import AT_TIP, QUIET, THROTTLED, UNREACHABLE, ahead, at, orders
from tests.support.kinesis.probes import (
    Exchange,
    cursor,
    fetched,
    ms,
    opened,
    page,
    play,
    row,
)

COUNTED = COUNT_BYTES // 1024
"""How many records of 1024 bytes are read to count them."""
BEGIN = -600_000
RATE_PAGE = page(
    [row(101 + n, BEGIN + 2 * n, size=1024) for n in range(COUNTED)], onward="d", behind=599_000
)
"""A record every 2 ms."""
RATE_END = RATE_PAGE.records[-1]
WANTED = 10 * COUNTED
TARGET = BEGIN + 2 * (WANTED - 1) - 1
"""When ten times as many have come, less half a record."""


def by_count(*script: Exchange, records: int = WANTED) -> ProbeResult:
    steps = ahead(QUIET, AT_TIP, records=records)
    return play(steps, (fetched("c", COUNTED), RATE_PAGE), *script)


def test_the_records_of_a_page_tell_when_the_limit_is_reached() -> None:
    there = row(90_000, TARGET)
    finding = by_count(
        (opened(at(TARGET)), "j"),
        (fetched("j", PROBE_RECORDS), page([there], onward="k", behind=5)),
    )
    assert (finding.end, finding.found_by_time) == (there, True)
    assert finding.expected is not None
    assert WANTED <= finding.expected.records <= 1.05 * WANTED
    assert finding.expected.size_bytes == pytest.approx(1024 * WANTED, rel=0.05)
    assert (finding.cursor.reached_ms, finding.cursor.cached_iterator) == (ms(TARGET), cursor("k"))


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
def test_a_fault_after_the_count_keeps_the_page(fault: ThrottledError) -> None:
    finding = by_count((opened(at(TARGET)), fault))
    assert (finding.end, finding.found_by_time) == (RATE_END, False)
    assert finding.cursor.cached_iterator == cursor("d")


def test_a_page_of_most_of_what_is_wanted_is_the_batch() -> None:
    finding = by_count(records=COUNTED + COUNTED // 4)
    assert (finding.end, len(finding.records)) == (RATE_END, COUNTED)


def test_records_of_one_instant_are_read_a_page_at_a_time() -> None:
    rows = [row(101 + n, BEGIN, size=1024) for n in range(COUNTED)]
    finding = play(
        ahead(QUIET, AT_TIP, records=WANTED),
        (fetched("c", COUNTED), page(rows, onward="d", behind=600_000)),
    )
    assert (finding.end, finding.cursor.intake) == (rows[-1], None)


def test_a_limit_that_reaches_to_the_tip_is_none() -> None:
    finding = by_count(
        (opened(at(-500)), "j"),
        (fetched("j", PROBE_RECORDS), page([row(90_000, -400)], behind=300)),
        records=1_000_000,
    )
    assert finding.end == row(90_000, -400)


def test_a_silence_before_the_limit_is_reached_is_narrowed() -> None:
    near = BEGIN + 2 * COUNTED - 2
    middle = (near + TARGET) // 2
    finding = by_count(
        (opened(at(TARGET)), "i"),
        (fetched("i", PROBE_RECORDS), page()),
        (opened(at(middle)), "j"),
        (fetched("j", PROBE_RECORDS), page([row(5000, middle)], onward="k", behind=5)),
        (opened(at((middle + TARGET) // 2)), "l"),
        (fetched("l", PROBE_RECORDS), page()),
        (opened(at((middle + (middle + TARGET) // 2) // 2)), "m"),
        (fetched("m", PROBE_RECORDS), page()),
        (fetched("k", 2048), page([row(5001, middle + 9)], onward="n")),
    )
    assert (finding.end, finding.at_latest) == (row(5001, middle + 9), True)


# --- Once a rate is known -------------------------------------------------------------------------


def test_a_quiet_shard_costs_one_call_although_its_rate_is_known() -> None:
    known = replace(
        AT_TIP, reached_ms=ms(BEGIN), intake=INTAKE, cached_iterator=cursor("c", at_tip=True)
    )
    finding = play(ahead(QUIET, known, records=WANTED), (fetched("c", COUNTED), page(onward="d")))
    assert (finding.end, finding.at_latest) == (None, True)


REACHED = -600_000
INTAKE = Intake(records=1000, size_bytes=1000 * 1024, millis=1000, trust=4)
KNOWN_RATE = replace(AT_TIP, reached_ms=ms(REACHED), intake=INTAKE)
AIM = REACHED + 1999


def test_one_look_by_time_finds_the_end() -> None:
    finding = play(
        ahead(QUIET, KNOWN_RATE, size=2000 * 1024),
        (opened(at(AIM)), "i"),
        (fetched("i", PROBE_RECORDS), page([row(2100, AIM)], onward="j", behind=5)),
    )
    assert (finding.records, finding.end, finding.found_by_time) == ((), row(2100, AIM), True)
    assert finding.expected == ExpectedSize(records=2066, size_bytes=2113229)
    assert finding.cursor.intake == INTAKE.record_use()
    assert finding.cursor.proven


def test_a_gap_after_the_limit_is_not_counted() -> None:
    finding = play(
        ahead(QUIET, KNOWN_RATE, size=2000 * 1024),
        (opened(at(AIM)), "i"),
        (fetched("i", PROBE_RECORDS), page([row(2100, -90_000)], onward="j", behind=5)),
    )
    assert finding.expected is not None
    assert finding.expected.records < 2100


@pytest.mark.parametrize(
    "memory",
    [
        replace(KNOWN_RATE, intake=replace(INTAKE, used=4)),
        replace(KNOWN_RATE, reached_ms=None),
        replace(KNOWN_RATE, proven=False),
        replace(KNOWN_RATE, reached_ms=ms(-1500)),
    ],
)
def test_otherwise_a_page_from_the_start_is_read(memory: ShardCursor) -> None:
    finding = play(
        ahead(QUIET, memory, size=2000 * 1024),
        (fetched("c", COUNTED), page([row(101, -900)], onward="d")),
    )
    assert (orders(finding), finding.at_latest) == ([101], True)


def test_where_nothing_came_so_late_a_page_from_the_start_shows_more() -> None:
    finding = play(
        ahead(QUIET, KNOWN_RATE, size=2000 * 1024),
        (opened(at(AIM)), "i"),
        (fetched("i", PROBE_RECORDS), page()),
        (fetched("c", COUNTED), page([row(101, REACHED)], onward="d")),
    )
    assert (orders(finding), finding.at_latest) == ([101], True)
    assert finding.cursor.quiet == QuietPeriod(since=ms(AIM), at=ms(0))


def test_a_large_page_of_small_records_is_cut_and_few_of_its_rows_are_kept() -> None:
    rows = [row(101 + n, BEGIN + n, size=50) for n in range(3000)]
    memory = replace(AT_TIP, record_bytes=50.0)
    finding = play(
        ahead(QUIET, memory, records=3001, size=140_000),
        (fetched("c", 2801), page(rows[:2801], onward="d", behind=9)),
    )
    assert len(finding.records) == EXACT_RECORDS
    assert finding.expected == ExpectedSize(records=2800, size_bytes=140_000)
    assert (finding.end, finding.found_by_time, finding.at_latest) == (rows[2799], True, False)
    assert (finding.cursor.position, finding.cursor.cached_iterator) == (rows[2799].position, None)
