"""Ends far from the start: jumps to the tip, and by the rate under a limit; then a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.client.api import ThrottledError
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Position,
    SequenceNumber,
    ShardState,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.batch_end_probe import MAX_TIME_PROBES, REST_BYTES
from spark_ssp.kinesis_source.probing.probe_protocol import (
    MAX_EMPTY_PAGES,
    MIN_WINDOW_MS,
    PROBE_RECORDS,
    ProbeResult,
    QuietPeriod,
    RecordRef,
)
from tests.support.kinesis.probes import (
    AT_LATEST,
    DAY_MS,
    FRESH,
    PEEK,
    QUIET,
    START_ROW,
    THROTTLED,
    UNREACHABLE,
    Exchange,
    ModelShard,
    P,
    ahead,
    at,
    check_records,
    cursor,
    fetched,
    look,
    ms,
    opened,
    orders,
    page,
    play,
    row,
)

# --- The jump to the tip --------------------------------------------------------------------------

BUSY_PAGE = page([row(101, -90_000), row(102, -80_000)], onward="d", behind=79_000)


def jump(*script: Exchange, window: int = 500) -> ProbeResult:
    """A look at a shard that has more than a page, and what follows it."""
    memory = replace(AT_LATEST, window_ms=window)
    return play(look(QUIET, memory), (fetched("c", PEEK), BUSY_PAGE), *script)


def test_a_busy_shard_ends_at_a_record_near_the_latest_record() -> None:
    finding = jump(
        (opened(at(-500)), "j"),
        (fetched("j", PROBE_RECORDS), page([row(900, -490)], onward="k", behind=480)),
    )
    assert orders(finding) == [101, 102]
    assert finding.end == row(900, -490)
    assert (finding.found_by_time, finding.at_latest, finding.has_more) == (True, False, True)
    assert finding.millis_behind == 480
    assert finding.cursor.position == AfterRecord(sequence_number=SequenceNumber("900"))
    assert finding.cursor.cached_iterator == cursor("k")


@pytest.mark.parametrize(("before", "after"), [(500, 250), (250, 250), (4000, 2000)])
def test_one_try_was_enough_the_next_looks_nearer(before: int, after: int) -> None:
    finding = jump(
        (opened(at(-before)), "j"),
        (fetched("j", PROBE_RECORDS), page([row(900, -90)], behind=1)),
        window=before,
    )
    assert finding.cursor.window_ms == after


def test_nothing_there_halves_the_gap() -> None:
    finding = jump(
        (opened(at(-500)), "i"),
        (fetched("i", PROBE_RECORDS), page()),
        (opened(at(-40_250)), "j"),
        (fetched("j", PROBE_RECORDS), page()),
        (opened(at(-60_125)), "k"),
        (fetched("k", PROBE_RECORDS), page([row(900, -59_000)], onward="l", behind=9)),
    )
    assert (finding.end, finding.found_by_time) == (row(900, -59_000), True)
    assert finding.cursor.quiet == QuietPeriod(since=ms(-40_250), at=ms(0))


def test_a_wide_gap_is_narrowed_by_its_logarithm() -> None:
    """Few records came lately: the tip is near now, not half a day ago."""
    old = page([row(101, -80_000_001), row(102, -80_000_000)], onward="d", behind=79_000)
    finding = play(
        look(QUIET, replace(AT_LATEST, window_ms=500)),
        (fetched("c", PEEK), old),
        (opened(at(-500)), "i"),
        (fetched("i", PROBE_RECORDS), page()),
        (opened(at(-200_000)), "j"),
        (fetched("j", PROBE_RECORDS), page([row(900, -199_000)], behind=9)),
        (opened(at(-99_750)), "k"),
        (fetched("k", PROBE_RECORDS), page([row(950, -60_000)], onward="l", behind=9)),
    )
    assert finding.end == row(950, -60_000)


MIXED_REST = int(REST_BYTES / (0.7 * 1024 + 0.3 * 100))
"""How many records the page after one of small records may hold."""
REST = int(REST_BYTES / (0.7 * 1024 + 0.3 * 100))
WIDE_PEEK = REST_BYTES // 1024
SILENT = replace(
    AT_LATEST,
    reached_ms=ms(-60_000),
    quiet=QuietPeriod(since=ms(-40_250), at=ms(-1000)),
    record_bytes=1024.0,
)
"""A look a second ago found nothing since 40 s ago."""


@pytest.mark.parametrize("rest", [[row(951, -49_100), row(952, -49_000)], []])
def test_a_silence_is_narrowed_further_in_the_next_trigger_and_what_is_left_is_read(
    rest: list[RecordRef],
) -> None:
    finding = play(
        look(QUIET, SILENT),
        (fetched("c", PEEK), page([row(102, -60_000)], onward="d", behind=60_000)),
        (opened(at(-50_125)), "i"),
        (fetched("i", PROBE_RECORDS), page([row(950, -50_000)], onward="j", behind=50_000)),
        (opened(at(-45_125)), "k"),
        (fetched("k", PROBE_RECORDS), page()),
        (opened(at(-47_563)), "l"),
        (fetched("l", PROBE_RECORDS), page()),
        (fetched("j", REST), page(rest, onward="m")),
    )
    last = rest[-1] if rest else row(950, -50_000)
    assert (finding.end, finding.at_latest, finding.found_by_time) == (last, True, True)
    assert orders(finding) == [102]
    assert finding.cursor.cached_iterator == cursor("m", at_latest=True)


def test_what_is_left_of_a_silence_may_be_nothing() -> None:
    finding = play(
        look(QUIET, replace(SILENT, quiet=QuietPeriod(since=ms(-59_000), at=ms(-1000)))),
        (fetched("c", WIDE_PEEK), page([row(102, -59_500)], onward="d", behind=59_000)),
        (fetched("d", REST), page(onward="e")),
    )
    assert (finding.end, finding.at_latest) == (row(102, -59_500), True)
    assert finding.cursor.position == row(102).position


def test_a_silence_that_was_seen_long_ago_may_have_ended() -> None:
    finding = play(
        look(QUIET, replace(SILENT, quiet=QuietPeriod(since=ms(-40_250), at=ms(-10_000)))),
        (fetched("c", PEEK), page([row(102, -60_000)], onward="d", behind=60_000)),
        (opened(at(-10_000)), "i"),
        (fetched("i", PROBE_RECORDS), page([row(990, -9000)], onward="j", behind=9000)),
        (opened(at(-500)), "k"),
        (fetched("k", PROBE_RECORDS), page([row(999, -400)], onward="l", behind=390)),
    )
    assert (finding.end, finding.cursor.quiet) == (row(999, -400), None)


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
def test_a_fault_while_narrowing_keeps_what_was_found(fault: ThrottledError) -> None:
    finding = jump(
        (opened(at(-500)), "i"),
        (fetched("i", PROBE_RECORDS), page()),
        (opened(at(-40_250)), "j"),
        (fetched("j", PROBE_RECORDS), page([row(900, -40_000)], onward="k", behind=9)),
        (opened(at(-20_250)), fault),
    )
    assert finding.end == row(900, -40_000)
    assert finding.cursor.cached_iterator == cursor("k")


def test_where_no_look_leads_on_the_next_page_is_read() -> None:
    script: list[Exchange] = []
    for target in (-500, -40_250, -60_125):
        script += [(opened(at(target)), "i"), (fetched("i", PROBE_RECORDS), page())]
    more = [row(103, -79_000), row(104, -78_000)]
    finding = jump(*script, (fetched("d", MIXED_REST), page(more, onward="e", behind=9)))
    assert orders(finding) == [101, 102]
    assert (finding.end, finding.found_by_time, finding.has_more) == (more[-1], True, True)
    assert finding.expected == ExpectedSize(records=4, size_bytes=400)
    assert finding.cursor.window_ms == 500
    assert finding.cursor.cached_iterator == cursor("e")


def test_a_record_before_the_end_is_no_end() -> None:
    """Arrival times are not monotonic: the first of that time may come first in the shard."""
    before = page([row(102, -100)], behind=5)
    finding = jump(
        (opened(at(-500)), "i"),
        (fetched("i", PROBE_RECORDS), before),
        (opened(at(-250)), "j"),
        (fetched("j", PROBE_RECORDS), before),
        (fetched("d", MIXED_REST), page([row(103, -400)], onward="e")),
    )
    assert finding.end == row(103, -400)
    assert (finding.found_by_time, finding.at_latest) == (True, True)


def test_near_the_latest_record_there_is_no_jump() -> None:
    rows = [row(101, -800), row(102, -MIN_WINDOW_MS)]
    finding = play(look(QUIET, AT_LATEST), (fetched("c", PEEK), page(rows, behind=3)))
    assert (finding.end, finding.has_more) == (rows[-1], True)


def test_a_shard_that_was_closed_ends_with_the_jump() -> None:
    finding = jump(
        (opened(at(-500)), "i"), (fetched("i", PROBE_RECORDS), page([row(900, -9)], onward=None))
    )
    assert (finding.closed, finding.at_latest, finding.end) == (True, False, row(900, -9))


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
@pytest.mark.parametrize("call", [0, 1, 3])
def test_a_fault_in_mid_jump_keeps_the_first_page(fault: ThrottledError, call: int) -> None:
    script: list[Exchange] = [
        (opened(at(-500)), "i"),
        (fetched("i", PROBE_RECORDS), page()),
        (opened(at(-40_250)), "j"),
        (fetched("j", PROBE_RECORDS), page()),
    ]
    finding = jump(*script[:call], (script[call][0], fault))
    assert orders(finding) == [101, 102]
    assert finding.end == row(102, -80_000)
    assert finding.cursor.cached_iterator == cursor("d")


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
def test_a_fault_in_the_first_call_is_no_news(fault: ThrottledError) -> None:
    with pytest.raises(type(fault)):
        play(look(QUIET, AT_LATEST), (fetched("c", PEEK), fault))


def test_a_closed_shard_read_to_its_end() -> None:
    finding = play(look(QUIET, AT_LATEST), (fetched("c", PEEK), page([row(101, -9)], onward=None)))
    assert (finding.closed, finding.at_latest, finding.has_more) == (True, False, False)
    assert finding.cursor.cached_iterator is None


# --- Under a limit --------------------------------------------------------------------------------


def test_a_limit_within_a_page_is_read_exactly() -> None:
    rows = [row(n, -90_000 + n) for n in range(101, 104)]
    finding = play(
        ahead(QUIET, AT_LATEST, records=3), (fetched("c", 3), page(rows, onward="d", behind=80_000))
    )
    assert finding.records == tuple(rows)
    assert (finding.end, finding.found_by_time, finding.has_more) == (rows[-1], False, True)


def test_the_start_record_does_not_count() -> None:
    rows = [START_ROW, *(row(n, -90) for n in range(101, 104))]
    finding = play(
        ahead(QUIET, FRESH, records=3),
        (opened(P, inclusive=True), "a"),
        (fetched("a", 4), page(rows, behind=80)),
    )
    assert orders(finding) == [101, 102, 103]


@pytest.mark.parametrize(
    ("record_bytes", "size", "limit"), [(1024.0, 10 * 1024, 11), (None, 10_000, 1), (0.5, 99, 100)]
)
def test_a_limit_in_bytes_is_guessed_in_records(
    record_bytes: float | None, size: int, limit: int
) -> None:
    memory = replace(AT_LATEST, record_bytes=record_bytes)
    play(ahead(QUIET, memory, size=size), (fetched("c", limit), page()))


def test_of_two_limits_the_nearer_counts() -> None:
    play(ahead(QUIET, AT_LATEST, records=7, size=1 << 30), (fetched("c", 7), page()))
    play(ahead(QUIET, AT_LATEST, records=7, size=1024), (fetched("c", 2), page()))


# --- Against a model ------------------------------------------------------------------------------

_offsets = st.one_of(st.integers(-600_000, 0), st.integers(-5000, 0))


@given(
    offsets=st.lists(_offsets, max_size=80),
    in_order=st.booleans(),
    start=st.integers(0, 90),
    closed=st.booleans(),
    empties=st.integers(0, 25),
    page_records=st.integers(1, 40),
    limit=st.none() | st.integers(1, 30) | st.integers(9_990, 30_000),
    vague_ms=st.sampled_from([0, 0, 1000, DAY_MS]),
)
def test_an_end_exists_lies_behind_the_start_and_is_reached_in_the_end(
    offsets: list[int],
    in_order: bool,
    start: int,
    closed: bool,
    empties: int,
    page_records: int,
    limit: int | None,
    vague_ms: int,
) -> None:
    """Look after look to the tip: every record is passed once, and no look makes many calls."""
    rows = [row(2 * n + 1, t) for n, t in enumerate(sorted(offsets) if in_order else offsets)]
    shard = ModelShard(
        rows=rows,
        closed=closed,
        page_records=10_000 if vague_ms else page_records,
        vague_ms=vague_ms,
        empties=lambda call: (call % 7 == 0) * empties,
    )
    position: Position = TrimHorizon()
    if start < len(rows):
        position = rows[start].position
    memory = FRESH
    passed = rows.index(rows[start]) if start < len(rows) else -1
    for _ in range(40 * (len(rows) + 2)):
        state = ShardState(position=position)
        before = shard.calls
        steps = look(state, memory) if limit is None else ahead(state, memory, records=limit)
        finding = shard.run(steps)
        assert shard.calls - before <= (3 + 2 * MAX_TIME_PROBES) * (MAX_EMPTY_PAGES + 2)
        assert not finding.start_lost
        check_records(finding)
        assert list(finding.records) == rows[passed + 1 : passed + 1 + len(finding.records)]
        if isinstance(position, TrimHorizon) and finding.records:
            assert finding.first == rows[0].sequence_number
        if finding.end is not None:
            reached = rows.index(finding.end)
            assert reached >= passed + len(finding.records)
            passed, position = reached, finding.end.position
        assert finding.at_latest <= (passed == len(rows) - 1)
        assert finding.closed <= (closed and passed == len(rows) - 1)
        memory = finding.cursor
        assert memory.position == position
        if not finding.has_more:
            break
    assert passed == len(rows) - 1
    assert finding.closed == closed
