"""The verdict on a query: what is bad or unknown is never OK, and a longer delay never better."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from spark_ssp.operations.health import (
    FAILING_STARTS,
    Behind,
    Finding,
    Health,
    Limits,
    Pace,
    Part,
    Phase,
    Process,
    Query,
    Reader,
    State,
    Verdict,
    assess,
    outlook,
)

MINUTE = 60_000
HOUR = 60 * MINUTE
NOW = 1_795_464_000_000
LIMITS = Limits(max_delay_ms=10 * MINUTE, stuck_after_ms=15 * MINUTE)

delays = st.none() | st.integers(0, 100 * HOUR)
rates = st.floats(0, 10, allow_nan=False)
paces = (
    st.builds(Pace, backlog=st.floats(0, 1e9, allow_nan=False), read=rates, written=rates)
    | st.none()
)
parts = st.builds(
    Part,
    name=st.sampled_from(["orders/shardId-000000000000", "orders-0"]),
    reader=st.sampled_from(Reader),
    committed=st.builds(Behind, ms=delays),
    planned=st.builds(Behind, ms=delays),
    retention_ms=st.none() | st.integers(HOUR, 200 * HOUR),
    pace=paces,
    is_lost=st.booleans(),
    is_own=st.booleans(),
)
measured_parts = st.builds(
    Part,
    name=st.just("orders-0"),
    reader=st.sampled_from([Reader.QUERY, Reader.RENEWED, Reader.WAITING, Reader.UNKNOWN]),
    committed=st.builds(Behind, ms=st.integers(0, HOUR)),
    retention_ms=st.none() | st.integers(HOUR, 200 * HOUR),
)
times = st.none() | st.integers(NOW - 100 * HOUR, NOW + 100 * HOUR)
queries = st.builds(
    Query,
    process=st.sampled_from(Process),
    committed=st.none() | st.integers(0, 9),
    committed_at_ms=times,
    in_progress=st.none() | st.integers(0, 9),
    planned_at_ms=times,
    failed_starts=st.integers(0, 9),
    phase=st.none() | st.sampled_from(Phase),
    parts=st.lists(parts, max_size=4).map(tuple),
)
nearly_well = st.builds(
    Query,
    process=st.sampled_from([Process.RUNNING, Process.UNKNOWN, Process.ENDED]),
    committed=st.integers(0, 9),
    committed_at_ms=st.integers(NOW - HOUR, NOW + HOUR),
    in_progress=st.none() | st.integers(0, 9),
    planned_at_ms=st.none() | st.integers(NOW - HOUR, NOW + HOUR),
    parts=st.lists(measured_parts, min_size=1, max_size=2).map(tuple),
)
"""Queries of which many are OK."""
limits = st.builds(
    Limits,
    max_delay_ms=st.integers(0, 300 * HOUR),
    stuck_after_ms=st.integers(0, 50 * HOUR),
)


def well(**changes: object) -> Query:
    """A query that runs and is in time, with some changes."""
    query = Query(
        committed=7,
        committed_at_ms=NOW - 2_000,
        planned_at_ms=NOW - 5_000,
        parts=(
            Part(
                name="orders/shardId-000000000000",
                reader=Reader.QUERY,
                committed=Behind(ms=3_000),
                planned=Behind(ms=3_000),
                retention_ms=24 * HOUR,
            ),
        ),
    )
    return replace(query, **changes)  # type: ignore[arg-type]


def judged(**changes: object) -> Health:
    return assess(well(**changes), LIMITS, NOW)


def behind(delay: int | None, **changes: object) -> tuple[Part, ...]:
    """The shard of the query, with another delay."""
    part = replace(well().parts[0], committed=Behind(ms=delay))
    return (replace(part, **changes),)  # type: ignore[arg-type]


# --- For all queries ------------------------------------------------------------------------------


def test_some_queries_are_ok() -> None:
    """So that the property after this one is not true of none."""
    find(
        st.tuples(nearly_well, limits),
        lambda one: assess(one[0], one[1], NOW).verdict is Verdict.OK,
    )


@given(queries | nearly_well, limits)
def test_ok_means_that_all_is_known_and_well(query: Query, limit: Limits) -> None:
    found = assess(query, limit, NOW)
    assert (found.verdict is Verdict.OK) == (not found.findings)
    if found.verdict is not Verdict.OK:
        return
    read = [part for part in query.parts if part.reader is not Reader.ENDED]
    assert query.parts
    assert not any(part.reader.is_missing for part in read)
    assert all(part.reader is not Reader.UNKNOWN for part in read)
    for part in read:
        assert part.committed.ms is not None
        assert part.committed.ms <= limit.max_delay_ms
        assert part.retention_ms is None or part.committed.ms < part.retention_ms
        assert not part.is_lost
    assert query.process not in (Process.FAILED, Process.ENDED)
    assert query.failed_starts < FAILING_STARTS
    if query.in_progress is None:
        assert query.committed is not None
    else:
        assert query.planned_at_ms is not None
        assert -MINUTE <= NOW - query.planned_at_ms <= limit.stuck_after_ms


@given(queries, limits)
def test_the_verdict_is_that_of_the_gravest_finding(query: Query, limit: Limits) -> None:
    found = assess(query, limit, NOW)
    gravities = [finding.verdict.gravity for finding in found.findings]
    assert gravities == sorted(gravities, reverse=True)
    assert found.verdict.gravity == max(gravities, default=0)
    assert all(finding.reason and finding.remedy for finding in found.findings)


@given(queries, limits, st.data())
def test_a_longer_delay_is_never_better(query: Query, limit: Limits, data: st.DataObject) -> None:
    known = [n for n, part in enumerate(query.parts) if part.committed.ms is not None]
    if not known:
        return
    place = data.draw(st.sampled_from(known))
    part = query.parts[place]
    longer = (part.committed.ms or 0) + data.draw(st.integers(0, 100 * HOUR))
    later = list(query.parts)
    later[place] = replace(part, committed=Behind(ms=longer))
    before = assess(query, limit, NOW).verdict
    after = assess(replace(query, parts=tuple(later)), limit, NOW).verdict
    assert after.gravity >= before.gravity


@given(queries, limits)
def test_records_that_expire_before_they_are_read_are_lost(query: Query, limit: Limits) -> None:
    found = assess(query, limit, NOW)
    read = [part for part in query.parts if part.reader is not Reader.ENDED or part.is_lost]
    if found.state not in (State.RUNNING, State.WAITING):
        read = [replace(part, pace=None) for part in read]
    futures = [outlook(part, limit) for part in read]
    losing = any(future.is_losing for future in futures) or any(part.is_lost for part in read)
    assert (found.verdict is Verdict.LOSING) == losing
    for part, future in zip(read, futures, strict=True):
        left, needed = future.until_expiry_ms, future.until_caught_up_ms
        if left is not None and needed is not None and left < needed < math.inf:
            assert found.verdict is Verdict.LOSING
        if part.committed.ms is not None and part.retention_ms is not None:
            assert (left or 0) > 0 or found.verdict is Verdict.LOSING


@given(queries, limits, st.sampled_from([Reader.FREE, Reader.STALE, Reader.NO_LEASE]))
def test_a_shard_that_nobody_reads_stalls_the_query(
    query: Query, limit: Limits, reader: Reader
) -> None:
    unread = Part(name="orders/shardId-000000000009", reader=reader, committed=Behind(ms=0))
    found = assess(replace(query, parts=(*query.parts, unread)), limit, NOW)
    assert found.verdict.gravity >= Verdict.STALLED.gravity
    assert unread.name in found.not_read[reader]


@given(queries, limits, st.integers(1, HOUR))
def test_a_batch_that_hangs_stalls_the_query(query: Query, limit: Limits, more: int) -> None:
    planned_at = NOW - limit.stuck_after_ms - more
    hung = replace(query, in_progress=10, planned_at_ms=planned_at)
    found = assess(hung, limit, NOW)
    assert found.verdict.gravity >= Verdict.STALLED.gravity
    assert found.state not in (State.RUNNING, State.WAITING, State.UNKNOWN)


# --- Single values --------------------------------------------------------------------------------


def test_a_query_in_time() -> None:
    found = judged()
    assert (found.verdict, found.state, found.findings) == (Verdict.OK, State.WAITING, ())
    assert (found.committed.ms, found.trigger_age_ms, found.commit_age_ms) == (3_000, 5_000, 2_000)
    assert judged(in_progress=8).state is State.RUNNING


def test_planned_records_are_late_until_they_are_committed() -> None:
    """A slow sink: the driver is up to date, and the results are not."""
    found = judged(in_progress=8, parts=behind(20 * MINUTE, planned=Behind(ms=0)))
    assert (found.verdict, found.state) == (Verdict.BEHIND, State.RUNNING)
    assert "sink" in found.findings[0].remedy
    limited = judged(parts=behind(20 * MINUTE, planned=Behind(ms=19 * MINUTE)))
    assert "cores" in limited.findings[0].remedy
    stopped = judged(
        planned_at_ms=NOW - 13 * MINUTE, parts=behind(13 * MINUTE, planned=Behind(ms=13 * MINUTE))
    )
    assert stopped.verdict is Verdict.BEHIND
    assert "whether the driver runs" in stopped.findings[0].remedy


@pytest.mark.parametrize(
    ("changes", "state", "phases"),
    [
        ({"in_progress": 8}, State.STUCK, (Phase.TASKS, Phase.SINK)),
        ({"in_progress": 8, "phase": Phase.SINK}, State.STUCK, (Phase.SINK,)),
        ({"parts": behind(HOUR)}, State.STUCK, (Phase.PLANNING,)),
        ({"parts": behind(0)}, State.WAITING, ()),
        ({"parts": behind(None)}, State.UNKNOWN, ()),
        ({"in_progress": 8, "planned_at_ms": None}, State.UNKNOWN, ()),
        ({"in_progress": 8, "planned_at_ms": NOW + HOUR}, State.UNKNOWN, ()),
        ({"in_progress": 8, "planned_at_ms": NOW + MINUTE}, State.RUNNING, ()),
        ({"parts": behind(HOUR), "committed_at_ms": NOW + HOUR}, State.UNKNOWN, ()),
        ({"parts": behind(0), "committed_at_ms": NOW + HOUR}, State.WAITING, ()),
        ({"in_progress": 8, "failed_starts": 5}, State.FAILING, ()),
        ({"process": Process.FAILED}, State.FAILED, ()),
        ({"process": Process.ENDED}, State.ENDED, ()),
        ({"committed": None}, State.UNKNOWN, ()),
    ],
)
def test_states_of_a_query_whose_last_batch_is_an_hour_old(
    changes: dict[str, object], state: State, phases: tuple[Phase, ...]
) -> None:
    hour_old = {"committed_at_ms": NOW - HOUR, "planned_at_ms": NOW - HOUR}
    found = judged(**(hour_old | changes))
    assert (found.state, found.stuck_in) == (state, phases)


def test_a_hung_batch_says_what_is_not_known() -> None:
    (finding,) = judged(in_progress=8, planned_at_ms=NOW - HOUR).findings
    assert finding.reason == (
        "batch 8 was planned 1 h ago and is not committed, longer than 15 min: stuck in its tasks "
        "or its sink, or stopped; which of them is not known"
    )
    known = {"in_progress": 8, "planned_at_ms": NOW - HOUR, "phase": Phase.TASKS}
    (finding,) = judged(process=Process.RUNNING, **known).findings
    assert finding.reason.endswith(": stuck in its tasks")


def _future(delay: int, pace: Pace | None) -> tuple[float | None, ...]:
    (part,) = behind(delay, pace=pace)
    found = outlook(part, LIMITS)
    return found.until_caught_up_ms, found.until_expiry_ms


def test_the_time_until_a_query_catches_up_or_loses_records() -> None:
    twice = Pace(backlog=HOUR, read=2, written=1)
    assert _future(HOUR, twice) == (HOUR, 23 * HOUR)
    assert _future(HOUR, replace(twice, read=4)) == (HOUR / 3, 23 * HOUR)
    assert _future(HOUR, replace(twice, read=0.5)) == (math.inf, 46 * HOUR)
    assert _future(HOUR, None) == (HOUR, 23 * HOUR)
    assert _future(MINUTE, replace(twice, read=0.5)) == (0, 24 * HOUR - MINUTE)


@pytest.mark.parametrize(
    ("delay", "pace", "verdict"),
    [
        (11 * HOUR, None, Verdict.BEHIND),
        (13 * HOUR, None, Verdict.LOSING),  # beyond half of the retention, as the alert has it
        (13 * HOUR, Pace(backlog=13, read=11, written=1), Verdict.BEHIND),
        (11 * HOUR, Pace(backlog=1, read=0.9, written=1), Verdict.BEHIND),  # as after a burst
        (13 * HOUR, Pace(backlog=1, read=0.9, written=1), Verdict.LOSING),
        (MINUTE, Pace(backlog=1, read=0.9, written=1), Verdict.OK),
        (25 * HOUR, Pace(backlog=0, read=10, written=1), Verdict.LOSING),
    ],
)
def test_losing(delay: int, pace: Pace | None, verdict: Verdict) -> None:
    assert judged(parts=behind(delay, pace=pace)).verdict is verdict


def test_the_pace_of_a_query_that_stands_is_a_past_one() -> None:
    late = behind(13 * HOUR, pace=Pace(backlog=13, read=11, written=1))
    assert judged(parts=late).verdict is Verdict.BEHIND
    hung = judged(parts=late, in_progress=8, planned_at_ms=NOW - HOUR)
    assert hung.verdict is Verdict.LOSING
    assert "how fast it reads is not known" in hung.findings[0].reason


def test_shards_of_other_workers_do_not_make_a_query_stuck() -> None:
    hour_old = {"committed_at_ms": NOW - HOUR, "planned_at_ms": NOW - HOUR}
    found = judged(parts=(*behind(0), *behind(HOUR, is_own=False)), **hour_old)
    assert (found.verdict, found.state) == (Verdict.BEHIND, State.WAITING)


def test_an_owner_that_was_not_seen_to_live_is_unknown() -> None:
    found = judged(parts=behind(0, reader=Reader.UNKNOWN))
    assert (found.verdict, found.not_read) == (Verdict.UNKNOWN, {})
    assert judged(parts=behind(0, reader=Reader.RENEWED)).verdict is Verdict.OK


def test_an_unknown_retention_is_no_loss() -> None:
    found = judged(parts=behind(100 * HOUR, retention_ms=None))
    assert (found.verdict, found.outlook.until_expiry_ms) == (Verdict.BEHIND, None)


def test_findings_of_the_reading_count() -> None:
    gone = Finding(verdict=Verdict.FAILED, reason="stream orders was deleted", remedy="-")
    assert judged(findings=(gone,)).verdict is Verdict.FAILED
    assert judged(parts=()).verdict is Verdict.UNKNOWN
