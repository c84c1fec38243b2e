"""Ends under a limit: counted up to 2 MiB, found by time beyond that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.client.api import ThrottledError
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import AtTimestamp
from spark_ssp.kinesis_source.probing.intake_rate import INTAKE_BYTES_PER_MS, Intake
from spark_ssp.kinesis_source.probing.limited_end_probe import (
    COUNT_BYTES,
    EXACT_BYTES,
    EXACT_RECORDS,
    EXCESS,
    LimitShare,
    scan_ahead,
)
from spark_ssp.kinesis_source.probing.probe_protocol import (
    PROBE_RECORDS,
    CachedIterator,
    Lookahead,
    OpenIterator,
    ProbeResult,
    QuietPeriod,
    ShardCursor,
)
from tests.support.kinesis.probes import (
    AT_LATEST,
    DAY_MS,
    NOW,
    QUIET,
    THROTTLED,
    UNREACHABLE,
    Exchange,
    P,
    ahead,
    at,
    cursor,
    fetched,
    ms,
    opened,
    orders,
    page,
    play,
    row,
)

BEGIN = -600_000
SIZE = 1024
LIMIT = 16 * EXACT_BYTES
PAGE = EXACT_BYTES // SIZE
"""How many records of 1024 bytes are read where their rate is unknown."""
PAGE_ROWS = [row(101 + n, BEGIN + n, size=SIZE) for n in range(1, PAGE + 2)]
"""A record every millisecond: 0.98 of the quota."""
RATE_PAGE = page(PAGE_ROWS, onward="d", behind=590_000)
RATE_END = PAGE_ROWS[-1]
REST = LIMIT - SIZE * len(PAGE_ROWS)
TARGET = BEGIN + len(PAGE_ROWS) + REST // SIZE
"""When the rest of the limit has arrived at that rate."""


def by_count(*script: Exchange, size: int = LIMIT) -> ProbeResult:
    steps = ahead(QUIET, AT_LATEST, size=size)
    return play(steps, (fetched("c", 1 + PAGE), RATE_PAGE), *script)


def test_beyond_the_records_of_a_page_the_limit_ends_by_time() -> None:
    there = row(90_000, TARGET)
    finding = by_count(
        (opened(at(TARGET)), "j"),
        (fetched("j", 1), page([there], onward="k", behind=5)),
    )
    assert (finding.end, finding.found_by_time) == (there, True)
    assert finding.expected is not None
    assert finding.expected.size_bytes == pytest.approx(LIMIT, rel=0.05)
    assert (finding.cursor.reached_ms, finding.cursor.cached_iterator) == (ms(TARGET), cursor("k"))
    assert finding.cursor.window_end_ms == ms(TARGET)


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
def test_a_fault_after_the_count_keeps_the_page(fault: ThrottledError) -> None:
    finding = by_count((opened(at(TARGET)), fault))
    assert (finding.end, finding.has_more) == (PAGE_ROWS[-1], True)


def test_a_page_of_most_of_the_limit_is_the_batch() -> None:
    finding = by_count(size=EXACT_BYTES + EXACT_BYTES // 4)
    assert finding.end == RATE_END


def test_a_limit_that_reaches_to_the_latest_record_is_none() -> None:
    finding = by_count(
        (opened(at(-500)), "j"),
        (fetched("j", PROBE_RECORDS), page([row(90_000, -400)], behind=300)),
        size=1 << 40,
    )
    assert finding.end == row(90_000, -400)


def test_a_quiet_period_that_ended_since_does_not_extend_the_batch() -> None:
    """Records may have arrived since it was seen, more than the limit has room for."""
    memory = replace(AT_LATEST, quiet=QuietPeriod(since=ms(BEGIN + 9000), at=ms(BEGIN + 20_000)))
    there = row(90_000, TARGET + 5)
    finding = play(
        ahead(QUIET, memory, size=LIMIT),
        (fetched("c", 1 + PAGE), RATE_PAGE),
        (opened(at(TARGET)), "j"),
        (fetched("j", 1), page([there], onward="k", behind=5)),
    )
    assert finding.end == there


# --- Records that a page had beyond the limit -----------------------------------------------------

KNOWN_ROWS = tuple(row(101 + n, BEGIN + n, size=SIZE) for n in range(9))


def lookahead(issued: int = -1000) -> ShardCursor:
    cached = cursor("e", issued)
    known = Lookahead(position=P, records=KNOWN_ROWS, cached_iterator=cached)
    return replace(AT_LATEST, cached_iterator=None, lookahead=known)


def test_records_that_are_known_need_no_call() -> None:
    finding = play(ahead(QUIET, lookahead(), size=9 * SIZE))
    assert (finding.records, finding.found_by_time, finding.has_more) == (KNOWN_ROWS, False, True)
    assert finding.cursor.cached_iterator == cursor("e", -1000)


@pytest.mark.parametrize("issued", [-1000, -300_000])
def test_further_records_follow_those_that_are_known(issued: int) -> None:
    further = row(500, BEGIN + 50, size=SIZE)
    script: list[Exchange] = [(fetched("e", 2), page([further], onward="f", behind=9))]
    if issued < -1000:
        script = [
            (opened(KNOWN_ROWS[-1].position), "g"),
            (fetched("g", 2), page([further], onward="f", behind=9)),
        ]
    finding = play(ahead(QUIET, lookahead(issued), size=10 * SIZE), *script)
    assert finding.records == (*KNOWN_ROWS, further)
    assert finding.cursor.lookahead is None


def test_records_that_follow_another_position_are_forgotten() -> None:
    memory = replace(
        lookahead(), cached_iterator=CachedIterator(iterator=cursor("c").iterator, issued=NOW)
    )
    assert memory.lookahead is not None
    other = replace(memory.lookahead, position=row(99).position)
    finding = play(
        ahead(QUIET, replace(memory, lookahead=other), size=SIZE),
        (fetched("c", 2), page([row(101, -900)], onward="d")),
    )
    assert orders(finding) == [101]


# --- Once a rate is known -------------------------------------------------------------------------

REACHED = -600_000
INTAKE = Intake(records=1000, size_bytes=1000 * 1024, millis=1000, largest=1024, trust=4)
KNOWN_RATE = replace(AT_LATEST, reached_ms=ms(REACHED), intake=INTAKE)
AIM = REACHED + 2000
COUNTED = COUNT_BYTES // 1024
"""How many records of 1024 bytes are read to count them."""


def test_a_quiet_shard_costs_one_call_although_its_rate_is_known() -> None:
    known = replace(KNOWN_RATE, cached_iterator=cursor("c", at_latest=True))
    finding = play(ahead(QUIET, known, size=2000 * 1024), (fetched("c", COUNTED), page(onward="d")))
    assert (finding.end, finding.at_latest) == (None, True)


def test_one_probe_by_time_finds_the_end() -> None:
    finding = play(
        ahead(QUIET, KNOWN_RATE, size=2000 * 1024),
        (opened(at(AIM)), "i"),
        (fetched("i", 1), page([row(2100, AIM, size=1024)], onward="j", behind=5)),
    )
    assert (finding.records, finding.found_by_time) == ((), True)
    assert finding.expected == ExpectedSize(records=2066, size_bytes=2114275)
    assert finding.cursor.intake == INTAKE.record_end(1024)
    assert finding.cursor.proven


def test_the_time_of_a_shard_that_was_cut_to_nothing_begins_with_its_next_record() -> None:
    """Its end is searched by time as before, although the record at its start is not known."""
    assert KNOWN_RATE.position is not None
    rest = Lookahead(
        position=KNOWN_RATE.position, records=(row(101, REACHED),), cached_iterator=None
    )
    memory = replace(KNOWN_RATE, reached_ms=None, lookahead=rest)
    finding = play(
        ahead(QUIET, memory, size=2000 * 1024),
        (opened(at(AIM)), "i"),
        (fetched("i", 1), page([row(2100, AIM, size=1024)], onward="j", behind=5)),
    )
    assert (finding.records, finding.found_by_time) == ((), True)


@pytest.mark.parametrize(("before", "begin"), [(300, 300), (9000, 1000)])
def test_a_gap_before_the_start_is_part_of_the_time(before: int, begin: int) -> None:
    """A shard takes in at once what it did not take in during the second before."""
    memory = replace(KNOWN_RATE, window_end_ms=ms(REACHED - before))
    finding = play(
        ahead(QUIET, memory, size=2000 * 1024),
        (opened(at(AIM - begin)), "i"),
        (fetched("i", 1), page([row(2100, AIM)], onward="j", behind=5)),
    )
    assert finding.cursor.window_end_ms == ms(AIM - begin)


def test_an_unusual_gap_after_the_limit_is_not_counted() -> None:
    finding = play(
        ahead(QUIET, KNOWN_RATE, size=2000 * 1024),
        (opened(at(AIM)), "i"),
        (fetched("i", 1), page([row(2100, -90_000)], onward="j", behind=5)),
    )
    assert finding.expected is not None
    assert finding.expected.records < 2100


@pytest.mark.parametrize(
    ("memory", "limit"),
    [
        (replace(KNOWN_RATE, intake=replace(INTAKE, used=4)), COUNTED),
        (replace(KNOWN_RATE, reached_ms=None), COUNTED),
        (replace(KNOWN_RATE, proven=False), COUNTED),
        (replace(KNOWN_RATE, reached_ms=ms(-1500)), COUNTED),
        (replace(KNOWN_RATE, intake=replace(INTAKE, largest=500_000)), 2001),
        (replace(KNOWN_RATE, intake=replace(INTAKE, millis=4000)), 2001),
        (replace(KNOWN_RATE, intake=replace(INTAKE, millis=100)), 2001),
    ],
    ids=["used", "no time", "unproven", "near the latest", "uneven", "low", "beyond the quota"],
)
def test_otherwise_a_page_from_the_start_is_read(memory: ShardCursor, limit: int) -> None:
    finding = play(
        ahead(QUIET, memory, size=2000 * 1024),
        (fetched("c", limit), page([row(101, -900)], onward="d")),
    )
    assert (orders(finding), finding.at_latest) == ([101], True)


def test_where_nothing_came_so_late_a_page_from_the_start_shows_more() -> None:
    finding = play(
        ahead(QUIET, KNOWN_RATE, size=2000 * 1024),
        (opened(at(AIM)), "i"),
        (fetched("i", 1), page()),
        (fetched("c", COUNTED), page([row(101, REACHED)], onward="d")),
    )
    assert (orders(finding), finding.at_latest) == ([101], True)
    assert finding.cursor.quiet == QuietPeriod(since=ms(AIM), at=ms(0))


@given(
    size=st.integers(1, 64 * 1024 * 1024),
    largest=st.integers(10, 1 << 20),
    millis=st.integers(1, 100_000),
)
def test_an_end_by_time_is_within_the_limit_at_the_quota(
    size: int, largest: int, millis: int
) -> None:
    intake = replace(INTAKE, largest=largest, millis=millis)
    steps = scan_ahead(
        QUIET, replace(KNOWN_RATE, intake=intake), NOW, DAY_MS, LimitShare(size_bytes=size)
    )
    first = next(steps)
    if isinstance(first, OpenIterator) and isinstance(first.position, AtTimestamp):
        span = first.position.millis - ms(REACHED)
        assert span * INTAKE_BYTES_PER_MS <= EXCESS * size


def test_a_large_page_of_small_records_is_cut_and_few_of_its_rows_are_kept() -> None:
    rows = [row(101 + n, BEGIN + n, size=50) for n in range(3000)]
    memory = replace(AT_LATEST, record_bytes=50.0)
    finding = play(
        ahead(QUIET, memory, records=3001, size=140_000),
        (fetched("c", 2801), page(rows[:2801], onward="d", behind=9)),
    )
    assert len(finding.records) == EXACT_RECORDS
    assert finding.expected == ExpectedSize(records=2800, size_bytes=140_000)
    assert (finding.end, finding.found_by_time, finding.at_latest) == (rows[2799], True, False)
    assert (finding.cursor.position, finding.cursor.cached_iterator) == (rows[2799].position, None)


def test_a_large_page_of_which_few_records_fit_is_cut_by_the_caller() -> None:
    rows = [row(101 + n, BEGIN + n, size=5000) for n in range(2000)]
    finding = play(
        ahead(QUIET, replace(AT_LATEST, record_bytes=50.0), size=140_000),
        (fetched("c", 2801), page(rows, onward="d", behind=9)),
    )
    assert (len(finding.records), finding.end) == (EXACT_RECORDS, rows[EXACT_RECORDS - 1])
    assert (finding.found_by_time, finding.has_more) == (False, True)
