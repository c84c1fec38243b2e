"""Where a batch ends in one shard: which calls are made, and what is made of the answers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.client.api import ExpiredIteratorError, ThrottledError
from spark_ssp.kinesis_source.model.shard import (
    CLOCK_UNCERTAINTY_MS,
    AfterRecord,
    Position,
    SequenceNumber,
    ShardState,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.batch_end_probe import (
    ITERATOR_LIFE_MS,
    MAX_PAGES_TO_SHARD_END,
    find_first_record,
)
from spark_ssp.kinesis_source.probing.probe_protocol import (
    MAX_EMPTY_PAGES,
    ProbeResult,
    RecordRef,
    ShardCursor,
)
from tests.support.kinesis.probes import (
    AT_LATEST,
    DAY_MS,
    EXPIRED,
    FRESH,
    KNOWN,
    NOW,
    PEEK,
    QUIET,
    START_ROW,
    THROTTLED,
    TRIM,
    UNREACHABLE,
    Exchange,
    P,
    ahead,
    at,
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

# --- The look from the start ----------------------------------------------------------------------


def test_a_quiet_shard_costs_one_call() -> None:
    finding = play(look(QUIET, AT_LATEST), (fetched("c", PEEK), page(onward="d", time=9)))
    assert finding == ProbeResult(
        at_latest=True,
        time=ms(9),
        cursor=replace(AT_LATEST, cached_iterator=cursor("d", 9, at_latest=True)),
    )
    assert not finding.has_more


def test_a_few_records_at_the_latest_record_cost_one_call_as_well() -> None:
    rows = [row(101, -800), row(102, -20, sub=5)]
    finding = play(look(QUIET, AT_LATEST), (fetched("c", PEEK), page(rows, onward="d")))
    assert finding.records == tuple(rows)
    assert finding.end == rows[-1]
    assert finding.at_latest
    assert finding.cursor.position == AfterRecord(sequence_number=SequenceNumber("102"), sub=5)
    assert finding.cursor.cached_iterator == cursor("d", at_latest=True)
    assert finding.cursor.proven


def test_without_a_cursor_the_start_record_must_show_itself() -> None:
    finding = play(
        look(QUIET, FRESH),
        (opened(P, inclusive=True), "a"),
        (fetched("a", 2), page([START_ROW], onward="b")),
    )
    assert (finding.records, finding.end, finding.at_latest) == ((), None, True)
    assert (finding.start_lost, finding.first) == (False, None)
    assert finding.cursor == ShardCursor(
        position=P, cached_iterator=cursor("b", at_latest=True), record_bytes=100.0, proven=True
    )


@pytest.mark.parametrize(
    "memory",
    [
        replace(AT_LATEST, cached_iterator=None),
        replace(AT_LATEST, cached_iterator=cursor("c", -ITERATOR_LIFE_MS)),
        replace(AT_LATEST, cached_iterator=cursor("c", 1)),  # the service's clock has gone back
        replace(AT_LATEST, position=AfterRecord(sequence_number=SequenceNumber("99"))),
        replace(AT_LATEST, position=AfterRecord(sequence_number=SequenceNumber("100"), sub=1)),
    ],
)
def test_a_cursor_of_no_use_is_not_used_and_its_proof_neither(memory: ShardCursor) -> None:
    """Time may have passed since: a driver that slept longer than the retention must notice."""
    finding = play(
        look(ShardState(position=P, last_caught_up_ms=ms(-DAY_MS)), memory),
        (opened(P, inclusive=True), "a"),
        (fetched("a", PEEK + 1), page(onward="b")),
    )
    assert finding.start_lost


def test_the_last_moment_of_a_cursor() -> None:
    memory = replace(AT_LATEST, cached_iterator=cursor("c", 1 - ITERATOR_LIFE_MS))
    assert play(look(QUIET, memory), (fetched("c", PEEK), page())).at_latest


def test_a_cursor_that_the_service_finds_too_old_is_replaced() -> None:
    finding = play(
        look(QUIET, AT_LATEST),
        (fetched("c", PEEK), EXPIRED),
        (opened(P, inclusive=True), "a"),
        (fetched("a", PEEK + 1), page([START_ROW, row(101, -10)])),
    )
    assert orders(finding) == [101]
    assert finding.cursor.proven


def test_an_iterator_that_expires_later_is_left_to_the_caller() -> None:
    with pytest.raises(ExpiredIteratorError):
        play(look(QUIET, FRESH), (opened(P, inclusive=True), "a"), (fetched("a", 2), EXPIRED))


@pytest.mark.parametrize(("record_bytes", "limit"), [(1.0, 500), (0.0, 500), (200_000.0, 1)])
def test_a_look_is_as_wide_as_records_are_small(record_bytes: float, limit: int) -> None:
    memory = replace(AT_LATEST, record_bytes=record_bytes)
    play(look(QUIET, memory), (fetched("c", limit), page()))


def test_the_size_of_records_is_a_running_mean() -> None:
    rows = [row(101, -10, size=2000), row(102, -5, size=4048)]
    finding = play(look(QUIET, AT_LATEST), (fetched("c", PEEK), page(rows)))
    assert finding.cursor.record_bytes == pytest.approx(0.7 * 1024 + 0.3 * 3024)


# --- Empty pages ----------------------------------------------------------------------------------


def test_empty_pages_are_followed() -> None:
    finding = play(
        look(QUIET, AT_LATEST),
        (fetched("c", PEEK), page(onward="d", behind=900)),
        (fetched("d", PEEK), page(onward="e", behind=900)),
        (fetched("e", PEEK), page([row(101, -900)], onward="f")),
    )
    assert orders(finding) == [101]
    assert finding.cursor.cached_iterator == cursor("f", at_latest=True)


def _empties(first: str, limit: int) -> list[Exchange]:
    names = [first, *(f"e{n}" for n in range(MAX_EMPTY_PAGES + 1))]
    return [
        (fetched(name, limit), page(onward=onward, behind=900)) for name, onward in pairwise(names)
    ]


def test_after_many_empty_pages_nothing_is_known_but_where_to_go_on() -> None:
    """The start record was opened at and not met yet: neither proven nor lost, however old."""
    old = ShardState(position=P, last_caught_up_ms=ms(-2 * DAY_MS))
    script: list[Exchange] = [(opened(P, inclusive=True), "a"), *_empties("a", 2)]
    finding = play(look(old, FRESH), *script)
    assert (finding.end, finding.at_latest, finding.closed) == (None, False, False)
    assert (finding.start_lost, finding.cursor.proven) == (False, False)
    assert finding.cursor.cached_iterator == cursor(f"e{MAX_EMPTY_PAGES}")

    again = play(
        look(old, finding.cursor),
        (fetched(f"e{MAX_EMPTY_PAGES}", 1), page([START_ROW], onward="f", behind=5)),
        (fetched("f", 500), page([row(101, -900)], onward="g")),
    )
    assert orders(again) == [101]
    assert not again.start_lost


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
def test_a_fault_between_empty_pages_keeps_the_way_that_was_made(fault: ThrottledError) -> None:
    """A shard answers five calls a second: one of many empty pages takes several looks."""
    finding = play(
        look(TRIM, FRESH),
        (opened(TrimHorizon()), "a"),
        (fetched("a", 1), page(onward="b", behind=900)),
        (fetched("b", 1), page(onward="c", behind=800)),
        (fetched("c", 1), fault),
    )
    assert (finding.end, finding.at_latest, finding.closed) == (None, False, False)
    assert (finding.start_lost, finding.millis_behind) == (False, 800)
    again = play(
        find_first_record(TRIM, finding.cursor, NOW, DAY_MS),
        (fetched("c", 1), page([row(7, -900)], behind=5)),
    )
    assert (again.first, again.start_lost) == (SequenceNumber("7"), False)


def test_a_start_record_that_was_not_met_by_a_cursor_either_is_lost() -> None:
    memory = replace(AT_LATEST, proven=False)
    old = ShardState(position=P, last_caught_up_ms=ms(-DAY_MS))
    finding = play(look(old, memory), (fetched("c", PEEK), page([row(105, -900)])))
    assert finding.start_lost


# --- The start record -----------------------------------------------------------------------------


KEPT_MS = DAY_MS - CLOCK_UNCERTAINTY_MS
"""What came within this time is kept, however far the service's clock is ahead of what it told."""


@pytest.mark.parametrize(
    ("seen", "lost"),
    [(None, True), (-DAY_MS, True), (-KEPT_MS, True), (1 - KEPT_MS, False), (0, False)],
)
@pytest.mark.parametrize("rows", [(), (row(105, -900),)])
def test_a_start_record_that_is_gone(
    seen: int | None, lost: bool, rows: tuple[RecordRef, ...]
) -> None:
    """Nothing was lost if the last proof is younger than the retention."""
    start = ShardState(position=P, last_caught_up_ms=None if seen is None else ms(seen))
    finding = play(
        look(start, replace(AT_LATEST, cached_iterator=None)),
        (opened(P, inclusive=True), "a"),
        (fetched("a", PEEK + 1), page(rows, onward="b")),
    )
    assert finding.start_lost is lost
    assert finding.records == rows
    assert finding.at_latest


def test_a_loss_is_reported_before_anything_else_is_looked_for() -> None:
    start = ShardState(position=P)
    finding = play(
        look(start, FRESH),
        (opened(P, inclusive=True), "a"),
        (fetched("a", 2), page([row(105, -90_000), row(106, -80_000)], behind=70_000)),
    )
    assert finding.start_lost


def test_user_records_that_are_left_of_the_start_record_are_read() -> None:
    start = ShardState(position=replace(P, sub=2), last_caught_up_ms=ms(-5))
    rest = row(100, -5000, sub=7)
    finding = play(
        look(start, FRESH),
        (opened(start.position, inclusive=True), "a"),
        (fetched("a", 2), page([rest], onward="b")),
    )
    assert finding.records == (rest,)
    assert finding.end == rest
    assert finding.cursor.position == replace(P, sub=7)


@pytest.mark.parametrize("sub", [7, 8])
def test_no_user_records_are_left_of_the_start_record(sub: int) -> None:
    start = ShardState(position=replace(P, sub=sub))
    finding = play(
        look(start, FRESH),
        (opened(start.position, inclusive=True), "a"),
        (fetched("a", 2), page([row(100, -5000, sub=7)])),
    )
    assert finding.records == ()


@pytest.mark.parametrize("position", [TrimHorizon(), at(-60_000)])
def test_a_start_that_is_no_record_tells_the_first(position: Position) -> None:
    finding = play(
        look(ShardState(position=position), KNOWN),
        (opened(position), "a"),
        (fetched("a", 500), page([row(7, -900), row(8, -800)])),
    )
    assert finding.first == SequenceNumber("7")
    assert finding.end == row(8, -800)
    assert not finding.start_lost


@pytest.mark.parametrize(("seen", "lost"), [(None, False), (-KEPT_MS, True), (1 - KEPT_MS, False)])
@pytest.mark.parametrize("position", [TrimHorizon(), at(-2 * DAY_MS)])
def test_a_start_that_is_no_record_may_be_too_old_too(
    position: Position, seen: int | None, lost: bool
) -> None:
    """Without a proof it promises nothing: reading begins with whatever is there."""
    start = ShardState(position=position, last_caught_up_ms=None if seen is None else ms(seen))
    finding = play(look(start, KNOWN), (opened(position), "a"), (fetched("a", 500), page()))
    assert finding.start_lost is lost


# --- Widening -------------------------------------------------------------------------------------


def test_a_first_record_tells_how_wide_to_look() -> None:
    finding = play(
        look(TRIM, FRESH),
        (opened(TrimHorizon()), "a"),
        (fetched("a", 1), page([row(1, -9000, size=1024)], onward="b", behind=8000)),
        (fetched("b", PEEK), page([row(2, -8000), row(3, -10)], onward="c")),
    )
    assert orders(finding) == [1, 2, 3]
    assert (finding.end, finding.first) == (row(3, -10), SequenceNumber("1"))
    assert (finding.at_latest, finding.cursor.cached_iterator) == (
        True,
        cursor("c", at_latest=True),
    )


def test_a_page_with_the_start_record_alone_is_followed_by_another() -> None:
    finding = play(
        look(QUIET, replace(FRESH, record_bytes=100_000.0)),
        (opened(P, inclusive=True), "a"),
        (fetched("a", 2), page([START_ROW], onward="b", behind=8)),
        (fetched("b", 1), page([row(101, -8)], onward="c")),
    )
    assert orders(finding) == [101]


@pytest.mark.parametrize("fault", [THROTTLED, UNREACHABLE])
def test_a_fault_while_widening_keeps_the_first_page(fault: ThrottledError) -> None:
    finding = play(
        look(TRIM, FRESH),
        (opened(TrimHorizon()), "a"),
        (fetched("a", 1), page([row(1, -9000)], onward="b", behind=8000)),
        (fetched("b", 500), fault),
        (opened(at(-500)), THROTTLED),
    )
    assert orders(finding) == [1]
    assert finding.cursor.cached_iterator == cursor("b")
    assert finding.has_more


# --- The first record -----------------------------------------------------------------------------


def test_the_first_record_is_looked_for_until_it_is_found() -> None:
    script: list[Exchange] = [(opened(TrimHorizon()), "a"), *_empties("a", 1)]
    script.append((fetched(f"e{MAX_EMPTY_PAGES}", 1), page([row(7, -900)], behind=5)))
    finding = play(find_first_record(TRIM, FRESH, NOW, DAY_MS), *script)
    assert (finding.first, finding.end) == (SequenceNumber("7"), row(7, -900))


def test_an_empty_shard_has_no_first_record() -> None:
    finding = play(
        find_first_record(TRIM, FRESH, NOW, DAY_MS),
        (opened(TrimHorizon()), "a"),
        (fetched("a", 1), page(onward=None)),
    )
    assert (finding.first, finding.end, finding.closed) == (None, None, True)


def test_a_closed_shard_is_asked_until_it_shows_a_record_or_its_end() -> None:
    ended = play(
        find_first_record(TRIM, FRESH, NOW, DAY_MS, closed=True),
        (opened(TrimHorizon()), "a"),
        (fetched("a", 1), page(onward="b")),
        (fetched("b", 1), page(onward=None)),
    )
    assert (ended.first, ended.end, ended.closed) == (None, None, True)
    more = play(
        ahead(QUIET, FRESH, 5, closed=True),
        (opened(P, inclusive=True), "a"),
        (fetched("a", 6), page([START_ROW], onward="b")),
        (fetched("b", 5), page([row(101)], onward="c")),
        (fetched("c", 5), page([row(102)], onward="d")),
        (fetched("d", 5), page(onward=None)),
    )
    assert (orders(more), more.closed) == ([101, 102], True)


def test_a_closed_shard_that_never_ends_is_left_for_later() -> None:
    names = ["a", *(f"e{n}" for n in range(MAX_PAGES_TO_SHARD_END + 1))]
    script: list[Exchange] = [
        (fetched(name, 1), page(onward=onward)) for name, onward in pairwise(names)
    ]
    finding = play(
        find_first_record(TRIM, FRESH, NOW, DAY_MS, closed=True),
        (opened(TrimHorizon()), "a"),
        *script,
    )
    assert (finding.end, finding.closed) == (None, False)
    assert finding.cursor.cached_iterator == cursor(names[-1], at_latest=True)
    throttled = play(
        find_first_record(TRIM, FRESH, NOW, DAY_MS, closed=True),
        (opened(TrimHorizon()), "a"),
        (fetched("a", 1), page(onward="b")),
        (fetched("b", 1), THROTTLED),
    )
    assert throttled.cursor.cached_iterator == cursor("b", at_latest=True)


def test_a_first_record_after_too_long_a_time_may_not_be_the_first() -> None:
    start = ShardState(position=at(-DAY_MS), last_caught_up_ms=ms(-DAY_MS))
    finding = play(
        find_first_record(start, FRESH, NOW, DAY_MS),
        (opened(at(-DAY_MS)), "a"),
        (fetched("a", 1), page([row(7, -900)])),
    )
    assert finding.start_lost
