"""From what a look found to a shard's next state: positions, proofs, the first record, the lag."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinesis_source.model.ranges import ExpectedSize
from kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    SequenceNumber,
    ShardEnd,
    ShardState,
    TrimHorizon,
)
from kinesis_source.probing.position_advance import (
    Advance,
    Tip,
    advance_all,
    advance_by,
    advance_to,
    clip,
    is_reached,
    to_shard_end,
)
from kinesis_source.probing.probe_protocol import Finding, Memory, Row
from tests.support.kinesis.probes import cursor, ms, row

P = AfterRecord(sequence_number=SequenceNumber("100"))
TRIM, END = TrimHorizon(), ShardEnd()
LATER = AtTimestamp(millis=ms(-50))
OLD = ms(-60_000)
STATE = ShardState(position=P, seen=OLD)
ROWS = tuple(row(n, -1000 + n) for n in (101, 102, 103))
MEMORY = Memory(position=ROWS[-1].position, cursor=cursor("c"), record_bytes=10.0, proven=True)


def found(
    rows: tuple[Row, ...] = ROWS,
    *,
    end: Row | None = None,
    at_tip: bool = False,
    closed: bool = False,
    behind: int = 0,
    first: str | None = None,
) -> Finding:
    end = end or (rows[-1] if rows else None)
    return Finding(
        rows=rows,
        end=end,
        at_tip=at_tip,
        closed=closed,
        millis_behind=behind,
        time=ms(0),
        first=None if first is None else SequenceNumber(first),
        memory=replace(MEMORY, position=end.position if end else P),
    )


def state(
    position: Position, seen: EpochMillis | None = None, first: str | None = None
) -> ShardState:
    return ShardState(
        position=position, seen=seen, first=None if first is None else SequenceNumber(first)
    )


# --- As far as was found --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "finding", "then"),
    [
        # The old proof stands: it was about an earlier position.
        (STATE, found(behind=7), state(ROWS[-1].position, OLD)),
        (STATE, found(at_tip=True), state(ROWS[-1].position, ms(0))),
        (STATE, found(end=row(900, -5), behind=7), state(row(900).position, OLD)),
        (STATE, found(()), STATE),
        (STATE, found((), at_tip=True), state(P, ms(0))),
        (STATE, found(closed=True), state(END, OLD)),
        (STATE, found((), closed=True), state(END, OLD)),
        # The first record is said by the batch that begins to read, and by no other.
        (state(TRIM), found(first="101"), state(ROWS[-1].position, None, "101")),
        (state(LATER, OLD), found(first="101"), state(ROWS[-1].position, OLD, "101")),
        (state(TRIM), found(closed=True, first="101"), state(END, None, "101")),
        (state(TRIM), found((), closed=True), state(END)),
        (state(TRIM), found((), at_tip=True), state(TRIM, ms(0))),
        (state(P, OLD, "99"), found(), state(ROWS[-1].position, OLD)),
        (state(P, OLD, "99"), found((), at_tip=True), state(P, ms(0))),
        # A clock that has gone back takes no proof back.
        (state(P, ms(9)), found((), at_tip=True), state(P, ms(9))),
    ],
)
def test_as_far_as_was_found(start: ShardState, finding: Finding, then: ShardState) -> None:
    advance = advance_all(start, finding)
    assert advance.state == then
    assert advance.at_tip == finding.at_tip
    assert advance.millis_behind == (0 if finding.closed else finding.millis_behind)
    if finding.closed:
        assert advance.memory == replace(finding.memory, position=END, cursor=None)
    else:
        assert advance.memory == finding.memory


# --- As far as the limits allow -------------------------------------------------------------------


def test_all_admitted_is_as_far_as_was_found() -> None:
    for finding in (
        found(end=row(900), behind=4),
        found(at_tip=True),
        found(()),
        found(closed=True),
    ):
        admitted = len(finding.rows)
        assert advance_by(STATE, finding, admitted) == advance_all(STATE, finding)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("admitted", [1, 2])
def test_a_cut(admitted: int, closed: bool) -> None:
    advance = advance_by(STATE, found(at_tip=not closed, closed=closed), admitted)
    end = ROWS[admitted - 1].position
    left_out = ROWS[admitted]
    assert advance == Advance(
        state=state(end, OLD),
        memory=replace(MEMORY, position=end, cursor=None, reached=ROWS[admitted - 1].arrival),
        millis_behind=ms(0) - left_out.arrival,
        at_tip=False,
        expected=ExpectedSize(records=admitted, size=100 * admitted),
    )


def test_nothing_admitted() -> None:
    advance = advance_by(state(TRIM, OLD), found(first="101", behind=5000), 0)
    assert advance.state == state(TRIM, OLD, "101")  # what waits is noted
    assert advance.millis_behind == 5000
    assert advance.memory.position == TRIM


def test_a_cut_at_the_beginning_tells_the_first() -> None:
    assert advance_by(state(TRIM), found(first="101"), 1).state == state(
        ROWS[0].position, None, "101"
    )


def test_what_was_left_out_is_lag_even_if_the_clock_says_otherwise() -> None:
    rows = (row(101, 40), row(102, 50))
    assert advance_by(STATE, found(rows, at_tip=True), 1).millis_behind == 1


# --- To a target ----------------------------------------------------------------------------------

TARGET = Tip(row=row(500, -20), time=ms(-10))
T = row(500).position


@pytest.mark.parametrize(
    ("start", "target", "finding", "then"),
    [
        (STATE, TARGET, None, state(T, ms(-10))),
        (state(T, OLD), TARGET, None, state(T, ms(-10))),
        (
            state(replace(T, sub=3)),
            Tip(row=row(500, sub=3), time=ms(-10)),
            None,
            state(replace(T, sub=3), ms(-10)),
        ),
        (state(T), Tip(row=row(500, sub=3), time=ms(-10)), None, state(replace(T, sub=3), ms(-10))),
        (state(row(501).position, OLD), TARGET, None, state(row(501).position, ms(-10))),
        (STATE, Tip(row=None, time=ms(-10)), None, state(P, ms(-10))),
        (STATE, END, None, state(END, OLD)),
        (state(TRIM), TARGET, found(ROWS[:1], first="101"), state(T, ms(-10), "101")),
        (state(TRIM), END, found(ROWS[:1], first="101"), state(END, None, "101")),
        (state(TRIM), END, found((), closed=True), state(END)),
        (
            state(TRIM),
            Tip(row=None, time=ms(-10)),
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
    start: ShardState, target: Tip | ShardEnd, finding: Finding | None, then: ShardState
) -> None:
    advance = advance_to(start, target, finding)
    assert advance.state == then
    assert advance.at_tip == (then.seen in (ms(-10), ms(0)))
    assert advance.millis_behind == 0
    assert advance.memory.cursor is None


def test_a_closed_shard_that_shows_nothing_yet_is_gone_on_with_from_there() -> None:
    finding = found((), behind=9)
    advance = advance_to(state(TRIM), END, finding)
    assert (advance.state, advance.memory) == (state(TRIM), finding.memory)
    assert (advance.at_tip, advance.millis_behind) == (False, 9)


def test_what_was_there_and_does_not_show_proves_nothing() -> None:
    finding = found((), at_tip=True)
    advance = advance_to(state(TRIM, OLD), TARGET, finding)
    assert (advance.state, advance.memory) == (state(TRIM, OLD), finding.memory)
    assert (advance.at_tip, advance.millis_behind) == (False, 0)


@pytest.mark.parametrize(
    ("start", "target", "finding", "reached"),
    [
        (STATE, END, None, True),
        (state(TRIM), END, found((), closed=True), True),
        (state(TRIM), END, found((), at_tip=True), False),
        (STATE, TARGET, None, True),
        (state(TRIM), TARGET, found(ROWS[:1], first="101"), True),
        (state(TRIM), Tip(row=None, time=ms(-10)), found(()), True),
        # Behind the target already.
        (state(row(501).position), TARGET, None, True),
        (state(LATER), TARGET, found((row(501),), first="501"), True),
        # It was there and must still be.
        (state(TRIM), TARGET, found((), at_tip=True), False),
        (state(LATER), TARGET, found((), at_tip=True), False),
        # It came before the start time, or so long ago that it may be gone.
        (state(AtTimestamp(millis=ms(-19))), TARGET, found((), at_tip=True), True),
        (state(TRIM), Tip(row=row(500, -5001), time=ms(-10)), found((), at_tip=True), True),
    ],
)
def test_whether_a_target_is_reached(
    start: ShardState, target: Tip | ShardEnd, finding: Finding | None, reached: bool
) -> None:
    assert is_reached(advance_to(start, target, finding), target, ms(-5000)) == reached


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
    finding: Finding, admitted: int, reached: bool
) -> None:
    target = Tip(row=ROWS[-1], time=ms(-10))
    advance = advance_by(state(TRIM), clip(finding, target), admitted)
    assert is_reached(advance, target, ms(-5000)) == reached


# --- Cutting what was found at a target -----------------------------------------------------------


def test_short_of_the_target_nothing_is_cut_but_the_claims() -> None:
    finding = found(closed=True, behind=3)
    assert clip(finding, TARGET) == replace(finding, closed=False)
    assert clip(found(at_tip=True), TARGET) == found()


def test_a_closed_target_takes_all() -> None:
    finding = found(closed=True)
    assert clip(finding, END) is finding


@pytest.mark.parametrize(
    ("finding", "rows", "end"),
    [
        (found(at_tip=True), ROWS[:2], ROWS[1]),
        (found(closed=True), ROWS[:2], ROWS[1]),
        (found(end=row(900), behind=4), ROWS[:2], ROWS[1]),
        (found(ROWS[2:]), (), None),
        (found(ROWS[:2]), ROWS[:2], ROWS[1]),
    ],
)
def test_beyond_the_target(finding: Finding, rows: tuple[Row, ...], end: Row | None) -> None:
    clipped = clip(finding, Tip(row=ROWS[1], time=ms(-10)))
    assert (clipped.rows, clipped.end) == (rows, end)
    assert (clipped.closed, clipped.at_tip, clipped.time) == (False, True, ms(-10))
    assert clipped.memory.cursor is None
    assert advance_by(state(LATER), clipped, len(rows)).state == state(
        end.position if end else LATER, ms(-10)
    )


def test_a_target_between_the_rows_and_a_far_end() -> None:
    clipped = clip(found(end=row(900), behind=4), TARGET)
    assert (clipped.rows, clipped.end) == (ROWS, TARGET.row)
    assert advance_by(STATE, clipped, 3).state == state(T, ms(-10))


def test_an_empty_target() -> None:
    clipped = clip(found(at_tip=True, first="101"), Tip(row=None, time=ms(-10)))
    assert (clipped.rows, clipped.end, clipped.at_tip) == ((), None, True)
    assert advance_by(state(TRIM), clipped, 0).state == state(TRIM, ms(-10), "101")


def test_the_end_of_a_shard_keeps_the_proof_for_its_children() -> None:
    assert to_shard_end(STATE, MEMORY, None).state == state(END, OLD)
