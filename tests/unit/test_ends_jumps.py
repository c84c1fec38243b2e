"""Ends far from the start: jumps to the tip, and by the rate under a limit; then a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_source.ends import (
    MAX_DOUBLINGS,
    REST_BYTES,
)
from kinesis_source.looking import LOOK_RECORDS, MAX_EMPTY_PAGES, MIN_WINDOW_MS, Finding
from kinesis_source.model import (
    AfterRecord,
    Position,
    SequenceNumber,
    ShardState,
    TrimHorizon,
)
from kinesis_source.service import ThrottledError
from tests.support.ends import (
    AT_TIP,
    FRESH,
    PEEK,
    QUIET,
    START_ROW,
    THROTTLED,
    UNREACHABLE,
    P,
    ahead,
    at,
    look,
    orders,
)
from tests.support.looking import (
    DAY_MS,
    Exchange,
    ModelShard,
    cursor,
    fetched,
    opened,
    page,
    play,
    row,
)

# --- The jump to the tip --------------------------------------------------------------------------

BUSY_PAGE = page([row(101, -90_000), row(102, -80_000)], onward="d", behind=79_000)


def jump(*script: Exchange, window: int = 500) -> Finding:
    """A look at a shard that has more than a page, and what follows it."""
    memory = replace(AT_TIP, window_ms=window)
    return play(look(QUIET, memory), (fetched("c", PEEK), BUSY_PAGE), *script)


def test_a_busy_shard_ends_at_a_record_near_the_tip() -> None:
    finding = jump(
        (opened(at(-500)), "j"),
        (fetched("j", LOOK_RECORDS), page([row(900, -490)], onward="k", behind=480)),
    )
    assert orders(finding) == [101, 102]
    assert finding.end == row(900, -490)
    assert (finding.jumped, finding.at_tip, finding.has_more) == (True, False, True)
    assert finding.millis_behind == 480
    assert finding.memory.position == AfterRecord(sequence_number=SequenceNumber("900"))
    assert finding.memory.cursor == cursor("k")


@pytest.mark.parametrize(("before", "after"), [(500, 250), (250, 250), (4000, 2000)])
def test_one_try_was_enough_the_next_looks_nearer(before: int, after: int) -> None:
    finding = jump(
        (opened(at(-before)), "j"),
        (fetched("j", LOOK_RECORDS), page([row(900, -90)], behind=1)),
        window=before,
    )
    assert finding.memory.window_ms == after


def test_nothing_there_looks_twice_as_far_back() -> None:
    finding = jump(
        (opened(at(-500)), "i"),
        (fetched("i", LOOK_RECORDS), page()),
        (opened(at(-1000)), "j"),
        (fetched("j", LOOK_RECORDS), page()),
        (opened(at(-2000)), "k"),
        (fetched("k", LOOK_RECORDS), page([row(900, -1500)], onward="l")),
    )
    assert finding.end == row(900, -1500)
    assert finding.at_tip
    assert finding.memory.window_ms == 2000


def test_no_look_goes_back_beyond_what_was_seen() -> None:
    finding = jump(
        (opened(at(-50_000)), "i"),
        (fetched("i", LOOK_RECORDS), page()),
        (opened(at(-65_000)), "j"),
        (fetched("j", LOOK_RECORDS), page([row(900, -50_900)], behind=5)),
        window=50_000,
    )
    assert finding.end == row(900, -50_900)
    assert finding.memory.window_ms == 65_000


GAP: tuple[Exchange, ...] = (
    (opened(at(-8000)), "i"),
    (fetched("i", LOOK_RECORDS), page()),
    (opened(at(-16_000)), "j"),
    (fetched("j", LOOK_RECORDS), page([row(900, -15_000)], onward="k", behind=5)),
)
"""The tip lies between 15 s and 8 s ago."""


def test_a_gap_that_holds_the_tip_is_narrowed() -> None:
    finding = jump(
        *GAP,
        (opened(at(-11_500)), "l"),
        (fetched("l", LOOK_RECORDS), page([row(950, -11_000)], onward="m", behind=4)),
        window=8000,
    )
    assert finding.end == row(950, -11_000)
    assert finding.memory.cursor == cursor("m")
    assert finding.memory.window_ms == 11_500


def test_a_gap_is_narrowed_from_both_sides() -> None:
    finding = jump(
        (opened(at(-8000)), "i"),
        (fetched("i", LOOK_RECORDS), page([row(900, -7000)], onward="k", behind=5)),
        (opened(at(-3500)), "l"),
        (fetched("l", LOOK_RECORDS), page()),
        (opened(at(-5250)), "m"),
        (fetched("m", LOOK_RECORDS), page([row(990, -5200)], onward="n", behind=3)),
        window=8000,
    )
    assert finding.end == row(990, -5200)
    assert finding.memory.cursor == cursor("n")


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
def test_a_fault_while_narrowing_keeps_what_was_found(fault: ThrottledError) -> None:
    finding = jump(*GAP, (opened(at(-11_500)), fault), window=8000)
    assert finding.end == row(900, -15_000)
    assert finding.memory.cursor == cursor("k")


REST = int(REST_BYTES / (0.7 * 1024 + 0.3 * 100))
"""How many records the page after BUSY_PAGE may hold."""


def test_where_no_look_leads_on_the_next_page_is_read() -> None:
    script: list[Exchange] = []
    for attempt in range(MAX_DOUBLINGS):
        script += [(opened(at(-500 << attempt)), "i"), (fetched("i", LOOK_RECORDS), page())]
    more = [row(103, -79_000), row(104, -78_000)]
    finding = jump(*script, (fetched("d", REST), page(more, onward="e", behind=9)))
    assert orders(finding) == [101, 102, 103, 104]
    assert (finding.end, finding.jumped, finding.has_more) == (more[-1], False, True)
    assert finding.memory.window_ms == 500 << MAX_DOUBLINGS
    assert finding.memory.cursor == cursor("e")


def test_a_record_before_the_end_is_no_end() -> None:
    """Arrival times are not monotonic: the first of that time may come first in the shard."""
    finding = jump(
        (opened(at(-500)), "i"),
        (fetched("i", LOOK_RECORDS), page([row(102, -100)], behind=5)),
        (opened(at(-250)), "j"),
        (fetched("j", LOOK_RECORDS), page([row(102, -100)], behind=5)),
        (fetched("d", REST), page([row(103, -400)], onward="e")),
    )
    assert finding.end == row(103, -400)
    assert (finding.jumped, finding.at_tip) == (False, True)


def test_so_near_the_tip_there_is_no_jump() -> None:
    rows = [row(101, -800), row(102, -MIN_WINDOW_MS)]
    finding = play(look(QUIET, AT_TIP), (fetched("c", PEEK), page(rows, behind=3)))
    assert (finding.end, finding.has_more) == (rows[-1], True)


def test_a_shard_that_was_closed_ends_with_the_jump() -> None:
    finding = jump(
        (opened(at(-500)), "i"), (fetched("i", LOOK_RECORDS), page([row(900, -9)], onward=None))
    )
    assert (finding.closed, finding.at_tip, finding.end) == (True, False, row(900, -9))


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
@pytest.mark.parametrize("call", [0, 1, 3])
def test_a_fault_in_mid_jump_keeps_the_first_page(fault: ThrottledError, call: int) -> None:
    script: list[Exchange] = [
        (opened(at(-500)), "i"),
        (fetched("i", LOOK_RECORDS), page()),
        (opened(at(-1000)), "j"),
        (fetched("j", LOOK_RECORDS), page()),
    ]
    finding = jump(*script[:call], (script[call][0], fault))
    assert orders(finding) == [101, 102]
    assert finding.end == row(102, -80_000)
    assert finding.memory.cursor == cursor("d")


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
def test_a_fault_in_the_first_call_is_no_news(fault: ThrottledError) -> None:
    with pytest.raises(type(fault)):
        play(look(QUIET, AT_TIP), (fetched("c", PEEK), fault))


def test_a_closed_shard_read_to_its_end() -> None:
    finding = play(look(QUIET, AT_TIP), (fetched("c", PEEK), page([row(101, -9)], onward=None)))
    assert (finding.closed, finding.at_tip, finding.has_more) == (True, False, False)
    assert finding.memory.cursor is None


# --- Under a limit --------------------------------------------------------------------------------


def test_a_limit_within_a_page_is_read_exactly() -> None:
    rows = [row(n, -90_000 + n) for n in range(101, 104)]
    finding = play(
        ahead(QUIET, AT_TIP, records=3), (fetched("c", 3), page(rows, onward="d", behind=80_000))
    )
    assert finding.rows == tuple(rows)
    assert (finding.end, finding.jumped, finding.has_more) == (rows[-1], False, True)


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
    memory = replace(AT_TIP, record_bytes=record_bytes)
    play(ahead(QUIET, memory, size=size), (fetched("c", limit), page()))


def test_of_two_limits_the_nearer_counts() -> None:
    play(ahead(QUIET, AT_TIP, records=7, size=1 << 30), (fetched("c", 7), page()))
    play(ahead(QUIET, AT_TIP, records=7, size=1024), (fetched("c", 2), page()))


RATE_PAGE = page([row(101 + n, -600_000 + 2 * n) for n in range(500)], onward="d", behind=599_000)
"""500 records in 998 ms."""
RATE_END = row(600, -600_000 + 998)


def by_rate(*script: Exchange, records: int = 100_500) -> Finding:
    steps = ahead(QUIET, AT_TIP, records=records)
    return play(steps, (fetched("c", 500), RATE_PAGE), *script)


def test_a_limit_beyond_a_page_is_met_by_the_rate() -> None:
    there = -600_000 + 998 + 200 * 998
    finding = by_rate(
        (opened(at(there)), "j"), (fetched("j", LOOK_RECORDS), page([row(90_000, there)], behind=5))
    )
    assert (finding.end, finding.jumped) == (row(90_000, there), True)


def test_nothing_came_that_late_look_nearer() -> None:
    stride = 200 * 998
    finding = by_rate(
        (opened(at(-599_002 + stride)), "i"),
        (fetched("i", LOOK_RECORDS), page()),
        (opened(at(-599_002 + stride // 2)), "j"),
        (fetched("j", LOOK_RECORDS), page([row(50_000, -1)], behind=5)),
    )
    assert finding.end == row(50_000, -1)


def test_nothing_new_so_early_look_farther() -> None:
    stride = 200 * 998
    finding = by_rate(
        (opened(at(-599_002 + stride)), "i"),
        (fetched("i", LOOK_RECORDS), page([row(550, -1)], behind=5)),
        (opened(at(-599_002 + 2 * stride)), "j"),
        (fetched("j", LOOK_RECORDS), page([row(50_000, -1)], behind=5)),
    )
    assert finding.end == row(50_000, -1)


def test_a_limit_beyond_the_tip_is_no_limit() -> None:
    finding = by_rate(
        (opened(at(-500)), "j"),
        (fetched("j", LOOK_RECORDS), page([row(90_000, -400)], behind=300)),
        records=1_000_000,
    )
    assert finding.end == row(90_000, -400)


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
def test_a_fault_on_the_way_keeps_the_first_page_too(fault: ThrottledError) -> None:
    finding = by_rate((opened(at(-599_002 + 200 * 998)), fault))
    assert finding.end == RATE_END
    assert finding.memory.cursor == cursor("d")


def test_records_of_one_instant_do_not_trap_the_search() -> None:
    rows = [row(n, -600_000) for n in range(101, 601)]
    steps = ahead(QUIET, AT_TIP, records=20_000)
    finding = play(
        steps,
        (fetched("c", 500), page(rows, onward="d", behind=600_000)),
        (opened(at(-600_000 + 39)), "i"),
        (fetched("i", LOOK_RECORDS), page([row(20_000, -500_000)], behind=500_000)),
    )
    assert finding.end == row(20_000, -500_000)


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
        assert shard.calls - before <= (3 + 2 * MAX_DOUBLINGS) * (MAX_EMPTY_PAGES + 2)
        assert not finding.start_lost
        assert list(finding.rows) == rows[passed + 1 : passed + 1 + len(finding.rows)]
        if isinstance(position, TrimHorizon) and finding.rows:
            assert finding.first == rows[0].sequence_number
        if finding.end is not None:
            reached = rows.index(finding.end)
            assert reached >= passed + len(finding.rows)
            passed, position = reached, finding.end.position
        assert finding.at_tip <= (passed == len(rows) - 1)
        assert finding.closed <= (closed and passed == len(rows) - 1)
        memory = finding.memory
        assert memory.position == position
        if not finding.has_more:
            break
    assert passed == len(rows) - 1
    assert finding.closed == closed
