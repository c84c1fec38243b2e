"""From what a look found to a shard's next state: positions, proofs, the first record, the lag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    SequenceNumber,
    ShardEnd,
    ShardState,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.position_advance import (
    LatestRecord,
    ShardAdvance,
    advance_by_records,
    advance_to_end,
    advance_to_shard_end,
    advance_to_target,
    is_target_reached,
    truncate_to_target,
    with_last_caught_up,
)
from spark_ssp.kinesis_source.probing.probe_protocol import (
    Lookahead,
    ProbeResult,
    RecordRef,
    ShardCursor,
)
from tests.support.kinesis.probes import cursor, ms, row
from tests.support.kinesis.shards import key

P = AfterRecord(sequence_number=SequenceNumber("100"))
TRIM, END = TrimHorizon(), ShardEnd()
LATER = AtTimestamp(millis=ms(-50))
OLD = ms(-60_000)
STATE = ShardState(position=P, last_caught_up_ms=OLD)
ROWS = tuple(row(n, -1000 + n) for n in (101, 102, 103))
MEMORY = ShardCursor(
    position=ROWS[-1].position, cached_iterator=cursor("c"), record_bytes=10.0, proven=True
)


def found(
    rows: tuple[RecordRef, ...] = ROWS,
    *,
    end: RecordRef | None = None,
    at_latest: bool = False,
    closed: bool = False,
    behind: int = 0,
    first: str | None = None,
) -> ProbeResult:
    end = end or (rows[-1] if rows else None)
    return ProbeResult(
        records=rows,
        end=end,
        at_latest=at_latest,
        closed=closed,
        millis_behind=behind,
        time=ms(0),
        first=None if first is None else SequenceNumber(first),
        cursor=replace(MEMORY, position=end.position if end else P),
    )


def state(
    position: Position, seen: EpochMillis | None = None, first: str | None = None
) -> ShardState:
    return ShardState(
        position=position,
        last_caught_up_ms=seen,
        first=None if first is None else SequenceNumber(first),
    )


# --- As far as was found --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "finding", "then"),
    [
        # The old proof stands: it was about an earlier position.
        (STATE, found(behind=7), state(ROWS[-1].position, OLD)),
        (STATE, found(at_latest=True), state(ROWS[-1].position, ms(0))),
        (STATE, found(end=row(900, -5), behind=7), state(row(900).position, OLD)),
        (STATE, found(()), STATE),
        (STATE, found((), at_latest=True), state(P, ms(0))),
        (STATE, found(closed=True), state(END, OLD)),
        (STATE, found((), closed=True), state(END, OLD)),
        # The first record is said by the batch that begins to read, and by no other.
        (state(TRIM), found(first="101"), state(ROWS[-1].position, None, "101")),
        (state(LATER, OLD), found(first="101"), state(ROWS[-1].position, OLD, "101")),
        (state(TRIM), found(closed=True, first="101"), state(END, None, "101")),
        (state(TRIM), found((), closed=True), state(END)),
        (state(TRIM), found((), at_latest=True), state(TRIM, ms(0))),
        (state(P, OLD, "99"), found(), state(ROWS[-1].position, OLD)),
        (state(P, OLD, "99"), found((), at_latest=True), state(P, ms(0))),
        # A clock that has gone back takes no proof back.
        (state(P, ms(9)), found((), at_latest=True), state(P, ms(9))),
    ],
)
def test_as_far_as_was_found(start: ShardState, finding: ProbeResult, then: ShardState) -> None:
    advance = advance_to_end(start, finding)
    assert advance.state == then
    assert advance.at_latest == finding.at_latest
    assert advance.millis_behind == (0 if finding.closed else finding.millis_behind)
    if finding.closed:
        assert advance.cursor == replace(finding.cursor, position=END, cached_iterator=None)
    else:
        assert advance.cursor == finding.cursor


# --- As far as the limits allow -------------------------------------------------------------------


def test_all_admitted_is_as_far_as_was_found() -> None:
    for finding in (
        found(end=row(900), behind=4),
        found(at_latest=True),
        found(()),
        found(closed=True),
    ):
        admitted = len(finding.records)
        assert advance_by_records(STATE, finding, admitted) == advance_to_end(STATE, finding)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("admitted", [1, 2])
def test_a_cut(admitted: int, closed: bool) -> None:
    advance = advance_by_records(STATE, found(at_latest=not closed, closed=closed), admitted)
    end = ROWS[admitted - 1].position
    left_out = ROWS[admitted]
    assert advance == ShardAdvance(
        state=state(end, OLD),
        cursor=replace(
            MEMORY,
            position=end,
            cached_iterator=None,
            reached_ms=ROWS[admitted - 1].arrival,
            lookahead=Lookahead(
                position=end,
                records=ROWS[admitted:],
                cached_iterator=MEMORY.cached_iterator,
            ),
        ),
        millis_behind=ms(0) - left_out.arrival,
        at_latest=False,
        expected=ExpectedSize(records=admitted, size_bytes=100 * admitted),
    )


def test_nothing_admitted() -> None:
    advance = advance_by_records(state(TRIM, OLD), found(first="101", behind=5000), 0)
    assert advance.state == state(TRIM, OLD, "101")  # what waits is noted
    assert advance.millis_behind == 5000
    assert advance.cursor.position == TRIM


def test_a_cut_at_the_beginning_tells_the_first() -> None:
    assert advance_by_records(state(TRIM), found(first="101"), 1).state == state(
        ROWS[0].position, None, "101"
    )


def test_what_was_left_out_is_lag_even_if_the_clock_says_otherwise() -> None:
    rows = (row(101, 40), row(102, 50))
    assert advance_by_records(STATE, found(rows, at_latest=True), 1).millis_behind == 1


# --- To a target ----------------------------------------------------------------------------------

TARGET = LatestRecord(record=row(500, -20), time=ms(-10))
T = row(500).position


@pytest.mark.parametrize(
    ("start", "target", "finding", "then"),
    [
        (STATE, TARGET, None, state(T, ms(-10))),
        (state(T, OLD), TARGET, None, state(T, ms(-10))),
        (
            state(replace(T, sub=3)),
            LatestRecord(record=row(500, sub=3), time=ms(-10)),
            None,
            state(replace(T, sub=3), ms(-10)),
        ),
        (
            state(T),
            LatestRecord(record=row(500, sub=3), time=ms(-10)),
            None,
            state(replace(T, sub=3), ms(-10)),
        ),
        (state(row(501).position, OLD), TARGET, None, state(row(501).position, ms(-10))),
        (STATE, LatestRecord(record=None, time=ms(-10)), None, state(P, ms(-10))),
        (STATE, END, None, state(END, OLD)),
        (state(TRIM), TARGET, found(ROWS[:1], first="101"), state(T, ms(-10), "101")),
        (state(TRIM), END, found(ROWS[:1], first="101"), state(END, None, "101")),
        (state(TRIM), END, found((), closed=True), state(END)),
        (
            state(TRIM),
            LatestRecord(record=None, time=ms(-10)),
            found(ROWS[:1], first="101"),
            state(TRIM, ms(-10), "101"),
        ),
        (state(LATER, OLD), TARGET, found((row(500),), first="500"), state(T, ms(-10), "500")),
        # The start lies behind the target: what is there came later.
        (state(LATER, OLD), TARGET, found((row(501),), first="501"), state(LATER, ms(-10), "501")),
        (state(LATER, ms(0)), TARGET, found((row(501),), first="501"), state(LATER, ms(0), "501")),
    ],
)
def test_to_a_target(
    start: ShardState,
    target: LatestRecord | ShardEnd,
    finding: ProbeResult | None,
    then: ShardState,
) -> None:
    advance = advance_to_target(start, target, finding)
    assert advance.state == then
    assert advance.at_latest == (then.last_caught_up_ms in (ms(-10), ms(0)))
    assert advance.millis_behind == 0
    assert advance.cursor.cached_iterator is None


def test_a_closed_shard_that_shows_nothing_yet_is_gone_on_with_from_there() -> None:
    finding = found((), behind=9)
    advance = advance_to_target(state(TRIM), END, finding)
    assert (advance.state, advance.cursor) == (state(TRIM), finding.cursor)
    assert (advance.at_latest, advance.millis_behind) == (False, 9)


def test_what_was_there_and_does_not_show_proves_nothing() -> None:
    finding = found((), at_latest=True)
    advance = advance_to_target(state(TRIM, OLD), TARGET, finding)
    assert (advance.state, advance.cursor) == (state(TRIM, OLD), finding.cursor)
    assert (advance.at_latest, advance.millis_behind) == (False, 0)


@pytest.mark.parametrize(
    ("start", "target", "finding", "reached"),
    [
        (STATE, END, None, True),
        (state(TRIM), END, found((), closed=True), True),
        (state(TRIM), END, found((), at_latest=True), False),
        (STATE, TARGET, None, True),
        (state(TRIM), TARGET, found(ROWS[:1], first="101"), True),
        (state(TRIM), LatestRecord(record=None, time=ms(-10)), found(()), True),
        # Behind the target already.
        (state(row(501).position), TARGET, None, True),
        (state(LATER), TARGET, found((row(501),), first="501"), True),
        # It was there and must still be.
        (state(TRIM), TARGET, found((), at_latest=True), False),
        (state(LATER), TARGET, found((), at_latest=True), False),
        # It came before the start time, or so long ago that it may be gone.
        (state(AtTimestamp(millis=ms(-19))), TARGET, found((), at_latest=True), True),
        (
            state(TRIM),
            LatestRecord(record=row(500, -5001), time=ms(-10)),
            found((), at_latest=True),
            True,
        ),
    ],
)
def test_whether_a_target_is_reached(
    start: ShardState, target: LatestRecord | ShardEnd, finding: ProbeResult | None, reached: bool
) -> None:
    assert (
        is_target_reached(advance_to_target(start, target, finding), target, ms(-5000)) == reached
    )


@pytest.mark.parametrize(
    ("finding", "admitted", "reached"),
    [
        (found(ROWS), 3, True),
        (found(ROWS), 2, False),
        (found(ROWS[:1]), 1, False),
        (found(()), 0, False),
        (found((row(501),)), 0, True),
    ],
)
def test_whether_a_target_is_reached_within_a_limit(
    finding: ProbeResult, admitted: int, reached: bool
) -> None:
    target = LatestRecord(record=ROWS[-1], time=ms(-10))
    advance = advance_by_records(state(TRIM), truncate_to_target(finding, target), admitted)
    assert is_target_reached(advance, target, ms(-5000)) == reached


# --- Cutting what was found at a target -----------------------------------------------------------


def test_short_of_the_target_nothing_is_cut_but_the_claims() -> None:
    finding = found(closed=True, behind=3)
    assert truncate_to_target(finding, TARGET) == replace(finding, closed=False)
    assert truncate_to_target(found(at_latest=True), TARGET) == found()


def test_a_closed_target_takes_all() -> None:
    finding = found(closed=True)
    assert truncate_to_target(finding, END) is finding


@pytest.mark.parametrize(
    ("finding", "rows", "end"),
    [
        (found(at_latest=True), ROWS[:2], ROWS[1]),
        (found(closed=True), ROWS[:2], ROWS[1]),
        (found(end=row(900), behind=4), ROWS[:2], ROWS[1]),
        (found(ROWS[2:]), (), None),
        (found(ROWS[:2]), ROWS[:2], ROWS[1]),
    ],
)
def test_beyond_the_target(
    finding: ProbeResult, rows: tuple[RecordRef, ...], end: RecordRef | None
) -> None:
    clipped = truncate_to_target(finding, LatestRecord(record=ROWS[1], time=ms(-10)))
    assert (clipped.records, clipped.end) == (rows, end)
    assert (clipped.closed, clipped.at_latest, clipped.time) == (False, True, ms(-10))
    assert clipped.cursor.cached_iterator is None
    assert advance_by_records(state(LATER), clipped, len(rows)).state == state(
        end.position if end else LATER, ms(-10)
    )


def test_a_target_between_the_rows_and_a_far_end() -> None:
    clipped = truncate_to_target(found(end=row(900), behind=4), TARGET)
    assert (clipped.records, clipped.end) == (ROWS, TARGET.record)
    assert advance_by_records(STATE, clipped, 3).state == state(T, ms(-10))


def test_an_empty_target() -> None:
    clipped = truncate_to_target(
        found(at_latest=True, first="101"), LatestRecord(record=None, time=ms(-10))
    )
    assert (clipped.records, clipped.end, clipped.at_latest) == ((), None, True)
    assert advance_by_records(state(TRIM), clipped, 0).state == state(TRIM, ms(-10), "101")


def test_the_end_of_a_shard_keeps_the_proof_for_its_children() -> None:
    assert advance_to_shard_end(STATE, MEMORY, None).state == state(END, OLD)


# --- The time until which a shard was read completely ---------------------------------------------

TIMES = st.none() | st.integers(1, 9).map(EpochMillis)


@given(old=TIMES, proven=TIMES, opened=TIMES, known=TIMES, ends=st.booleans())
def test_a_new_proof_is_of_a_time_at_which_the_shard_was_listed_as_open(
    old: EpochMillis | None,
    proven: EpochMillis | None,
    opened: EpochMillis | None,
    known: EpochMillis | None,
    *,
    ends: bool,
) -> None:
    before = state(P, old)
    seen = max((time for time in (old, proven) if time is not None), default=None)
    advance = ShardAdvance(
        state=state(END if ends else P, seen), cursor=MEMORY, millis_behind=0, at_latest=not ends
    )
    others = {} if known is None else {key(0): known}
    after = with_last_caught_up({key(0): before}, {key(0): advance}, others, lambda _: opened)
    claimed = after[key(0)].state.last_caught_up_ms
    allowed = [old, opened if proven is not None else None, known if ends else None]
    assert claimed in (old, proven, opened, known)
    assert (claimed or 0) <= max(time or 0 for time in allowed)
    assert (claimed or 0) >= max(old or 0, (known or 0) if ends else 0)
    if proven is not None and opened is not None:
        assert claimed is not None
        assert claimed >= min(proven, opened)
